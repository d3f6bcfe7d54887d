"""The mean of a metric, said once: over the labels of a case, then cases, then seeds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from segcal.core.checks import check_choice
from segcal.metrics.regions import REGIONS
from segcal.metrics.table import POOLED, base_metric, check_table, whole_image

if TYPE_CHECKING:
    import pandas as pd

MEAN_COLUMNS = ("mean", "std", "seeds", "cases", "undefined")


def method_means(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] | str | None = None,
    region: str = "foreground",
) -> "pd.DataFrame":
    """The mean of each dataset, method and metric, as the report of a study prints it.

    The value of a case is the mean over its labels that have one, the value of a seed the mean over
    its cases that have one, and the mean is over seeds. One row per dataset, method and metric in
    the order of the table: `mean`, `std` over seeds (n − 1; NaN for one seed), `seeds`, `cases`,
    and `undefined`, how many values are NaN or infinite. Rows pooled over a dataset are left out.
    Millimetres of two datasets are never averaged: there is a row for each.

    Args:
        table: the long table; see `check_table` for columns that may be absent.
        metrics: names in the column `metric`; `"hd95"` also finds `"hd95_mm"`. None takes all.
        region: where calibration was measured. Metrics of the whole image (segmentation, logits,
            errors against known true probabilities) are taken from it whatever the region.

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
        asked = {metrics} if isinstance(metrics, str) else set(metrics)
        named = table["metric"].isin(asked) | table["metric"].map(base_metric).isin(asked)
        table = table[named]
    if "region" in table.columns:
        where = table["metric"].map(lambda metric: "all" if whole_image(metric) else region)
        table = table[table["region"] == where]
    return means_over_seeds(table, ["dataset", "method", "metric"]).reset_index()


def means_over_seeds(
    table: "pd.DataFrame", keys: Sequence[str], by_case: "pd.Series[float] | None" = None
) -> "pd.DataFrame":
    """`MEAN_COLUMNS` for each combination of keys, from rows of single cases.

    `by_case` spares the mean over labels where it is known: a series indexed by (at least) the
    keys, seed and case.
    """
    keys = list(keys)
    # Tables made elsewhere may have runs instead of seeds, or one run of each method.
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
