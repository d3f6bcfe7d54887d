"""Means of metrics over labels, cases and seeds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from segcal.core.checks import check_choice
from segcal.metrics import DEFAULT_REGION, POOLED, REGIONS, find_metric
from segcal.stats.long_table import check_table, in_region, map_names

if TYPE_CHECKING:
    import pandas as pd


def summarize(table: "pd.DataFrame") -> "pd.DataFrame":
    """Mean of each metric over cases, with the number of defined and undefined values.

    One row per method, dataset, label, region and metric. Several seeds or runs of a case are
    averaged first, so `std` is the standard deviation over cases; `count` is the number of cases
    with a value, `undefined` the number of NaN and infinite values in the table. A mean with many
    undefined values is too optimistic. Rows of case "pooled" are skipped.
    """
    table = check_table(table)
    table = table[table["case"] != POOLED]
    keys = [c for c in ("method", "dataset", "label", "region", "metric") if c in table.columns]
    undefined = table["value"].isna().groupby([table[k] for k in keys], sort=False).sum()
    cases = table.groupby([*keys, "case"], sort=False)["value"].mean()
    out = cases.groupby(level=keys, sort=False).agg(["mean", "std", "count"])
    return out.assign(undefined=undefined.astype(int)).reset_index()


def method_means(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] | str | None = None,
    region: str = DEFAULT_REGION,
) -> "pd.DataFrame":
    """The mean of each dataset, method and metric, as a report prints it.

    The value of a case is the mean over its labels that have one, the value of a seed the mean over
    its cases that have one, and the mean is over seeds. One row per dataset, method and metric in
    the order of the table: `mean`, `std` over seeds (n − 1; NaN for one seed), `seeds`, `cases`,
    and `undefined`, the number of NaN and infinite values. Rows of case "pooled" are skipped.

    Args:
        table: the long table; see `check_table` for optional columns.
        metrics: names in the column `metric`; `"hd95"` also finds `"hd95_mm"`. None for all.
        region: where calibration was measured. Metrics of the whole image do not depend on it.

    Example:
        >>> import pandas as pd
        >>> names = ["method", "seed", "dataset", "case", "metric", "value"]
        >>> rows = [["a", 0, "d", "x", "dsc", 0.5], ["a", 0, "d", "y", "dsc", 0.7],
        ...         ["a", 1, "d", "x", "dsc", 0.9]]
        >>> round(float(method_means(pd.DataFrame(rows, columns=names))["mean"].iloc[0]), 3)
        0.75
    """
    check_choice("region", region, REGIONS)
    table = check_table(table)
    table = table[table["case"] != POOLED]
    if metrics is not None:
        requested = {metrics} if isinstance(metrics, str) else set(metrics)
        base = map_names(table["metric"], lambda name: find_metric(name).key)
        table = table[table["metric"].isin(requested) | base.isin(requested)]
    return means_over_seeds(in_region(table, region), ["dataset", "method", "metric"]).reset_index()


def means_over_seeds(
    table: "pd.DataFrame", keys: Sequence[str], by_case: "pd.Series[float] | None" = None
) -> "pd.DataFrame":
    """`mean`, `std`, `seeds`, `cases` and `undefined` of each combination of keys.

    Args:
        table: rows of single cases.
        keys: columns to group by.
        by_case: the mean over labels, if it is known: a series indexed by (at least) the keys, seed
            and case.
    """
    keys = list(keys)
    # Tables of other tools may have runs instead of seeds, or one run per method.
    seed = [name for name in ("seed", "run") if name in table.columns][:1]
    if by_case is None:
        cases = [*keys, *seed, "case"]
        by_case = table.groupby(cases, observed=True, sort=False)["value"].mean()
    by_seed = by_case.groupby([*keys, *seed], observed=True, sort=False).mean()
    over = by_seed.groupby(keys, observed=True, sort=False)
    lost = table["value"].isna().groupby([table[k] for k in keys], observed=True, sort=False)
    cases_of = table.groupby(keys, observed=True, sort=False)["case"]
    out = over.agg(["mean", "std"])
    out["seeds"], out["cases"], out["undefined"] = over.size(), cases_of.nunique(), lost.sum()
    return out
