"""Volume and Dice under one hidden factor per structure and scan.

    y_i = 1[√ρ·z + √(1−ρ)·e_i < Φ⁻¹(p_i)],   z, e_i standard normal

The marginal probability of voxel i is p_i, whatever ρ is. The factor z is what all voxels of a
structure have in common: an outline that is drawn too wide or too narrow as a whole. ρ = 0 are
independent voxels; ρ = 1 are nested outlines. Volumes are in voxels unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from segcal.assurance.histogram import Floats, ProbHistogram

Probs: TypeAlias = ProbHistogram | NDArray[np.floating]

# Candidates of √ρ, and the levels at which a distribution of volumes is compared with the truth.
ROOT_RHO: Floats = np.linspace(0, 0.96, 25)
CRPS_LEVELS: Floats = (np.arange(17) + 0.5) / 17
_FACTORS: Floats = ndtri((np.arange(65) + 0.5) / 65)


def given_factor(prob: Floats, rho: float, z: Floats) -> Floats:
    """(Z, B): the probability of each group given the factor, Φ((Φ⁻¹(p) − √ρ·z)/√(1−ρ))."""
    x = ndtri(prob)
    if rho >= 1:
        return (x > z[:, None]).astype(np.float64)
    return np.asarray(ndtr((x - np.sqrt(rho) * z[:, None]) / np.sqrt(1 - rho)))


def expected_volume(probs: Probs, voxel_ml: float = 1.0) -> float:
    """Σp times the volume of a voxel; it does not depend on ρ."""
    return voxel_ml * ProbHistogram.of(probs).expected


def volume_quantiles(probs: Probs, rho: float, levels: ArrayLike, voxel_ml: float = 1.0) -> Floats:
    """Quantiles of the volume of one structure.

    The volume given z falls with z, so its quantiles are the volumes at quantiles of z. The spread
    of independent voxels given z is added in quadrature: exact at ρ = 0 and for nested outlines.

    Example:
        >>> volume_quantiles(np.full(400, 0.5), 0.0, [0.5, 0.975]).round(1).tolist()
        [200.0, 219.6]
    """
    hist = ProbHistogram.of(probs)
    normal = ndtri(np.asarray(levels, dtype=np.float64))
    given = given_factor(hist.prob, rho, np.append(-normal.reshape(-1), 0.0))
    *volumes, median = given @ hist.count
    shift = np.array(volumes).reshape(normal.shape) - median
    variance = float((given[-1] * (1 - given[-1])) @ hist.count)
    spread = np.sqrt(shift**2 + variance * normal**2)
    return np.asarray(voxel_ml * np.clip(median + np.sign(normal) * spread, 0, hist.voxels))


def volume_pit(probs: Probs, rho: float, volume: float, voxel_ml: float = 1.0) -> float:
    """The level at which `volume` lies in the predicted distribution; uniform if it is right."""
    levels = ndtr(np.linspace(-5, 5, 201))
    quantiles = volume_quantiles(probs, rho, levels, voxel_ml)
    below, at_most = (np.searchsorted(quantiles, volume, side) for side in ("left", "right"))
    if at_most > below:  # a volume that has a probability of its own, such as 0
        return float(levels[below:at_most].mean())
    return float(np.interp(volume, quantiles, levels, left=0.0, right=1.0))


def crps(quantiles: ArrayLike, value: float) -> float:
    """Continuous ranked probability score of equally spaced quantiles, at levels (m + 0.5)/M.

    It is in the unit of `value`, and the absolute error if all quantiles are equal.

    Example:
        >>> crps([2.0, 2.0, 2.0], 5.0)
        3.0
    """
    q = np.asarray(quantiles, dtype=np.float64)
    levels = (np.arange(len(q)) + 0.5) / len(q)
    return float(2 * np.mean(((value < q) - levels) * (q - value)))


def crps_curve(probs: Probs, volume: float) -> Floats:
    """CRPS for each of the candidates of √ρ, relative to the expected volume of the scan."""
    hist = ProbHistogram.of(probs)
    scale = max(hist.expected, 1.0)
    return np.array(
        [crps(volume_quantiles(hist, r * r, CRPS_LEVELS), volume) / scale for r in ROOT_RHO]
    )


def best_rho(curves: Floats, weights: Floats | None = None) -> float:
    """The ρ of the smallest mean of CRPS curves (n, candidates), refined by a parabola."""
    mean = np.average(curves, axis=0, weights=weights)
    i = int(mean.argmin())
    root = ROOT_RHO[i]
    if 0 < i < len(mean) - 1:
        left, middle, right = mean[i - 1 : i + 2]
        bend = left - 2 * middle + right
        root += 0.5 * (left - right) / bend * (ROOT_RHO[1] - ROOT_RHO[0]) if bend > 0 else 0.0
    return float(root**2)


def fit_rho(probs: Sequence[Probs], volumes: Sequence[float]) -> float:
    """ρ of one structure by CRPS on held-out scans; `volumes` are the true ones, in voxels."""
    return best_rho(np.stack([crps_curve(p, v) for p, v in zip(probs, volumes, strict=True)]))


def expected_dice(probs: Probs, inside: Probs, rho: float) -> float:
    """E[2Σ_A p(z) / (|A| + Σp(z))] over the factor z, for a mask A.

    `probs` are the probabilities of all voxels, `inside` those of the voxels in the mask. NaN if
    the mask is empty and the structure is expected to be absent (Σp below half a voxel).
    """
    hist, mask = ProbHistogram.of(probs), ProbHistogram.of(inside)
    if not mask.voxels:
        return np.nan if hist.expected < 0.5 else 0.0
    common = given_factor(mask.prob, rho, _FACTORS) @ mask.count
    total = given_factor(hist.prob, rho, _FACTORS) @ hist.count
    return float(np.mean(2 * common / (mask.voxels + total)))


def dice_optimal_threshold(probs: Probs, rho: float = 0.0) -> tuple[float, float]:
    """(t, expected Dice): among all masks {p ≥ t}, the one with the largest expected Dice.

    ρ = 0 is RankDice (Dai and Li 2023) up to terms of the order of one voxel. The threshold is
    infinite, and the Dice NaN, where Σp is below half a voxel.

    Example:
        >>> dice_optimal_threshold(np.array([0.9, 0.4, 0.4, 0.1]))[0] <= 0.4
        True
    """
    hist = ProbHistogram.of(probs)
    if hist.expected < 0.5:
        return np.inf, np.nan
    given = given_factor(hist.prob, rho, _FACTORS) * hist.count
    size = hist.count[::-1].cumsum()
    common = given[:, ::-1].cumsum(axis=1)
    dice = np.mean(2 * common / (size + given.sum(axis=1, keepdims=True)), axis=0)
    best = int(dice.argmax())
    return float(hist.edge[::-1][best]), float(dice[best])
