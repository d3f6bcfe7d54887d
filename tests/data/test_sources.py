"""Each source in its official layout, prepared by the paper's recipe and natively."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from scipy.ndimage import distance_transform_edt

from helpers.trees import acdc_tree, blob, brats_tree, flare_tree, folder_tree, msd_tree, save, scan
from segcal.core.errors import PathError
from segcal.data import (
    IGNORED,
    SOURCES,
    AcdcSource,
    FolderSource,
    MsdSource,
    PhantomSource,
    PreparedDataset,
    check_dataset,
    prepare,
    write_nifti,
)
from segcal.data.phantom import PhantomSpec, make_case
from segcal.data.store import encode_image, pack_case
from segcal.data.survey import find_cases

TREES = {
    "acdc": acdc_tree,
    "flare": flare_tree,
    "brats": brats_tree,
    "msd": msd_tree,
    "folder": folder_tree,
}


Prepared = Callable[..., tuple[Path, PreparedDataset]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """(source folder, prepared set) of a source and recipe, prepared once; do not change it."""

    @cache
    def make(kind: str, recipe: str | None = None) -> tuple[Path, PreparedDataset]:
        root = tmp_path_factory.mktemp(kind)
        source = TREES[kind](root / "source")
        dataset = prepare(SOURCES.get(kind)(source), root / "out", recipe=recipe).dataset
        assert check_dataset(root / "out").problems == ()
        return source, dataset

    return make


PAPER_SHAPES = {
    "acdc": {(3, 192, 192)},
    "flare": {(30, 192, 192)},
    "brats": {(128, 192, 192)},
    "msd": {(12, 64, 32)},
    "folder": {(6, 32, 32)},
}


@pytest.mark.parametrize("kind", TREES)
def test_default_recipe(kind: str, prepared: Prepared) -> None:
    _, dataset = prepared(kind)
    assert {case.shape for case in dataset} == PAPER_SHAPES[kind]
    for case in dataset:
        image, label = case.image(), case.label()
        assert image.shape == (len(dataset.info.channels), *case.shape)
        assert label.shape == case.shape
        assert set(np.unique(label)) - {IGNORED} == set(dataset.classes)
        assert np.isfinite(image).all()
        # Millimeter metrics need the spacing after resampling.
        before = np.array(case.grid.original_spacing_mm) * case.grid.original_shape
        after = np.array(case.spacing_mm) * case.grid.resized_shape
        np.testing.assert_allclose(before, after)


@pytest.mark.parametrize("kind", TREES)
def test_predictions_return_to_the_source_grid(
    kind: str, prepared: Prepared, tmp_path: Path
) -> None:
    """Label → prepared → back → file: same header, every voxel within half a voxel."""
    source, dataset = prepared(kind)
    files = find_cases(SOURCES.get(kind)(source))[0]
    case = next(iter(dataset))
    original = nib.load(files[case.name].files[-1])
    write_nifti(tmp_path / "back.nii.gz", case.grid.restore_labels(case.label()), case.grid)
    back = nib.load(tmp_path / "back.nii.gz")
    assert back.shape == original.shape
    np.testing.assert_allclose(back.affine, original.affine, atol=1e-5)
    np.testing.assert_allclose(back.header.get_zooms(), original.header.get_zooms(), rtol=1e-5)
    before, after = np.asanyarray(original.dataobj) > 0, np.asanyarray(back.dataobj) > 0
    if kind == "acdc":
        # 192 of 224: cropped voxels return as background.
        before = before.copy()
        after = after.copy()
        for mask in (before, after):
            mask[:4], mask[-4:], mask[:, :5], mask[:, -5:] = False, False, False, False
    step = np.maximum(1.0, np.array(case.grid.original_shape) / case.grid.resized_shape)[::-1]
    outside = distance_transform_edt(~before, sampling=1 / step)[after]
    inside = distance_transform_edt(~after, sampling=1 / step)[before]
    assert max(outside.max(), inside.max()) - 0.5 <= 0.5 + 1e-9


@pytest.mark.parametrize("kind", TREES)
def test_native_recipe_keeps_the_grid(kind: str, prepared: Prepared) -> None:
    _, dataset = prepared(kind, "native")
    for case in dataset:
        assert case.shape == case.grid.original_shape
        np.testing.assert_allclose(case.grid.stored_affine, case.grid.affine)


def test_brats_labels_regions_and_channels(prepared: Prepared) -> None:
    source, dataset = prepared("brats", "native")
    assert dataset.info.regions == {"TC": (1, 3), "ET": (3,), "WT": (1, 2, 3)}
    assert dataset.info.channels == ("FLAIR", "T1", "T1ce", "T2")
    case = dataset["BraTS19_X_0_1"]
    folder = source / "HGG" / case.name
    raw = np.asanyarray(nib.load(folder / f"{case.name}_seg.nii.gz").dataobj).T
    np.testing.assert_array_equal(case.label(), np.where(raw == 4, 3, raw))
    assert case.properties.notes == {"grade": "HGG"}
    for index, modality in enumerate(("flair", "t1", "t1ce", "t2")):
        raw = np.asanyarray(nib.load(folder / f"{case.name}_{modality}.nii.gz").dataobj).T
        inside = raw[raw != 0]
        expected = (raw - inside.mean()) / inside.std()
        np.testing.assert_allclose(case.image()[index], expected, atol=5e-3)


def test_flare_is_windowed_and_acdc_z_scored(prepared: Prepared) -> None:
    source, flare = prepared("flare", "native")
    case = next(iter(flare))
    raw = np.asanyarray(nib.load(source / "TrainingImg" / f"{case.name}_0000.nii.gz").dataobj).T
    np.testing.assert_allclose(case.image()[0], (np.clip(raw, -160, 240) + 160) / 400, atol=1e-3)
    record = case.properties.intensity[0]
    assert (record.low, record.high, record.shift, record.divisor) == (-160, 240, -160, 400)
    _, acdc = prepared("acdc", "native")
    case = next(iter(acdc))
    assert abs(case.image().mean()) < 1e-2
    assert abs(case.image().std() - 1) < 1e-2
    raw = (
        case.image()[0] * case.properties.intensity[0].divisor + case.properties.intensity[0].shift
    )
    np.testing.assert_allclose(raw.T, scan((40, 48, 3), 2), rtol=2e-3, atol=0.5)


def test_acdc_pairs_frames_of_a_patient(prepared: Prepared, tmp_path: Path) -> None:
    source, dataset = prepared("acdc")
    assert len(dataset) == 6
    case = dataset["patient002_frame12"]
    assert (case.patient, case.properties.notes) == ("patient002", {"phase": "ES"})
    # The folder that holds `training` works as well.
    (tmp_path / "training").symlink_to(source)
    assert len(find_cases(AcdcSource(tmp_path))[0]) == 6


def test_msd_with_and_without_description(prepared: Prepared, tmp_path: Path) -> None:
    _, described = prepared("msd", "native")
    assert described.info.channels == ("M0", "M1")
    assert described.classes == {0: "background", 1: "outer", 2: "inner"}
    msd_tree(tmp_path / "b" / "source", channels=1, described=False)
    source = tmp_path / "b" / "source"
    inferred = prepare(MsdSource(source), tmp_path / "b" / "out").dataset
    assert inferred.info.channels == ("channel 0",)
    assert inferred.classes == {0: "background", 1: "class 1", 2: "class 2"}
    named = MsdSource(source, classes="one, two").description
    assert named.classes == {0: "background", 1: "one", 2: "two"}


def test_modality_and_window_override_the_files(tmp_path: Path) -> None:
    source = msd_tree(tmp_path / "source", channels=1)
    ct = MsdSource(source, modality="ct", window=(-50.0, 300.0)).description.intensity
    assert (ct.kind, ct.low, ct.high) == ("window", -50.0, 300.0)
    assert MsdSource(source).description.intensity.kind == "zscore"
    content = json.loads((source / "dataset.json").read_text()) | {"modality": {"0": "CT"}}
    (source / "dataset.json").write_text(json.dumps(content))
    assert MsdSource(source).description.intensity.kind == "window"
    with pytest.raises(ValueError, match="`modality`"):
        MsdSource(source, modality="xray")
    for modality, window in (
        ("ct", (5.0, 5.0)),
        ("ct", (-np.inf, 5.0)),
        ("ct", (0.0, np.nan)),
        ("mr", (0.0, 5.0)),
    ):
        with pytest.raises(ValueError, match="`window`"):
            MsdSource(source, modality=modality, window=window)
    for names in ("a,", "a,a", "background", ""):
        with pytest.raises(ValueError, match="`classes`"):
            MsdSource(source, classes=names)


def test_nnunet_raw_layout(tmp_path: Path) -> None:
    source, shape = tmp_path / "Dataset007", (20, 22, 6)
    for name in ("a_1", "b_2"):
        for channel in range(2):
            path = source / "imagesTr" / f"{name}_{channel:04d}.nii.gz"
            save(path, scan(shape, channel + len(name)))
        save(source / "labelsTr" / f"{name}.nii.gz", blob(shape, (1, 2)))
    content = {
        "channel_names": {"0": "T1", "1": "T2"},
        "labels": {"background": 0, "whole": [1, 2], "core": 2},
        "file_ending": ".nii.gz",
    }
    (source / "dataset.json").write_text(json.dumps(content))
    dataset = prepare(FolderSource(source), tmp_path / "out", recipe="native").dataset
    assert dataset.info.cases == ("a_1", "b_2")
    assert dataset.info.channels == ("T1", "T2")
    assert dataset.classes == {0: "background", 1: "class 1", 2: "core"}
    assert dataset.info.regions == {"whole": (1, 2), "core": (2,)}
    np.testing.assert_allclose(dataset["a_1"].image()[1].mean(), 0, atol=1e-3)


def test_dataset_json_cannot_list_files_outside_the_folder(tmp_path: Path) -> None:
    source = msd_tree(tmp_path / "source", channels=1)
    content = json.loads((source / "dataset.json").read_text())
    content["training"][0]["image"] = "../../secret.nii.gz"
    (source / "dataset.json").write_text(json.dumps(content))
    assert "outside the folder" in problems(source, "msd")[0]


def test_uint8_keeps_half_a_step(tmp_path: Path) -> None:
    source = acdc_tree(tmp_path / "source", patients=1)
    fine = prepare(AcdcSource(source), tmp_path / "fine").dataset
    coarse = prepare(AcdcSource(source), tmp_path / "coarse", dtype="uint8").dataset
    for one, other in zip(fine, coarse, strict=True):
        assert other.stored("image").dtype == np.uint8
        step = other.properties.scale[0]
        difference = np.abs(one.image() - other.image())
        # All but the clipped ends; float16 has its own rounding.
        assert np.mean(difference > 0.5 * step + 4e-3) <= 0.0021
        np.testing.assert_array_equal(one.label(), other.label())
    assert fine.fingerprint != coarse.fingerprint


def test_values_that_cannot_be_stored_are_refused_by_name() -> None:
    spec = PhantomSpec(dims=2, size=32)
    case = replace(make_case(spec, 0), image=np.full((1, 1, 32, 32), 1e5, dtype=np.float32))
    with pytest.raises(PathError, match="phantom_0000: intensities up to 100000"):
        pack_case(case, "float16", {})
    with pytest.raises(PathError, match="phantom_0000: has a non-finite image"):
        pack_case(replace(case, image=case.image * np.inf), "uint8", {})
    with pytest.raises(ValueError, match="`dtype`"):
        encode_image(case.image, "float64")


def test_one_chunk_is_one_slice(prepared: Prepared) -> None:
    case = next(iter(prepared("brats", "native")[1]))
    _, y, x = case.shape
    assert case.stored("image").chunks == (4, 1, y, x)
    assert case.stored("label").chunks == (1, y, x)
    np.testing.assert_array_equal(case.image_slice(7), case.image()[:, 7])
    np.testing.assert_array_equal(case.label_slice(7), case.label()[7])


def nnunet_tree(root: Path, channels: dict[str, tuple[int, ...]]) -> Path:
    for name, numbers in channels.items():
        for number in numbers:
            save(root / "imagesTr" / f"{name}_{number:04d}.nii.gz", scan((20, 22, 6), number))
        save(root / "labelsTr" / f"{name}.nii.gz", blob((20, 22, 6), (1,)))
    return root


def problems(source: Path, kind: str = "folder") -> list[str]:
    return [str(problem) for problem in find_cases(SOURCES.get(kind)(source))[2]]


def test_channels_are_compared_by_number_not_by_count(tmp_path: Path) -> None:
    """Two files each, but T2 of one case would take the place of T1 of the other."""
    source = nnunet_tree(tmp_path, {"a": (0, 1), "b": (0, 2)})
    found = problems(nnunet_tree(tmp_path, {"c": (0, 1, 2)}))
    assert len(find_cases(FolderSource(source))[0]) == 1
    assert found[0].startswith(f"{tmp_path}/imagesTr/a_0002.nii.gz: is missing (channel 2 of 3)")
    assert found[1].startswith(f"{tmp_path}/imagesTr/b_0001.nii.gz: is missing (channel 1 of 3)")


def test_every_file_of_an_image_folder_is_used_or_reported(tmp_path: Path) -> None:
    source = folder_tree(tmp_path / "a")
    (source / "images" / "fall 0.nii.gz").rename(source / "images" / "fall 0.NII.GZ")
    (source / "labels" / "fall 2.nii.gz").rename(source / "labels" / "fall 2.NII.GZ")
    assert problems(source) == []
    assert len(find_cases(FolderSource(source))[0]) == 3
    (source / "images" / "fall 9.doc").write_text("")
    (source / "images" / ".DS_Store").write_text("")
    save(source / "images" / "fall 1.nii", scan((20, 24, 6), 5))
    save(source / "labels" / "fall 0.nii", blob((20, 24, 6), (1,)))
    found = problems(source)
    assert len(found) == 3
    for piece in (
        "fall 9.doc: is not an image",
        "is a second file named fall 1",
        "is a second file named fall 0",
    ):
        assert any(piece in line for line in found), piece
    channels = nnunet_tree(tmp_path / "b", {"a": (0, 1)})
    save(channels / "imagesTr" / "a_0001.nii", scan((20, 22, 6), 5))
    assert "is a second file named a_0001" in problems(channels)[0]
    for kind, tree, images in (("msd", msd_tree, "imagesTr"), ("flare", flare_tree, "TrainingImg")):
        source = tree(tmp_path / kind)
        (source / "dataset.json").unlink(missing_ok=True)
        (source / images / "more.doc").write_text("")
        assert "more.doc: is not an image" in problems(source, kind)[0]


def test_names_that_differ_in_capitals_only_are_refused(tmp_path: Path) -> None:
    for name in ("a", "A"):
        save(tmp_path / "images" / f"{name}.nii.gz", scan((20, 24, 6), 1))
        save(tmp_path / "labels" / f"{name}.nii.gz", blob((20, 24, 6), (1,)))
    assert "has the same case name as A" in problems(tmp_path)[0]


def test_links_to_files_outside_the_folder_are_followed(tmp_path: Path) -> None:
    source = msd_tree(tmp_path / "source", channels=1)
    path = source / "imagesTr" / "brain_000.nii.gz"
    path.rename(tmp_path / "elsewhere.nii.gz")
    path.symlink_to(tmp_path / "elsewhere.nii.gz")
    assert problems(source, "msd") == []
    assert len(prepare(MsdSource(source), tmp_path / "out").dataset) == 3


def test_small_variation_about_a_large_mean_is_kept(tmp_path: Path) -> None:
    values = scan((20, 24, 6), 0, np.float64)
    for name, shift in (("a", 0.0), ("b", 1e9)):
        save(tmp_path / "s" / "images" / f"{name}.nii.gz", values + shift)
        save(tmp_path / "s" / "labels" / f"{name}.nii.gz", blob((20, 24, 6), (1,)))
    dataset = prepare(FolderSource(tmp_path / "s"), tmp_path / "out").dataset
    np.testing.assert_allclose(dataset["a"].image(), dataset["b"].image(), atol=2e-3)


def test_decisions_about_a_header_are_noted(tmp_path: Path) -> None:
    for folder, array in (("images", scan((20, 24, 6), 0)), ("labels", blob((20, 24, 6), (1,)))):
        path = tmp_path / "s" / folder / "a.nii.gz"
        path.parent.mkdir(parents=True)
        image = nib.Nifti1Image(array, np.diag([-1.0, -1.0, 1.0, 1.0]))
        image.header["pixdim"][1:4] = (1.5, 1.5, 10)
        nib.save(image, path)
    case = prepare(FolderSource(tmp_path / "s"), tmp_path / "out").dataset["a"]
    assert case.spacing_mm == (10.0, 1.5, 1.5)
    assert case.properties.notes == {"spacing": "from pixdim; the affine is a placeholder"}


def test_numbered_names_are_not_channels_if_the_labels_have_them_too(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "images" / f"case_{number:04d}.nii.gz", scan((20, 24, 6), number))
        save(tmp_path / "labels" / f"case_{number:04d}.nii.gz", blob((20, 24, 6), (1,)))
    source = FolderSource(tmp_path)
    assert sorted(find_cases(source)[0]) == ["case_0000", "case_0001", "case_0002"]
    assert len(source.description.channels) == 1


def test_a_source_can_be_made_again(tmp_path: Path) -> None:
    """From what dataset.yaml stores; not if its class or its arguments cannot be stored."""
    source = FolderSource(folder_tree(tmp_path / "a"), modality="ct", window=(-10.0, 90.0))
    origin = source.origin()
    again = SOURCES.get(origin["source"])(**origin["arguments"])
    assert again.description == source.description
    assert Path(again.folder or "").is_absolute()
    assert list(again.cases()) == list(source.cases())
    assert AcdcSource(tmp_path).origin()["arguments"] == {"folder": str(tmp_path)}
    assert PhantomSource(cases=3, size=32).origin()["arguments"] == {"cases": 3, "size": 32}

    class Local(AcdcSource):
        pass

    assert Local(tmp_path).origin() == {}
