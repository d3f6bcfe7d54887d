"""Other libraries on the same data. Every difference is explained where it is tested."""

import numpy as np
import pytest
import torch

from helpers.metric_samples import brier, ellipsoid, nll, random_case
from segcal.metrics import CalibrationBins, all_surface_distances, dsc, surface_distances

pytestmark = pytest.mark.filterwarnings("ignore")

RNG = np.random.default_rng(0)
PROBS, TARGET = random_case(RNG, 4, 6000)


def one_hot(labels: np.ndarray, num_classes: int) -> torch.Tensor:
    spread = torch.nn.functional.one_hot(torch.from_numpy(labels).long(), num_classes)
    return spread.movedim(-1, 0)[None]


def label_maps() -> tuple[np.ndarray, np.ndarray]:
    target = np.zeros((20, 48, 40), np.int64)
    target[ellipsoid(target.shape, (9, 20, 18), (7, 14, 12))] = 1
    target[ellipsoid(target.shape, (9, 22, 17), (4, 6, 5))] = 2
    target[ellipsoid(target.shape, (2, 44, 36), (6, 7, 8))] = 3  # cut by the border
    labels = np.roll(target, (1, -2, 1), (0, 1, 2))
    noise = np.random.default_rng(1).random(target.shape) < 0.002
    return np.where(noise, 1, labels), target


# Calibration


def test_ece_equals_torchmetrics_away_from_the_edges() -> None:
    """Same bins, left-closed there and right-closed here: no random value lies on an edge.

    torchmetrics works in float32, hence the tolerance.
    """
    from torchmetrics.functional.classification import multiclass_calibration_error

    bins = CalibrationBins(4).update(PROBS, TARGET)
    probs, target = torch.from_numpy(PROBS.T), torch.from_numpy(TARGET)
    for norm, ours in (("l1", bins.ece()), ("max", bins.mce())):
        theirs = multiclass_calibration_error(probs, target, 4, n_bins=15, norm=norm)
        assert ours == pytest.approx(float(theirs), abs=1e-5)


def test_torchmetrics_puts_confidence_one_in_an_extra_bin() -> None:
    """One sure and wrong voxel, one at .95 and right.

    Here both are in (14/15, 1]: |.5 − .975|. There, bins are left-closed and 1.0 begins a 16th:
    |0 − 1|/2 + |1 − .95|/2. Saturated float32 softmax makes 1.0 the most common confidence.
    """
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs, target = np.array([[1.0, 0.95], [0.0, 0.05]]), np.array([1, 0])
    theirs = multiclass_calibration_error(
        torch.from_numpy(probs.T), torch.from_numpy(target), 2, 15
    )
    assert CalibrationBins(2).update(probs, target).ece() == pytest.approx(0.475)
    assert float(theirs) == pytest.approx(0.525, abs=1e-6)


def test_torchmetrics_loses_digits_where_float32_sums_do() -> None:
    """Four million voxels of confidence .7, 70 % of them right: calibrated by construction.

    float32 sums of millions of values drift, there; float64 sums do not, here.
    """
    from torchmetrics.functional.classification import multiclass_calibration_error

    n = 4_000_000
    probs = np.empty((2, n), np.float32)
    probs[0], probs[1] = 0.7, 0.3
    target = (np.arange(n) % 10 >= 7).astype(np.int64)
    ours = CalibrationBins(2).update(probs, target).ece()
    theirs = multiclass_calibration_error(
        torch.from_numpy(probs.T), torch.from_numpy(target), 2, n_bins=15
    )
    assert ours < 1e-7  # what is left is 0.7 rounded to float32
    assert float(theirs) > 1e-4


def test_ece_and_classwise_ece_equal_netcal() -> None:
    """netcal bins by numpy.histogram: left-closed, the last bin closed. No value is on an edge."""
    from netcal.metrics import ACE, ECE, MCE

    bins = CalibrationBins(4).update(PROBS, TARGET)
    assert bins.ece() == pytest.approx(ECE(15).measure(PROBS.T, TARGET), abs=1e-9)
    assert bins.ace() == pytest.approx(ACE(15).measure(PROBS.T, TARGET), abs=1e-9)
    assert bins.mce() == pytest.approx(MCE(15).measure(PROBS.T, TARGET), abs=1e-9)
    for k in range(4):  # one against the rest is netcal's binary case
        theirs = ECE(15).measure(PROBS[k], (k == TARGET).astype(int))
        assert bins.classwise_ece()[k] == pytest.approx(theirs, abs=1e-9)


def test_netcal_puts_an_edge_into_the_upper_bin() -> None:
    """.5 of four bins closes (.25, .5] here and opens [.5, .75) there, where .7 is."""
    from netcal.metrics import ECE

    p, target = np.array([0.5, 0.7]), np.array([1, 0])
    ours = CalibrationBins(2, num_bins=4).update(np.stack([1 - p, p]), target)
    assert ours.classwise_ece()[1] == pytest.approx((abs(1 - 0.5) + abs(0 - 0.7)) / 2)
    assert ECE(4).measure(p, target) == pytest.approx(abs(0.5 - 0.6))


def test_brier_and_nll_equal_scikit_learn() -> None:
    """scikit-learn halves the class sum of two classes unless told; its log-loss clips too."""
    from sklearn.metrics import brier_score_loss, log_loss

    classes = [0, 1, 2, 3]
    theirs = brier_score_loss(TARGET, PROBS.T, labels=classes, scale_by_half=False)
    assert brier(PROBS, TARGET, 4) == pytest.approx(theirs, abs=1e-12)
    assert nll(PROBS, TARGET, 4) == pytest.approx(log_loss(TARGET, PROBS.T, labels=classes))
    p = PROBS[:1]
    two = brier(np.concatenate([1 - p, p]), (TARGET == 0).astype(int), 2)
    assert two == pytest.approx(2 * brier_score_loss(TARGET == 0, p[0]), abs=1e-12)


# Segmentation


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (5.0, 1.2, 0.8)])
def test_hd95_equals_monai_max_and_medpy_pooled(spacing: tuple[float, ...]) -> None:
    """MONAI takes the larger directed percentile (in float32), MedPy pools both directions."""
    from medpy.metric.binary import assd, hd, hd95
    from monai.metrics import compute_hausdorff_distance

    labels, target = label_maps()
    ours = all_surface_distances(labels, target, 4, spacing)
    theirs = compute_hausdorff_distance(
        one_hot(labels, 4), one_hot(target, 4), percentile=95, spacing=list(spacing)
    )[0]
    assert [ours[str(k)].hd95("max") for k in (1, 2, 3)] == pytest.approx(theirs.tolist(), rel=1e-5)
    for k in (1, 2, 3):
        a, b, d = labels == k, target == k, ours[str(k)]
        assert d.hd95() == pytest.approx(hd95(a, b, voxelspacing=spacing))
        assert d.hausdorff() == pytest.approx(hd(a, b, voxelspacing=spacing))
        assert d.assd() == pytest.approx(assd(a, b, voxelspacing=spacing))
    assert any(d.hd95() != d.hd95("max") for d in ours.values())


@pytest.mark.parametrize("tolerance", [0.0, 1.0, 2.0])
def test_nsd_and_dsc_equal_monai(tolerance: float) -> None:
    """MONAI counts surface voxels, as here (not surface area, as DeepMind's surface-distance)."""
    from monai.metrics import compute_dice, compute_surface_dice

    labels, target = label_maps()
    a, b = one_hot(labels, 4), one_hot(target, 4)
    spacing = (2.0, 1.0, 1.0)
    theirs = compute_surface_dice(a, b, [tolerance] * 3, spacing=list(spacing))[0]
    ours = all_surface_distances(labels, target, 4, spacing)
    assert [ours[str(k)].nsd(tolerance) for k in (1, 2, 3)] == pytest.approx(
        theirs.tolist(), abs=1e-6
    )
    dice = compute_dice(a, b, include_background=False)[0]
    assert list(dsc(labels, target, 4).values()) == pytest.approx(dice.tolist(), abs=1e-6)


def test_two_dimensions_equal_medpy_on_random_masks() -> None:
    from medpy.metric.binary import hd95

    rng = np.random.default_rng(2)
    for density in (0.02, 0.3, 0.9):
        a, b = rng.random((2, 40, 50)) < density
        assert surface_distances(a, b, (0.7, 2.0)).hd95() == pytest.approx(
            hd95(a, b, voxelspacing=(0.7, 2.0))
        )


def test_missed_structures_are_undefined_where_others_say_infinity_or_raise() -> None:
    from medpy.metric.binary import hd95
    from monai.metrics import compute_dice, compute_hausdorff_distance

    labels, target = np.zeros((2, 8, 8), np.int64)
    target[2:5, 2:5] = 1
    a, b = one_hot(labels, 2), one_hot(target, 2)
    ours = all_surface_distances(labels, target, 2)["1"]
    assert np.isnan(ours.hd95())
    theirs = float(compute_hausdorff_distance(a, b, percentile=95)[0, 0])
    assert not np.isfinite(theirs)
    with pytest.raises(RuntimeError):
        hd95(labels == 1, target == 1)
    # Both empty: MONAI's Dice is NaN unless told; ours is 1: nothing there, nothing found.
    assert np.isnan(float(compute_dice(a, a, include_background=False)[0, 0]))
    assert dsc(labels, labels, 2)["1"] == 1.0
