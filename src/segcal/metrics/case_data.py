"""One case as metrics see it: its arrays, and what several metrics share, computed once."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, to_numpy
from segcal.core.blocks import BLOCK_VALUES, iter_blocks
from segcal.metrics._binning import Tables, add_tables
from segcal.metrics._chunks import in_memory_order, iter_chunks, permute, top_label
from segcal.metrics._geometry import LabelMap, Mask
from segcal.metrics._half_counts import count_half
from segcal.metrics._validate import Inspector
from segcal.metrics.calibration import CalibrationBins
from segcal.metrics.ensemble import pair_tables
from segcal.metrics.levels import ConfidenceLevels
from segcal.metrics.options import CaseOptions
from segcal.metrics.overlap import confusion
from segcal.metrics.readers import Readers
from segcal.metrics.regions import REGIONS
from segcal.metrics.scores import equal_mass_error
from segcal.metrics.surface import SurfaceDistances, all_surface_distances
from segcal.metrics.voxel_sums import VoxelStatistics, voxel_statistics

# A little-endian integer of 8 bytes, the confidence first.
_PACKED = np.dtype([("correct", "?"), ("bits", "u1"), ("zero", "<u2"), ("confidence", "<f4")])


@dataclass(frozen=True)
class RegionCounts:
    """Statistics of each region, and the n voxels sorted by confidence.

    `class_mass` is the sum of the probabilities of each class over all voxels. `count` is how many
    voxels each of the sorted ones stands for; None for one.
    """

    statistics: dict[str, VoxelStatistics]
    levels: ConfidenceLevels
    class_mass: npt.NDArray[np.float64]
    confidence: npt.NDArray[Any]
    correct: npt.NDArray[np.bool_]
    region_bits: npt.NDArray[np.uint8]  # bit i is set if the voxel is in region i
    count: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class CaseData:
    """One case, the argument of a metric with the scope "image".

    Attributes:
        probs: (K, *S) after softmax, numpy or torch, as given to `evaluate_case`.
        target: true labels (*S), numpy.
        labels: predicted labels (*S), numpy.
        spacing_mm: voxel size along each axis.
        groups: name of each structure → its labels.
        options: how metrics are computed.
        ignore_index: label of voxels in `target` that are not counted.
        logits: (K, *S), or None.
        true_probs: true probabilities (K, *S) where they are known, or None.
        readers: the label maps of several readers, or None.
        members: the label maps (M, *S) of the members of an ensemble, or None.
    """

    probs: Array
    target: LabelMap
    labels: LabelMap
    spacing_mm: tuple[float, ...]
    groups: dict[str, tuple[int, ...]]
    options: CaseOptions
    ignore_index: int = -100
    logits: Array | None = None
    true_probs: Array | None = None
    readers: Readers | None = None
    members: Array | None = None

    @property
    def num_classes(self) -> int:
        """K, the number of classes of the model."""
        return int(self.probs.shape[0])

    @cached_property
    def confusion(self) -> npt.NDArray[np.int64]:
        """(K, K) counts of voxels by true (row) and predicted (column) label."""
        return confusion(self.labels, self.target, self.num_classes, ignore_index=self.ignore_index)

    @cached_property
    def surface_distances(self) -> dict[str, SurfaceDistances]:
        """Surface distances of each structure."""
        return all_surface_distances(
            self.labels, self.target, self.num_classes, self.spacing_mm,
            groups=self.groups, units=self.options.units, empty=self.options.empty,
            ignore_index=self.ignore_index,
        )  # fmt: skip

    @cached_property
    def region_bits(self) -> npt.NDArray[np.uint8]:
        """The regions of each voxel (*S): bit i is set if it is in region i."""
        settings = {
            "union": {"dilate_mm": self.options.dilate_mm},
            "boundary": {"width_mm": self.options.width_mm},
            "predicted_boundary": {"width_mm": self.options.width_mm},
        }
        code = np.zeros(self.target.shape, np.uint8)
        for bit, name in enumerate(self.options.regions):
            inside = REGIONS[name](
                self.target, labels=self.labels, spacing_mm=self.spacing_mm,
                ignore_index=self.ignore_index, **settings.get(name, {}),
            )  # fmt: skip
            code |= np.asarray(inside, bool).view(np.uint8) << np.uint8(bit)
        return code

    def mask(self, region: str) -> Mask:
        """The voxels of a region."""
        bit = 1 << self.options.regions.index(region)
        return np.asarray((self.region_bits & np.uint8(bit)) != 0)

    @cached_property
    def counts(self) -> RegionCounts:
        """Statistics of all regions, from one pass over the probabilities.

        Each voxel has a code, the set of regions that contain it. Voxels are counted by code, and
        a region adds up the codes that contain it.
        """
        num_classes, regions = self.num_classes, self.options.regions
        sizes = (num_classes, self.options.num_bins)
        statistics = {name: VoxelStatistics.empty(*sizes) for name in regions}
        counter, levels = VoxelStatistics.empty(*sizes), ConfidenceLevels(num_classes)
        codes, tables = tuple(range(1 << len(regions))), Tables()
        on_gpu = getattr(self.probs, "is_cuda", False)
        if not on_gpu and str(self.probs.dtype) in ("float16", "torch.float16"):
            probs = to_numpy(self.probs, widen_half=False)
            found = count_half(probs, self.target, self.labels, self.region_bits, self.ignore_index)
            codes, tables = found.codes, found.tables(self.options.num_bins, counter.scores.clip)
            levels.add(found.level_tables())
            by_confidence: Any = found.by_confidence()
        else:
            voxels = _SortedVoxels()
            for chunk in iter_chunks(
                self.probs, self.target, num_classes, group=self.region_bits, label=self.labels,
                ignore_index=self.ignore_index, batched=False, seen=Inspector(num_classes),
            ):  # fmt: skip
                tables = add_tables(tables, counter.tally(chunk, len(codes)))
                levels.add(levels.tally(chunk))
                top, label = chunk.top
                voxels.add(to_numpy(top), to_numpy(label == chunk.target), to_numpy(chunk.group))
            by_confidence = voxels.by_confidence()
        for bit, each in enumerate(statistics.values() if tables else ()):
            for group, code in enumerate(codes):
                if code >> bit & 1:
                    each.add(tables, group)
        mass = tables["class_confidence"].sum(axis=(0, 2)) if tables else np.zeros(num_classes)
        return RegionCounts(statistics, levels, mass, *by_confidence)

    @cached_property
    def true_bins(self) -> CalibrationBins:
        """Calibration against the true probabilities, over all voxels."""
        bins = CalibrationBins(self.num_classes, self.options.num_bins)
        return bins.update(self.probs, self.normalized_true_probs, batched=False)

    @cached_property
    def reader_statistics(self) -> dict[str, VoxelStatistics]:
        """Statistics of each region against the frequency of the readers' labels."""
        assert self.readers is not None
        frequency = self.readers.frequency
        return {
            name: voxel_statistics(
                self.probs, frequency, self.num_classes,
                self.mask(name) & frequency.any(axis=0),
                num_bins=self.options.num_bins, batched=False,
            )
            for name in self.options.regions
        }  # fmt: skip

    @cached_property
    def member_tables(self) -> npt.NDArray[np.int64]:
        """(pairs, K, K): confusion of each pair of members, without ignored voxels."""
        assert self.members is not None
        return pair_tables(self.members, self.num_classes, self.target != self.ignore_index)

    @cached_property
    def normalized_true_probs(self) -> npt.NDArray[np.float32]:
        """`true_probs` with the sum 1 in every voxel; stored half precision loses it."""
        true = np.asarray(to_numpy(self.true_probs), dtype=np.float32)
        return np.asarray(true / true.sum(0, keepdims=True))


# Confidence, whether the label is right, regions, and how many voxels have these.
_Sorted = tuple[
    npt.NDArray[Any], npt.NDArray[np.bool_], npt.NDArray[np.uint8], npt.NDArray[np.int64] | None
]


class _SortedVoxels:
    """Confidence, correctness and regions of all voxels, to be sorted by confidence."""

    def __init__(self) -> None:
        self.parts: tuple[list[npt.NDArray[Any]], ...] = ([], [], [])

    def add(
        self, confidence: npt.NDArray[Any], correct: npt.NDArray[Any], bits: npt.NDArray[Any]
    ) -> None:
        new = (confidence, correct, bits.astype(np.uint8))
        for part, values in zip(self.parts, new, strict=True):
            part.append(values)

    def by_confidence(self) -> _Sorted:
        confidence, correct, bits = self.parts
        if not confidence:
            return np.zeros(0), np.zeros(0, bool), np.zeros(0, np.uint8), None
        if confidence[0].dtype != np.float32:
            order = np.argsort(whole := np.concatenate(confidence))
            return whole[order], np.concatenate(correct)[order], np.concatenate(bits)[order], None
        # The bits of positive numbers sort like the numbers, so all three are sorted as one
        # integer: several times faster than sorting indices.
        packed = np.empty(sum(map(len, confidence)), _PACKED)
        for name, parts in (("confidence", confidence), ("bits", bits), ("correct", correct)):
            np.concatenate(parts, out=packed[name])
            parts.clear()
        packed["zero"] = 0
        packed.view("<u8").sort()
        return packed["confidence"], packed["correct"], packed["bits"], None


@dataclass(frozen=True)
class RegionData(VoxelStatistics):
    """One region of a case (`bins`, `scores`), the argument of a metric with the scope "region"."""

    name: str
    case: CaseData

    @property
    def mask(self) -> Mask:
        """The voxels of the region, boolean (*S)."""
        return self.case.mask(self.name)

    def adaptive_ece(self) -> float:
        """Calibration error over bins of equal mass."""
        counts, bit = self.case.counts, self.case.options.regions.index(self.name)
        inside = (counts.region_bits & np.uint8(1 << bit)) != 0
        return equal_mass_error(
            counts.confidence[inside], counts.correct[inside], self.case.options.num_bins,
            None if counts.count is None else counts.count[inside],
        )  # fmt: skip


@dataclass(frozen=True)
class StructureData:
    """One structure of a case, formed by `labels`: the argument of metrics of scope "structure"."""

    name: str
    labels: tuple[int, ...]
    case: CaseData

    @property
    def predicted(self) -> Mask:
        """The predicted mask (*S), without ignored voxels."""
        valid = self.case.target != self.case.ignore_index
        return np.asarray(np.isin(self.case.labels, self.labels) & valid)

    @property
    def target(self) -> Mask:
        """The true mask (*S)."""
        return np.isin(self.case.target, self.labels)

    @property
    def probs(self) -> npt.NDArray[Any]:
        """The predicted probability of the structure, (*S)."""
        return to_numpy(self.case.probs[list(self.labels)].sum(0))

    @property
    def readers(self) -> Readers:
        """The readers of the case, for metrics that require them."""
        assert self.case.readers is not None
        return self.case.readers

    @property
    def spacing_mm(self) -> tuple[float, ...]:
        """Voxel size along each axis."""
        return self.case.spacing_mm

    @property
    def voxel_ml(self) -> float:
        """Volume of a voxel; in 2-D, of one that is 1 mm thick."""
        return math.prod(self.spacing_mm) / 1000

    @property
    def distances(self) -> SurfaceDistances:
        """Distances between the predicted and the true surface."""
        return self.case.surface_distances[self.name]


def predicted_labels(probs: Array) -> npt.NDArray[Any]:
    """The class with the largest probability, (K, *S) -> (*S); ties go to the smaller class."""
    if getattr(probs, "is_cuda", False):
        return to_numpy(probs.max(dim=0)[1])
    array = to_numpy(probs, widen_half=False)
    if array.dtype != np.float16:
        return top_label(array)[1]
    out = np.empty_like(array[0], dtype=np.uint8 if len(array) <= 256 else np.int64)
    order = in_memory_order(array)
    labels, array = permute(out, order), permute(array, order)
    for block in iter_blocks(labels.shape, max(BLOCK_VALUES // len(array), 1)):
        values = array[(slice(None), *block)]
        bits = values.view(np.uint16)  # of positive numbers, they sort like the numbers
        labels[block] = top_label(bits if bits.max() < 0x8000 else to_numpy(values))[1]
    return out
