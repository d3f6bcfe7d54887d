"""CUDA tensors: counted on the device, the same numbers as on the CPU."""

import numpy as np
import pytest
import torch

from helpers.metric_samples import make_case, random_case, random_probs
from segcal.metrics import CalibrationBins, ProperScores, adaptive_ece, evaluate_case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SPACING = (8.0, 1.5, 1.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("deterministic", [False, True])
def test_cuda_counts_like_the_cpu(dtype: torch.dtype, deterministic: bool) -> None:
    rng = np.random.default_rng(7)
    probs, target = random_case(rng, 4, 20, 64, 64)
    edges = np.arange(16) / 15
    probs[0].flat[:16], probs[1].flat[:16] = edges, 1 - edges
    probs[2:].reshape(2, -1)[:, :16] = 0
    tensor = torch.from_numpy(probs).to(dtype)
    expected = CalibrationBins(4).update(tensor, target)
    torch.use_deterministic_algorithms(deterministic)
    try:
        bins = CalibrationBins(4).update(tensor.cuda(), torch.from_numpy(target).cuda())
    finally:
        torch.use_deterministic_algorithms(False)
    assert (bins.class_count == expected.class_count).all()
    assert (bins.top_count == expected.top_count).all()
    assert bins.ece() == pytest.approx(expected.ece(), abs=1e-12)


def test_cuda_scores_like_the_cpu() -> None:
    rng = np.random.default_rng(4)
    probs, target = (torch.from_numpy(a) for a in random_case(rng, 4, 10, 32, 32))
    here = ProperScores(4).update(probs, target)
    there = ProperScores(4).update(probs.cuda(), target.cuda())
    assert there.brier() == pytest.approx(here.brier(), abs=1e-12)
    assert there.nll() == pytest.approx(here.nll(), abs=1e-12)
    assert adaptive_ece(probs.cuda(), target, 4) == pytest.approx(adaptive_ece(probs, target, 4))


def test_cuda_rows_equal_the_cpu_ones() -> None:
    probs, target = make_case()
    here = evaluate_case(probs, target, SPACING, case="c")
    tensors = (torch.from_numpy(probs).cuda(), torch.from_numpy(target).cuda())
    there = evaluate_case(*tensors, SPACING, case="c")
    for a, b in zip(here.rows, there.rows, strict=True):
        assert a.metric == b.metric
        assert a.value == pytest.approx(b.value, abs=1e-9)


def test_cuda_soft_targets_masks_and_refusals() -> None:
    rng = np.random.default_rng(5)
    probs, soft = (torch.from_numpy(random_probs(rng, 4, 5000)) for _ in range(2))
    mask = torch.from_numpy(rng.random(5000) < 0.5)
    here = CalibrationBins(4).update(probs, soft, mask)
    there = CalibrationBins(4).update(probs.cuda(), soft.cuda(), mask.cuda())
    assert (here.class_count == there.class_count).all()
    assert there.cece() == pytest.approx(here.cece(), abs=1e-12)
    with pytest.raises(ValueError, match="looks like logits"):
        CalibrationBins(4).update(5 * probs.cuda(), soft)
    with pytest.raises(ValueError, match="but got 9"):
        CalibrationBins(4).update(probs.cuda(), torch.full((5000,), 9))
