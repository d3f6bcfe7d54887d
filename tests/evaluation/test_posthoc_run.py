"""`train --posthoc`: the calibrator of a run, which evaluate and predict use by default."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.runs import phantom, settings
from helpers.trees import run_cli, save, scan
from segcal.config import to_yaml
from segcal.core.errors import PathError
from segcal.evaluation import calibration_of, evaluate_run, predict_volumes
from segcal.evaluation.posthoc_choice import choose
from segcal.evaluation.posthoc_verdict import MIN_UNITS
from segcal.posthoc import load_calibrator
from segcal.study import read_run


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("posthoc")
    data = phantom(folder / "data", cases=20, size=32, slices=4)
    path = folder / "config.yaml"
    path.write_text(to_yaml(settings(data, epochs=3, optimizer={"lr": 0.03})))
    return path


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    out = config.parent / "run"
    with pytest.MonkeyPatch.context() as patch:
        command = ("train", "--config", config, "--out", out, "--posthoc", "temperature")
        assert run_cli(patch, *command) == 0
    return out


@pytest.fixture
def images(tmp_path: Path) -> Path:
    save(tmp_path / "in" / "a.nii.gz", scan((32, 32, 4), 3), np.diag([1.5, 1.5, 5, 1]))
    return tmp_path / "in"


def test_evaluate_and_predict_use_it(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert read_run(run).config.posthoc == "temperature"
    temperature = load_calibrator(run / "calibrator_temperature.json").params()["temperature"]
    found, raw = evaluate_run(run), evaluate_run(run, raw=True)
    assert found.info.calibrator is not None
    assert found.info.calibrator["params"]["temperature"] == temperature
    assert (found.folder, raw.folder) == (run / "calibrated" / "temperature", run)
    assert raw.info.calibrator is None
    assert found.means("all")["nll"] != raw.means("all")["nll"]
    for name, more, state in (
        ("default", (), "calibrated by temperature"), ("raw", ("--raw",), "not calibrated"),
    ):  # fmt: skip
        capsys.readouterr()
        out = tmp_path / name
        assert run_cli(monkeypatch, "predict", run, "--input", images, "--out", out, *more) == 0
        assert capsys.readouterr().out.rstrip().endswith(state)
    named = predict_volumes([run], images, tmp_path / "named", calibrator="temperature")
    assert named.calibrator == "temperature"
    both = [(tmp_path / n / "a_probs.nii.gz").read_bytes() for n in ("default", "named", "raw")]
    assert both[0] == both[1] != both[2]


def test_a_fit_on_few_cases_is_reported(run: Path, images: Path, tmp_path: Path) -> None:
    """With the number of cases; a calibrator that is kept is used silently."""
    copy, lines = Path(shutil.copytree(run, tmp_path / "run")), list[str]()
    cases = len(read_run(copy).info.cases["val"])
    assert cases < MIN_UNITS
    predict_volumes([copy], images, tmp_path / "a", calibrator="vector", warn=lines.append)
    (line,) = (line for line in lines if "vector" in line)
    assert f"{cases} validation cases: too few" in line
    found = list[str]()
    evaluate_run(copy, calibrator="vector", say=found.append)
    assert not any("vector" in line for line in found)


def test_auto_that_chooses_none_is_reported_as_such(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file holds a temperature of 1, which was not fitted."""
    copy, lines = Path(shutil.copytree(run, tmp_path / "run")), list[str]()
    monkeypatch.setattr(
        "segcal.evaluation.posthoc_fit.choose", lambda *args: replace(choose(*args), method="none")
    )
    found = evaluate_run(copy, calibrator="auto", say=lines.append)
    assert (found.folder, found.info.method) == (copy / "calibrated" / "none", "nacl+none")
    (line,) = (line for line in lines if "validation case" in line)
    assert "“none”" in line
    assert "temperature" not in line
    assert predict_volumes([copy], images, tmp_path / "a", calibrator="auto").calibrator is None
    assert calibration_of(tmp_path / "a") == ""


def test_a_killed_fit_is_repeated_by_resume(
    run: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    known = (copy / "calibrator_temperature.json").read_bytes()
    (copy / "calibrator_temperature.json").unlink()  # as if it was killed before the fit ended
    weights = (copy / "best.pt").read_bytes()
    assert run_cli(monkeypatch, "train", "--resume", "--out", copy) == 0
    assert (copy / "calibrator_temperature.json").read_bytes() == known
    assert (copy / "best.pt").read_bytes() == weights
    assert run_cli(monkeypatch, "train", "--resume", "--out", copy) == 0
    assert "is up to date" in capsys.readouterr().out
    # Another method, without training again.
    assert run_cli(monkeypatch, "train", "--resume", "--out", copy, "--posthoc", "auto") == 0
    assert "auto" in load_calibrator(copy / "calibrator_auto.json").about
    assert (copy / "best.pt").read_bytes() == weights
    assert read_run(copy).config.posthoc == "auto"


def test_folds_share_an_out_of_fold_calibrator(
    config: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "cv"
    command = ("train", "--config", config, "--out", out, "--folds", "0,1", "--epochs", "1")
    assert run_cli(monkeypatch, *command, "--posthoc", "temperature") == 0
    fitted = load_calibrator(out / "calibrator_temperature.json")
    cases = [read_run(out / f"fold{k}").info.cases["val"] for k in (0, 1)]
    assert list(fitted.about["cases"]) == [*cases[0], *cases[1]]
    # --folds of the training is not that of a cross-validation.
    assert "--folds" not in capsys.readouterr().out
    assert predict_volumes([out], images, tmp_path / "a").calibrator == "temperature"
    lines: list[str] = []
    two = predict_volumes([out / "fold0", out / "fold1"], images, tmp_path / "b", warn=lines.append)
    assert two.calibrator is None
    assert any("no common calibrator" in line for line in lines)


def test_a_calibrator_file_that_does_not_exist(run: Path, tmp_path: Path) -> None:
    with pytest.raises(PathError, match=r"typo\.json: does not exist"):
        evaluate_run(run, calibrator=tmp_path / "typo.json")


def test_refused_before_the_training(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    command = ("train", "--config", config, "--out", out, "--posthoc", "temprature")
    assert run_cli(monkeypatch, *command) == 2
    assert not out.exists()
