"""Ranking methods from the long table of per-case values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from segcal.core.checks import check_choice
from segcal.metrics.regions import REGIONS
from segcal.metrics.table import POOLED, base_metric, check_table, direction, whole_image
from segcal.stats.missing import settle

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
PAPER_METRICS = ("dsc", "hd95", "ece", "cece")
MISSING = ("raise", "worst", "drop_case")


@dataclass(frozen=True)
class CaseScores:
    """One value per dataset, case, method and metric; labels and seeds averaged.

    Attributes:
        methods, metrics: the names along the last two axes of `values`.
        cases: the cases of each dataset, along the first axis.
        values: dataset -> (cases, methods, metrics). NaN only where no method has a value of a
            case.
        costs: the same, less is better: each value of the table was turned by its metric's
            direction before any was averaged, so that errors of opposite sign do not cancel.
        undefined: dataset -> (methods, metrics), how many values were missing, NaN or infinite.
        region, missing: what the scores were collected with.
    """

    methods: list[str]
    metrics: list[str]
    cases: dict[str, list[str]]
    values: dict[str, Floats]
    costs: dict[str, Floats]
    undefined: dict[str, npt.NDArray[np.int64]]
    region: str
    missing: str

    @property
    def total_undefined(self) -> int:
        """How many values of the table were missing, NaN or infinite."""
        return sum(int(counts.sum()) for counts in self.undefined.values())

    def region_of(self, metric: str) -> str:
        """Where a metric was measured: some are of the whole image."""
        return "all" if whole_image(metric) else self.region

    def undefined_by_method(self) -> npt.NDArray[np.int64]:
        """(methods,): the counts of `undefined`, over all datasets and metrics."""
        return np.asarray(sum(counts.sum(axis=1) for counts in self.undefined.values()))


def collect(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] | str = PAPER_METRICS,
    region: str = "foreground",
    missing: str = "raise",
) -> CaseScores:
    """One value per dataset, case, method and metric from the long table.

    Values of several seeds or runs of a method are averaged, then those of the labels of a case. A
    run need not hold every case (in a cross-validation it holds one fold). A value that is NaN or
    infinite, or that a method has in no run, must not make the mean better by leaving it, so
    `missing` decides first what becomes of it:

    - `"raise"`: a ValueError that names the first.
    - `"worst"`: it becomes the worst value that any method has for this dataset, metric and label.
      Distances are also undefined where nothing is there and nothing was found, which is no
      mistake. The DSC of the same row tells (it is 1 there): where that holds for all methods, the
      label of that case is left out; where others raised a false alarm, the method that was right
      gets the best value instead. Calibration that is undefined for all methods (no voxel in the
      region) is left out.
    - `"drop_case"`: the case is left out, for every method and metric.

    Args:
        table: the long table; see `check_table` for columns that may be absent. Rows of case
            "pooled" are no case and are left out.
        metrics: names in the column `metric`. `"hd95"` stands for `"hd95_mm"` or `"hd95_voxel"`,
            whichever the table holds; the same for other distances.
        region: where calibration metrics were measured. Segmentation metrics and errors against
            true probabilities are of the whole image.
    """
    check_choice("missing", missing, MISSING)
    check_choice("region", region, REGIONS)
    table = check_table(table)
    table = table[table["case"] != POOLED]
    if table.empty:
        raise ValueError(f"Expected rows of single cases, but all are of case {POOLED!r}.")
    names = resolve_metrics(metrics, list(dict.fromkeys(table["metric"])))
    chosen = select_rows(table, names, region)
    scores = CaseScores(
        list(dict.fromkeys(chosen["method"])), names, {}, {}, {}, {}, region, missing
    )
    overlap = table[table["metric"] == "dsc"]
    for dataset, part in chosen.groupby("dataset", sort=False):
        key = str(dataset)
        _check_complete(part, key, scores.methods, names)
        cells = settle(part, overlap[overlap["dataset"] == key], key, scores.methods, missing)
        cases = list(dict.fromkeys(cells.costs.index.get_level_values("case")))

        def stack(each: "pd.DataFrame", cases: list[str] = cases) -> Floats:
            return np.stack(
                [each.xs(m, level="metric").reindex(cases).to_numpy() for m in names], axis=-1
            )

        scores.cases[key] = cases
        scores.values[key], scores.costs[key] = stack(cells.values), stack(cells.costs)
        scores.undefined[key] = cells.undefined.reindex(names, fill_value=0).to_numpy().T
    return scores


def resolve_metrics(metrics: Sequence[str] | str, there: list[str]) -> list[str]:
    """The names as the table has them."""
    asked = [metrics] if isinstance(metrics, str) else list(metrics)
    if not asked:
        raise ValueError("Expected argument `metrics` to name some metric, but got none.")
    out = []
    for metric in asked:
        direction(metric)
        found = [m for m in there if base_metric(m) == metric]
        if len(found) > 1:
            raise ValueError(
                f"Expected argument `metrics` to say which of {', '.join(map(repr, found))} is "
                f"meant, but got {metric!r}."
            )
        out.append(found[0] if found else metric)
    twice = sorted({m for m in out if out.count(m) > 1})
    if twice:
        raise ValueError(
            f"Expected argument `metrics` to name each metric once, but got {twice[0]!r} twice."
        )
    return out


def select_rows(table: "pd.DataFrame", metrics: list[str], region: str) -> "pd.DataFrame":
    table = table[table["metric"].isin(metrics)]
    if "region" in table.columns:
        measured = table["metric"].map(lambda metric: "all" if whole_image(metric) else region)
        table = table[table["region"] == measured]
    for metric in metrics:
        if metric not in set(table["metric"]):
            where = "" if whole_image(metric) else f" in region {region!r}"
            raise ValueError(
                f"Expected column `metric` to hold {metric!r}{where}, but got no such row."
            )
    return table


def _check_complete(
    part: "pd.DataFrame", dataset: str, methods: list[str], metrics: list[str]
) -> None:
    for method in methods:
        if method not in set(part["method"]):
            raise ValueError(
                f"Expected every method to have rows of every dataset, but {method!r} has none of "
                f"{dataset!r}."
            )
    for metric in metrics:
        if part.loc[part["metric"] == metric, "value"].notna().sum() == 0:
            raise ValueError(
                f"Expected every dataset to have values of every metric, but {dataset!r} has none "
                f"of {metric!r}."
            )


def rank(costs: npt.NDArray[Any], axis: int) -> Floats:
    """Ranks from 1 (least cost); ties share their mean rank. A NaN makes its whole slice NaN.

    Costs that differ by less than 1e-12 tie: means of equal values may differ by rounding.
    """
    from scipy.stats import rankdata

    return np.asarray(rankdata(np.round(costs, 12), axis=axis), dtype=np.float64)


def mean_costs(scores: CaseScores, dataset: str) -> Floats:
    """(methods, metrics): the mean cost over the cases that have one."""
    return np.asarray(np.nanmean(scores.costs[dataset], axis=0))


def sum_rank(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] | str = PAPER_METRICS,
    region: str = "foreground",
    missing: str = "raise",
) -> "pd.DataFrame":
    """Rank methods on the mean of each dataset and metric, and add the ranks.

    Returns one row per method, best first: a column `dataset/metric` with each rank, `sum_rank`,
    and what it rests on: `region`, `missing` and `undefined` (values of the method). Arguments as
    `collect`. A metric whose direction is "zero" is ranked by the mean of its absolute values.
    """
    scores = collect(table, metrics=metrics, region=region, missing=missing)
    return sum_rank_of(scores)


def sum_rank_of(scores: CaseScores) -> "pd.DataFrame":
    """`sum_rank` of collected scores."""
    import pandas as pd

    columns = {}
    for dataset in scores.costs:
        ranks = rank(mean_costs(scores, dataset), axis=0)
        for i, metric in enumerate(scores.metrics):
            columns[f"{dataset}/{metric}"] = ranks[:, i]
    out = pd.DataFrame(columns, index=pd.Index(scores.methods, name="method"))
    out["sum_rank"] = out.sum(axis=1)
    out = out.assign(**provenance(scores))
    return out.sort_values("sum_rank", kind="stable").reset_index()


def provenance(scores: CaseScores) -> dict[str, Any]:
    """What a table with one row per method rests on."""
    return {
        "region": scores.region,
        "missing": scores.missing,
        "undefined": scores.undefined_by_method(),
    }


def case_ranks(scores: CaseScores, dataset: str) -> Floats:
    """(cases, methods): in each case the mean over metrics of a method's rank."""
    return np.asarray(np.nanmean(rank(scores.costs[dataset], axis=1), axis=2))


def mean_case_rank(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] | str = PAPER_METRICS,
    region: str = "foreground",
    missing: str = "raise",
) -> "pd.DataFrame":
    """Rank methods in each case on each metric; the mean over metrics, then over cases.

    Returns one row per method, best first: a column `dataset/mean_case_rank` each,
    `mean_case_rank` over all cases of all datasets (so a dataset weighs by its cases), and
    `region`, `missing`, `undefined` as `sum_rank`. Arguments as `collect`.
    """
    scores = collect(table, metrics=metrics, region=region, missing=missing)
    return mean_case_rank_of(scores)


def mean_case_rank_of(scores: CaseScores) -> "pd.DataFrame":
    """`mean_case_rank` of collected scores."""
    import pandas as pd

    ranks = {dataset: case_ranks(scores, dataset) for dataset in scores.costs}
    out = pd.DataFrame(
        {f"{dataset}/mean_case_rank": each.mean(axis=0) for dataset, each in ranks.items()},
        index=pd.Index(scores.methods, name="method"),
    )
    out["mean_case_rank"] = np.concatenate(list(ranks.values())).mean(axis=0)
    out = out.assign(**provenance(scores))
    return out.sort_values("mean_case_rank", kind="stable").reset_index()
