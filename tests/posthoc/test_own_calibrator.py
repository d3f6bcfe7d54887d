"""A user's calibrator: by import path, registered name and entry point, in Python and in files."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.posthoc_samples import calibrated
from helpers.softmax_files import write_labels, write_predictions
from segcal.cli import app
from segcal.core.errors import PathError
from segcal.posthoc import CALIBRATORS, Calibrator, load_calibrator, make_calibrator

PATH = "own_calibrators:PriorShift"
MODULE = '''
import numpy as np
from segcal.posthoc import Calibrator


class PriorShift(Calibrator):
    """Shift the logit of each class so that its mean probability approaches its frequency."""

    def __init__(self, strength=1.0):
        super().__init__()
        self.strength = strength

    def estimate(self, voxels):
        expected, observed = np.zeros(voxels.num_classes), np.ones(voxels.num_classes)
        for rows, labels, weights in voxels.blocks():
            expected += np.exp(rows) @ weights
            observed += np.bincount(labels, weights, minlength=voxels.num_classes)
        self.shift = self.strength * np.log(observed / expected)

    def transform_rows(self, rows):
        return rows + self.shift[:, None]

    def params(self):
        return {"shift": self.shift.tolist()}

    def set_params(self, params):
        self.shift = np.array(params["shift"], dtype=float)


called = []


def not_a_calibrator(**options):
    called.append(options)
'''
ENTRY_POINTS = f"[segcal.calibrators]\nprior_shift = {PATH}\nbroken = own_calibrators:called\n"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`own_calibrators`, importable."""
    folder = tmp_path / "importable"
    folder.mkdir()
    (folder / "own_calibrators.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    import own_calibrators

    yield own_calibrators
    del sys.modules["own_calibrators"]


def shifted() -> tuple[np.ndarray, np.ndarray]:
    logits, target = calibrated((20_000,), seed=1)
    return logits + np.array([[1.0], [0.0], [-1.0]]), target


def test_fit_transform_and_report() -> None:
    logits, target = shifted()
    fitted = make_calibrator(PATH).fit([(logits, target)])
    frequency = np.bincount(target) / len(target)
    before = np.exp(logits) / np.exp(logits).sum(0)
    after = fitted.transform(logits)
    error_before, error_after = (np.abs(p.mean(1) - frequency).max() for p in (before, after))
    assert error_after < 0.5 * error_before
    report = fitted.report
    assert report is not None
    own = before[target, np.arange(len(target))]
    assert report.nll_before == pytest.approx(-np.log(own).mean())
    own = after[target, np.arange(len(target))]
    assert report.nll_after == pytest.approx(-np.log(own).mean())
    assert report.nll_after < report.nll_before
    weak = make_calibrator(PATH, strength=0.5).fit([(logits, target)])
    np.testing.assert_allclose(np.array(weak.params()["shift"]) * 2, fitted.params()["shift"])
    with pytest.raises(ValueError, match=r"has no option 'wings'. Options: strength"):
        make_calibrator(PATH, wings=2)


def test_files_store_the_import_path(tmp_path: Path) -> None:
    logits, target = shifted()
    fitted = make_calibrator(PATH, strength=0.5).fit([(logits, target)])
    file = tmp_path / "own.json"
    fitted.save(file)
    content = json.loads(file.read_text())
    assert content["method"] == PATH
    assert content["options"] == {"strength": 0.5}
    again = load_calibrator(file)
    assert type(again) is type(fitted)
    np.testing.assert_array_equal(again.transform(logits), fitted.transform(logits))


def test_files_store_the_registered_name(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CALIBRATORS, "_objects", dict(CALIBRATORS._objects))
    CALIBRATORS.register("mine", module.PriorShift)
    assert {"temperature", "vector", "dirichlet", "matrix", "mine"} <= set(CALIBRATORS)
    make_calibrator("mine").fit([shifted()]).save(tmp_path / "own.json")
    assert json.loads((tmp_path / "own.json").read_text())["method"] == "mine"
    assert isinstance(load_calibrator(tmp_path / "own.json"), module.PriorShift)


def test_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "importable" / "own-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.delitem(CALIBRATORS.__dict__, "_entry_points", raising=False)
    try:
        assert "prior_shift" in CALIBRATORS
        assert type(make_calibrator("prior_shift")).__name__ == "PriorShift"
        with pytest.raises(ValueError, match=r"must be a subclass of segcal\.posthoc\.Calibrator"):
            make_calibrator("broken")
        with pytest.raises(ValueError, match="Did you mean 'prior_shift'"):
            make_calibrator("prior_shft")
    finally:
        CALIBRATORS.__dict__.pop("_entry_points", None)


@pytest.mark.parametrize("name", ["own_calibrators:not_a_calibrator", "os:getcwd", "nowhere:X", 3])
def test_a_file_cannot_call_anything_else(tmp_path: Path, module: Any, name: object) -> None:
    file = tmp_path / "own.json"
    make_calibrator(PATH).fit([shifted()]).save(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), "method": name}))
    with pytest.raises(PathError, match="is damaged"):
        load_calibrator(file)
    assert module.called == []


def test_a_local_class_cannot_be_saved(tmp_path: Path, module: Any) -> None:
    class Local(module.PriorShift):  # type: ignore[misc]
        pass

    fitted: Calibrator = Local().fit([shifted()])
    with pytest.raises(ValueError, match="top level of an importable module"):
        fitted.save(tmp_path / "own.json")
    assert not (tmp_path / "own.json").exists()


def test_in_a_plan(tmp_path: Path) -> None:
    from segcal.benchmark.plan import load_plan

    plan = {
        "datasets": {"a": {"path": "a"}},
        "methods": {"ce": {"loss": "ce"}},
        "posthoc": ["temperature", PATH],
    }
    file = tmp_path / "plan.yaml"
    file.write_text(json.dumps(plan))
    assert list(load_plan(file).method_groups) == ["ce", "ce+temperature", "ce+PriorShift"]
    file.write_text(json.dumps({**plan, "posthoc": ["own_calibrators:called"]}))
    with pytest.raises(ValueError, match="must be a subclass"):
        load_plan(file)


def test_on_the_command_line(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels")
    probs = write_predictions(tmp_path / "probs", "npy")
    file, out = tmp_path / "own.json", tmp_path / "out"

    def run(*arguments: object) -> str:
        done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    fit = ("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--method", PATH)
    output = run(*fit, "--set", "strength=0.5", "--folds", 2)
    assert f"{PATH} fitted on 6 cases" in output
    assert f"{PATH} may change labels" in output
    assert load_calibrator(file).options() == {"strength": 0.5}
    run("apply", file, "--probs", probs, "--out", out)
    values = np.load(probs / "case_000.npy")
    wanted = load_calibrator(file).transform(values, from_probs=True)
    np.testing.assert_array_equal(np.load(out / "case_000.npy"), wanted)
