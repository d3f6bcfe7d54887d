"""All metrics of one case, as rows of the long table, in few passes over its voxels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, to_numpy
from segcal.core.checks import check_choice, check_int, check_number
from segcal.metrics._binning import empty_tables, tally, top_label, top_of
from segcal.metrics._chunks import Chunk, check_array, iter_chunks
from segcal.metrics._geometry import check_labels, check_spacing
from segcal.metrics._validate import Inspector
from segcal.metrics.calibration import CalibrationBins
from segcal.metrics.overlap import EMPTY, check_groups, confusion, dsc_of
from segcal.metrics.regions import REGIONS
from segcal.metrics.scores import CLIP, ProperScores, brier_parts, equal_mass_error, score_groups
from segcal.metrics.surface import UNITS, all_surface_distances
from segcal.metrics.table import POOLED, Row


@dataclass
class CaseResult:
    """The rows of one case, and per region the statistics to pool over cases by `+`."""

    rows: list[Row]
    bins: dict[str, CalibrationBins]
    scores: dict[str, ProperScores]

    @property
    def undefined(self) -> int:
        """How many values are NaN."""
        return sum(row.value != row.value for row in self.rows)


def evaluate_case(
    probs: Array,
    target: Array,
    spacing_mm: float | Sequence[float],
    *,
    case: str,
    run: str = "",
    method: str = "",
    seed: int = 0,
    dataset: str = "",
    regions: Iterable[str] | str = tuple(REGIONS),
    groups: Mapping[str, Sequence[int]] | None = None,
    num_bins: int = 15,
    dilate_mm: float = 5.0,
    width_mm: float = 3.0,
    nsd_tolerance_mm: float = 2.0,
    units: str = "mm",
    empty: str = "nan",
    ignore_index: int = -100,
) -> CaseResult:
    """Segmentation and calibration metrics of one case.

    Probabilities are read twice: for the predicted labels, and for all statistics of all regions at
    once (each voxel carries the set of regions it is in, one tally is made per set, and a region
    adds up the sets that hold it).

    Rows name their unit: `hd95_mm`, `hd95_max_mm`, `hd_mm`, `assd_mm` and `nsd_2mm`, or
    `hd95_voxel` and so on.

    Args:
        probs: (K, *S), numpy or torch, after softmax. On CUDA, the counting happens there.
        target: integer labels (*S).
        spacing_mm: voxel size, one value or one per axis.
        case, run, method, seed, dataset: what the rows say.
        regions: names of `REGIONS` in which calibration is measured.
        groups: structures of the segmentation metrics, name -> labels; None is each class but 0.
        num_bins: bins of the calibration errors.
        dilate_mm: reach of the region `union`.
        width_mm: half width of the region `boundary`.
        nsd_tolerance_mm: tolerance of the surface Dice; part of its name in the rows.
        units: of surface distances, `"mm"` or `"voxel"`. Regions are always in mm, and so is the
            tolerance of the surface Dice: there is no such row in voxels.
        empty: what segmentation metrics say of empty masks; see `dsc` and `SurfaceDistances`.
        ignore_index: label of voxels that count nowhere.

    Example:
        >>> import numpy as np
        >>> probs = np.full((2, 4, 4), 0.5); probs[:, 1:3, 1:3] = [[[0.2]], [[0.8]]]
        >>> target = np.zeros((4, 4), dtype=int); target[1:3, 1:3] = 1
        >>> result = evaluate_case(probs, target, 1.0, case="toy", regions=["all"])
        >>> [round(row.value, 3) for row in result.rows if row.metric in ("dsc", "ece")]
        [1.0, 0.425]
    """
    names = [regions] if isinstance(regions, str) else list(dict.fromkeys(regions))
    for name in names:
        check_choice("regions", name, REGIONS)
    check_choice("units", units, UNITS)
    check_choice("empty", empty, EMPTY)
    check_int("num_bins", num_bins, low=1)
    check_number("nsd_tolerance_mm", nsd_tolerance_mm, low=0)
    truth = check_labels("target", target)
    spacing = check_spacing(spacing_mm, truth.ndim)
    probs = check_array("probs", probs)
    num_classes = int(probs.shape[0])
    structures = check_groups(groups, num_classes)
    if tuple(probs.shape[1:]) != truth.shape:
        raise ValueError(
            f"Expected argument `probs` to have shape (K, *S) with S = {truth.shape}, the shape of "
            f"`target`, but got {tuple(probs.shape)}."
        )
    labels = predicted_labels(probs)
    options = {"union": {"dilate_mm": dilate_mm}, "boundary": {"width_mm": width_mm}}
    masks = {
        name: REGIONS[name](
            truth,
            labels=labels,
            spacing_mm=spacing,
            ignore_index=ignore_index,
            **options.get(name, {}),
        )
        for name in names
    }
    measured = _measure_regions(probs, truth, labels, masks, num_classes, num_bins, ignore_index)
    rows = _Rows(partial(Row, run, method, seed, dataset, case))
    table = confusion(labels, truth, num_classes, ignore_index=ignore_index)
    for name, value in dsc_of(table, structures, empty).items():
        rows.add(name, "all", dsc=value)
    distances = all_surface_distances(
        labels, truth, num_classes, spacing,
        groups=structures, units=units, empty=empty, ignore_index=ignore_index,
    )  # fmt: skip
    for name, d in distances.items():
        values = {
            "hd95": d.hd95(),
            "hd95_max": d.hd95("max"),
            "hd": d.hausdorff(),
            "assd": d.assd(),
        }
        rows.add(name, "all", **{f"{metric}_{units}": v for metric, v in values.items()})
        if units == "mm":
            rows.add(name, "all", **{f"nsd_{nsd_tolerance_mm:g}mm": d.nsd(nsd_tolerance_mm)})
    for name in names:
        rows.add_calibration(
            name, measured.bins[name], measured.scores[name], adaptive_ece=measured.adaptive[name]
        )
    return CaseResult(rows.rows, measured.bins, measured.scores)


def predicted_labels(probs: Array) -> npt.NDArray[Any]:
    """The class of the largest probability, (K, *S) -> (*S); ties go to the smaller class."""
    if getattr(probs, "is_cuda", False):
        return to_numpy(probs.max(dim=0)[1])
    return top_label(to_numpy(probs))[1]


@dataclass
class _Rows:
    row: "partial[Row]"
    rows: list[Row] = field(default_factory=list)

    def add(self, label: str, region: str, **values: float) -> None:
        self.rows += [self.row(label, region, metric, float(v)) for metric, v in values.items()]

    def add_calibration(
        self, region: str, bins: CalibrationBins, scores: ProperScores, **more: float
    ) -> None:
        parts = brier_parts(bins)
        self.add(
            "all", region,
            ece=bins.ece(), cece=bins.cece(), ace=bins.ace(), mce=bins.mce(), **more,
            signed_gap=bins.signed_gap(), brier=scores.brier(), brier_reliability=parts.reliability,
            brier_resolution=parts.resolution, brier_uncertainty=parts.uncertainty,
            nll=scores.nll(),
        )  # fmt: skip
        each = zip(bins.classwise_ece(), bins.classwise_signed_gap(), strict=True)
        for k, (error, gap) in enumerate(each):
            self.add(str(k), region, class_ece=error, class_signed_gap=gap)


@dataclass
class _Measured:
    bins: dict[str, CalibrationBins]
    scores: dict[str, ProperScores]
    adaptive: dict[str, float]


def _measure_regions(
    probs: Array,
    truth: npt.NDArray[np.generic],
    labels: npt.NDArray[Any],
    masks: Mapping[str, npt.NDArray[np.bool_]],
    num_classes: int,
    num_bins: int,
    ignore_index: int,
) -> _Measured:
    """One pass over the probabilities, for every region."""
    code = np.zeros(truth.shape, np.uint8)  # bit i: in region i
    for bit, mask in enumerate(masks.values()):
        code |= mask.astype(np.uint8) << np.uint8(bit)
    groups = 1 << len(masks)
    tables = empty_tables(groups, num_classes, num_bins)
    sums = [ProperScores(num_classes, CLIP) for _ in range(groups)]
    top: list[_Outcome] = []
    seen = Inspector(num_classes)
    for chunk in iter_chunks(
        probs, truth, num_classes,
        group=code, label=labels, ignore_index=ignore_index, batched=False, seen=seen,
    ):  # fmt: skip
        tables += tally(chunk, num_bins, groups)
        for ours, more in zip(sums, score_groups(chunk, num_classes, groups, CLIP), strict=True):
            ours.merge(more)
        top.append(_top_outcome(chunk))
    seen.warn_of_second_softmax()
    out = _Measured({}, {}, _adaptive(top, list(masks), num_bins))
    for bit, name in enumerate(masks):
        out.bins[name] = CalibrationBins(num_classes, num_bins)
        out.scores[name] = ProperScores(num_classes, CLIP)
        for group in range(groups):
            if group >> bit & 1:
                out.bins[name].merge(CalibrationBins.from_tables(tables, group))
                out.scores[name].merge(sums[group])
    return out


@dataclass
class _Outcome:
    """Of some voxels, (n,) each: confidence, whether it was right, and the regions as bits."""

    confidence: npt.NDArray[Any]
    right: npt.NDArray[np.bool_]
    regions: npt.NDArray[np.uint8]


def _top_outcome(chunk: Chunk) -> _Outcome:
    confidence, label = top_of(chunk)
    right, regions = to_numpy(label == chunk.target), to_numpy(chunk.group)
    return _Outcome(to_numpy(confidence), right, regions.astype(np.uint8))


def _adaptive(top: list[_Outcome], regions: list[str], num_bins: int) -> dict[str, float]:
    """The equal-mass error of each region, from one sort of all voxels."""
    if not top:
        return dict.fromkeys(regions, float("nan"))
    confidence = np.concatenate([part.confidence for part in top])
    order = np.argsort(confidence)
    confidence = confidence[order]
    right = np.concatenate([part.right for part in top])[order]
    code = np.concatenate([part.regions for part in top])[order]
    del order
    out = {}
    for bit, name in enumerate(regions):
        inside = (code & np.uint8(1 << bit)) != 0
        out[name] = equal_mass_error(confidence[inside], right[inside], num_bins)
    return out


def pool_cases(results: Iterable[CaseResult]) -> list[Row]:
    """Calibration over all voxels of all cases, as rows of case "pooled", beside the per-case ones.

    One set of rows per run, method, seed and dataset of the results: `ece` and the other
    calibration metrics, read off the added counts. The mean of per-case rows weighs cases alike;
    this weighs voxels alike. `adaptive_ece` cannot be pooled and DSC and distances are of a case:
    they have no such row. Rankings and `summarize` leave rows of case "pooled" out.

    Example:
        >>> import numpy as np
        >>> probs, target = np.array([[0.2, 0.4], [0.8, 0.6]]), np.array([1, 0])
        >>> cuts = {"a": slice(0, 1), "b": slice(1, 2)}
        >>> parts = [
        ...     evaluate_case(probs[:, cut], target[cut], 1.0, case=case, regions="all")
        ...     for case, cut in cuts.items()
        ... ]
        >>> [(row.case, round(row.value, 3)) for row in pool_cases(parts) if row.metric == "ece"]
        [('pooled', 0.4)]
    """
    pools: dict[tuple[str, str, int, str], list[CaseResult]] = {}
    for result in results:
        if not result.rows:
            raise ValueError("Expected argument `results` to hold results with rows, but got none.")
        first = result.rows[0]
        pools.setdefault((first.run, first.method, first.seed, first.dataset), []).append(result)
    out: list[Row] = []
    for who, members in pools.items():
        regions = list(members[0].bins)
        if any(list(member.bins) != regions for member in members):
            raise ValueError(
                "Expected argument `results` to be measured in the same regions, but got "
                f"{', '.join(sorted({str(list(m.bins)) for m in members}))}."
            )
        rows = _Rows(partial(Row, *who, POOLED))
        for region in regions:
            bins = sum(member.bins[region] for member in members)
            scores = sum(member.scores[region] for member in members)
            assert isinstance(bins, CalibrationBins)
            assert isinstance(scores, ProperScores)
            rows.add_calibration(region, bins, scores)
        out += rows.rows
    return out
