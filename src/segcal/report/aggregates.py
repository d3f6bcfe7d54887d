"""Means of the cases table: over labels, then cases, then seeds; undefined values are counted."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from segcal.metrics import POOLED, find_metric
from segcal.stats import Estimate, clustered_interval, means_over_seeds
from segcal.study import Study

# Metrics that sections read in addition to those of the study.
EXTRA = (
    "dsc", "ece", "cece", "signed_gap", "class_ece", "class_signed_gap",
    "mean_abs_logit", "mean_confidence",
    "truth_ece", "truth_cece", "truth_mae", "truth_kl",
    "reader_ece", "reader_brier", "reader_nll", "reader_dsc", "reader_volume_ml", "reader_ged",
    "reader_crps_ml", "true_volume_ml", "predicted_volume_ml", "expected_volume_ml",
    "human_dsc", "human_brier", "human_volume_ml",
)  # fmt: skip
_KEYS = ["dataset", "method", "region", "metric"]
# The defined values of all cases and seeds, and the patient and the seed of each.
Sample: TypeAlias = tuple[list[float], list[str], list[Any]]


@dataclass(frozen=True)
class Number:
    """A mean over seeds of means over cases.

    Attributes:
        spread: standard deviation over seeds; NaN for one seed.
        undefined: how many values of the table are undefined.
    """

    mean: float = np.nan
    spread: float = np.nan
    undefined: int = 0
    seeds: int = 0
    cases: int = 0


@dataclass(frozen=True)
class Aggregates:
    """Every mean of the report: over the labels of a case, the cases of a seed, then seeds."""

    study: Study

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows of single cases that the report needs."""
        table = self.study.table
        needed = {*EXTRA, *self.study.metrics}
        out = table[table["metric"].isin(needed) & (table["case"] != POOLED)].copy()
        for name in out.columns[:-1]:
            if isinstance(out[name].dtype, pd.CategoricalDtype):
                out[name] = out[name].cat.remove_unused_categories()
        return out

    @cached_property
    def by_case(self) -> "pd.Series[float]":
        """(dataset, method, seed, case, region, metric) -> mean over labels."""
        keys = ["dataset", "method", "seed", "case", "region", "metric"]
        return self.rows.groupby(keys, observed=True, sort=False)["value"].mean()

    @cached_property
    def _samples(self) -> dict[tuple[str, ...], Sample]:
        """The keys of `_numbers` -> the values behind the mean."""
        out: dict[tuple[str, ...], Sample] = {}
        # External rows make a further dataset of this name, without patients.
        known: dict[str, dict[str, str]] = {}
        for dataset in self.study.datasets.values():
            for each in (dataset, *dataset.external):
                known.setdefault(each.name, {}).update(each.patients)
        for keys, values in (
            (_KEYS, self.by_case.dropna().reset_index()),
            ([*_KEYS, "label"], self.rows.dropna(subset="value")),
        ):
            patients = [
                known.get(d, {}).get(case, case)
                for d, case in zip(values["dataset"], values["case"], strict=True)
            ]
            groups = values.assign(patient=patients).groupby(keys, observed=True, sort=False)
            lists = groups[["value", "patient", "seed"]].agg(list)
            out |= {key: sample for key, *sample in lists.itertuples(name=None)}
        return out

    @cached_property
    def _estimates(self) -> dict[tuple[str, ...], Estimate]:
        """The keys of `_numbers` -> the same mean, with an interval over patients."""
        return {
            key: clustered_interval(*sample).within(find_metric(key[_KEYS.index("metric")]).limits)
            for key, sample in self._samples.items()
        }

    @cached_property
    def _numbers(self) -> dict[tuple[str, ...], Number]:
        """(dataset, method, region, metric) or these and a label -> mean."""
        overall = means_over_seeds(self.rows, _KEYS, self.by_case)
        by_label = means_over_seeds(self.rows, [*_KEYS, "label"])
        return {
            key: Number(float(mean), float(spread), int(undefined), int(seeds), int(cases))
            for means in (overall, by_label)
            for key, mean, spread, seeds, cases, undefined in means.itertuples(name=None)
        }

    @cached_property
    def _gaps(self) -> dict[tuple[str, ...], list[float]]:
        keys = _KEYS[:3]
        gaps = self.by_case[self.by_case.index.get_level_values("metric") == "signed_gap"]
        means = gaps.groupby([*keys, "seed"], observed=True, sort=False).mean().dropna()
        by_method = means.groupby(keys, observed=True, sort=False).agg(list)
        return dict(zip(map(tuple, by_method.index), by_method, strict=True))

    def gaps(self, dataset: str, method: str, region: str) -> list[float]:
        """Mean confidence minus accuracy, one value per seed."""
        return self._gaps.get((dataset, method, region), [])

    def overall(
        self, dataset: str, method: str, metric: str, region: str | None = None, *label: str
    ) -> Number:
        """The mean of a metric over all labels, or for one."""
        key = (dataset, method, self.region_of(metric, region), metric, *label)
        return self._numbers.get(key, Number())

    def interval(
        self, dataset: str, method: str, metric: str, region: str | None = None, *label: str
    ) -> Estimate:
        """Mean over cases, of all labels or of one, with its 95 % interval over patients."""
        key = (dataset, method, self.region_of(metric, region), metric, *label)
        return self._estimates.get(key, Estimate(np.nan, np.nan, np.nan))

    def sample(
        self, dataset: str, method: str, metric: str, region: str | None = None
    ) -> Sample | None:
        """The values behind the mean over all labels; None if none is defined."""
        return self._samples.get((dataset, method, self.region_of(metric, region), metric))

    def labels(self, dataset: str, metrics: Iterable[str]) -> list[str]:
        """The labels that have rows of these metrics."""
        found = (self.rows["dataset"] == dataset) & self.rows["metric"].isin(list(metrics))
        return [str(label) for label in self.rows.loc[found, "label"].unique()]

    def region_of(self, metric: str, region: str | None = None) -> str:
        """The region in the rows of a metric; "all" for metrics of the whole image."""
        return "all" if find_metric(metric).whole_image else region or self.study.region

    def cases(self, dataset: str, metric: str, region: str | None = None) -> pd.DataFrame:
        """Cases × methods of one metric, seeds averaged; methods in the order of the study."""
        values = self.by_case
        level = values.index.get_level_values
        selected = (
            (level("dataset") == dataset)
            & (level("metric") == metric)
            & (level("region") == self.region_of(metric, region))
        )
        by_method = values[selected].groupby(["case", "method"], observed=True, sort=False)
        wide = by_method.mean().unstack()
        return wide[[m for m in self.study.methods if m in wide.columns]]

    def structures(self, dataset: str, method: str, metric: str) -> pd.DataFrame:
        """Cases × structures of one metric of one method, seeds averaged."""
        rows = self.rows
        chosen = (rows["dataset"] == dataset) & (rows["method"] == method)
        rows = rows[chosen & (rows["metric"] == metric)]
        values = rows.groupby(["case", "label"], observed=True, sort=False)["value"].mean()
        return values.unstack(sort=False)

    @cached_property
    def seeds(self) -> int:
        """The largest number of seeds of any method."""
        return max((number.seeds for number in self._numbers.values()), default=0)

    @cached_property
    def _cases(self) -> dict[tuple[str, str], set[str]]:
        grouped = self.rows.groupby(["dataset", "method"], observed=True)["case"]
        return {(str(d), str(m)): set(cases.unique()) for (d, m), cases in grouped}

    def shared_cases(self, dataset: str, methods: Iterable[str]) -> tuple[int, int]:
        """How many cases of a dataset all methods have, and how many any has.

        Methods without a case of the dataset do not count.
        """
        each = [self._cases[dataset, m] for m in methods if (dataset, m) in self._cases]
        return (len(set.intersection(*each)), len(set.union(*each))) if each else (0, 0)

    def case_count(self, dataset: str) -> int:
        """How many cases of a dataset have rows."""
        return len(set().union(*(c for (d, _), c in self._cases.items() if d == dataset)))
