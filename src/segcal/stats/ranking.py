"""Ranks of methods, from one value per case, method and metric."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from segcal.core.checks import check_choice
from segcal.metrics import (
    DEFAULT_REGION,
    POOLED,
    REGIONS,
    find_metric,
    get_metric,
    ranking_direction,
)
from segcal.stats.long_table import check_table, in_region
from segcal.stats.missing import resolve_missing

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Missing = Literal["raise", "worst", "drop_case"]
PAPER_METRICS = ("dsc", "hd95", "ece", "cece")


@dataclass(frozen=True)
class CaseScores:
    """One value per dataset, case, method and metric: the mean over labels and seeds.

    Attributes:
        methods, metrics: the names along the last two axes of `values`.
        cases: the cases of each dataset, along the first axis.
        values: dataset → (cases, methods, metrics). NaN only if no method has a value in a case.
        costs: as `values`, but lower is better. The direction of a metric is applied to each value
            of the table before any mean, so that errors of opposite sign do not cancel.
        undefined: dataset → (methods, metrics), the number of missing, NaN and infinite values.
        region, missing: the options of `collect`.
    """

    methods: list[str]
    metrics: list[str]
    cases: dict[str, list[str]]
    values: dict[str, Floats]
    costs: dict[str, Floats]
    undefined: dict[str, npt.NDArray[np.int64]]
    region: str
    missing: Missing

    @property
    def total_undefined(self) -> int:
        """The number of missing, NaN and infinite values."""
        return sum(int(counts.sum()) for counts in self.undefined.values())

    def region_of(self, metric: str) -> str:
        """The region of a metric; "all" for metrics of the whole image."""
        return "all" if find_metric(metric).whole_image else self.region

    def source_columns(self) -> dict[str, Any]:
        """Columns of a table with one row per method that describe where its values come from."""
        return {
            "metrics": " ".join(self.metrics),
            "region": self.region,
            "missing": self.missing,
            "undefined": np.asarray(sum(n.sum(axis=1) for n in self.undefined.values())),
        }


def collect(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] | str = PAPER_METRICS,
    region: str = DEFAULT_REGION,
    missing: Missing = "raise",
) -> CaseScores:
    """One value per dataset, case, method and metric from the long table.

    Values are averaged over the seeds or runs of a method, then over the labels of a case. A run
    need not contain every case (in a cross-validation it contains one fold). A value that is NaN or
    infinite, or that a method has in no run, must not improve a mean by its absence, so `missing`
    decides what happens to it:

    - `"raise"`: a ValueError names the first one.
    - `"worst"`: it becomes the worst value that any method has for this dataset, metric and label.
      Distances are also undefined if a structure is neither present nor predicted, which is
      correct. The DSC of the same row is 1 in that case. If this holds for all methods, the label
      of the case is skipped; if other methods have a false positive, the correct method gets the
      best value instead. The same holds for calibration where nothing is predicted: it is correct
      if the DSC of all structures is 1. Calibration that is undefined for all methods (no voxel in
      the region) is skipped.
    - `"drop_case"`: the case is skipped for every method and metric.

    Args:
        table: the long table; see `check_table` for optional columns. Rows of case "pooled" are
            skipped.
        metrics: names in the column `metric`. `"hd95"` finds `"hd95_mm"` or `"hd95_voxel"`,
            whichever the table contains; the same for other distances.
        region: where calibration was measured. Metrics of the whole image do not depend on it.
        missing: what happens to undefined values, see above.
    """
    check_choice("missing", missing, get_args(Missing))
    check_choice("region", region, REGIONS)
    table = check_table(table)
    table = table[table["case"] != POOLED]
    if table.empty:
        raise ValueError(f"the table has only rows of case {POOLED!r}, and none of single cases")
    names = resolve_metrics(metrics, list(dict.fromkeys(table["metric"])))
    chosen = select_rows(table, names, region)
    methods = list(dict.fromkeys(chosen["method"]))
    scores = CaseScores(methods, names, {}, {}, {}, {}, region, missing)
    overlap = table[table["metric"] == "dsc"]
    for dataset, part in chosen.groupby("dataset", sort=False):
        key = str(dataset)
        _check_complete(part, key, methods, names)
        cells = resolve_missing(part, overlap[overlap["dataset"] == key], key, methods, missing)
        cases = list(dict.fromkeys(cells.costs.index.get_level_values("case")))

        def stack(each: "pd.DataFrame", cases: list[str] = cases) -> Floats:
            return np.stack(
                [each.xs(m, level="metric").reindex(cases).to_numpy() for m in names], axis=-1
            )

        scores.cases[key] = cases
        scores.values[key], scores.costs[key] = stack(cells.values), stack(cells.costs)
        scores.undefined[key] = cells.undefined.reindex(names, fill_value=0).to_numpy().T
    return scores


def resolve_metrics(metrics: Sequence[str] | str, existing: list[str]) -> list[str]:
    """The names of the requested metrics in the table, each rankable and named once."""
    requested = [metrics] if isinstance(metrics, str) else list(metrics)
    if not requested:
        raise ValueError("Expected argument `metrics` to name at least one metric, but got none.")
    out = []
    for name in requested:
        if name in existing and not find_metric(name).registered:
            raise ValueError(
                f"metric {name!r} cannot be ranked: it is not registered, so it is unknown whether "
                "higher or lower is better; register it, or pass its import path "
                "package.module:Object"
            )
        key = get_metric(name).key if ":" in name else name
        ranking_direction(key)
        found = [m for m in existing if find_metric(m).key == key]
        if len(found) > 1:
            raise ValueError(
                f"metric {name!r} is ambiguous: the table contains {', '.join(found)}; name one"
            )
        out.append(found[0] if found else key)
    twice = [m for m in out if out.count(m) > 1]
    if twice:
        raise ValueError(f"metric {twice[0]!r} is given twice")
    return out


def select_rows(table: "pd.DataFrame", metrics: list[str], region: str) -> "pd.DataFrame":
    """The rows of these metrics in a region; a ValueError names a metric without rows."""
    table = in_region(table[table["metric"].isin(metrics)], region)
    existing = set(table["metric"])
    for metric in metrics:
        if metric not in existing:
            where = "" if find_metric(metric).whole_image else f" in region {region!r}"
            raise ValueError(f"the table has no rows of metric {metric!r}{where}")
    return table


def _check_complete(
    part: "pd.DataFrame", dataset: str, methods: list[str], metrics: list[str]
) -> None:
    for method in methods:
        if method not in set(part["method"]):
            raise ValueError(
                f"method {method!r} has no rows of dataset {dataset!r}; every method needs rows "
                "of every dataset"
            )
    for metric in metrics:
        if part.loc[part["metric"] == metric, "value"].notna().sum() == 0:
            raise ValueError(
                f"dataset {dataset!r} has no value of metric {metric!r}; every dataset needs "
                "values of every metric"
            )


def rank(costs: npt.NDArray[Any], axis: int) -> Floats:
    """Ranks from 1 (lowest cost); ties share their mean rank. A NaN makes its whole slice NaN.

    Costs that differ by less than 1e-12 tie: means of equal values may differ by rounding.
    """
    # Not `scipy.stats.rankdata`: the import of scipy.stats takes longer than most rankings.
    values = np.moveaxis(np.round(np.asarray(costs, np.float64), 12), axis, -1)
    below = (values[..., None, :] < values[..., None]).sum(-1)
    equal = (values[..., None, :] == values[..., None]).sum(-1)
    ranks = below + (equal + 1) / 2
    ranks[np.isnan(values).any(-1)] = np.nan
    return np.asarray(np.moveaxis(ranks, -1, axis))


def mean_costs(scores: CaseScores, dataset: str) -> Floats:
    """(methods, metrics): the mean cost over the cases that have one."""
    return np.asarray(np.nanmean(scores.costs[dataset], axis=0))


def case_ranks(scores: CaseScores, dataset: str) -> Floats:
    """(cases, methods): the mean over metrics of the rank of a method in a case."""
    return np.asarray(np.nanmean(rank(scores.costs[dataset], axis=1), axis=2))


def sum_rank(scores: CaseScores) -> "pd.DataFrame":
    """Rank methods by the mean of each dataset and metric, and add the ranks.

    Returns one row per method, best first: a column `dataset/metric` with each rank, `sum_rank`,
    and the columns `metrics`, `region`, `missing` and `undefined` (number of undefined values of
    the method). A metric whose best value is zero is ranked by the mean of its absolute values.
    """
    import pandas as pd

    columns = {}
    for dataset in scores.costs:
        ranks = rank(mean_costs(scores, dataset), axis=0)
        for i, metric in enumerate(scores.metrics):
            columns[f"{dataset}/{metric}"] = ranks[:, i]
    out = pd.DataFrame(columns, index=pd.Index(scores.methods, name="method"))
    out["sum_rank"] = out.sum(axis=1)
    out = out.assign(**scores.source_columns())
    return out.sort_values("sum_rank", kind="stable").reset_index()


def mean_case_rank(scores: CaseScores) -> "pd.DataFrame":
    """Rank methods in each case by each metric; the mean over metrics, then over cases.

    Returns one row per method, best first: a column `dataset/mean_case_rank` each,
    `mean_case_rank` over all cases of all datasets (so a dataset is weighted by its cases), and the
    last columns of `sum_rank`.
    """
    import pandas as pd

    ranks = {dataset: case_ranks(scores, dataset) for dataset in scores.costs}
    out = pd.DataFrame(
        {f"{dataset}/mean_case_rank": each.mean(axis=0) for dataset, each in ranks.items()},
        index=pd.Index(scores.methods, name="method"),
    )
    out["mean_case_rank"] = np.concatenate(list(ranks.values())).mean(axis=0)
    out = out.assign(**scores.source_columns())
    return out.sort_values("mean_case_rank", kind="stable").reset_index()
