"""Ranking methods from the long table of per-case values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from segcal._checks import check_choice
from segcal.metrics.regions import REGIONS
from segcal.metrics.table import DIRECTIONS, SEGMENTATION, check_table

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
        undefined: how many values of the table were missing or NaN.
    """

    methods: list[str]
    metrics: list[str]
    cases: dict[str, list[str]]
    values: dict[str, Floats]
    undefined: int

    def costs(self, dataset: str) -> Floats:
        """The values turned so that less is better, whatever the metric's direction."""
        turned = self.values[dataset].copy()
        for i, metric in enumerate(self.metrics):
            if DIRECTIONS[metric] == "higher":
                turned[..., i] *= -1
            elif DIRECTIONS[metric] == "zero":
                turned[..., i] = np.abs(turned[..., i])
        return turned


def collect(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] = PAPER_METRICS,
    region: str = "foreground",
    missing: str = "raise",
) -> CaseScores:
    """One value per dataset, case, method and metric from the long table.

    Values of several seeds or runs of a method are averaged, then those of the labels of a case. A
    NaN must not make that mean better by leaving it, so `missing` decides first what becomes of a
    NaN or an absent row:

    - `"raise"`: a ValueError that names the first.
    - `"worst"`: it becomes the worst value that any method has for this dataset, metric and label.
      Where no method has a value (the organ is not in the image), there is nothing to compare and
      the label of that case is left out.
    - `"drop_case"`: the case is left out, for every method and metric.

    Args:
        table: the long table; see `check_table` for columns that may be absent.
        metrics: names in the column `metric`.
        region: where calibration metrics were measured. Segmentation metrics are of the whole
            image.
    """
    check_choice("missing", missing, MISSING)
    check_choice("region", region, REGIONS)
    for metric in metrics:
        check_choice("metrics", metric, DIRECTIONS)
    table = _select(check_table(table), list(metrics), region)
    methods = list(dict.fromkeys(table["method"]))
    cases, values, undefined = {}, {}, 0
    for dataset, part in table.groupby("dataset", sort=False):
        wide = _wide(part, str(dataset), methods)
        undefined += int(wide.isna().to_numpy().sum())
        wide = _settle(wide, str(dataset), missing)
        each = wide.T.groupby(level="method").mean().T[methods]
        each = each.groupby(level=["case", "metric"], sort=False).mean()
        names = list(dict.fromkeys(each.index.get_level_values("case")))
        stacked = [each.xs(m, level="metric").reindex(names).to_numpy() for m in metrics]
        cases[str(dataset)], values[str(dataset)] = names, np.stack(stacked, axis=-1)
    return CaseScores(methods, list(metrics), cases, values, undefined)


def _select(table: "pd.DataFrame", metrics: list[str], region: str) -> "pd.DataFrame":
    table = table[table["metric"].isin(metrics)]
    if "region" in table.columns:
        wanted = np.where(table["metric"].isin(SEGMENTATION), "all", region)
        table = table[table["region"] == wanted]
    for metric in metrics:
        if metric not in set(table["metric"]):
            raise ValueError(
                f"Expected column `metric` to hold {metric!r}"
                f"{'' if metric in SEGMENTATION else f' in region {region!r}'}, "
                "but got no such row."
            )
    return table


def _wide(part: "pd.DataFrame", dataset: str, methods: list[str]) -> "pd.DataFrame":
    """Rows: metric, case, label. Columns: method and its runs. Absent rows become NaN."""
    for method in methods:
        if method not in set(part["method"]):
            raise ValueError(
                f"Expected every method to have rows of every dataset, but {method!r} has none of "
                f"{dataset!r}."
            )
    part = part.assign(label=part.get("label", "all"))
    runs = [name for name in ("run", "seed") if name in part.columns]
    index, columns = ["metric", "case", "label"], ["method", *runs]
    twice = part.duplicated([*index, *columns])
    if twice.any():
        row = part[twice].iloc[0]
        raise ValueError(
            f"Expected one row per method, run, seed, case, label and metric, but got several for "
            f"method {row['method']!r}, dataset {dataset!r}, case {row['case']!r}, label "
            f"{row['label']!r}, metric {row['metric']!r}."
        )
    return part.pivot(index=index, columns=columns, values="value").rename_axis(index=index)


def _settle(wide: "pd.DataFrame", dataset: str, missing: str) -> "pd.DataFrame":
    """The table without NaN, by the policy."""
    gone = wide.isna()
    if not gone.to_numpy().any():
        return wide
    if missing == "raise":
        i, j = np.argwhere(gone.to_numpy())[0]
        metric, case, label = wide.index[i]
        method = wide.columns.get_level_values("method")[j]
        raise ValueError(
            f"Expected no missing or undefined values, but got {int(gone.to_numpy().sum())} in "
            f"dataset {dataset!r}: the first is {metric!r} of label {label!r}, case {case!r}, "
            f"method {method!r}. Say missing='worst' or missing='drop_case' to go on."
        )
    if missing == "drop_case":
        dropped = set(wide.index[gone.any(axis=1)].get_level_values("case"))
        kept = wide[~wide.index.get_level_values("case").isin(dropped)]
        if kept.empty:
            raise ValueError(f"Expected some complete case, but got none in dataset {dataset!r}.")
        return kept
    kept = wide[~gone.all(axis=1)]
    return kept.groupby(level=["metric", "label"], group_keys=False).apply(_fill_with_worst)


def _fill_with_worst(block: "pd.DataFrame") -> "pd.DataFrame":
    direction = DIRECTIONS[block.index.get_level_values("metric")[0]]
    values = block.to_numpy()
    if direction == "higher":
        worst = np.nanmin(values)
    elif direction == "lower":
        worst = np.nanmax(values)
    else:
        worst = np.nanmax(np.abs(values))
    return block.fillna(worst)


def rank(costs: npt.NDArray[Any], axis: int) -> Floats:
    """Ranks from 1 (least cost); ties share their mean rank. A NaN makes its whole slice NaN.

    Costs that differ by less than 1e-12 tie: means of equal values may differ by rounding.
    """
    from scipy.stats import rankdata

    return np.asarray(rankdata(np.round(costs, 12), axis=axis), dtype=np.float64)


def sum_rank(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] = PAPER_METRICS,
    region: str = "foreground",
    missing: str = "raise",
) -> "pd.DataFrame":
    """Rank methods on the mean of each dataset and metric, and add the ranks.

    Returns one row per method, best first: a column `dataset/metric` with each rank, and
    `sum_rank`. Arguments as `collect`. A metric whose direction is "zero" is ranked by the mean of
    its absolute values.
    """
    scores = collect(table, metrics=metrics, region=region, missing=missing)
    return sum_rank_of(scores)


def sum_rank_of(scores: CaseScores) -> "pd.DataFrame":
    """`sum_rank` of collected scores."""
    import pandas as pd

    out = pd.DataFrame(index=pd.Index(scores.methods, name="method"))
    for dataset in scores.values:
        ranks = rank(np.nanmean(scores.costs(dataset), axis=0), axis=0)
        for i, metric in enumerate(scores.metrics):
            out[f"{dataset}/{metric}"] = ranks[:, i]
    out["sum_rank"] = out.sum(axis=1)
    return out.sort_values("sum_rank", kind="stable").reset_index()


def case_ranks(scores: CaseScores, dataset: str) -> Floats:
    """(cases, methods): in each case the mean over metrics of a method's rank."""
    return np.asarray(np.nanmean(rank(scores.costs(dataset), axis=1), axis=2))


def mean_case_rank(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] = PAPER_METRICS,
    region: str = "foreground",
    missing: str = "raise",
) -> "pd.DataFrame":
    """Rank methods in each case on each metric; the mean over metrics, then over cases.

    Returns one row per method, best first: a column per dataset, and `mean_case_rank` over all
    cases of all datasets (so a dataset weighs by its cases). Arguments as `collect`.
    """
    scores = collect(table, metrics=metrics, region=region, missing=missing)
    return mean_case_rank_of(scores)


def mean_case_rank_of(scores: CaseScores) -> "pd.DataFrame":
    """`mean_case_rank` of collected scores."""
    import pandas as pd

    out = pd.DataFrame(index=pd.Index(scores.methods, name="method"))
    ranks = {dataset: case_ranks(scores, dataset) for dataset in scores.values}
    for dataset, each in ranks.items():
        out[dataset] = each.mean(axis=0)
    out["mean_case_rank"] = np.concatenate(list(ranks.values())).mean(axis=0)
    return out.sort_values("mean_case_rank", kind="stable").reset_index()
