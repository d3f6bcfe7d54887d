"""The options for a user's own folder: labels, masks, patients, groups, splits, spacing, values."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from helpers.trees import acdc_tree, blob, folder_tree, run_cli, save, scan
from segcal.core.errors import PathError
from segcal.data import (
    IGNORED,
    AcdcSource,
    FolderSource,
    PreparedDataset,
    check_dataset,
    find_copies,
    open_dataset,
    prepare,
)
from segcal.data.contact_sheet import COLORS
from segcal.data.splits import find_duplicates, leaks
from segcal.evaluation.case_metrics import PredictedCase, evaluate_predicted_case
from segcal.metrics import CaseOptions
from segcal.training.validate import Validator

SHAPE = (20, 24, 6)


def labeled(root: Path, *values: tuple[int, ...]) -> Path:
    """A folder with one case for each tuple of labels; case 0 has those of `values[0]`."""
    for number, labels in enumerate(values):
        save(root / "images" / f"c{number}.nii.gz", scan(SHAPE, number))
        save(root / "labels" / f"c{number}.nii.gz", blob(SHAPE, labels, np.int16))
    return root


def named(root: Path, *names: str) -> Path:
    """A folder with cases of these names."""
    for number, name in enumerate(names):
        save(root / "images" / f"{name}.nii.gz", scan(SHAPE, number))
        save(root / "labels" / f"{name}.nii.gz", blob(SHAPE, (1,)))
    return root


def labels_of(dataset: PreparedDataset) -> set[int]:
    return {int(v) for case in dataset for v in np.unique(case.label())}


@pytest.mark.parametrize(
    ("labels", "options", "proposed"),
    [
        ([(255,), ()], {}, "255=1"),
        ([(255,), ()], {"classes": "tumor"}, "255=1"),
        ([(1, 4), (2,)], {}, "4=3"),
        ([(85,), (170, 255)], {}, "85=1,170=2,255=3"),
        ([(1000,), (1,)], {}, "1000=2"),
        ([(3,), (1, 7)], {"ignore_label": 7}, "3=2"),
        ([(3,), (1, 9)], {"map": "9=5"}, "3=2,9=3"),
    ],
)
def test_gaps_are_an_error_whose_remedy_works(
    labels: list[tuple[int, ...]], options: dict[str, Any], proposed: str, tmp_path: Path
) -> None:
    source = labeled(tmp_path / "source", *labels)
    with pytest.raises(PathError, match=r"labels of the data set are") as error:
        prepare(FolderSource(source, **options), tmp_path / "out", recipe="native")
    assert f"--map {proposed}" in error.value.remedy
    changed = FolderSource(source, **options | {"map": proposed})
    dataset = prepare(changed, tmp_path / "out", recipe="native").dataset
    found = labels_of(dataset) - {IGNORED}
    assert found == set(range(len(found))) == set(dataset.classes)


def test_maps_and_ignored_labels(tmp_path: Path) -> None:
    source = labeled(tmp_path / "source", (1, 2, 3))
    plain = prepare(FolderSource(source), tmp_path / "plain", recipe="native").dataset["c0"].label()
    options = FolderSource(source, map="3=1, 2=0", ignore_label=1)
    dataset = prepare(options, tmp_path / "out", recipe="native").dataset
    expected = np.select([plain == 1, plain == 3], [IGNORED, 1], 0)
    np.testing.assert_array_equal(dataset["c0"].label(), expected)
    assert dataset.num_classes == 2
    for text in ("3", "3=x", "1=300", "a=1"):
        with pytest.raises(ValueError, match="`map`"):
            FolderSource(source, map=text)
    save(source / "labels" / "c0.nii.gz", blob(SHAPE, (1, -1), np.int16))
    below = prepare(FolderSource(source, ignore_label=-1), tmp_path / "below", recipe="native")
    np.testing.assert_array_equal(np.unique(below.dataset["c0"].label()), [0, 1, IGNORED])
    save(source / "labels" / "c0.nii.gz", blob(SHAPE, (1, 2, 3)))
    # nnU-Net states the ignored label in dataset.json.
    names = {"background": 0, "a": 1, "b": 2, "ignore": 3}
    content = {"channel_names": {"0": "MR"}, "labels": names}
    (source / "dataset.json").write_text(json.dumps(content))
    told = prepare(FolderSource(source), tmp_path / "told", recipe="native").dataset
    assert told.num_classes == 3
    np.testing.assert_array_equal(told["c0"].label() == IGNORED, plain == 3)


def test_field_of_view_masks(tmp_path: Path) -> None:
    source = labeled(tmp_path / "source", (1,), (1,))
    inside = np.zeros(SHAPE, np.uint8)
    inside[5:] = 255
    for name in ("c0", "c1"):
        save(tmp_path / "masks" / f"{name}.nii.gz", inside)
    options = FolderSource(source, mask=tmp_path / "masks")
    dataset = prepare(options, tmp_path / "out", recipe="native").dataset
    ignored = dataset["c0"].label() == IGNORED
    assert ignored.any(axis=(0, 1)).tolist() == [True] * 5 + [False] * 15
    save(tmp_path / "masks" / "c1.nii.gz", inside[1:])
    with pytest.raises(PathError, match=r"c1\.nii\.gz: has shape"):
        prepare(options, tmp_path / "other", recipe="native")
    (tmp_path / "masks" / "c1.nii.gz").unlink()
    with pytest.raises(PathError, match=r"c1\.nii\.gz: is missing"):
        FolderSource(source, mask=tmp_path / "masks")


@pytest.mark.parametrize("form", ["csv", "json"])
def test_partially_labeled_cases(form: str, tmp_path: Path) -> None:
    source, table = labeled(tmp_path / "source", (1, 2), (1,), (2,)), tmp_path / f"table.{form}"
    table.write_text(
        json.dumps({"c1": ["a"], "c0": [1, 2]})
        if form == "json"
        else "case,classes\nc1,a\nc0,a;2\n"
    )
    options = FolderSource(source, classes="a,b", annotated=table)
    dataset = prepare(options, tmp_path / "out", recipe="native").dataset
    assert [case.properties.annotated for case in dataset] == [None, (1,), None]
    assert [set(np.unique(case.label())) for case in dataset] == [{0, 1, 2}, {1, IGNORED}, {0, 2}]
    assert check_dataset(dataset.root).problems == ()
    case = dataset["c1"]
    probs = np.full((3, *case.shape), 1 / 3)
    predicted = PredictedCase("c1", probs, case.target(), (1.0,) * 3, annotated=(1,))
    result, _ = evaluate_predicted_case(
        predicted, {}, {"a": (1,), "b": (2,), "both": (1, 2)}, CaseOptions()
    )
    dsc = {row.label: row.value for row in result.rows if row.metric == "dsc"}
    assert not math.isnan(dsc["a"])
    assert math.isnan(dsc["b"])
    assert math.isnan(dsc["both"])
    validator = Validator(
        list(dataset), 3, groups={"a": (1,), "b": (2,)}, device=torch.device("cpu"), batch_size=4
    )
    scores = validator.score(nn.Conv2d(1, 3, 1)) or []
    assert [math.isnan(score.dsc["b"]) for score in scores] == [False, True, False]
    table.write_text('{"c2": ["a"]}' if form == "json" else "case,classes\nc2,a\n")
    with pytest.raises(PathError, match="holds label 2"):
        prepare(
            FolderSource(source, classes="a,b", annotated=table), tmp_path / "x", recipe="native"
        )
    table.write_text('{"c9": ["a"]}' if form == "json" else "case,classes\nc9,a\n")
    with pytest.raises(PathError, match="unknown case c9"):
        FolderSource(source, classes="a,b", annotated=table)


@pytest.mark.parametrize(
    "names",
    [
        ("patient001_frame01", "patient001_frame12", "patient002_frame01"),
        ("SC-HF-I-01-ED", "SC-HF-I-01-ES"),
        ("LIDC-IDRI-0006_n0", "LIDC-IDRI-0006_n1"),
        ("sub-03_ses-1", "sub-03_ses-2"),
    ],
)
def test_several_scans_of_a_patient_need_an_answer(names: tuple[str, ...], tmp_path: Path) -> None:
    source = named(tmp_path / "source", *names)
    with pytest.raises(PathError, match="look like scans of one patient") as error:
        FolderSource(source)
    pattern = error.value.remedy.split("'")[1]
    cases = list(FolderSource(source, patient=pattern).cases())
    assert len({case.patient for case in cases}) == len(cases) - 1
    each = FolderSource(source, patient_per_case=True).cases()
    assert len({case.patient for case in each}) == len(cases)


@pytest.mark.parametrize(
    "names", [("brain_001", "brain_002"), ("BraTS19_2013_0_1", "BraTS19_2013_17_1"), ("7", "8")]
)
def test_numbered_cases_are_patients(names: tuple[str, ...], tmp_path: Path) -> None:
    cases = FolderSource(named(tmp_path, *names)).cases()
    assert {case.patient for case in cases} == set(names)


def test_patients_decide_the_splits(tmp_path: Path) -> None:
    names = [f"p{p}_t{t}" for p in range(6) for t in range(3)]
    source = named(tmp_path / "source", *names)
    report = prepare(FolderSource(source, patient=r"(p\d)_"), tmp_path / "out")
    assert len({case.patient for case in report.dataset}) == 6
    assert check_dataset(report.dataset.root).problems == ()
    assert {len(getattr(report.dataset.splits, part)) % 3 for part in ("train", "val", "test")} == {
        0
    }
    # Another answer to the same question prepares the cases again.
    again = prepare(FolderSource(source, patient_per_case=True), tmp_path / "out")
    assert len({case.patient for case in again.dataset}) == 18
    for pattern in ("(", "q"):
        with pytest.raises(ValueError, match="--patient"):
            FolderSource(source, patient=pattern)


def test_splits_from_files(tmp_path: Path) -> None:
    source = FolderSource(named(tmp_path / "source", *"abcdefgh"))
    own = {"train": ["a", "b", "c"], "val": ["d"], "test": ["e", "f", "g", "h"]}
    nnunet = [{"train": ["b", "c"], "val": ["a"]}, {"train": ["a", "b"], "val": ["c"]}]
    files = {
        "own.json": json.dumps(own),
        "splits_final.json": json.dumps(nnunet),
        "parts.csv": "case;part\n" + "".join(f"{c};Train\n" for c in "abcdef") + "g;test\nh;test\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    made = {
        name: prepare(source, tmp_path / name[:-5], splits=tmp_path / name).dataset
        for name in files
    }
    assert made["own.json"].splits.train == ("a", "b", "c")
    assert made["own.json"].splits.val == ("d",)
    splits = made["splits_final.json"].splits
    assert (splits.train, splits.val, splits.test) == (("b", "c"), ("a",), tuple("defgh"))
    assert [fold.val for fold in splits.folds] == [("a",), ("c",)]
    splits = made["parts.csv"].splits
    assert splits.test == ("g", "h")
    assert sorted(splits.train + splits.val) == list("abcdef")
    assert len(splits.val) == 1
    assert check_dataset(made["parts.csv"].root).problems == ()
    for text, problem in (
        ("case,part\nz,test\n", "unknown case z"),
        ("case,part\na,test\n", "does not list the case b and 6 more"),
        ("case,part\na,best\n", "part 'best'"),
        ("name,part\na,test\n", "columns name, part"),
        ("", "columns none"),
    ):
        (tmp_path / "parts.csv").write_text(text)
        with pytest.raises(PathError, match=problem):
            prepare(source, tmp_path / "bad", splits=tmp_path / "parts.csv")
    with pytest.raises(PathError, match="cannot be read"):
        prepare(source, tmp_path / "bad", splits=tmp_path / "none.json")
    assert not (tmp_path / "bad").exists()


def test_parts_by_patient_and_leaks(tmp_path: Path) -> None:
    source = FolderSource(
        named(tmp_path / "source", "p1_a", "p1_b", "p2_a", "p3_a"), patient=r"p\d"
    )
    table = tmp_path / "parts.csv"
    table.write_text("patient,part\np1,test\np2,train\np3,val\n")
    splits = prepare(source, tmp_path / "out", splits=table).dataset.splits
    assert (splits.train, splits.val, splits.test) == (("p2_a",), ("p3_a",), ("p1_a", "p1_b"))
    table.write_text("case,part\np1_a,test\np1_b,train\np2_a,train\np3_a,val\n")
    with pytest.raises(ValueError, match="share a patient"):
        prepare(source, tmp_path / "leak", splits=table)
    assert not (tmp_path / "leak").exists()
    table.write_text("case,part\np1_a,test\np1_b,test\np2_a,train\np3_a,excluded\n")
    assert prepare(source, tmp_path / "less", splits=table).dataset.splits.excluded == ("p3_a",)


def test_edited_splits_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = named(tmp_path / "source", *"abcdef"), tmp_path / "out"
    command = ("prepare", "folder", "--source", folder, "--out", out, "--workers", 1)
    assert run_cli(monkeypatch, *command) == 0
    path = out / "splits.json"
    first = path.read_text()
    assert run_cli(monkeypatch, *command, "--seed", 1) == 0
    assert path.read_text() != first
    content = json.loads(first) | {"train": list("ab"), "val": ["c"], "test": list("def")}
    path.write_text(json.dumps(content | {"folds": []}))
    capsys.readouterr()
    named(folder, *"abcdefg")
    assert run_cli(monkeypatch, *command) == 0
    text = capsys.readouterr().out
    assert open_dataset(out).splits.train == ("a", "b")
    assert f"{path} was edited by hand and is kept" in text
    assert f"{path} has no part for g; " in text
    # Other parts, explicitly requested, do not replace the user's.
    assert run_cli(monkeypatch, *command, "--all-test") == 2
    assert "remove it" in capsys.readouterr().err
    assert open_dataset(out).splits.train == ("a", "b")
    path.unlink()
    assert run_cli(monkeypatch, *command, "--all-test") == 0
    splits = open_dataset(out).splits
    assert (splits.train, splits.val, splits.folds) == ((), (), ())
    assert splits.test == tuple("abcdefg")
    assert check_dataset(out).problems == ()
    # The choice stays when the command is repeated without it.
    assert run_cli(monkeypatch, *command) == 0
    assert open_dataset(out).splits.test == tuple("abcdefg")


def test_official_test_folders(tmp_path: Path) -> None:
    root = tmp_path / "acdc"
    acdc_tree(root / "training", patients=6)
    acdc_tree(tmp_path / "more", patients=2)
    for old, new in (("patient001", "patient101"), ("patient002", "patient102")):
        folder = root / "testing" / new
        folder.mkdir(parents=True)
        for path in (tmp_path / "more" / old).iterdir():
            path.rename(folder / path.name.replace(old, new))
    # A test scan that is also in training: ACDC has one.
    affine = np.diag([1.5, 1.5, 10.0, 1.0])
    for frame in ("01", "12"):
        path = root / "testing" / "patient102" / f"patient102_frame{frame}.nii.gz"
        save(path, scan((40, 48, 3), 70 + int(frame)), affine)
    report = prepare(AcdcSource(root), tmp_path / "out")
    splits = report.dataset.splits
    assert splits.test == tuple(f"patient10{p}_frame{f}" for p in (1, 2) for f in ("01", "12"))
    assert splits.excluded == ("patient001_frame01", "patient001_frame12")
    assert len(splits.train) + len(splits.val) == 10
    patient_of = {c.name: c.patient for c in report.cases}
    assert leaks(splits, patient_of, {c.name: c.voxels_sha256 for c in report.cases}) == []
    assert find_duplicates((c.patient, c.voxels_sha256) for c in report.cases)
    assert check_dataset(tmp_path / "out").problems == ()
    nnunet = named(tmp_path / "nnunet", "a", "b", "c")
    (nnunet / "images").rename(nnunet / "imagesTr")
    (nnunet / "labels").rename(nnunet / "labelsTr")
    save(nnunet / "imagesTs" / "t.nii.gz", scan(SHAPE, 9))
    save(nnunet / "labelsTs" / "t.nii.gz", blob(SHAPE, (1,)))
    assert prepare(FolderSource(nnunet), tmp_path / "out2").dataset.splits.test == ("t",)


def test_groups(tmp_path: Path) -> None:
    root = acdc_tree(tmp_path / "acdc", patients=4)
    info = root / "patient002" / "Info.cfg"
    info.write_text(info.read_text().replace("NOR", "DCM"))
    dataset = prepare(AcdcSource(root), tmp_path / "out", leave_out_group="DCM").dataset
    assert [case.group for case in dataset] == ["NOR"] * 2 + ["DCM"] * 2 + ["NOR"] * 4
    assert dataset.splits.test == ("patient002_frame01", "patient002_frame12")
    table = tmp_path / "sites.csv"
    table.write_text(
        "patient,site,age\n" + "".join(f"patient00{p},s{p % 2},50\n" for p in range(9))
    )
    other = prepare(AcdcSource(root), tmp_path / "sites", group=f"{table}:site").dataset
    assert {case.name[:10]: case.group for case in other} == {
        f"patient00{p}": f"s{p % 2}" for p in range(1, 5)
    }
    assert other.fingerprint == dataset.fingerprint
    with pytest.raises(PathError, match="columns patient, site, age"):
        prepare(AcdcSource(root), tmp_path / "x", group=str(table))
    with pytest.raises(ValueError, match="one of DCM, NOR"):
        prepare(AcdcSource(root), tmp_path / "x", leave_out_group="HCM")
    table.write_text("patient,site\npatient001,a\n")
    with pytest.raises(PathError, match="no group for case patient002"):
        prepare(AcdcSource(root), tmp_path / "x", group=str(table))


def test_common_spacing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for number, mm in enumerate((1.0, 1.5, 3.0)):
        affine = np.diag([mm, mm, 4.0, 1.0])
        save(source / "images" / f"c{number}.nii.gz", scan(SHAPE, number), affine)
        save(source / "labels" / f"c{number}.nii.gz", blob(SHAPE, (1,)), affine)
    median = prepare(FolderSource(source), tmp_path / "median")
    assert [case.grid.resized_shape for case in median.dataset] == [
        (6, 16, 13), (6, 24, 20), (6, 48, 40)
    ]  # fmt: skip
    for case in median.dataset:
        np.testing.assert_allclose(case.spacing_mm, (4.0, 1.5, 1.5), rtol=0.03)
    assert any("resampled from 4 × 1–3 × 1–3" in line for line in median.lines())
    fixed = prepare(FolderSource(source, spacing="8,3,3"), tmp_path / "fixed").dataset
    assert fixed["c2"].grid.resized_shape == (3, 24, 20)
    native = prepare(FolderSource(source, spacing="native"), tmp_path / "native").dataset
    assert {case.grid.resized_shape for case in native} == {(6, 24, 20)}
    for dataset in (median.dataset, fixed, native):
        assert check_dataset(dataset.root).problems == ()
    for text in ("1,2", "a,b,c", "0,1,1", "inf,1,1", "mean"):
        with pytest.raises(ValueError, match="`spacing`"):
            FolderSource(source, spacing=text)
    with pytest.raises(ValueError, match="`spacing`"):
        prepare(FolderSource(source, spacing="1,1,1"), tmp_path / "x", recipe="native")


def test_ct_asks_for_the_modality(tmp_path: Path) -> None:
    source = labeled(tmp_path / "source", (1,), (1,))
    save(source / "images" / "c1.nii.gz", scan(SHAPE, 1) - 1000)
    with pytest.raises(PathError, match=r"c1\.nii\.gz: holds values down to -\d+, as in CT"):
        prepare(FolderSource(source), tmp_path / "out")
    assert prepare(FolderSource(source, modality="mr"), tmp_path / "mr").written == 2
    assert prepare(
        FolderSource(source, modality="ct", window=(-900, 1200)), tmp_path / "out"
    ).written


def test_normalization_over_nonzero_voxels(tmp_path: Path) -> None:
    source = labeled(tmp_path / "source", (1,))
    image = scan(SHAPE, 0)
    image[:10] = 0
    save(source / "images" / "c0.nii.gz", image)
    found = {}
    for name in ("all", "nonzero"):
        options = FolderSource(source, normalize=name)
        found[name] = prepare(options, tmp_path / name, recipe="native").dataset["c0"].image()
    inside = found["nonzero"][0, :, :, 10:]
    assert abs(inside.mean()) < 1e-3
    assert abs(inside.std() - 1) < 1e-3
    assert found["all"][0, :, :, 10:].mean() > 0.5
    with pytest.raises(ValueError, match="`normalize`"):
        FolderSource(source, normalize="some")


def test_one_extreme_voxel_does_not_flatten_the_image(tmp_path: Path) -> None:
    source = labeled(tmp_path / "source", (1,), (1,))
    image = scan(SHAPE, 1)
    image[3, 4, 5] = 1e30
    save(source / "images" / "c1.nii.gz", image)
    report = prepare(FolderSource(source), tmp_path / "out", recipe="native")
    voxels = report.dataset["c1"].image()
    # The voxel itself is limited to three times the range of the others.
    assert 3 < voxels.max() < 10
    assert np.delete(voxels.ravel(), voxels.argmax()).std() == pytest.approx(1, abs=0.05)
    warned = [line for line in report.lines() if "clipped" in line]
    assert len(warned) == 1
    assert "c1" in warned[0]


def test_warnings_and_copies_between_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder_tree(tmp_path / "source", cases=22)
    affine = np.diag([-1.0, 1.0, 1.0, 1.0])
    save(source / "images" / "fall 1.nii.gz", scan(SHAPE, 1), affine)
    save(source / "labels" / "fall 1.nii.gz", blob(SHAPE, (1,)), affine)
    one = prepare(FolderSource(source, classes="a,b"), tmp_path / "one")
    text = "\n".join(one.lines())
    assert "RAS in 21 cases, LAS in 1 case" in text
    assert "no case has class 2 b" in text
    prepare(FolderSource(source, classes="a,b"), tmp_path / "two", dtype="uint8")
    assert run_cli(monkeypatch, "data", "check", tmp_path / "one", tmp_path / "two") == 0
    every = capsys.readouterr().out.splitlines()
    assert len([line for line in every if "same scan" in line]) == 19
    assert every[-1].split() == ["check", "22", "warnings"]
    reports = {p: check_dataset(p) for p in (tmp_path / "one", tmp_path / "two")}
    assert len(find_copies(reports)) == 22


def test_32_colors_differ() -> None:
    assert len(set(COLORS)) == 32
