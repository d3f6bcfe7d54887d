"""`segcal data check`: finds what is wrong, draws what is there."""

import json
from pathlib import Path

import blosc2
import numpy as np
import pytest
import yaml

from segcal.data import (
    check_dataset,
    contact_sheet,
    open_dataset,
    plan_source,
    prepare,
)
from trees import acdc_tree, run_cli


@pytest.fixture
def out(tmp_path: Path) -> Path:
    prepare(plan_source("acdc", acdc_tree(tmp_path / "source")), tmp_path / "out")
    return tmp_path / "out"


def test_clean_set_and_its_summary(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, "data", "check", out) == 0
    text = capsys.readouterr().out
    for piece in ("6 of 3 patients", "class 3 LV", "spacing mm", "in 6 cases", "clean"):
        assert piece in text
    summary = dict(check_dataset(out).summary)
    assert summary["slices"] == "30"
    assert summary["shape (z, y, x)"] == "5 × 192 × 192"
    # 48 voxels of 1.5 mm over 224, and 40 of them.
    assert summary["spacing mm (z, y, x)"] == "10 × 0.321 × 0.268"
    fraction = np.mean([np.mean(case.label() == 3) for case in open_dataset(out)])
    assert summary["class 3 LV"] == f"{fraction:.2%} of voxels, in 6 cases"


def change_voxel(out: Path) -> str:
    path = out / "cases" / "patient001_frame01" / "image.b2nd"
    array = blosc2.open(str(path), mode="a")
    array[0, 0, 0, 0] = 9
    return "patient001_frame01: image was changed"


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


def spoil_case_json(out: Path) -> str:
    (out / "cases" / "patient001_frame01" / "case.json").write_text("{}")
    return "case.json: is not a case description"


def stray_case(out: Path) -> str:
    (out / "cases" / "patient999").mkdir()
    return "patient999: is not listed"


def part_a_patient(out: Path) -> str:
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
    return f"leaves out {gone}"


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
    return "label holds values that dataset.yaml does not name"


DAMAGE = (
    change_voxel,
    flip_bytes,
    cut_array,
    lose_array,
    lose_case_json,
    spoil_case_json,
    stray_case,
    part_a_patient,
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
    assert "clean" not in captured.out
    assert all(line.startswith("segcal: ") for line in captured.err.splitlines())


def test_duplicate_scans_are_reported_and_kept_together(tmp_path: Path) -> None:
    source = acdc_tree(tmp_path / "source", patients=8)
    for frame in ("01", "12"):
        image = (source / "patient004" / f"patient004_frame{frame}.nii.gz").read_bytes()
        (source / "patient008" / f"patient008_frame{frame}.nii.gz").write_bytes(image)
    for seed in range(2):
        report = prepare(plan_source("acdc", source), tmp_path / f"out{seed}", seed=seed)
        splits = report.dataset.splits
        assert splits.duplicates == (("patient004", "patient008"),)
        parts = [set(splits.train), set(splits.val), set(splits.test)]
        home = next(part for part in parts if "patient004_frame01" in part)
        assert {"patient008_frame01", "patient008_frame12", "patient004_frame12"} <= home
    checked = check_dataset(tmp_path / "out0")
    assert checked.problems == ()
    assert "patient004 = patient008" in dict(checked.summary)["identical scans"]


def test_contact_sheet_shows_images_and_contours(out: Path, tmp_path: Path) -> None:
    from matplotlib.image import imread

    dataset = open_dataset(out)
    assert contact_sheet(dataset, tmp_path / "sheet.png") == 6
    picture = imread(tmp_path / "sheet.png")[..., :3]
    grey = np.ptp(picture, axis=2) < 0.02
    assert 0.3 < grey.mean() < 1
    # The three contour colours, as in the legend.
    for colour in ((0xE6, 0x9F, 0x00), (0x56, 0xB4, 0xE9), (0x33, 0xCC, 0x66)):
        near = np.abs(picture - np.array(colour) / 255).max(axis=2) < 0.03
        assert near.sum() > 200
    assert contact_sheet(dataset, tmp_path / "few.png", limit=2, tile=64) == 2
    small = imread(tmp_path / "few.png")
    assert small.shape[0] < picture.shape[0]
    for name, value in (("tile", 2), ("limit", 0)):
        with pytest.raises(ValueError, match=f"`{name}`"):
            contact_sheet(dataset, tmp_path / "x.png", **{name: value})
