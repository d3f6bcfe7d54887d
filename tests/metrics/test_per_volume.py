"""`CalibrationBins.per_volume` equals `update` of each volume."""

import numpy as np
import pytest
import torch

from helpers.metric_samples import random_case
from segcal.metrics import CalibrationBins

LENGTHS = [3, 0, 1, 4]
DEVICE_KINDS = [
    "numpy",
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]


def stack(*space: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    probs, target = random_case(rng, 3, sum(LENGTHS), *space)
    return probs, target, rng.random(target.shape) < 0.7


@pytest.mark.parametrize("kind", DEVICE_KINDS)
@pytest.mark.parametrize("space", [(), (60, 500)])  # the latter in several chunks on a CPU
@pytest.mark.parametrize("masked", [False, True])
def test_each_volume_has_its_own(kind: str, space: tuple[int, ...], masked: bool) -> None:
    probs, target, mask = stack(*space)
    arrays = [probs, target, mask]
    if kind != "numpy":
        arrays = [torch.from_numpy(array).to(kind) for array in arrays]  # type: ignore[misc]
    found = CalibrationBins.per_volume(
        arrays[0], arrays[1], LENGTHS, arrays[2] if masked else None, num_bins=7
    )
    assert len(found) == len(LENGTHS)
    ends = np.cumsum(LENGTHS)
    for bins, start, end in zip(found, ends - LENGTHS, ends, strict=True):
        expected = CalibrationBins(3, 7)
        if end > start:
            part = slice(start, end)
            expected.update(
                probs[:, part], target[part], mask[part] if masked else None, batched=False
            )
        for name, value in expected.state().items():
            np.testing.assert_allclose(bins.state()[name], value, rtol=1e-12, atol=0)
    assert np.isnan(found[1].ece())
    assert len({bins.ece() for bins in found}) == len(LENGTHS)


def test_volumes_can_be_updated_separately() -> None:
    probs, target, _ = stack(4)
    first, _, second, _ = CalibrationBins.per_volume(probs, target, LENGTHS)
    before = second.state()
    first.update(probs[:, :3], target[:3], batched=False)
    assert first.voxels == 24
    np.testing.assert_equal(second.state(), before)


def test_refusals() -> None:
    probs, target, mask = stack(4)
    with pytest.raises(ValueError, match=r"`lengths` to add up to 8, .* but got 7"):
        CalibrationBins.per_volume(probs, target, [3, 4])
    with pytest.raises(ValueError, match="`lengths`"):
        CalibrationBins.per_volume(probs, target, [9, -1])
    with pytest.raises(ValueError, match="`num_bins`"):
        CalibrationBins.per_volume(probs, target, LENGTHS, num_bins=0)
    with pytest.raises(ValueError, match="`mask`"):
        CalibrationBins.per_volume(probs, target, LENGTHS, mask[1:])
    with pytest.raises(ValueError, match="logits"):
        CalibrationBins.per_volume(9 * probs, target, LENGTHS)
