"""`segcal data check`: it finds every kind of damage, and draws the contact sheet."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest
import yaml

from helpers.trees import acdc_tree, blob, folder_tree, run_cli, save, scan
from segcal.core.errors import PathError
from segcal.data import (
    AcdcSource,
    FolderSource,
    check_dataset,
    open_dataset,
    prepare,
    write_contact_sheet,
)


@pytest.fixture(scope="module")
def prepared_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("check")
    prepare(AcdcSource(acdc_tree(root / "source", shape=(40, 48, 3))), root / "out")
    return root / "out"


@pytest.fixture
def out(prepared_once: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(prepared_once, tmp_path / "out"))


def test_summary_of_a_valid_set(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, "data", "check", out) == 0
    text = capsys.readouterr().out
    for piece in ("6 of 3 patients", "class 3 LV", "spacing mm", "in 6 cases", "no problems"):
        assert piece in text
    summary = dict(check_dataset(out).summary)
    assert summary["slices"] == "18"
    assert summary["shape (z, y, x)"] == "3 × 192 × 192"
    # 48 voxels of 1.5 mm over 224, and 40 of them.
    assert summary["spacing mm (z, y, x)"] == "10 × 0.321 × 0.268, resampled from 10 × 1.5 × 1.5"
    assert summary["orientation"].startswith("RAS")
    assert summary["train"] == "2 cases, 1 patient"
    fraction = np.mean([np.mean(case.label() == 3) for case in open_dataset(out)])
    assert summary["class 3 LV"] == f"{fraction:.2%} of voxels, in 6 cases"


def change_voxel(out: Path) -> str:
    path = out / "cases" / "patient001_frame01" / "image.b2nd"
    array = blosc2.open(str(path), mode="a")
    array[0, 0, 0, 0] = 9
    return "image.b2nd: holds other voxels"


def flip_bytes(out: Path) -> str:
    path = out / "cases" / "patient001_frame01" / "label.b2nd"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8] = b"\xff" * 8
    path.write_bytes(bytes(data))
    return "patient001_frame01"


def cut_array(out: Path) -> str:
    path = out / "cases" / "patient001_frame01" / "image.b2nd"
    path.write_bytes(path.read_bytes()[:100])
    return "image.b2nd: is not a readable array file"


def lose_array(out: Path) -> str:
    (out / "cases" / "patient001_frame01" / "image.b2nd").unlink()
    return "image.b2nd: cannot be read"


def lose_case_json(out: Path) -> str:
    (out / "cases" / "patient001_frame01" / "case.json").unlink()
    return "case.json: cannot be read"


def damage_case_json(out: Path) -> str:
    (out / "cases" / "patient001_frame01" / "case.json").write_text("{}")
    return "case.json: is not a case description"


def stray_case(out: Path) -> str:
    (out / "cases" / "patient999").mkdir()
    return "patient999: is not listed"


def split_a_patient(out: Path) -> str:
    path = out / "splits.json"
    content = json.loads(path.read_text())
    content["test"].append(content["train"].pop())
    path.write_text(json.dumps(content))
    return "shares its patient"


def forget_a_case(out: Path) -> str:
    path = out / "splits.json"
    content = json.loads(path.read_text())
    gone = content["train"].pop()
    path.write_text(json.dumps(content))
    return f"does not list case {gone}"


def lose_splits(out: Path) -> str:
    (out / "splits.json").unlink()
    return "splits.json: cannot be read"


def rename_a_class(out: Path) -> str:
    path = out / "dataset.yaml"
    content = yaml.safe_load(path.read_text())
    content["classes"][1] = "left ventricle"
    path.write_text(yaml.safe_dump(content))
    return "fingerprint"


def drop_a_class(out: Path) -> str:
    path = out / "dataset.yaml"
    content = yaml.safe_load(path.read_text())
    del content["classes"][3]
    path.write_text(yaml.safe_dump(content))
    return "fingerprint"


DAMAGE = (
    change_voxel,
    flip_bytes,
    cut_array,
    lose_array,
    lose_case_json,
    damage_case_json,
    stray_case,
    split_a_patient,
    forget_a_case,
    lose_splits,
    rename_a_class,
    drop_a_class,
)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
def test_damage_is_found(
    damage: object,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem = damage(out)  # type: ignore[operator]
    assert run_cli(monkeypatch, "data", "check", out) == 2
    captured = capsys.readouterr()
    assert problem in captured.err
    assert "no problems" not in captured.out
    assert all(line.startswith("segcal: ") for line in captured.err.splitlines())


CASE = "patient001_frame01"
CASE_EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "scale": lambda c: c["scale"].__setitem__(0, 2.0),
    "offset": lambda c: c["offset"].__setitem__(0, 1.0),
    "dtype": lambda c: c.update(dtype="uint8"),
    "patient": lambda c: c.update(patient="patient009"),
    "affine": lambda c: c["grid"]["affine"][0].__setitem__(3, 9.0),
    "start": lambda c: c["grid"]["start"].__setitem__(1, 3),
    "original spacing": lambda c: c["grid"]["original_spacing_mm"].__setitem__(0, 3.0),
    "spacing": lambda c: c["spacing_mm"].__setitem__(0, 3.0),
    "shift": lambda c: c["intensity"][0].update(shift=0.0),
    "voxels": lambda c: c["voxels"].update({"1": 5}),
    "range": lambda c: c["image_range"][0].__setitem__(0, -99.0),
    "scan": lambda c: c.update(voxels_sha256="0" * 64),
    "notes": lambda c: c["notes"].update(phase="ES"),
    "settings": lambda c: c["settings"].update(dtype="uint8"),
}
SET_EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "regions": lambda d: d["regions"].update(heart=[1, 2]),
    "channels": lambda d: d.update(channels=["CT"]),
    "truth": lambda d: d.update(has_truth=True),
    "dtype": lambda d: d.update(dtype="uint8"),
    "grid": lambda d: d["grid"].update(crop=[None, 64, 64]),
    "intensity": lambda d: d["intensity"].update(kind="window"),
}
SPLIT_EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "ghost": lambda s: s["folds"][0]["train"].append("unknown"),
    "lost from a fold": lambda s: s["folds"][0]["train"].pop(),
    "empty val": lambda s: s["folds"][0].update(
        train=s["folds"][0]["train"] + s["folds"][0]["val"], val=[]
    ),
    "duplicates": lambda s: s.update(duplicates=[["patient001", "patient002"]]),
}


@pytest.mark.parametrize("field", CASE_EDITS)
def test_a_changed_field_of_case_json_is_found(out: Path, field: str) -> None:
    path = out / "cases" / CASE / "case.json"
    content = json.loads(path.read_text())
    CASE_EDITS[field](content)
    path.write_text(json.dumps(content))
    assert check_dataset(out).problems


@pytest.mark.parametrize("field", SET_EDITS)
def test_a_changed_field_of_dataset_yaml_is_found(out: Path, field: str) -> None:
    content = yaml.safe_load((out / "dataset.yaml").read_text())
    SET_EDITS[field](content)
    (out / "dataset.yaml").write_text(yaml.safe_dump(content))
    assert check_dataset(out).problems


@pytest.mark.parametrize("field", SPLIT_EDITS)
def test_changed_folds_and_duplicates_are_found(out: Path, field: str) -> None:
    content = json.loads((out / "splits.json").read_text())
    SPLIT_EDITS[field](content)
    (out / "splits.json").write_text(json.dumps(content))
    assert any("splits.json" in problem for problem in check_dataset(out).problems)


def test_times_of_source_files_do_not_change_the_fingerprint(out: Path) -> None:
    path = out / "cases" / CASE / "case.json"
    content = json.loads(path.read_text())
    content["sources"][0]["mtime_ns"] += 1
    path.write_text(json.dumps(content))
    assert check_dataset(out).problems == ()


@pytest.mark.parametrize(
    ("codes", "affine", "differs"),
    [
        ("LAS", np.diag([-1.0, 1.0, 1.0, 1.0]), "left and right may differ"),
        ("SRA", np.eye(4)[:, [2, 0, 1, 3]], "the plane of the slices differs"),
    ],
)
def test_mixed_orientations_are_a_warning(
    tmp_path: Path, codes: str, affine: np.ndarray, differs: str
) -> None:
    source = folder_tree(tmp_path / "source")
    for folder, array in (("images", scan((20, 24, 6), 9)), ("labels", blob((20, 24, 6), (1,)))):
        save(source / folder / "fall 1.nii.gz", array, affine)
    prepare(FolderSource(source), tmp_path / "out")
    report = check_dataset(tmp_path / "out")
    assert report.problems == ()
    orientation = dict(report.summary)["orientation"]
    assert f"RAS in 2 cases, {codes} in 1 case" in orientation
    assert differs in orientation


def test_an_array_of_another_shape_is_refused_before_it_is_read(out: Path) -> None:
    path = out / "cases" / CASE / "image.b2nd"
    path.unlink()
    # A terabyte of zeros in a few bytes.
    blosc2.zeros((1, 10**6, 1000, 1000), dtype=np.uint8, urlpath=str(path))
    assert "image has shape (1, 1000000, 1000, 1000)" in check_dataset(out).problems[0]


def test_damaged_bytes_are_reported_with_the_case(out: Path) -> None:
    """Eight bytes anywhere in the file: either no voxel changes or the case is named."""
    path = out / "cases" / CASE / "image.b2nd"
    good = path.read_bytes()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        data = bytearray(good)
        at = int(rng.integers(0, len(data) - 8))
        data[at : at + 8] = rng.bytes(8)
        path.write_bytes(bytes(data))
        for problem in check_dataset(out).problems:
            assert CASE in problem


def test_reading_a_damaged_chunk_names_the_file(out: Path) -> None:
    path = out / "cases" / CASE / "image.b2nd"
    data = bytearray(path.read_bytes())
    data[200:-200] = bytes(len(data) - 400)
    path.write_bytes(bytes(data))
    with pytest.raises(PathError, match=r"image\.b2nd"):
        open_dataset(out)[CASE].image()


def test_figure_shows_the_valid_cases_of_a_damaged_set(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = cut_array(out)
    sheet = tmp_path / "sheet.png"
    assert run_cli(monkeypatch, "data", "check", out, "--figure", sheet) == 2
    captured = capsys.readouterr()
    assert problem in captured.err
    assert f"{sheet} (5 cases)" in captured.out
    assert sheet.is_file()
    nowhere = sheet / "below_a_file.png"
    assert run_cli(monkeypatch, "data", "check", out, "--figure", nowhere) == 2
    captured = capsys.readouterr()
    assert problem in captured.err
    assert f"segcal: {nowhere}: cannot be written" in captured.err
    assert "--figure" in captured.err


def test_duplicate_scans_are_reported_and_kept_together(tmp_path: Path) -> None:
    source = acdc_tree(tmp_path / "source", patients=8, shape=(40, 48, 2))
    for frame in ("01", "12"):
        image = (source / "patient004" / f"patient004_frame{frame}.nii.gz").read_bytes()
        (source / "patient008" / f"patient008_frame{frame}.nii.gz").write_bytes(image)
    for seed in range(2):
        report = prepare(AcdcSource(source), tmp_path / f"out{seed}", seed=seed)
        splits = report.dataset.splits
        assert splits.duplicates == (("patient004", "patient008"),)
        parts = [set(splits.train), set(splits.val), set(splits.test)]
        home = next(part for part in parts if "patient004_frame01" in part)
        assert {"patient008_frame01", "patient008_frame12", "patient004_frame12"} <= home
    checked = check_dataset(tmp_path / "out0")
    assert checked.problems == ()
    assert "patient004 = patient008" in dict(checked.summary)["identical scans"]


def test_contact_sheet_shows_images_and_contours(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.image import imread

    dataset = open_dataset(out)
    assert write_contact_sheet(dataset, tmp_path / "sheet.png") == 6
    picture = imread(tmp_path / "sheet.png")[..., :3]
    gray = np.ptp(picture, axis=2) < 0.02
    assert 0.3 < gray.mean() < 1
    # The three contour colors, as in the legend.
    for color in ((0xE6, 0x9F, 0x00), (0x56, 0xB4, 0xE9), (0x33, 0xCC, 0x66)):
        near = np.abs(picture - np.array(color) / 255).max(axis=2) < 0.03
        assert near.sum() > 200
    monkeypatch.setattr(sys.modules["segcal.data.contact_sheet"], "MAX_CASES", 2)
    assert write_contact_sheet(dataset, tmp_path / "few.png") == 2
    assert imread(tmp_path / "few.png").size < picture.size
    with pytest.raises(ValueError, match="`cases`"):
        write_contact_sheet(dataset, tmp_path / "x.png", cases=())
