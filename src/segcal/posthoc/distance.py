"""A temperature for each predicted class that depends on the distance to the predicted surface."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.boxes import grow
from segcal.core.checks import check_number
from segcal.posthoc._blocks import FeatureMap, Floats, Ints, log_softmax
from segcal.posthoc._linear import (
    Derivatives,
    LinearCalibrator,
    Parameters,
    check_bounds,
    finite_array,
)
from segcal.posthoc.sample import Voxels, WeightedBlock

# Larger distances count as this: with the largest scale, exp(−40/8) is 0.007.
LIMIT_MM = 40.0
_SCALES_MM = (1.0, 2.0, 4.0, 8.0)


def surface_distance(labels: npt.NDArray[Any], spacing_mm: tuple[float, ...]) -> Floats:
    """(1, *S): the distance in mm to the nearest voxel center of another label, at most 40 mm.

    The same distance as in the region `predicted_boundary`, so it is at least the voxel size.

    Example:
        >>> surface_distance(np.array([0, 0, 0, 1, 1]), (2.0,)).tolist()
        [[6.0, 4.0, 2.0, 2.0, 4.0]]
    """
    from scipy.ndimage import distance_transform_edt, find_objects

    out = np.full(labels.shape, LIMIT_MM)
    margin = [math.ceil(LIMIT_MM / s) for s in spacing_mm]
    numbered = labels.astype(np.int64) + 1
    boxes = {i: box for i, box in enumerate(find_objects(numbered), start=1) if box is not None}
    if len(boxes) > 1:
        # The background is read only near the other labels.
        others = [box for label, box in boxes.items() if label > 1]
        near = tuple(
            slice(min(box[a].start for box in others), max(box[a].stop for box in others))
            for a in range(labels.ndim)
        )
        for label, box in boxes.items():
            box = grow(near, margin, labels.shape) if label == 1 else box
            box = grow(box, [1] * labels.ndim, labels.shape)
            own = numbered[box] == label
            distance = distance_transform_edt(own, sampling=spacing_mm)
            out[box][own] = np.minimum(distance[own], LIMIT_MM)
    return out[None]


class DistanceScaling(LinearCalibrator):
    """softmax(l / T) with T = exp(a_k + b_k · exp(−d/δ)). Labels do not change.

    k is the predicted class of the voxel and d its distance to the predicted surface in mm
    (`surface_distance`): T is exp(a_k) far from the surface and approaches exp(a_k + b_k) at it.
    One temperature is fitted to the many easy voxels; this one can be right at the boundary too.

    The fit minimizes the sum of two NLL, over all voxels and within `band_mm` of the predicted
    surface, each relative to that of the uncalibrated network: otherwise the many voxels far from
    the surface would decide about those close to it. δ is the one of `scales_mm` with the smallest
    sum.

    Args:
        scales_mm: candidates for δ.
        bounds: smallest and largest exp(a_k), and the same for exp(b_k).
        penalty: weight of the mean square of a and b.
        band_mm: width of the band; 0 fits on all voxels alone.

    Example:
        >>> from segcal.posthoc import HeldOut
        >>> rng = np.random.default_rng(0)
        >>> logits = np.stack([np.zeros((40, 40)), rng.normal(size=(40, 40))])
        >>> target = (rng.random((40, 40)) < 1 / (1 + np.exp(-logits[1]))).astype(int)
        >>> case = HeldOut(logits * 3, target, spacing_mm=1.0)
        >>> probs = DistanceScaling().fit([case]).transform(logits * 3, spacing_mm=1.0)
        >>> bool((probs.argmax(0) == logits.argmax(0)).all())
        True
    """

    keeps_argmax = True
    _per_class = True  # whether a and b differ between predicted classes

    def __init__(
        self,
        scales_mm: Sequence[float] = _SCALES_MM,
        bounds: Sequence[float] = (0.01, 100.0),
        penalty: float = 1e-6,
        band_mm: float = 3.0,
    ) -> None:
        super().__init__()
        given = scales_mm if isinstance(scales_mm, Sequence) else [scales_mm]
        self.scales_mm = tuple(check_number("scales_mm", s, low=0, open_low=True) for s in given)
        self.bounds = check_bounds("bounds", bounds)
        self.penalty = check_number("penalty", penalty, low=0)
        self.band_mm = check_number("band_mm", band_mm, low=0)
        self._scale = self.scales_mm[0]

    def feature_map(self) -> FeatureMap:
        return surface_distance

    def estimate(self, voxels: Voxels) -> None:
        """Fit with each scale, and keep the best."""
        assert self.report is not None
        voxels = self._with_band(voxels)
        best = math.inf, self._scale, self._theta, self.report
        for scale in self.scales_mm:
            self._scale = scale
            super().estimate(voxels)
            if self.report.nll_after < best[0]:
                best = self.report.nll_after, scale, self._theta, replace(self.report)
        _, self._scale, self._theta, self.report = best
        self.report.nll_after = math.nan  # not that of all voxels

    def _with_band(self, voxels: Voxels) -> Voxels:
        """The voxels with weights for both regions."""
        k, sums = voxels.num_classes, np.zeros(2)
        for rows, labels, weights in voxels.blocks():
            nll = -log_softmax(rows[:k])[labels, np.arange(len(labels))]
            sums += weights @ nll, (weights * (rows[k] <= self.band_mm)) @ nll
        ratio = sums[0] / sums[1] if sums[1] > 0 else 0.0

        def blocks() -> Iterator[WeightedBlock]:
            for rows, labels, weights in voxels.blocks():
                yield rows, labels, weights * (1 + ratio * (rows[k] <= self.band_mm))

        return replace(voxels, blocks=blocks)

    def _shape(self, num_classes: int) -> tuple[int, ...]:
        """Of a and b; () if all classes share them."""
        return (num_classes,) if self._per_class else ()

    def _parameters(self, num_classes: int) -> Parameters:
        """θ is (a, b)."""
        n = math.prod(self._shape(num_classes))
        names = [f"{what} of class {k}" if n > 1 else what for what in "ab" for k in range(n)]
        low, high = (np.full(2 * n, math.log(bound)) for bound in self.bounds)
        penalty = np.full(2 * n, self.penalty / (2 * n))
        return Parameters(names, np.zeros(2 * n), low, high, penalty)

    def _split(self, theta: Floats, rows: Floats) -> tuple[Floats, Ints, Floats, Floats]:
        """Logits (K, n), group of parameters, closeness exp(−d/δ) and 1/T of each voxel."""
        k = len(rows) - 1
        n = math.prod(self._shape(k))
        logits, close = rows[:k], np.exp(-rows[k] / self._scale)
        group = logits.argmax(0) if self._per_class else np.zeros(rows.shape[1], np.int64)
        return logits, group, close, np.exp(-theta[:n][group] - theta[n : 2 * n][group] * close)

    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        logits, _, _, inverse = self._split(theta, rows)
        return logits * inverse

    def _block(self, theta: Floats, rows: Floats, labels: Ints, weights: Floats) -> Derivatives:
        group, close, nll, first, second = self._scaled_nll(theta, rows, labels)
        value = float(weights @ nll)
        first, second = weights * first, weights * second
        cross = second * close
        return value, *sums_by_group(
            group, len(theta) // 2, [first, first * close], [[second, cross], [cross * close]]
        )

    def _scaled_nll(
        self, theta: Floats, rows: Floats, labels: Ints
    ) -> tuple[Ints, Floats, Floats, Floats, Floats]:
        """Group, closeness, NLL, and its two derivatives in log T, of each voxel."""
        logits, group, close, inverse = self._split(theta, rows)
        shifted = logits - logits.max(0)
        e = np.exp(inverse * shifted)
        total = e.sum(0)
        e *= shifted
        mean = e.sum(0) / total
        variance = np.einsum("kn,kn->n", e, shifted) / total - mean**2
        own = shifted[labels, np.arange(len(labels))]
        slope = inverse * (own - mean)
        nll = np.log(total) - inverse * own
        return group, close, nll, slope, inverse**2 * variance - slope

    def params(self) -> dict[str, Any]:
        a, b = self._theta.reshape(2, *self._shape(self.check_fitted())).tolist()
        return {"scale_mm": self._scale, "a": a, "b": b}

    def set_params(self, params: dict[str, Any]) -> None:
        self._scale = check_number("scale_mm", params.get("scale_mm"), low=0, open_low=True)
        self._theta = self._read("ab", params)

    def _read(self, names: str, params: dict[str, Any]) -> Floats:
        shape = self._shape(self.check_fitted())
        return np.concatenate([finite_array(n, params.get(n), shape).ravel() for n in names])


def sums_by_group(
    group: Ints, groups: int, first: Sequence[Floats], second: Sequence[Sequence[Floats]]
) -> tuple[Floats, Floats]:
    """Gradient and Hessian of parameters that every group of voxels has of its own.

    `first` has the derivative of each voxel in each kind of parameter. `second` has those in two
    kinds: row i begins with kind i, because the Hessian is symmetric. The parameters are ordered by
    kind, then by group.
    """
    k, each = groups, np.arange(groups)
    gradient = np.concatenate([np.bincount(group, values, k) for values in first])
    hessian = np.zeros((len(gradient), len(gradient)))
    for i, row in enumerate(second):
        for j, values in enumerate(row, start=i):
            sums = np.bincount(group, values, k)
            hessian[i * k + each, j * k + each] = hessian[j * k + each, i * k + each] = sums
    return gradient, hessian
