"""All metrics of one case, as rows of the long table, in few passes over its voxels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from segcal.core.arrays import Array
from segcal.metrics._chunks import native_array
from segcal.metrics._geometry import check_labels, check_spacing
from segcal.metrics.calibration import CalibrationBins
from segcal.metrics.case_data import CaseData, RegionData, StructureData, predicted_labels
from segcal.metrics.levels import ConfidenceLevels
from segcal.metrics.options import CaseOptions
from segcal.metrics.overlap import check_groups
from segcal.metrics.readers import Readers
from segcal.metrics.registry import Metric, default_metrics, find_metric, get_metric
from segcal.metrics.rows import POOLED, Row
from segcal.metrics.voxel_sums import VoxelStatistics


@dataclass
class CaseResult:
    """The rows of one case, and the additive statistics to pool cases by.

    `levels` are of all voxels; `true_bins` are against the true probabilities, if these are known.
    `heads` are the results of each sigmoid head; the statistics are then those of all heads.
    """

    rows: list[Row]
    statistics: dict[str, VoxelStatistics]
    levels: ConfidenceLevels | None = None
    true_bins: CalibrationBins | None = None
    reader_statistics: dict[str, VoxelStatistics] = field(default_factory=dict)
    heads: dict[str, "CaseResult"] = field(default_factory=dict)

    @property
    def undefined(self) -> int:
        """The number of values that are NaN."""
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
    groups: Mapping[str, Sequence[int]] | None = None,
    options: CaseOptions | None = None,
    ignore_index: int = -100,
    logits: Array | None = None,
    true_probs: Array | None = None,
    raters: Mapping[str, Array] | None = None,
    members: Array | None = None,
) -> CaseResult:
    """Segmentation and calibration metrics of one case.

    Computed are the default metrics of `METRICS` and those named in `options.metrics`. Rows of
    distances name their unit: `hd95_mm` or `hd95_voxel`, `nsd_2mm`.

    Args:
        probs: (K, *S), numpy or torch, after softmax. On CUDA the counting runs on the device.
        target: integer labels (*S).
        spacing_mm: voxel size, one value or one per axis.
        case, run, method, seed, dataset: names in the rows.
        groups: structures of the segmentation metrics, name → labels; None for each class but 0.
        options: regions, bins, tolerance, units, further metrics; None for the defaults.
        ignore_index: label of voxels that are not counted.
        logits: (K, *S), for metrics of logits.
        true_probs: true probabilities (K, *S), where they are known, for errors against them.
        raters: integer labels (*S) of several readers by name, for metrics against them. Labels
            outside 0..K-1 mark voxels that a reader did not judge.
        members: integer labels (M, *S) of the members of an ensemble, for `pairwise_dice`.

    Example:
        >>> import numpy as np
        >>> probs = np.full((2, 4, 4), 0.5); probs[:, 1:3, 1:3] = [[[0.2]], [[0.8]]]
        >>> target = np.zeros((4, 4), dtype=int); target[1:3, 1:3] = 1
        >>> result = evaluate_case(probs, target, 1.0, case="toy")
        >>> [round(r.value, 3) for r in result.rows if r.metric == "ece" and r.region == "all"]
        [0.425]
    """
    truth, probs = check_labels("target", target), native_array("probs", probs)
    for name, array in {"probs": probs, "logits": logits, "true_probs": true_probs}.items():
        if array is not None:
            _check_shape(name, array, (len(probs), *truth.shape))
    predicted, readers = predicted_labels(probs), None
    if raters:
        drawn = [check_labels(f"raters[{k!r}]", each, truth.shape) for k, each in raters.items()]
        counted = truth != ignore_index
        readers = Readers(tuple(raters), np.stack(drawn), predicted, counted, len(probs))
    data = CaseData(
        probs, truth, predicted, check_spacing(spacing_mm, truth.ndim),
        check_groups(groups, len(probs)), options or CaseOptions(), ignore_index, logits,
        true_probs, readers, members,
    )  # fmt: skip
    new_row = partial(Row, run, method, seed, dataset, case)
    rows = [
        new_row(label, region, metric.row_name(data.options), value)
        for metric in _requested(data)
        for label, region, value in _values(metric, data)
    ]
    true_bins = None if true_probs is None else data.true_bins
    frequency = data.reader_statistics if readers else {}
    return CaseResult(rows, data.counts.statistics, data.counts.levels, true_bins, frequency)


def _check_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if tuple(native_array(name, array).shape) != shape:
        raise ValueError(
            f"Expected argument `{name}` to have shape (K, *S) with S = {shape[1:]}, the "
            f"shape of `target`, but got {tuple(array.shape)}."
        )


def _requested(case: CaseData) -> Iterator[Metric]:
    """The default and the further metrics for which the case has what they require."""
    every = [*default_metrics(), *map(get_metric, case.options.metrics)]
    for metric in {each.key: each for each in every}.values():
        lacking = metric.requires is not None and getattr(case, metric.requires) is None
        if not lacking and metric.is_measured(case.options):
            yield metric


def _values(metric: Metric, case: CaseData) -> Iterator[tuple[str, str, float]]:
    """(label, region, value) of each value of a metric."""
    if metric.scope == "structure":
        for name, labels in case.groups.items():
            value = metric.read(StructureData(name, labels, case))
            if np.ndim(value) == 1 and case.readers is not None:
                for reader, one in zip(case.readers.names, value, strict=True):
                    yield f"{name}/{reader}", "all", float(one)
            else:
                yield name, "all", _one(metric, value)
    elif metric.scope == "image":
        for label, value in _by_class(metric, metric.read(case), case.num_classes):
            yield label, "all", value
    else:
        against_readers = metric.requires == "readers"
        statistics = case.reader_statistics if against_readers else case.counts.statistics
        for region, found in statistics.items():
            data = RegionData(found.bins, found.scores, region, case)
            for label, value in _by_class(metric, metric.read(data), case.num_classes):
                yield label, region, value


def _by_class(metric: Metric, value: Any, num_classes: int) -> list[tuple[str, float]]:
    """A number as label "all", or an array with one number per class as labels "0" to "K-1"."""
    if np.ndim(value) == 0:
        return [("all", _one(metric, value))]
    if np.shape(value) != (num_classes,):
        raise ValueError(
            f"metric {metric.key!r} must return a number or {num_classes} numbers, one per class, "
            f"but returned an array of shape {np.shape(value)}"
        )
    return [(str(k), float(each)) for k, each in enumerate(value)]


def _one(metric: Metric, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"metric {metric.key!r} must return a number, but returned {value!r}"
        ) from error


def pool_cases(results: Iterable[CaseResult]) -> list[Row]:
    """Additive metrics over all voxels of all cases, as rows of case "pooled".

    There is one set of rows per run, method, seed and dataset of the results. The mean of per-case
    rows gives every case the same weight; a pooled value gives every voxel the same weight.
    Metrics that are not additive (`adaptive_ece`, DSC, distances) have no such row. Rankings and
    `summarize` skip rows of case "pooled".

    Example:
        >>> import numpy as np
        >>> probs, target = np.array([[0.2, 0.4], [0.8, 0.6]]), np.array([1, 0])
        >>> cuts = {"a": slice(0, 1), "b": slice(1, 2)}
        >>> parts = [
        ...     evaluate_case(probs[:, cut], target[cut], 1.0, case=case)
        ...     for case, cut in cuts.items()
        ... ]
        >>> rows = pool_cases(parts)
        >>> [round(row.value, 3) for row in rows if row.metric == "ece" and row.region == "all"]
        [0.4]
    """
    pools: dict[tuple[str, str, int, str], list[CaseResult]] = {}
    for result in results:
        if not result.rows:
            raise ValueError("Expected argument `results` to hold results with rows, but got none.")
        first = result.rows[0]
        pools.setdefault((first.run, first.method, first.seed, first.dataset), []).append(result)
    out: list[Row] = []
    for names, members in pools.items():
        heads = list(members[0].heads)
        for number, head in enumerate(heads):
            pooled = _pooled_rows(names, [member.heads[head] for member in members])
            out += rows_of_head(pooled, head, number)
        if not heads:
            out += _pooled_rows(names, members)
    return out


def rows_of_head(rows: Iterable[Row], name: str, number: int) -> Iterator[Row]:
    """Rows of a problem of two classes as those of a sigmoid head.

    The name is the label of values over all classes. Class 1, the inside, becomes `number` + 1;
    rows of the outside are left out.
    """
    labels = {"all": name, "1": str(number + 1)}
    for row in rows:
        if find_metric(row.metric).per_structure:
            yield row
        elif row.label in labels:
            yield replace(row, label=labels[row.label])


def _pooled_rows(names: tuple[str, str, int, str], results: list[CaseResult]) -> Iterator[Row]:
    new_row = partial(Row, *names, POOLED)
    regions = list(results[0].statistics)
    if any(list(result.statistics) != regions for result in results):
        found = sorted({str(list(result.statistics)) for result in results})
        raise ValueError(
            "Expected argument `results` to be measured in the same regions, but got "
            f"{', '.join(found)}."
        )
    measured = dict.fromkeys(row.metric for row in results[0].rows)
    metrics = [metric for metric in map(get_metric, measured) if metric.additive]
    against_readers = [metric for metric in metrics if metric.requires == "readers"]
    others = [metric for metric in metrics if metric.requires != "readers"]
    for label, region, name, value in (
        *_pooled_values(others, [result.statistics for result in results]),
        *_pooled_values(against_readers, [result.reader_statistics for result in results]),
    ):
        yield new_row(label, region, name, value)
    if all(result.true_bins is not None for result in results):
        true = sum(result.true_bins for result in results if result.true_bins is not None)
        assert isinstance(true, CalibrationBins)
        yield new_row("all", "all", "truth_ece", true.ece())
        yield new_row("all", "all", "truth_cece", true.cece())


def _pooled_values(
    metrics: list[Metric], parts: list[dict[str, VoxelStatistics]]
) -> Iterator[tuple[str, str, str, float]]:
    """(label, region, name, value) of additive metrics; `parts` are the statistics of each case."""
    # Cases with readers are not pooled with cases that have none.
    for region in parts[0] if metrics and all(parts) else ():
        total = sum((part[region] for part in parts[1:]), parts[0][region])
        for metric in metrics:
            for label, value in _by_class(metric, metric.read(total), total.bins.num_classes):
                yield label, region, metric.key, value
