"""Which voxels of a case are stored for pictures."""

import numpy as np
import pytest

from segcal.evaluation.case_metrics import PredictedCase, evaluate_predicted_case
from segcal.metrics import CaseOptions


def test_pictures_of_a_large_scan_are_small_and_show_the_structure() -> None:
    target = np.zeros((60, 400, 300), np.int64)
    target[20:50, 50:350, 100:140] = 1
    target[33, 50:350, 140:150] = 1  # the slice with most foreground
    probs = np.stack([0.9 - 0.8 * (target > 0), 0.1 + 0.8 * (target > 0)]).astype(np.float32)
    probs[:, 30:36, 100:200, 280:290] = [[[[0.2]]], [[[0.8]]]]  # beyond the structure
    case = PredictedCase("a", probs, target, (3.0, 1.0, 0.5), image=target.astype(float))
    names = {"run": "r", "method": "m", "seed": 0, "dataset": "d"}
    options = CaseOptions(regions=("all",))
    _, picture = evaluate_predicted_case(case, names, {"it": (1,)}, options)
    numbers = picture["slices"]
    assert len(numbers) == 12
    assert 33 in numbers
    assert (numbers[0] < 20, numbers[-1] > 49) == (True, True)
    shape = picture["truth"].shape
    assert shape == (12, 144, 75)  # of 390 rows, and a quarter of all columns
    for layer in ("image", "labels", "confidence"):
        assert picture[layer].shape == shape
    np.testing.assert_array_equal(picture["labels"], picture["truth"])
    assert set(np.unique(picture["confidence"])) == {round(255 * 0.9)}
    shown = (picture["truth"] > 0).any(axis=(1, 2))
    np.testing.assert_array_equal(shown, (numbers >= 20) & (numbers < 50))
    rows = picture["truth"][6].any(axis=1).sum() * picture["spacing"][0]
    assert rows == pytest.approx(300, rel=0.02)  # millimeters
    outside = 6 * 100 * 10 / (30 * 300 * 40 + 300 * 10 + 6 * 100 * 10)
    assert float(picture["outside"]) == pytest.approx(outside, rel=0.6)


def test_an_empty_truth_shows_the_whole_slice() -> None:
    probs = np.full((2, 3, 10, 8), 0.5, np.float32)
    case = PredictedCase("a", probs, np.zeros((3, 10, 8), int), (1.0, 1.0, 1.0))
    names = {"run": "r", "method": "m", "seed": 0, "dataset": "d"}
    _, picture = evaluate_predicted_case(case, names, {"it": (1,)}, CaseOptions(regions=("all",)))
    assert picture["truth"].shape == (3, 10, 8)
    assert not picture["image"].any()
