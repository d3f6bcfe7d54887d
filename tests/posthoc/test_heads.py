"""Calibrators of sigmoid heads: known temperatures, the side of 0.5, files."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from segcal.core.errors import PathError
from segcal.posthoc import (
    HeadCalibrator,
    HeldOut,
    Sample,
    TemperatureScaling,
    VectorScaling,
    as_two_classes,
    load_calibrator,
    to_probs,
)

HEADS = {"whole": (1, 2), "core": (2,)}


def sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-values))


def fitted(
    make: Any = TemperatureScaling, factors: Any = ((2.0, 0.0), (3.0, 0.0)), shared: bool = False
) -> HeadCalibrator:
    """Fitted on logits a·l + b, where sigmoid(l) is the frequency of the inside exactly."""
    sample = Sample(max_voxels=1_000_000)
    levels = np.linspace(-3, 3, 41)
    for a, b in factors:
        logits = np.repeat(levels, 1000)
        target = (np.tile(np.arange(1000) + 0.5, 41) / 1000 < sigmoid(logits)).astype(int)
        sample.add(HeldOut(as_two_classes(a * logits + b, from_probs=False), target))
    return HeadCalibrator.fit(HEADS, make, sample, [0], shared=shared)


def test_each_head_has_its_temperature() -> None:
    found = fitted()
    temperatures = {name: each["temperature"] for name, each in found.params().items()}
    assert temperatures == pytest.approx({"whole": 2.0, "core": 3.0}, rel=0.01)
    assert found.report is not None
    assert (found.report.cases, found.report.voxels) == (1, 82_000)
    np.testing.assert_allclose(
        found.transform(np.array([[2.0], [3.0]])), sigmoid(np.ones((2, 1))), atol=1e-3
    )


def test_a_shared_temperature_lies_between() -> None:
    found = fitted(shared=True)
    (one,) = {each["temperature"] for each in found.params().values()}
    assert 2.2 < one < 2.8
    assert found.report is not None
    assert (found.report.cases, found.report.voxels) == (1, 82_000)


def test_vector_scaling_finds_scale_and_offset() -> None:
    """Platt scaling, with one scale below and one above p = 0.5."""
    found = fitted(VectorScaling, ((2.0, 1.0), (0.5, -1.0)))
    logits = np.linspace(-2, 2, 9)
    calibrated = found.transform(np.stack([2 * logits + 1, 0.5 * logits - 1]))
    np.testing.assert_allclose(calibrated, [sigmoid(logits)] * 2, atol=0.01)
    assert not found.keeps_argmax


@pytest.mark.parametrize("from_probs", [True, False])
def test_no_probability_crosses_one_half(from_probs: bool) -> None:
    found = fitted()
    assert found.keeps_argmax
    middle = 0.5 if from_probs else 0.0
    steps = [middle]
    for _ in range(200):
        steps += [np.nextafter(np.float32(max(steps)), np.float32(1))]
        steps += [np.nextafter(np.float32(min(steps)), np.float32(-1))]
    values = np.array([steps, steps], np.float32)
    after = found.transform(values, from_probs=from_probs)
    assert after.dtype == np.float32
    np.testing.assert_array_equal(after > 0.5, values > middle)


def test_probabilities_and_logits_agree() -> None:
    found = fitted()
    logits = np.random.default_rng(0).normal(size=(2, 5, 6)) * 3
    probs = to_probs(logits, heads=True)
    np.testing.assert_allclose(probs, sigmoid(logits), rtol=1e-12)
    np.testing.assert_allclose(
        found.transform(probs, from_probs=True), found.transform(logits), rtol=1e-9
    )
    tensor = found.transform(torch.from_numpy(logits))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), found.transform(logits))


def test_half_precision_keeps_its_smallest_probability() -> None:
    pair = as_two_classes(np.array([0.0, 1.0], np.float16), from_probs=True)
    assert pair.tolist() == [[1 - 2**-24, 2**-24], [2**-24, 1 - 2**-24]]


def test_file(tmp_path: Path) -> None:
    found = fitted(partial(TemperatureScaling, bounds=(0.1, 10.0)))
    found.about = {"region": "all"}
    found.save(tmp_path / "heads.json")
    again = load_calibrator(tmp_path / "heads.json")
    assert isinstance(again, HeadCalibrator)
    assert (again.heads, again.params(), again.about) == (HEADS, found.params(), found.about)
    assert again.options() == {"bounds": (0.1, 10.0)}
    values = np.array([[0.2, 0.9], [0.7, 0.4]])
    np.testing.assert_array_equal(
        again.transform(values, from_probs=True), found.transform(values, from_probs=True)
    )
    text = (tmp_path / "heads.json").read_text().replace('"core": {', '"other": {')
    (tmp_path / "damaged.json").write_text(text)
    with pytest.raises(PathError, match=r"damaged.json: is damaged"):
        load_calibrator(tmp_path / "damaged.json")


def test_another_number_of_maps_is_named() -> None:
    with pytest.raises(ValueError, match=r"2 maps \(whole, core\), but got 3"):
        fitted().transform(np.zeros((3, 4)))
