"""Means of the long table: over labels, then cases, then seeds; what is undefined is counted."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from segcal.metrics import POOLED, is_whole_image
from segcal.stats import means_over_seeds
from segcal.study.reader import Study

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
    def _overall(self) -> dict[tuple[str, ...], Number]:
        keys = ["dataset", "method", "region", "metric"]
        return _numbers(means_over_seeds(self.rows, keys, self.by_case))

    @cached_property
    def _by_label(self) -> dict[tuple[str, ...], Number]:
        keys = ["dataset", "method", "region", "metric", "label"]
        return _numbers(means_over_seeds(self.rows, keys))

    @cached_property
    def _by_seed(self) -> dict[tuple[str, ...], list[float]]:
        keys = ["dataset", "method", "region", "metric"]
        gaps = self.by_case[self.by_case.index.get_level_values("metric") == "signed_gap"]
        means = gaps.groupby([*keys, "seed"], observed=True, sort=False).mean().dropna()
        out: dict[tuple[str, ...], list[float]] = {}
        for key, value in zip(means.index, means.to_numpy(), strict=True):
            out.setdefault(tuple(map(str, key))[:-1], []).append(float(value))
        return out

    def gaps(self, dataset: str, method: str, region: str) -> list[float]:
        """Mean confidence minus accuracy of each seed that has it."""
        return self._by_seed.get((dataset, method, region, "signed_gap"), [])

    def overall(self, dataset: str, method: str, metric: str, region: str | None = None) -> Number:
        """The number of a dataset, method and metric, labels averaged."""
        where = self.region_of(metric, region)
        return self._overall.get((dataset, method, where, metric), Number())

    def of_label(
        self, dataset: str, method: str, metric: str, label: str, region: str | None = None
    ) -> Number:
        """The number of one label."""
        where = self.region_of(metric, region)
        return self._by_label.get((dataset, method, where, metric, label), Number())

    def region_of(self, metric: str, region: str | None = None) -> str:
        """Where a metric was measured: segmentation and logits are of the whole image."""
        return "all" if is_whole_image(metric) else region or self.study.region

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
        return max((number.seeds for number in self._overall.values()), default=0)

    def shared_cases(self, dataset: str, methods: Iterable[str]) -> tuple[int, int]:
        """How many cases of a dataset all methods have, and how many any has.

        Methods without a case of it do not count.
        """
        rows = self.rows[self.rows["dataset"] == dataset]
        each = [set(rows.loc[rows["method"] == method, "case"]) for method in methods]
        each = [cases for cases in each if cases]
        return (len(set.intersection(*each)), len(set.union(*each))) if each else (0, 0)

    def case_count(self, dataset: str) -> int:
        """How many cases of a dataset have rows."""
        rows = self.rows
        return int(rows.loc[rows["dataset"] == dataset, "case"].nunique())


def _category() -> type:
    import pandas as pd

    return pd.CategoricalDtype


def _numbers(means: "pd.DataFrame") -> dict[tuple[str, ...], Number]:
    columns = [means[name].to_numpy() for name in ("mean", "std", "undefined", "seeds", "cases")]
    return {
        tuple(map(str, key)): Number(float(mean), float(spread), int(gone), int(seeds), int(cases))
        for key, mean, spread, gone, seeds, cases in zip(means.index, *columns, strict=True)
    }
