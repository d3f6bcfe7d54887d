"""Invalid data on the command line: one line that names the file, exit code 2, no output."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.trees import (
    acdc_tree,
    blob,
    brats_tree,
    flare_tree,
    folder_tree,
    msd_tree,
    run_cli,
    save,
    scan,
)
from segcal.data import open_dataset

Damage = Callable[[Path], Path]
SHAPE = (40, 48, 3)
AFFINE = np.diag([1.5, 1.5, 10.0, 1.0])


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return acdc_tree(tmp_path_factory.mktemp("bad") / "source")


def frame(root: Path, ending: str = "") -> Path:
    return root / "patient002" / f"patient002_frame01{ending}.nii.gz"


def truncated(root: Path) -> Path:
    path = frame(root)
    path.write_bytes(path.read_bytes()[:-200])
    return path


def not_nifti(root: Path) -> Path:
    frame(root).write_text("404 not found\n" * 50)
    return frame(root)


def missing_mask(root: Path) -> Path:
    frame(root, "_gt").unlink()
    return frame(root, "_gt")


def missing_frame(root: Path) -> Path:
    frame(root).unlink()
    return frame(root)


def other_shape(root: Path) -> Path:
    return save(frame(root, "_gt"), blob((40, 48, 2), (1, 2, 3)), AFFINE)


def other_affine(root: Path) -> Path:
    moved = AFFINE.copy()
    moved[0, 3] = 12
    return save(frame(root, "_gt"), blob(SHAPE, (1, 2, 3)), moved)


def unknown_label(root: Path) -> Path:
    return save(frame(root, "_gt"), blob(SHAPE, (1, 2, 7)), AFFINE)


def negative_label(root: Path) -> Path:
    return save(frame(root, "_gt"), blob(SHAPE, (1, 2, -1), np.int16), AFFINE)


def fraction_label(root: Path) -> Path:
    return save(frame(root, "_gt"), blob(SHAPE, (1, 2, 2.5), np.float32), AFFINE)


def nan_image(root: Path) -> Path:
    image = scan(SHAPE, 1)
    image[0, 0, 0] = np.nan
    return save(frame(root), image, AFFINE)


def constant_image(root: Path) -> Path:
    return save(frame(root), np.full(SHAPE, 3.0), AFFINE)


def no_info(root: Path) -> Path:
    path = root / "patient002" / "Info.cfg"
    path.unlink()
    return path


def wrong_info(root: Path) -> Path:
    path = root / "patient002" / "Info.cfg"
    path.write_text("ED: one\n")
    return path


DAMAGES = {
    truncated: "truncated",
    not_nifti: "not a single-file NIfTI",
    missing_mask: "missing (the mask of the ED frame)",
    missing_frame: "missing (the ED frame)",
    other_shape: "has shape",
    other_affine: "12 mm away",
    unknown_label: "label 7, outside the list 0, 1, 2, 3",
    negative_label: "label -1, outside",
    fraction_label: "not whole numbers (such as 2.5)",
    nan_image: "1 NaN",
    constant_image: "constant (3)",
    no_info: "cannot be read",
    wrong_info: "no line 'ED: frame'",
}


def one_error_line(captured: Any) -> str:
    lines = [line for line in captured.err.splitlines() if line.startswith("segcal: ")]
    assert len(lines) == 1, captured.err
    assert "Traceback" not in captured.err
    return lines[0]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda s: s.__name__)
def test_an_invalid_case_stops_the_run_unless_keep_going(
    damage: Damage,
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = Path(shutil.copytree(tree, tmp_path / "source")), tmp_path / "out"
    path = damage(source)
    command = ("prepare", "acdc", "--source", source, "--out", out, "--workers", 1)
    command += ("--recipe", "native")
    assert run_cli(monkeypatch, *command) == 2
    line = one_error_line(capsys.readouterr())
    assert line.startswith(f"segcal: {path}: ")
    assert DAMAGES[damage] in line
    assert not (out / "dataset.yaml").exists()
    # Complete cases are allowed, nothing else.
    for folder in (out / "cases").glob("*"):
        assert {p.name for p in folder.iterdir()} == {"image.b2nd", "label.b2nd", "case.json"}

    assert run_cli(monkeypatch, *command, "--keep-going") == 0
    captured = capsys.readouterr()
    assert f"skipped: {path}: " in captured.err
    dataset = open_dataset(out)
    assert "patient002_frame01" not in dataset.info.cases
    assert {case.patient for case in dataset} >= {"patient001", "patient003"}
    assert len(dataset.info.skipped) == 1
    assert run_cli(monkeypatch, "data", "check", out) == 0


def test_missing_modality_and_flare_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    brats = brats_tree(tmp_path / "brats")
    gone = brats / "HGG" / "BraTS19_X_0_1" / "BraTS19_X_0_1_t1ce.nii.gz"
    gone.unlink()
    assert run_cli(monkeypatch, "prepare", "brats", "--source", brats, "--out", tmp_path / "b") == 2
    assert f"{gone}: is missing (the t1ce image)" in one_error_line(capsys.readouterr())
    assert not (tmp_path / "b").exists()
    flare = flare_tree(tmp_path / "flare")
    gone = flare / "TrainingMask" / "train_001.nii.gz"
    gone.unlink()
    assert run_cli(monkeypatch, "prepare", "flare", "--source", flare, "--out", tmp_path / "f") == 2
    assert f"{gone}: is missing" in one_error_line(capsys.readouterr())


def test_missing_channel_file_and_label_without_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, shape = tmp_path / "raw", (20, 22, 6)
    for name, channels in (("a", 2), ("b", 1)):
        for channel in range(channels):
            save(source / "imagesTr" / f"{name}_{channel:04d}.nii.gz", scan(shape, channel))
        save(source / "labelsTr" / f"{name}.nii.gz", blob(shape, (1,)))
    assert (
        run_cli(monkeypatch, "prepare", "folder", "--source", source, "--out", tmp_path / "o") == 2
    )
    assert "b_0001.nii.gz: is missing (channel 1 of 2)" in one_error_line(capsys.readouterr())
    plain = folder_tree(tmp_path / "plain")
    (plain / "images" / "fall 1.nii.gz").unlink()
    assert (
        run_cli(monkeypatch, "prepare", "folder", "--source", plain, "--out", tmp_path / "p") == 2
    )
    assert "labels/fall 1.nii.gz: has no image" in one_error_line(capsys.readouterr())


@pytest.mark.parametrize("kind", ["acdc", "flare", "brats", "msd", "folder"])
def test_zero_cases_and_no_folder(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("imagesTr", "labelsTr", "TrainingImg", "TrainingMask", "HGG"):
        (tmp_path / "empty" / name).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for source, problem in (
        ("empty", "holds no cases"),
        ("absent", "does not exist"),
        ("file", "is a file, not a folder"),
    ):
        command = ("prepare", kind, "--source", tmp_path / source, "--out", tmp_path / "out")
        assert run_cli(monkeypatch, *command) == 2
        line = one_error_line(capsys.readouterr())
        assert line.startswith(f"segcal: {tmp_path / source}: {problem}")
        assert not (tmp_path / "out").exists()


def test_unreadable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = acdc_tree(tmp_path / "source", patients=1)
    source.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            # Root may read everything; use another user id for a moment.
            os.seteuid(65534)
        code = run_cli(monkeypatch, "prepare", "acdc", "--source", source, "--out", tmp_path / "o")
    finally:
        if root:
            os.seteuid(0)
        source.chmod(0o755)
    assert code == 2
    assert f"{source}: cannot be read (Permission denied)" in one_error_line(capsys.readouterr())


def test_invalid_dataset_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = msd_tree(tmp_path / "source")
    path = source / "dataset.json"
    good = json.loads(path.read_text())
    for text in (
        "{",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps(good | {"labels": {"0": "background", "999": "x"}}),
        json.dumps(good | {"training": [{"image": "imagesTr/none.nii.gz", "label": "x"}]}),
    ):
        path.write_text(text)
        command = ("prepare", "msd", "--source", source, "--out", tmp_path / "out")
        assert run_cli(monkeypatch, *command) == 2
        assert f"{source}" in one_error_line(capsys.readouterr())
        assert not (tmp_path / "out").exists()


def test_invalid_arguments_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder_tree(tmp_path / "source")
    command = ("prepare", "folder", "--source", source, "--out", tmp_path / "out")
    for extra, problem in (
        (("--recipe", "paded"), "Did you mean 'padded'?"),
        (("--dtype", "float32"), "'float16', 'uint8'"),
        (("--modality", "ctt"), "Did you mean 'ct'?"),
        (("--workers", "-1"), "workers"),
        (("--seed", "-1"), "seed"),
        (("--folds", "1"), "folds"),
        (("--window", "0", "100"), "--modality ct"),
        (("--classes", "a,,b"), "classes"),
        (("--classes", "a,a"), "classes"),
    ):
        assert run_cli(monkeypatch, *command, *extra) == 2
        assert problem in one_error_line(capsys.readouterr())
        assert not (tmp_path / "out").exists()
    # A folder with other content is not changed.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    command = ("prepare", "folder", "--source", source, "--out", tmp_path / "mine")
    assert run_cli(monkeypatch, *command) == 2
    assert "holds other files (thesis.txt)" in one_error_line(capsys.readouterr())
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    phantom = ("prepare", "phantom", "--out", tmp_path / "out", "--dims", 2, "--slices", 8)
    assert run_cli(monkeypatch, *phantom) == 2
    assert "slices" in one_error_line(capsys.readouterr())


def test_paths_with_spaces_and_unicode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder_tree(tmp_path / "Daten für Zoë 数据")
    out, sheet = tmp_path / "out put é", tmp_path / "sheet ü.png"
    assert (
        run_cli(monkeypatch, "prepare", "folder", "--source", source, "--out", out, "--workers", 1)
        == 0
    )
    assert run_cli(monkeypatch, "data", "check", out, "--figure", sheet) == 0
    assert "no problems" in capsys.readouterr().out
    assert open_dataset(out).info.name == source.name
    assert sheet.read_bytes().startswith(b"\x89PNG")
    assert open_dataset(out)["fall 1"].image().shape == (1, 6, 32, 32)
