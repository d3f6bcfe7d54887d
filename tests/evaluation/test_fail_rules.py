"""`--fail-if` with whatever was measured."""

from pathlib import Path

import numpy as np
import pytest

from helpers.metric_samples import make_case
from segcal.evaluation import Evaluation, PredictedCase, write_evaluation
from segcal.evaluation.fail_rules import check_rules, parse_rule
from segcal.metrics import METRICS, CaseOptions, Metric


def evaluate(folder: Path, **options: object) -> dict[str, Evaluation]:
    probs, target = make_case()
    cases = [PredictedCase("c", probs, target, (8.0, 1.5, 1.5))]
    names = {"run": "r", "method": "m", "seed": 0, "dataset": "d"}
    return {
        "net": write_evaluation(
            cases, folder, **names, labels=["background", "a", "b"], options=CaseOptions(**options)
        )
    }


def failures(networks: dict[str, Evaluation], text: str) -> list[str]:
    return check_rules(networks, [parse_rule(text)])


def test_any_unit_and_tolerance(tmp_path: Path) -> None:
    mm = evaluate(tmp_path / "mm", nsd_tolerance_mm=1.5)
    assert len(failures(mm, "nsd_1.5mm<1.1")) == len(failures(mm, "nsd<1.1")) == 1
    assert failures(mm, "nsd<0") == []
    (line,) = failures(mm, "predicted_boundary:ece>0")
    assert line.startswith("net: mean ece (predicted_boundary) = ")
    assert "cannot be checked: measured was nsd_1.5mm" in failures(mm, "nsd_2mm<1.1")[0]
    voxels = evaluate(tmp_path / "voxel", units="voxel")
    for name in ("hd95", "hd95_voxel", "assd", "hd_voxel"):
        (line,) = failures(voxels, f"{name}>=0")
        assert line.startswith(f"net: mean {name} = ")
    assert "measured was hd95_voxel" in failures(voxels, "hd95_mm>0")[0]
    assert "measured was no such metric" in failures(voxels, "nsd>0")[0]


def test_a_registered_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METRICS, "_objects", dict(METRICS._objects))
    largest = Metric("largest", "", lambda case: float(np.max(case.probs)), "lower", "image")
    METRICS.register("largest", largest)
    networks = evaluate(tmp_path / "out", metrics=("largest",))
    assert networks["net"].info.metrics == ("largest",)
    assert len(failures(networks, "largest>0")) == 1
    assert failures(networks, "largest>1") == []
