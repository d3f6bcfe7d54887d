"""Means of the long table: over labels, then cases, then seeds; what is undefined is counted."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from segcal.metrics import POOLED
from segcal.metrics.table import SEGMENTATION, base_metric
from segcal.report.study import Study

if TYPE_CHECKING:
    import pandas as pd

# What the report reads beside the metrics of the study.
EXTRA = (
    "dsc", "ece", "cece", "signed_gap", "class_ece", "mean_abs_logit", "mean_confidence",
    "truth_ece", "truth_cece", "truth_mae", "truth_kl",
)  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A mean over seeds of means over cases.

    `spread` is the standard deviation over seeds (NaN for one), `undefined` how many values of the
    rows have none, `seeds` how many seeds there are, `cases` how many cases.
    """

    mean: float = np.nan
    spread: float = np.nan
    undefined: int = 0
    seeds: int = 0
    cases: int = 0


@dataclass(frozen=True)
class Numbers:
    """Every mean that the report prints, from the rows of single cases.

    The value of a case is the mean over its labels that have one, the value of a seed the mean
    over its cases that have one; the printed number is the mean of the seeds ± their deviation.
    """

    study: Study

    @cached_property
    def rows(self) -> "pd.DataFrame":
        """The rows of single cases that the report needs."""
        table = self.study.table
        wanted = set(EXTRA) | set(self.study.metrics)
        kept = table[table["metric"].isin(wanted) & (table["case"] != POOLED)]
        out = kept.copy()
        for name in out.columns[:-1]:
            if isinstance(out[name].dtype, _category()):
                out[name] = out[name].cat.remove_unused_categories()
        return out

    @cached_property
    def by_case(self) -> "pd.Series[float]":
        """(dataset, method, seed, case, region, metric) -> mean over labels."""
        keys = ["dataset", "method", "seed", "case", "region", "metric"]
        return self.rows.groupby(keys, observed=True, sort=False)["value"].mean()

    @cached_property
    def _overall(self) -> "pd.DataFrame":
        keys = ["dataset", "method", "region", "metric"]
        return _over_seeds(self.by_case, self.rows, keys)

    @cached_property
    def _by_label(self) -> "pd.DataFrame":
        keys = ["dataset", "method", "region", "metric", "label"]
        return _over_seeds(
            self.rows.set_index([*keys, "seed", "case"])["value"],
            self.rows, keys,
        )  # fmt: skip

    def overall(self, dataset: str, method: str, metric: str, region: str | None = None) -> Number:
        """The number of a dataset, method and metric, labels averaged."""
        return _number(self._overall, (dataset, method, self.region_of(metric, region), metric))

    def of_label(
        self, dataset: str, method: str, metric: str, label: str, region: str | None = None
    ) -> Number:
        """The number of one label."""
        where = self.region_of(metric, region)
        return _number(self._by_label, (dataset, method, where, metric, label))

    def region_of(self, metric: str, region: str | None = None) -> str:
        """Where a metric was measured: segmentation and logits are of the whole image."""
        if base_metric(metric) in SEGMENTATION or metric == "mean_abs_logit":
            return "all"
        return region or self.study.region

    def cases(self, dataset: str, metric: str, region: str | None = None) -> "pd.DataFrame":
        """Cases × methods of one metric, seeds averaged; methods in the order of the study."""
        values = self.by_case
        level = values.index.get_level_values
        keep = (
            (level("dataset") == dataset)
            & (level("metric") == metric)
            & (level("region") == self.region_of(metric, region))
        )
        wide = values[keep].groupby(["case", "method"], observed=True, sort=False).mean().unstack()
        order = [m for m in self.study.methods if m in wide.columns]
        return wide[order]

    @cached_property
    def seeds(self) -> int:
        """The most seeds that any method has."""
        return int(self._overall["seeds"].max()) if len(self._overall) else 0

    def case_count(self, dataset: str) -> int:
        """How many cases of a dataset have rows."""
        rows = self.rows
        return int(rows.loc[rows["dataset"] == dataset, "case"].nunique())


def _category() -> type:
    import pandas as pd

    return pd.CategoricalDtype


def _over_seeds(
    values: "pd.Series[float]", rows: "pd.DataFrame", keys: list[str]
) -> "pd.DataFrame":
    """`mean`, `spread`, `seeds`, `cases` and `undefined` for each combination of keys."""
    seeds = values.groupby([*keys, "seed"], observed=True, sort=False).mean()
    grouped = seeds.groupby(keys, observed=True, sort=False)
    out = grouped.agg(mean="mean", spread="std", seeds="size")
    lost = rows["value"].isna().groupby([rows[k] for k in keys], observed=True, sort=False).sum()
    cases = rows.groupby(keys, observed=True, sort=False)["case"].nunique()
    return out.assign(undefined=lost, cases=cases)


def _number(table: "pd.DataFrame", key: tuple[str, ...]) -> Number:
    try:
        row = table.loc[key]
    except KeyError:
        return Number()
    return Number(
        float(row["mean"]), float(row["spread"]), int(row["undefined"]), int(row["seeds"]),
        int(row["cases"]),
    )  # fmt: skip
