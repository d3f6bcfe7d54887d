"""Reliability curves and their intervals against loops."""

import math
from pathlib import Path

import numpy as np
import pytest

from segcal.metrics import CalibrationBins
from segcal.report import Context
from segcal.report.curves import TRUTH, curve
from segcal.stats import pooled_proportion


def test_each_bin_is_a_pooled_proportion() -> None:
    rng = np.random.default_rng(1)
    count = rng.integers(5, 50, (6, 3)).astype(float)
    sums = np.stack([count, count * rng.uniform(0.5, 1, (6, 3)), count * rng.uniform(0, 1, (6, 3))])
    found = curve(sums)
    for b in range(3):
        expected = pooled_proportion(sums[2, :, b], count[:, b])
        assert (found.accuracy[b], found.low[b], found.high[b]) == pytest.approx(tuple(expected))
    assert np.isnan(curve(sums[:, :1]).low).all()  # one patient has no spread


def test_bins_that_one_patient_has_have_no_interval() -> None:
    sums = np.zeros((3, 4, 2))
    sums[:, 0, 0] = 10, 6, 5
    sums[:, :, 1] = np.array([[10.0], [9.0], [8.0]])
    found = curve(sums)
    assert math.isnan(found.low[0])
    assert found.accuracy[1] == pytest.approx(0.8)
    assert found.low[1] < 0.8 < found.high[1]
    assert found.accuracy[0] == pytest.approx(0.5)


def test_pooled_curves_agree_with_the_metrics(study: Path, context: Context) -> None:
    bins = context.bins["acdc", "nacl"]
    found = context.curves["acdc", "nacl", "boundary"]
    total = CalibrationBins(4)
    for seed in (0, 1):
        with np.load(study / f"runs/acdc/nacl/seed{seed}/bins.npz") as file:
            at = list(file["regions"]).index("boundary")
            for i in range(len(file["cases"])):
                total.merge(CalibrationBins.from_state({k: file[k][i, at] for k in total.state()}))
    assert found.ece == pytest.approx(total.ece())
    assert found.gap == pytest.approx(total.signed_gap())
    one = bins.of_case("acdc_000", "boundary")
    assert one is not None
    assert one.count.sum() < found.count.sum()
    assert bins.of_case("unknown", "boundary") is None


def test_truth_bins(context: Context) -> None:
    found = {dataset for dataset, _, region in context.curves if region == TRUTH}
    assert found == {"phantom"}
    nacl, ce = (context.curves["phantom", m, TRUTH] for m in ("nacl", "ce_dice"))
    assert nacl.ece < ce.ece
