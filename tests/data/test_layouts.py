"""Layouts of folders: names of labels, one mask per class, BraTS, FLARE, nnU-Net, unknown files."""

import json
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
import pytest

from helpers.trees import blob, oblique, run_cli, save, scan
from segcal.core.errors import PathError
from segcal.data import (
    BratsSource,
    FileCase,
    FlareSource,
    FolderSource,
    MsdSource,
    PreparedDataset,
    find_images,
    prepare,
)
from segcal.data.formats import describe_content
from segcal.data.survey import find_cases

SHAPE = (20, 22, 6)
LABELS = blob(SHAPE, (1, 2))
AFFINE = oblique((1.0, 1.2, 3.0))


def native(source: FolderSource, out: Path) -> PreparedDataset:
    return prepare(source, out, recipe="native").dataset


def image(path: Path, seed: int = 0) -> Path:
    return save(path, scan(SHAPE, seed), AFFINE)


def cases(source: object) -> dict[str, FileCase]:
    found, _, problems = find_cases(source)  # type: ignore[arg-type]
    assert problems == []
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("ending", ["_gt", "_seg", "_label", "_labels", "_mask", "_GT", "-seg"])
def test_names_of_labels(tmp_path: Path, ending: str) -> None:
    """Beside the images or in labels/; `predict` skips the same files."""
    for name in ("a", "b_mask_old"):
        image(tmp_path / "flat" / f"{name}.nii.gz")
        image(tmp_path / "pair" / "images" / f"{name}.nii.gz")
        for folder in (tmp_path / "flat", tmp_path / "pair" / "labels"):
            save(folder / f"{name}{ending}.nii.gz", LABELS, AFFINE)
    for root in (tmp_path / "flat", tmp_path / "pair"):
        assert set(cases(FolderSource(root))) == {"a", "b_mask_old"}
    lines: list[str] = []
    assert set(find_images(tmp_path / "flat", ["MR"], lines.append)) == {"a", "b_mask_old"}
    assert len(lines) == 1
    assert lines[0].startswith("2 label maps skipped")
    save(tmp_path / "flat" / "a_gt.nii.gz", LABELS, AFFINE)
    save(tmp_path / "flat" / "a_label.nii.gz", LABELS, AFFINE)
    assert "is a second label map" in str(find_cases(FolderSource(tmp_path / "flat"))[2][0])


def test_cine_files_are_skipped(tmp_path: Path) -> None:
    image(tmp_path / "p" / "frame.nii.gz")
    save(tmp_path / "p" / "4d.nii.gz", scan((*SHAPE, 3), 1), AFFINE)
    lines: list[str] = []
    assert set(find_images(tmp_path, ["MR"], lines.append)) == {"frame"}
    assert "1 files with several time frames" in lines[0]
    # All channels in one file: what a network with three channels needs.
    assert set(find_images(tmp_path, ["a", "b", "c"], lines.append)) == {"frame", "4d"}


@pytest.mark.parametrize("layout", ["folder", "prefix", "totalsegmentator"])
def test_one_mask_per_class(tmp_path: Path, layout: str) -> None:
    masks = {
        "folder": "labels/{case}/{name}.nii.gz",
        "prefix": "labels/{case}_{name}.nii.gz",
        "totalsegmentator": "{case}/segmentations/{name}.nii.gz",
    }[layout]
    source = tmp_path / "s"
    for case in ("x", "x_2"):
        where = f"{case}/ct.nii.gz" if layout == "totalsegmentator" else f"images/{case}.nii.gz"
        image(source / where)
        for value, name in ((2, "kidney_left"), (1, "liver")):
            mask = (value == LABELS).astype(np.uint8) * 255
            save(source / masks.format(case=case, name=name), mask, AFFINE)
    dataset = native(FolderSource(source), tmp_path / "all")
    assert dataset.classes == {0: "background", 1: "kidney_left", 2: "liver"}
    for case in dataset:
        np.testing.assert_array_equal(case.label().T, np.array([0, 2, 1])[LABELS])
    # The order of --classes decides the numbers; others are left out.
    chosen = native(FolderSource(source, classes="liver"), tmp_path / "one")
    np.testing.assert_array_equal(chosen["x"].label().T, LABELS == 1)
    overlap = source / masks.format(case="x_2", name="liver")
    save(overlap, (LABELS > 0).astype(np.uint8), AFFINE)
    with pytest.raises(PathError, match=r"liver\.nii\.gz: overlaps .*kidney_left\.nii\.gz in") as e:
        native(FolderSource(source), tmp_path / "bad")
    assert e.value.path == overlap
    save(overlap, LABELS, AFFINE)
    with pytest.raises(PathError, match="several labels"):
        native(FolderSource(source, classes="liver"), tmp_path / "several")
    overlap.unlink()
    with pytest.raises(PathError, match="has no mask of liver"):
        native(FolderSource(source), tmp_path / "bad")


def test_image_and_labels_in_one_file(tmp_path: Path) -> None:
    source = tmp_path / "s"
    source.mkdir()
    for number in range(2):
        with h5py.File(source / f"slice_{number}.h5", "w") as file:
            file["image"] = scan(SHAPE, number).T[2]
            file["label"] = LABELS.T[2]
            file["scribble"] = 2 - LABELS.T[2]
    dataset = native(FolderSource(source), tmp_path / "out")
    np.testing.assert_array_equal(dataset["slice_1"].label()[0], LABELS.T[2])
    other = native(FolderSource(source, arrays="image,scribble"), tmp_path / "other")
    np.testing.assert_array_equal(other["slice_1"].label()[0], 2 - LABELS.T[2])
    with pytest.raises(PathError, match="another arrays"):
        native(FolderSource(source), tmp_path / "other")
    for wrong in ("image", "image,"):
        with pytest.raises(ValueError, match="--arrays"):
            FolderSource(source, arrays=wrong)
    with pytest.raises(PathError, match="no array named 'truth' \\(it holds image, label"):
        native(FolderSource(source, arrays="image,truth"), tmp_path / "none")


def test_a_single_4d_image_is_blamed_itself(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        image(tmp_path / "images" / f"{name}.nii.gz")
        save(tmp_path / "labels" / f"{name}.nii.gz", LABELS, AFFINE)
    for name in ("a", "c"):
        save(tmp_path / "images" / f"{name}.nii.gz", scan((*SHAPE, 4), 0), AFFINE)
        with pytest.raises(PathError, match="has 4 channels where the data set has 1") as caught:
            native(FolderSource(tmp_path), tmp_path.with_name(f"out_{name}"))
        assert caught.value.path.name == f"{name}.nii.gz"
        image(tmp_path / "images" / f"{name}.nii.gz")


BRATS = {
    "20": ("BraTS20_Training_001", "_", ("flair", "t1", "t1ce", "t2"), ".nii", (1, 2, 4)),
    "21": ("BraTS2021_00000", "_", ("flair", "t1", "t1ce", "t2"), ".nii.gz", (1, 2, 4)),
    "23": ("BraTS-GLI-00000-000", "-", ("t2f", "t1n", "t1c", "t2w"), ".nii.gz", (1, 2, 3)),
}


@pytest.mark.parametrize("year", BRATS)
def test_brats_of_every_year(tmp_path: Path, year: str) -> None:
    name, separator, parts, ending, labels = BRATS[year]
    folder = tmp_path / "s" / name
    for number, part in enumerate(parts):
        image(folder / f"{name}{separator}{part}{ending}", number)
    drawn = blob(SHAPE, labels)
    save(folder / f"{name}{separator}seg{ending}", drawn, AFFINE)
    dataset = native(BratsSource(tmp_path / "s"), tmp_path / "out")
    (case,) = dataset
    assert dataset.info.channels == ("FLAIR", "T1", "T1ce", "T2")
    assert case.patient == ("BraTS-GLI-00000" if year == "23" else name)
    np.testing.assert_array_equal(case.label().T, blob(SHAPE, (1, 2, 3)))
    # An incomplete set: one of its channels, whatever the files call it.
    for part in parts[1:]:
        (folder / f"{name}{separator}{part}{ending}").unlink()
    one = native(BratsSource(tmp_path / "s", channels="flair"), tmp_path / "flair")
    assert one.info.channels == ("FLAIR",)
    np.testing.assert_array_equal(one[name].image()[0], case.image()[0])
    with pytest.raises(ValueError, match="--channels"):
        BratsSource(tmp_path / "s", channels="flare")


def test_brats_does_not_advise_options_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "BraTS20_Training_001"
    image(tmp_path / "s" / name / f"{name}_flair.nii.gz")
    save(tmp_path / "s" / name / f"{name}_seg.nii.gz", blob(SHAPE, (1, 3)), AFFINE)
    command = ("prepare", "brats", "--source", tmp_path / "s", "--out", tmp_path / "out")
    assert run_cli(monkeypatch, *command, "--channels", "FLAIR") == 2
    shown = capsys.readouterr().err
    assert "holds label 3, outside the list 0, 1, 2, 4" in shown
    assert "--classes" not in shown


@pytest.mark.parametrize("folders", [("images", "labels"), ("imagesTr", "labelsTr")])
def test_flare_22(tmp_path: Path, folders: tuple[str, str]) -> None:
    name = "FLARE22_Tr_0001"
    save(tmp_path / "s" / folders[0] / f"{name}_0000.nii.gz", scan(SHAPE, 0) - 400, AFFINE)
    labels = (np.arange(np.prod(SHAPE)).reshape(SHAPE) % 14).astype(np.uint8)
    save(tmp_path / "s" / folders[1] / f"{name}.nii.gz", labels, AFFINE)
    dataset = native(FlareSource(tmp_path / "s"), tmp_path / "out")
    assert len(dataset.classes) == 14
    assert (dataset.classes[2], dataset.classes[13]) == ("right kidney", "left kidney")
    np.testing.assert_array_equal(dataset[name].label().T, labels)


@pytest.mark.parametrize("ending", [".nii.gz", ".nrrd", ".tif"])
@pytest.mark.parametrize("kind", [FolderSource, MsdSource])
def test_nnunet_raw(tmp_path: Path, ending: str, kind: type[FolderSource]) -> None:
    """dataset.json of nnU-Net v2: channel names, file ending, and a label to ignore."""
    from helpers.image_files import write_as

    root, form = tmp_path / "Dataset027_ACDC", ending[1:]
    drawn = LABELS.copy()
    drawn[:3] = 3
    for channel in range(2):
        values = scan(SHAPE, channel, np.uint8).T
        write_as(form, root / "imagesTr" / f"x_{channel:04d}", values, AFFINE, "image")
    write_as(form, root / "labelsTr" / "x", drawn.T, AFFINE, "label")
    content = {
        "channel_names": {"0": "T1", "1": "T2"},
        "labels": {"background": 0, "outer": 1, "inner": 2, "ignore": 3},
        "numTraining": 1,
        "file_ending": ending,
    }
    (root / "dataset.json").write_text(json.dumps(content))
    dataset = native(kind(root), tmp_path / "out")
    assert dataset.info.channels == ("T1", "T2")
    assert dataset.classes == {0: "background", 1: "outer", 2: "inner"}
    label = dataset["x"].label().T
    np.testing.assert_array_equal(label[3:], LABELS[3:])
    assert (label[:3] == 255).all()


def test_unsupported_files_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("flat", "pair/images", "pair/labels"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("a.mat", "b.mat", "c.par"):
            (tmp_path / folder / name).write_text("x")
    for folder in ("flat", "pair"):
        command = ("prepare", "folder", "--source", tmp_path / folder, "--out", tmp_path / "out")
        assert run_cli(monkeypatch, *command) == 2
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1
        assert "found 2 .mat, 1 .par; supported are NIfTI, NRRD" in shown
    with pytest.raises(PathError, match=r"found 2 \.mat, 1 \.par"):
        find_images(tmp_path / "flat", ["MR"])


def test_labels_may_have_any_format(tmp_path: Path) -> None:
    """A NIfTI image with an .npy label has the geometry of the image."""
    image(tmp_path / "s" / "images" / "a.nii.gz")
    (tmp_path / "s" / "labels").mkdir()
    np.save(tmp_path / "s" / "labels" / "a.npy", LABELS.T)
    dataset = native(FolderSource(tmp_path / "s"), tmp_path / "out")
    np.testing.assert_array_equal(dataset["a"].label().T, LABELS)
    np.testing.assert_allclose(
        dataset["a"].grid.affine, nib.load(tmp_path / "s/images/a.nii.gz").affine
    )


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_swapped_images_and_labels_are_suspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dtype: type
) -> None:
    values = (np.random.default_rng(0).normal(size=(4, 24, 24)) * 900).astype(dtype)
    for name in ("a", "b", "c"):
        save(tmp_path / "in" / "images" / f"{name}.nii.gz", (values > 0).astype(np.uint8), AFFINE)
        save(tmp_path / "in" / "labels" / f"{name}.nii.gz", values, AFFINE)
    command = ("prepare", "folder", "--source", tmp_path / "in", "--out", tmp_path / "out")
    assert run_cli(monkeypatch, *command) == 2
    shown = capsys.readouterr().err
    assert "images and labels swapped" in shown
    assert len(shown) < 500


@pytest.mark.parametrize("part", ["imagesTr", "labelsTr"])
def test_a_part_of_a_data_set_refers_to_the_whole(tmp_path: Path, part: str) -> None:
    for folder in ("imagesTr", "labelsTr"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.nii.gz").write_text("")
    with pytest.raises(PathError, match=f"{part}: .*give {tmp_path} to --source"):
        prepare(FolderSource(tmp_path / part), tmp_path / "out")


def test_double_endings_are_named(tmp_path: Path) -> None:
    for name in ("a.nii.gz", "b.1.nii.gz", "c.gz", "d.nii"):
        (tmp_path / name).write_text("")
    assert "found 2 .nii.gz, 1 .gz, 1 .nii;" in describe_content(tmp_path)
