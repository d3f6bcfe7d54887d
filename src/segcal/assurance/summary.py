"""One scan as histograms of its structures: everything that fit, apply and check need of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from segcal.assurance.histogram import BINS, Floats, Ints, ProbHistogram, bin_index
from segcal.core.arrays import most_probable, to_numpy
from segcal.core.blocks import BLOCK_VALUES, iter_blocks, take_block
from segcal.core.files import file_sha256
from segcal.core.heads import Heads, inside_labels
from segcal.posthoc import BaseCalibrator, BlockReader, HeadCalibrator, as_two_classes
from segcal.predictions import IGNORED, Pair, Pairs, name_file_in_errors
from segcal.stats import patients_of


@dataclass(frozen=True)
class CaseSummary:
    """Counts of one scan; rows are structures (class 1 first), columns are bins of probability.

    The argmax mask of a sigmoid head is {p > 0.5}.

    Attributes:
        name: name of the case.
        voxel_ml: volume of a voxel.
        count, sums: voxels, and the sum of their probabilities.
        inside_count, inside_sums: the same for voxels of the argmax mask.
        truth: voxels that belong to the structure; 0 without labels.
        overlap: voxels in both the argmax mask and the structure.
        features: statistics that tell whether the scan resembles those of a fit.
    """

    name: str
    voxel_ml: float
    count: Ints
    sums: Floats
    inside_count: Ints
    inside_sums: Floats
    truth: Ints
    overlap: Ints
    features: dict[str, float] = field(default_factory=dict)

    def histogram(self, s: int) -> ProbHistogram:
        """Probabilities of structure `s` in all voxels."""
        return ProbHistogram.from_bins(self.count[s], self.sums[s])

    def inside(self, s: int) -> ProbHistogram:
        """Probabilities of structure `s` in its argmax mask."""
        return ProbHistogram.from_bins(self.inside_count[s], self.inside_sums[s])

    def hard_volume(self, s: int) -> int:
        """Voxels of the argmax mask."""
        return int(self.inside_count[s].sum())

    def true_volume(self, s: int) -> int:
        """Voxels of the structure in the labels."""
        return int(self.truth[s].sum())

    def dice(self, s: int) -> float:
        """Dice of the argmax mask; NaN if it and the structure are both empty."""
        size = self.hard_volume(s) + self.true_volume(s)
        return float(2 * self.overlap[s] / size) if size else np.nan

    def above(self, s: int) -> tuple[Floats, Floats]:
        """(voxels, voxels of the structure) of the mask {p ≥ edge}, for each edge of `EDGES`."""
        size, hits = (counts[s, ::-1].cumsum()[::-1] for counts in (self.count, self.truth))
        return size.astype(float), hits.astype(float)


# The arrays of a `CaseSummary`, from `count` to `overlap`.
_Counts: TypeAlias = tuple[Ints, Floats, Ints, Floats, Ints, Ints]


def calibrated(
    values: NDArray[Any], calibrator: BaseCalibrator | None, reader: BlockReader
) -> NDArray[np.float32]:
    """Checked and calibrated probabilities (K, n) of a block."""
    if calibrator is not None:
        values = calibrator.transform(values, from_probs=True)
    else:
        values = to_numpy(values)
        reader.check(values)
    return values.astype(np.float32, copy=False)


def calibrate_whole(
    probs: NDArray[Any], calibrator: BaseCalibrator | None, spacing_mm: tuple[float, ...]
) -> tuple[NDArray[Any], BaseCalibrator | None]:
    """The probabilities of a scan, and what is left to apply to its blocks.

    A calibrator that looks at neighbors (`needs_spacing`) is applied to the whole scan, which then
    is in memory twice; any other is returned.
    """
    if calibrator is None or not calibrator.needs_spacing:
        return probs, calibrator
    return calibrator.transform(probs, from_probs=True, spacing_mm=spacing_mm), None


def summarize(
    probs: NDArray[Any],
    target: NDArray[Any] | None = None,
    spacing_mm: tuple[float, ...] = (1.0, 1.0, 1.0),
    *,
    calibrator: BaseCalibrator | None = None,
    image: NDArray[Any] | None = None,
    heads: Heads | None = None,
    name: str = "",
) -> CaseSummary:
    """Count one scan, a block at a time.

    Args:
        probs: (K, *S) probabilities, background first; or (R, *S) of sigmoid heads.
        target: (*S) labels; voxels with -100 are ignored.
        spacing_mm: voxel size; two numbers are a slice of 1 mm.
        calibrator: applied to the probabilities.
        image: (C, *S), for statistics of intensity.
        heads: of sigmoid heads, the labels of each; every head is a problem of two classes.
        name: name of the case.
    """
    probs, calibrator = calibrate_whole(probs, calibrator, spacing_mm)
    if heads:
        parts = [
            _count(
                as_two_classes(probs[r], from_probs=True),
                None if target is None else inside_labels(target, labels),
                calibrator.parts[r] if isinstance(calibrator, HeadCalibrator) else None,
            )
            for r, labels in enumerate(heads.values())
        ]
        joined = tuple(np.concatenate(rows) for rows in zip(*parts, strict=True))
        counts = cast(_Counts, joined)
    else:
        counts = _count(probs, target, calibrator)
    spacing = (1.0,) * (3 - len(spacing_mm)) + tuple(spacing_mm)
    summary = CaseSummary(name, float(np.prod(spacing)) / 1000, *counts)
    summary.features.update(_features(summary, probs.shape[1:], spacing))
    for c, channel in enumerate(() if image is None else image):
        for what, value in (("mean", channel.mean(dtype=float)), ("deviation", channel.std())):
            summary.features[f"intensity: asinh {what} of channel {c}"] = float(np.arcsinh(value))
    return summary


def _count(
    probs: NDArray[Any], target: NDArray[Any] | None, calibrator: BaseCalibrator | None
) -> _Counts:
    """The counts of exclusive classes (K, *S)."""
    k, axes = len(probs), probs.ndim - 1
    size = (k - 1) * BINS
    rows = np.arange(k - 1, dtype=np.int32)[:, None] * BINS
    count, inside, truth = (np.zeros(size, np.int64) for _ in range(3))
    sums, inside_sums = np.zeros(size), np.zeros(size)
    overlap = np.zeros(k, np.int64)
    reader = BlockReader(from_probs=True)
    for where in iter_blocks(probs.shape[1:], max(BLOCK_VALUES // k, 1)):
        block = calibrated(take_block(probs, where, axes), calibrator, reader)
        labels = None if target is None else take_block(target, where, axes)
        if labels is not None and (labels == IGNORED).any():
            block, labels = block[:, labels != IGNORED], labels[labels != IGNORED]
        index = bin_index(block[1:]) + rows
        count += np.bincount(index.reshape(-1), minlength=size)
        sums += np.bincount(index.reshape(-1), block[1:].reshape(-1), size)
        winner = most_probable(block)
        chosen = np.flatnonzero(winner)
        own = index[winner[chosen] - 1, chosen]
        inside += np.bincount(own, minlength=size)
        inside_sums += np.bincount(own, block[winner[chosen], chosen], size)
        if labels is not None:
            positive = np.flatnonzero(labels)
            truth += np.bincount(index[labels[positive] - 1, positive], minlength=size)
            overlap += np.bincount(labels[labels == winner], minlength=k)
    shape = (k - 1, BINS)
    return (
        count.reshape(shape), sums.reshape(shape), inside.reshape(shape),
        inside_sums.reshape(shape), truth.reshape(shape), overlap[1:],
    )  # fmt: skip


def _features(
    summary: CaseSummary, shape: tuple[int, ...], spacing: tuple[float, ...]
) -> dict[str, float]:
    """Statistics on scales on which a difference of 0.01 is small."""
    out = {}
    for s in range(len(summary.count)):
        hist = summary.histogram(s)
        volume = summary.voxel_ml * max(hist.expected, 1.0)
        out[f"shape: log volume in ml of class {s + 1}"] = float(np.log(volume))
        if hist.expected >= 1:
            doubt = hist.count @ (hist.prob * (1 - hist.prob)) / hist.expected
            out[f"confidence: doubtful share of class {s + 1}"] = float(doubt)
    extent = np.array((1,) * (3 - len(shape)) + shape) * spacing
    for axis, length, step in zip("zyx", extent, spacing, strict=True):
        out[f"shape: log extent in mm along {axis}"] = float(np.log(length))
        out[f"shape: log spacing in mm along {axis}"] = float(np.log(step))
    return out


def read_labeled(pair: Pair, calibrator: BaseCalibrator | None) -> CaseSummary:
    """Read and count a scan with labels."""
    case = pair.load()
    with name_file_in_errors(pair.softmax.path):
        return summarize(
            case.values, case.target, case.spacing_mm,
            calibrator=calibrator, image=case.image, heads=pair.heads, name=pair.name,
        )  # fmt: skip


def units_of(pairs: Pairs, patient: str | Mapping[str, str] | None) -> NDArray[np.str_]:
    """The patient of each scan; without a pattern or a table, each scan is one patient."""
    found = patients_of(pairs.names, patient) if isinstance(patient, str) else patient or {}
    return np.array([found.get(name, name) for name in pairs.names])


def identify(pair: Pair) -> tuple[str, str]:
    """What tells that two scans are one: the probabilities, or the name and the labels."""
    labels = sorted(pair.label.iterdir()) if pair.label.is_dir() else [pair.label]
    of_probs, of_labels = (
        "-".join(map(file_sha256, paths)) for paths in (pair.softmax.paths, labels)
    )
    return of_probs, f"{pair.name}-{of_labels}"
