"""The example plugin: each kind of extension, used by name in every stage of a study."""

import csv
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

import segcal
from segcal.losses import NACLLoss

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    find_spec("segcal_example_plugin") is None,
    reason="the example plugin is not installed: pip install --no-deps -e examples/plugin",
)

PLAN = """
title: Plugin
datasets: {organs: {}}
methods:
  ce: {loss: ce}
  poly: {loss: poly, options: {epsilon: 2.0}}
  nacl_cross: {loss: nacl, options: {prior: cross}}
  monai: {loss: "monai.losses:DiceCELoss", options: {to_onehot_y: true, softmax: true}}
metrics: [dsc, ece, volume_error]
evaluation: {metrics: [volume_error]}
posthoc: [mixing]
train:
  epochs: 2
  batch_size: 8
  precision: "32"
  model: {name: tiny, options: {width: 4}}
"""


def run_segcal(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "segcal", *arguments],
        capture_output=True, text=True, timeout=300, cwd=cwd,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of four losses on twelve generated patients, run from the command line."""
    folder = tmp_path_factory.mktemp("plugin")
    rng = np.random.default_rng(0)
    for number in range(12):
        patient = folder / "scans" / f"p{number:02d}"
        patient.mkdir(parents=True)
        label = np.zeros((24, 24, 4), np.uint8)
        x, y = rng.integers(4, 12, 2)
        label[x : x + 8, y : y + 8, 1:3] = 1
        image = label * 2.0 + rng.normal(size=label.shape)
        for name, array in (("image", image.astype(np.float32)), ("label", label)):
            affine = np.diag([1.0, 1.0, 3.0, 1.0])
            nib.save(nib.Nifti1Image(array, affine), patient / f"{name}.nii.gz")
    (folder / "plan.yaml").write_text(PLAN)
    run_segcal(
        "prepare", "patient_folders", "--source", "scans", "--out", "prepared",
        "--structure", "liver", cwd=folder,
    )  # fmt: skip
    run_segcal("benchmark", "plan.yaml", "--out", "study", "--data", "organs=prepared", cwd=folder)
    return folder / "study"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_extension_took_part(study: Path) -> None:
    cases = rows(study / "cases.csv")
    methods = {row["method"] for row in cases}
    assert methods >= {"ce", "poly", "nacl_cross", "monai", "ce+mixing", "poly+mixing"}
    errors = [row for row in cases if row["metric"] == "volume_error" and row["method"] == "poly"]
    assert {row["label"] for row in errors} == {"liver"}
    assert all(float(row["value"]) >= 0 for row in errors)


def test_a_metric_of_the_plugin_is_ranked_and_reported(study: Path) -> None:
    ranks = rows(study / "ranks.csv")
    assert "volume_error" in ranks[0]["metrics"]
    table = rows(study / "report" / "tables" / "volume_errors_organs.csv")
    assert len(table) >= 4
    page = (study / "report" / "index.html").read_text(encoding="utf-8")
    assert "Volume error (ml)" in page


def test_rank_reads_the_metric_by_name(study: Path) -> None:
    out = run_segcal(
        "rank", "cases.csv", "--metric", "volume_error", "--metric", "dsc", "--missing", "worst",
        "--out", "ranked", "--method", "ce", "--method", "poly", cwd=study,
    )  # fmt: skip
    assert "volume_error" in out


def test_the_names_are_listed() -> None:
    from segcal.data import SOURCES
    from segcal.losses import LOSSES, PRIORS
    from segcal.metrics import METRICS
    from segcal.models import NETWORKS
    from segcal.posthoc import CALIBRATORS
    from segcal.report import SECTIONS

    for registry, name in (
        (LOSSES, "poly"), (PRIORS, "cross"), (METRICS, "volume_error"), (NETWORKS, "tiny"),
        (SOURCES, "patient_folders"), (CALIBRATORS, "mixing"), (SECTIONS, "volume_errors"),
    ):  # fmt: skip
        assert name in registry.names()
        assert registry.describe(name)


def test_the_loss_is_cross_entropy_at_zero() -> None:
    logits = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    target = torch.randint(3, (2, 6, 6))
    ce = torch.nn.functional.cross_entropy(logits, target)
    assert torch.allclose(segcal.make_loss("poly", epsilon=0.0)(logits, target), ce)
    path = "segcal_example_plugin.loss:PolyLoss"
    assert segcal.make_loss(path, epsilon=1.0)(logits, target) > ce


def test_the_prior_differs_from_the_mean_only_at_corners() -> None:
    target = torch.zeros(1, 5, 5, dtype=torch.int64)
    target[0, 1, 1] = 1
    logits = torch.randn(1, 2, 5, 5)
    cross, mean = (NACLLoss(prior=prior) for prior in ("cross", "mean"))
    assert cross(logits, target) != mean(logits, target)
    tau = cross.prior(target, 2)
    assert torch.allclose(tau.sum(1), torch.ones(1, 5, 5))
    assert tau[0, 1, 0, 0] == 0  # a diagonal neighbor does not count
    assert tau[0, 1, 0, 1] == pytest.approx(0.2)
