"""The voxels of a fit: bounded, balanced by class and case, and weighted."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from helpers.posthoc_samples import calibrated
from segcal.posthoc import BlockReader, HeldOut, Sample, TemperatureScaling
from segcal.posthoc.sample import all_voxels, class_weights


def _rare(seed: int, size: int = 40_000) -> tuple[np.ndarray, np.ndarray]:
    """One voxel in a hundred is foreground."""
    rng = np.random.default_rng(seed)
    target = (rng.random(size) < 0.01).astype(int)
    logits = rng.normal(size=(2, size)) + 3 * np.stack([target == 0, target == 1])
    return logits, target


def test_all_voxels_are_kept_if_they_fit() -> None:
    voxels = Sample(max_voxels=100_000).add(_rare(0)).select()
    rows, labels, weights = (np.concatenate(p, axis=-1) for p in zip(*voxels.blocks(), strict=True))
    assert rows.shape == (2, 40_000)
    assert (weights == 1).all()
    np.testing.assert_array_equal(np.bincount(labels), voxels.counts)


@pytest.mark.parametrize("max_voxels", [1000, 5000, 20_000])
def test_a_sample_is_bounded_balanced_and_weighted(max_voxels: int) -> None:
    sample = Sample(max_voxels=max_voxels)
    for seed in range(5):
        sample.add(_rare(seed))
    assert max_voxels / 4 < sample.size <= max_voxels
    for case in range(5):
        voxels = sample.select([case])
        _, labels, weights = (np.concatenate(p, -1) for p in zip(*voxels.blocks(), strict=True))
        kept = np.bincount(labels)
        assert kept[1] >= min(voxels.counts[1], kept[0]) - 1, "classes are sampled evenly"
        for k in range(2):
            assert weights[labels == k].sum() == pytest.approx(voxels.counts[k])


def test_a_sample_is_uniform() -> None:
    """Each voxel of a class is as likely as any other, also late ones and after halving."""
    size, hits = 3000, np.zeros(3000)
    target = np.zeros(size, int)
    logits = np.stack([np.arange(size), np.zeros(size)]).astype(float)
    for seed in range(200):
        sample = Sample(max_voxels=400, seed=seed, space="logits")
        sample.add((logits, target)).add((logits[:, ::-1].copy(), target))
        for rows, _, _ in sample.select([0]).blocks():
            hits[rows[0].astype(int)] += 1
    thirds = hits.reshape(3, -1).sum(1)
    assert hits.sum() == 200 * 200
    assert np.abs(thirds / thirds.mean() - 1).max() < 0.03


def test_the_sample_changes_with_the_seed_and_only_with_it() -> None:
    def first(seed: int) -> np.ndarray:
        sample = Sample(max_voxels=500, seed=seed).add(_rare(0))
        return next(iter(sample.select().blocks()))[0]

    np.testing.assert_array_equal(first(3), first(3))
    assert not np.array_equal(first(3), first(4))


def test_a_sampled_fit_is_close_to_that_of_all() -> None:
    cases = []
    for seed in range(4):
        logits, target = calibrated((60_000,), seed=seed)
        cases.append((logits * 2, target))
    whole = TemperatureScaling().fit(cases)
    part = TemperatureScaling().fit(cases, max_voxels=20_000)
    assert whole.report is not None
    assert part.report is not None
    assert part.report.used <= 20_000 < part.report.voxels == whole.report.voxels == 240_000
    assert part.temperature == pytest.approx(whole.temperature, rel=0.03)
    assert part.temperature != whole.temperature


@pytest.mark.parametrize("max_voxels", [2000, None])
def test_balance_changes_the_objective(max_voxels: int | None) -> None:
    cases = [_rare(0), _rare(1)]
    plain = TemperatureScaling().fit(cases, max_voxels=max_voxels)
    balanced = TemperatureScaling().fit(cases, max_voxels=max_voxels, balance="class")
    assert abs(plain.temperature - balanced.temperature) > 1e-3
    assert balanced.report is not None
    assert balanced.report.balance == "class"


def test_class_weights() -> None:
    counts = np.array([90, 10, 0])
    np.testing.assert_array_equal(class_weights(counts, "none"), 1)
    weights = class_weights(counts, "class")
    np.testing.assert_allclose(weights * counts, [50, 50, 0])


def test_memory_does_not_grow_with_the_cases() -> None:
    def peak(cases: int) -> int:
        sample = Sample(max_voxels=20_000)
        logits, target = calibrated((50, 60, 20), seed=0)
        single = logits.astype(np.float32)
        tracemalloc.start()
        for _ in range(cases):
            sample.add(HeldOut(single, target))
        TemperatureScaling().fit_voxels(sample.select())
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = peak(3), peak(24)
    assert many < 1.5 * few
    assert many < 40 * 2**20


def test_a_stream_needs_little_memory() -> None:
    logits, target = calibrated((400_000,), seed=0)
    cases = [(logits.astype(np.float32), target)] * 3
    stream = all_voxels(cases, BlockReader())
    tracemalloc.start()
    TemperatureScaling().fit_voxels(stream)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert int(stream.counts.sum()) == 1_200_000
    assert peak < 20 * 2**20


def test_one_voxel_of_each_class_and_case_is_always_kept() -> None:
    cases = [calibrated((200,), num_classes=5, seed=i) for i in range(8)]
    sample = Sample(max_voxels=10)
    for case in cases:
        sample.add(case)
    present = sum(len(np.unique(target)) for _, target in cases)
    assert sample.size == present


def test_memory_is_bounded_while_a_case_of_many_classes_is_read() -> None:
    """Each of its classes is below the quota, all together exceed the limit."""
    logits, target = calibrated((40_000,), num_classes=20)
    seen = []

    class Watched(Sample):
        def _offer(self, strata: Any, *block: Any) -> None:
            super()._offer(strata, *block)
            seen.append(sum(s.size for s in strata))

    sample = Watched(max_voxels=2000).add((logits, target))
    assert max(seen) <= 2 * 2000
    assert sample.size <= 2000
    assert int(sample.select().counts.sum()) == 40_000
