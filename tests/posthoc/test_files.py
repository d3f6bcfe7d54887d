"""Calibrators on disk."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.posthoc_samples import calibrated
from segcal.core.errors import PathError
from segcal.posthoc import CALIBRATORS, HeldOut, load_calibrator, make_calibrator


def fitted(method: str, path: Path) -> Any:
    logits, target = calibrated((12, 13, 14), seed=1)
    options = {"alpha": 0.1} if method == "inverse" else {}
    case = HeldOut(logits * 2, target, spacing_mm=1.0)
    calibrator = make_calibrator(method, **options).fit([case])
    calibrator.about = {"region": "all", "note": "µ"}
    calibrator.save(path)
    return calibrator, logits


@pytest.mark.parametrize("method", CALIBRATORS)
def test_save_and_load(tmp_path: Path, method: str) -> None:
    path = tmp_path / "deep" / "c.json"
    calibrator, logits = fitted(method, path)
    again = load_calibrator(path)
    # The file stores T, the fit 1/T, so they differ by rounding.
    np.testing.assert_allclose(
        again.transform(logits, spacing_mm=1.0),
        calibrator.transform(logits, spacing_mm=1.0),
        rtol=1e-12,
        atol=0,
    )
    assert again.report == calibrator.report
    assert again.about == calibrator.about
    assert again.options() == calibrator.options()
    assert type(again) is type(calibrator)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.stat().st_size < 64 * 1024


def test_content_of_the_file(tmp_path: Path) -> None:
    fitted("temperature", tmp_path / "t.json")
    content = json.loads((tmp_path / "t.json").read_text())
    assert content["format"] == "segcal-calibrator"
    assert content["method"] == "temperature"
    assert content["num_classes"] == 3
    assert content["params"]["temperature"] == pytest.approx(2, abs=0.2)
    assert content["fit"]["cases"] == 1
    assert content["fit"]["nll_after"] < content["fit"]["nll_before"]
    assert content["segcal"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "other"}, "is not a calibrator of segcal"),
        ({"version": 99}, "has format version 99, but this segcal reads 1"),
        ({"method": "temprature"}, "Did you mean 'temperature'"),
        ({"params": {}}, "damaged .*temperature"),
        ({"params": {"temperature": -1}}, "damaged .*within its bounds"),
        ({"params": {"temperature": 1e-320}}, "damaged .*within its bounds"),
        ({"options": {"bounds": [1e-320, 1]}, "params": {"temperature": 1e-320}}, "low ≤ 1"),
        ({"params": {"temperature": float("nan")}}, "damaged"),
        ({"num_classes": "three"}, "damaged .*num_classes"),
        ({"options": {"wings": 2}}, "damaged .*wings"),
        ({"fit": {"luck": 1}}, "damaged .*luck"),
    ],
)
def test_a_changed_file_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = tmp_path / "t.json"
    fitted("temperature", path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(PathError, match=problem) as caught:
        load_calibrator(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "params",
    [{"weight": [[1, 0], [0, 1]], "bias": [0, 0]}, {"weight": "x", "bias": [0, 0, 0]}],
)
def test_matrices_must_have_their_shape(tmp_path: Path, params: dict[str, Any]) -> None:
    path = tmp_path / "d.json"
    fitted("dirichlet", path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "params": params}))
    with pytest.raises(PathError, match=r"shape \(3, 3\)"):
        load_calibrator(path)


@pytest.mark.parametrize("damage", ["cut", "empty", "zeros", "text"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.json"
    fitted("temperature", path)
    data = path.read_bytes()
    path.write_bytes(
        {"cut": data[: len(data) // 2], "empty": b"", "zeros": bytes(100), "text": b"hello"}[damage]
    )
    with pytest.raises(PathError, match="damaged or not a calibrator"):
        load_calibrator(path)
    path.unlink()
    with pytest.raises(PathError, match="does not exist"):
        load_calibrator(path)


def test_an_unfitted_calibrator_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="call `fit`"):
        make_calibrator("temperature").save(tmp_path / "t.json")
    assert not list(tmp_path.iterdir())
