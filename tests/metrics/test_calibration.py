"""CalibrationBins against values worked by hand, and its algebra."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.metric_samples import random_case, random_probs
from segcal.metrics import REGIONS, CalibrationBins
from segcal.metrics._binning import bin_index, tally
from segcal.metrics._chunks import Chunk

QUICK = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def by_hand() -> CalibrationBins:
    """Five voxels, two classes, two bins: (0, .5] and (.5, 1].

    p_1:        .1  .2  .6  .8  1.0      y: 0 1 1 0 1
    confidence: .9  .8  .6  .8  1.0      right: 1 0 1 0 1, all in the second bin
    class 1, first bin:  p .1 .2, y 0 1; second: p .6 .8 1, y 1 0 1
    class 0, first bin:  p .4 .2 0, y 0 1 0; second: p .9 .8, y 1 0
    """
    p = np.array([0.1, 0.2, 0.6, 0.8, 1.0])
    bins = CalibrationBins(2, num_bins=2)
    return bins.update(np.stack([1 - p, p]), np.array([0, 1, 1, 0, 1]))


def test_values_worked_by_hand() -> None:
    bins = by_hand()
    assert bins.voxels == 5
    gap = (0.9 + 0.8 + 0.6 + 0.8 + 1.0) / 5 - 3 / 5
    assert bins.ece() == pytest.approx(gap)
    assert bins.ace() == pytest.approx(gap)
    assert bins.mce() == pytest.approx(gap)
    assert bins.signed_gap() == pytest.approx(gap)
    first, second = abs(0.3 - 1), abs(2.4 - 2)
    assert bins.classwise_ece()[1] == pytest.approx((first + second) / 5)
    assert bins.classwise_ece()[0] == pytest.approx((abs(0.6 - 1) + abs(1.7 - 1)) / 5)
    assert bins.classwise_ace()[1] == pytest.approx((first / 2 + second / 3) / 2)
    assert bins.classwise_mce()[1] == pytest.approx(first / 2)
    assert bins.classwise_signed_gap() == pytest.approx([(2.3 - 2) / 5, (2.7 - 3) / 5])
    assert bins.cece() == pytest.approx(bins.classwise_ece().sum() / 2)
    assert bins.cece(reduction="sum") == pytest.approx(2 * bins.cece())


def test_reliability_is_the_table_of_the_bins() -> None:
    table = by_hand().reliability()
    assert table.lower.tolist() == [0.0, 0.5]
    assert table.upper.tolist() == [0.5, 1.0]
    assert table.count.tolist() == [0, 5]
    assert np.isnan(table.confidence[0])
    assert table.accuracy[1] == pytest.approx(0.6)
    ones = by_hand().reliability(label=1)
    assert ones.count.tolist() == [2, 3]
    assert ones.confidence == pytest.approx([0.15, 0.8])
    assert ones.accuracy == pytest.approx([0.5, 2 / 3])
    with pytest.raises(ValueError, match="`label` to be an integer at least 0 and at most 1"):
        by_hand().reliability(label=2)


def test_nothing_counted_is_undefined() -> None:
    bins = CalibrationBins(3)
    for value in (bins.ece(), bins.cece(), bins.ace(), bins.mce(), bins.signed_gap()):
        assert np.isnan(value)
    assert bins.update(np.ones((3, 4)) / 3, np.full(4, -100)).voxels == 0


def test_number_of_bins_and_classes_matter() -> None:
    rng = np.random.default_rng(0)
    probs, target = random_case(rng, 3, 500)
    few, many = (CalibrationBins(3, num_bins=m).update(probs, target) for m in (2, 30))
    assert few.ece() < many.ece()
    # A class that never occurs and is never predicted counts in the mean over the model's classes.
    wider = CalibrationBins(4).update(np.concatenate([probs, np.zeros((1, 500))]), target)
    narrow = CalibrationBins(3).update(probs, target)
    assert wider.cece() == pytest.approx(narrow.cece() * 3 / 4)


# Edges


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_bins", [1, 2, 10, 13, 15, 25, 50, 100, 997])
def test_edges_close_their_bin_in_every_dtype_and_kernel(dtype: type, num_bins: int) -> None:
    edges = (np.arange(num_bins + 1) / num_bins).astype(dtype)
    above, below = np.nextafter(edges, dtype(2)), np.nextafter(edges, dtype(-1))
    expected = np.maximum(np.arange(num_bins + 1) - 1, 0)
    assert bin_index(edges, num_bins).tolist() == expected.tolist()
    assert bin_index(above[:-1], num_bins).tolist() == list(range(num_bins))
    assert bin_index(below[1:], num_bins).tolist() == list(range(num_bins))
    for values in (edges, above, below):
        assert (
            bin_index(torch.from_numpy(values), num_bins).tolist()
            == bin_index(values, num_bins).tolist()
        )


def test_zero_is_in_the_first_bin_and_one_in_the_last() -> None:
    bins = CalibrationBins(2).update(np.array([[0.0], [1.0]]), np.array([1]))
    assert bins.class_count[0].tolist() == [1] + [0] * 14
    assert bins.class_count[1].tolist() == [0] * 14 + [1]
    assert bins.top_count.shape == (15,)
    assert bins.top_count[-1] == 1


def test_ties_for_the_top_label_go_to_the_smaller_class() -> None:
    probs = np.array([[0.4, 0.2], [0.4, 0.4], [0.2, 0.4]])
    assert CalibrationBins(3).update(probs, np.array([0, 1])).top_accuracy.sum() == 2
    assert CalibrationBins(3).update(probs, np.array([1, 2])).top_accuracy.sum() == 0


# Kinds of input


def test_numpy_torch_batches_and_dtypes_agree() -> None:
    rng = np.random.default_rng(1)
    probs, target = random_case(rng, 4, 2, 6, 5)
    probs = probs.astype(np.float32)
    expected = CalibrationBins(4).update(probs, target)
    batch = np.ascontiguousarray(probs.swapaxes(0, 1))
    strided = np.moveaxis(np.ascontiguousarray(np.moveaxis(probs, 0, -1)), -1, 0)[:, ::-1]
    big = probs.astype(">f4")
    big.flags.writeable = False
    for p, t in (
        (torch.from_numpy(probs), torch.from_numpy(target)),
        (torch.from_numpy(probs).requires_grad_(), target),
        (batch, target),
        (torch.from_numpy(batch), torch.from_numpy(target).to(torch.int16)),
        (strided, target[::-1]),
        (big, target.astype(np.uint8)),
    ):
        bins = CalibrationBins(4).update(p, t)
        assert (bins.class_count == expected.class_count).all()
        assert (bins.top_count == expected.top_count).all()
        assert bins.ece() == pytest.approx(expected.ece(), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_to_float32(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(2)
    probs, target = random_case(rng, 3, 200)
    half = torch.from_numpy(probs).to(dtype)
    bins = CalibrationBins(3).update(half, target)
    assert (bins.class_count == CalibrationBins(3).update(half.float(), target).class_count).all()


def test_ambiguous_shapes_ask_for_batched() -> None:
    rng = np.random.default_rng(3)
    probs = random_probs(rng, 3, 3, 5)
    target = rng.integers(0, 3, (3, 5))
    with pytest.raises(ValueError, match="`batched` to be True or False"):
        CalibrationBins(3).update(probs, target)
    assert CalibrationBins(3).update(probs, target, batched=False).voxels == 15
    with pytest.raises(ValueError, match="sum to 1"):  # the class axis is the first here
        CalibrationBins(3).update(probs, target, batched=True)


def test_soft_targets_are_expected_outcomes() -> None:
    probs = np.array([[0.7, 0.2], [0.3, 0.8]])
    soft = np.array([[0.6, 0.5], [0.4, 0.5]])
    bins = CalibrationBins(2, num_bins=1).update(probs, soft)
    assert bins.top_accuracy.sum() == pytest.approx(0.6 + 0.5)
    assert bins.class_frequency.sum(1) == pytest.approx([1.1, 0.9])
    rng = np.random.default_rng(4)
    probs, target = random_case(rng, 3, 100)
    hard, one_hot = CalibrationBins(3), CalibrationBins(3)
    hard.update(probs, target)
    one_hot.update(probs, np.eye(3)[target].T)
    assert one_hot.ece() == pytest.approx(hard.ece(), abs=1e-12)
    assert one_hot.cece() == pytest.approx(hard.cece(), abs=1e-12)


def test_mask_and_ignore_index_leave_voxels_out_unchecked() -> None:
    rng = np.random.default_rng(5)
    probs, target = random_case(rng, 3, 100)
    keep = rng.random(100) < 0.5
    expected = CalibrationBins(3).update(probs[:, keep], target[keep])
    padded = np.where(keep, probs, np.nan)
    assert CalibrationBins(3).update(padded, target, mask=keep).ece() == expected.ece()
    marked = np.where(keep, target, 255)
    assert CalibrationBins(3).update(padded, marked, ignore_index=255).ece() == expected.ece()
    tensor = torch.from_numpy(keep)
    assert CalibrationBins(3).update(torch.from_numpy(padded), target, tensor).voxels == keep.sum()


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_the_two_kernels_count_alike(soft: bool, groups: int) -> None:
    """The torch kernel serves CUDA; on the CPU it must agree with numpy's."""
    rng = np.random.default_rng(6)
    probs, target = random_case(rng, 5, 4000)
    probs = probs.astype(np.float32)
    labels = random_probs(rng, 5, 4000) if soft else target
    group = rng.integers(0, groups, 4000) if groups > 1 else None
    ours = tally(Chunk(probs, labels, group), 15, groups)
    tensors = [None if a is None else torch.from_numpy(a) for a in (probs, labels, group)]
    theirs = tally(Chunk(*tensors), 15, groups)
    for name, table in ours.items():
        other = theirs[name]
        assert table.dtype == other.dtype
        np.testing.assert_allclose(table, other, rtol=0, atol=0 if "count" in name else 1e-9)


# Algebra


@QUICK
@given(seed=seeds)
def test_order_of_voxels_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probs, target = random_case(rng, 3, 300)
    order = rng.permutation(300)
    one = CalibrationBins(3).update(probs, target)
    other = CalibrationBins(3).update(probs[:, order], target[order])
    assert (one.class_count == other.class_count).all()
    assert (one.top_count == other.top_count).all()
    assert one.ece() == pytest.approx(other.ece(), abs=1e-12)


@QUICK
@given(seed=seeds, parts=st.integers(2, 6))
def test_split_and_merge_in_any_order(seed: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    probs, target = random_case(rng, 3, 300)
    whole = CalibrationBins(3).update(probs, target)
    place = rng.integers(0, parts, 300)
    pieces = [
        CalibrationBins(3).update(probs[:, place == i], target[place == i]) for i in range(parts)
    ]
    rng.shuffle(pieces)
    total = sum(pieces, start=CalibrationBins(3))
    for name in ("class_count", "top_count"):
        assert (getattr(total, name) == getattr(whole, name)).all()
    assert total.ece() == pytest.approx(whole.ece(), abs=1e-12)
    assert total.cece() == pytest.approx(whole.cece(), abs=1e-12)


@QUICK
@given(seed=seeds)
def test_relabelling_the_classes_permutes_the_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probs, target = random_case(rng, 4, 300)
    order = rng.permutation(4)
    one = CalibrationBins(4).update(probs, target)
    other = CalibrationBins(4).update(probs[order], np.argsort(order)[target])
    assert other.ece() == pytest.approx(one.ece(), abs=1e-12)
    assert other.classwise_ece() == pytest.approx(one.classwise_ece()[order], abs=1e-12)


def test_plus_leaves_its_operands_alone_and_merge_does_not() -> None:
    a, b = by_hand(), by_hand()
    assert (a + b).voxels == 10
    assert a.voxels == b.voxels == 5
    assert a.merge(b) is a
    assert a.voxels == 10
    with pytest.raises(ValueError, match=r"\(2, 2\), but got \(2, 15\)"):
        a.merge(CalibrationBins(2))
    with pytest.raises(TypeError, match="`other` to be CalibrationBins"):
        a.merge(3)
    with pytest.raises(TypeError):
        a + 3
    with pytest.raises(TypeError):
        3 + a
    before = a.voxels
    assert sum([a, b, b]).voxels == before + 2 * b.voxels
    assert a.voxels == before


def test_state_round_trip_and_refusals() -> None:
    bins = by_hand()
    again = CalibrationBins.from_state(bins.state())
    assert again.ece() == bins.ece()
    assert again.class_count.dtype == np.int64
    state = bins.state()
    del state["top_count"]
    with pytest.raises(ValueError, match=r"`state` to hold \['top_count'\]"):
        CalibrationBins.from_state(state)
    with pytest.raises(ValueError, match="top_count"):
        CalibrationBins.from_state({**bins.state(), "top_count": np.zeros(3, int)})
    with pytest.raises(ValueError, match="float64"):
        CalibrationBins.from_state({**bins.state(), "class_count": np.zeros((2, 2))})
    for wrong in (-1, np.nan, np.inf):
        with pytest.raises(ValueError, match="to be finite and not negative"):
            CalibrationBins.from_state({**bins.state(), "top_confidence": np.full(2, wrong)})
    with pytest.raises(ValueError, match="to be finite and not negative"):
        CalibrationBins.from_state({**bins.state(), "top_count": np.array([-1, 3])})
    with pytest.raises(ValueError, match=r"to be \(K, M\)"):
        CalibrationBins.from_state({**bins.state(), "class_count": np.zeros(2, int)})


WORKER = """
import sys
import numpy as np
from segcal.metrics import REGIONS, CalibrationBins
path, seed = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(seed)
p = rng.random(40_000)
bins = CalibrationBins(2).update(np.stack([1 - p, p]), (rng.random(40_000) < p**2).astype(int))
np.savez(path, **bins.state())
"""


def test_two_processes_merge_through_files(tmp_path: Path) -> None:
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    running = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(file), str(seed)])
        for seed, file in enumerate(files)
    ]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    a, b = (CalibrationBins.from_state(np.load(file)) for file in files)
    here = CalibrationBins(2)
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        p = rng.random(40_000)
        here.update(np.stack([1 - p, p]), (rng.random(40_000) < p**2).astype(int))
    for merged in (a + b, b + a):
        assert (merged.class_count == here.class_count).all()
        assert (merged.top_count == here.top_count).all()
        assert merged.ece() == pytest.approx(here.ece(), abs=1e-12)


# Size


def test_counts_pass_two_to_the_24_in_one_bin() -> None:
    """Where float32 counting stops: 2^24 + 1 = 2^24."""
    probs = np.empty((2, 1 << 20), np.float32)
    probs[0], probs[1] = 0.03125, 0.96875
    target = np.ones(1 << 20, np.int64)
    target[0] = 0
    bins = CalibrationBins(2)
    for _ in range(17):
        bins.update(probs, target)
    assert bins.top_count[14] == 17 << 20 > 1 << 24
    assert bins.top_accuracy[14] == 17 * ((1 << 20) - 1)
    assert bins.top_confidence[14] == 0.96875 * (17 << 20)


@pytest.mark.slow
def test_300_million_voxels_in_constant_memory() -> None:
    import resource

    rng = np.random.default_rng(8)
    p = rng.random(3_000_000, dtype=np.float32)
    probs = np.stack([1 - p, p])
    target = (rng.random(3_000_000) < p).astype(np.uint8)
    once = CalibrationBins(2).update(probs, target)
    bins = CalibrationBins(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        bins.update(probs, target)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert bins.voxels == 300_000_000
    assert (bins.class_count == 100 * once.class_count).all()
    assert (bins.top_accuracy == 100 * once.top_accuracy).all()
    assert bins.ece() == pytest.approx(once.ece(), abs=1e-12)
    assert bins.top_count.max() > 1 << 24
    assert grown < 32 * 1024  # KiB


def test_one_huge_volume_is_read_in_chunks() -> None:
    import tracemalloc

    probs = np.full((4, 1 << 22), 0.25, np.float32)
    target = np.zeros(1 << 22, np.uint8)
    tracemalloc.start()
    with pytest.warns(UserWarning, match="second softmax"):
        CalibrationBins(4).update(probs, target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < probs.nbytes  # a copy of the map alone would be as much


@pytest.mark.parametrize("order", ["C", "F", "mixed", "channels last", "reversed"])
def test_memory_order_changes_neither_counts_nor_memory(order: str) -> None:
    """nibabel gives Fortran order: flattening it in C order would copy the whole map."""
    import tracemalloc

    rng = np.random.default_rng(10)
    probs, target = random_case(rng, 3, 80, 100, 110)
    probs, mask = probs.astype(np.float32), rng.random(target.shape) < 0.9
    expected = CalibrationBins(3).update(probs, target, mask)
    if order in ("F", "mixed"):
        probs, mask = np.asfortranarray(probs), np.asfortranarray(mask)
        target = target if order == "mixed" else np.asfortranarray(target)
    elif order == "channels last":
        probs = np.moveaxis(np.ascontiguousarray(np.moveaxis(probs, 0, -1)), -1, 0)
    elif order == "reversed":
        probs, target, mask = probs[:, ::-1], target[::-1], mask[::-1]
    bins = CalibrationBins(3)
    tracemalloc.start()
    bins.update(probs, target, mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (bins.class_count == expected.class_count).all()
    assert (bins.top_accuracy == expected.top_accuracy).all()
    assert peak < 8 << 20 < probs.nbytes


def ece_of_smooth_truths(images: int = 40, side: int = 120) -> dict[str, float]:
    """A disc with a soft rim; in each image the organ is where p exceeds one threshold u, uniform
    over images. P(organ) = P(u < p) = p at every voxel: calibrated, with smooth truths."""
    y, x = np.mgrid[:side, :side] - side / 2
    p = 1 / (1 + np.exp((np.hypot(x, y) - 0.27 * side) / 6))
    probs = np.stack([1 - p, p])
    labels = probs.argmax(0)
    pooled = {name: CalibrationBins(2) for name in REGIONS}
    for i in range(images):
        truth = (p > (i + 0.5) / images).astype(int)
        for name, region in REGIONS.items():
            pooled[name].update(probs, truth, mask=region(truth, labels=labels))
    return {name: bins.ece() for name, bins in pooled.items()}


def test_regions_chosen_by_the_truth_punish_a_calibrated_map_with_smooth_truths() -> None:
    ece = ece_of_smooth_truths()
    assert max(ece["all"], ece["predicted"], ece["predicted_boundary"]) < 0.004
    assert ece["foreground"] > 0.05
    assert ece["union"] > 0.05
    assert ece["boundary"] > 0.15


def test_calibrated_by_construction_scores_zero_in_all_and_not_in_foreground() -> None:
    """The region of the papers keeps true foreground only: the voxels that came true."""
    rng = np.random.default_rng(9)
    p = rng.beta(0.3, 0.6, 1_000_000)
    target = (rng.random(p.size) < p).astype(int)
    probs = np.stack([1 - p, p])
    assert CalibrationBins(2).update(probs, target).ece() < 2e-3
    assert CalibrationBins(2).update(probs, target, mask=target != 0).ece() > 0.05


@pytest.mark.parametrize(("argument", "value"), [("num_classes", 0), ("num_bins", 0)])
def test_wrong_sizes_are_refused(argument: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"`{argument}` to be an integer at least 1"):
        CalibrationBins(**{"num_classes": 2, argument: value})
    with pytest.raises(TypeError, match=f"`{argument}` to be an integer"):
        CalibrationBins(**{"num_classes": 2, argument: 2.5})
    with pytest.raises(ValueError, match="`reduction` to be one of 'mean', 'sum'"):
        by_hand().cece(reduction="max")


def test_debiased_ece_by_hand() -> None:
    """Bins of 2 and 4 voxels, and one of a single voxel that is left out."""
    top = np.array([0.7, 0.72, 0.9, 0.9, 0.9, 0.9, 0.55])
    right = np.array([1, 0, 1, 1, 1, 0, 1])
    bins = CalibrationBins(2).update(np.stack([1 - top, top]), right)
    first = (0.5 - 0.71) ** 2 - 0.25 / 1
    second = (0.75 - 0.9) ** 2 - 0.75 * 0.25 / 3
    square = (2 * first + 4 * second) / 6
    assert bins.debiased_ece() == pytest.approx(-np.sqrt(-square))
    wrong = CalibrationBins(2).update(np.array([[0.1] * 4, [0.9] * 4]), np.zeros(4, int))
    assert wrong.debiased_ece() == pytest.approx(0.9)  # no variance: the plain value
    assert np.isnan(CalibrationBins(2).debiased_ece())
    single = CalibrationBins(2).update(np.array([[0.1], [0.9]]), np.array([1]))
    assert np.isnan(single.debiased_ece())


@pytest.mark.parametrize("voxels", [50, 300])
def test_debiased_ece_of_small_calibrated_samples_is_near_zero(voxels: int) -> None:
    rng = np.random.default_rng(0)
    plain, debiased, off = [], [], []
    for _ in range(400):
        p = rng.beta(2, 2, voxels)
        target = (rng.random(voxels) < p).astype(int)
        bins = CalibrationBins(2, num_bins=8).update(np.stack([1 - p, p]), target)
        plain.append(bins.ece())
        debiased.append(bins.debiased_ece())
        # Over-confident: p is pushed away from 1/2.
        sure = p**2 / (p**2 + (1 - p) ** 2)
        bins = CalibrationBins(2, num_bins=8).update(np.stack([1 - sure, sure]), target)
        off.append(bins.debiased_ece())
    assert np.mean(plain) > (0.08 if voxels == 50 else 0.035)
    # Its square is unbiased; the root has a small negative mean.
    square = np.sign(debiased) * np.square(debiased)
    assert abs(square.mean()) < 0.12 * np.square(plain).mean()
    assert abs(np.mean(debiased)) < 0.25 * np.mean(plain)
    # A network that is off is still found, and its error does not depend on the sample size.
    square = np.sign(off) * np.square(off)
    assert np.sqrt(square.mean()) == pytest.approx(0.10, abs=0.025)
