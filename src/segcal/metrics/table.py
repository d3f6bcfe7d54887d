"""The long table: one row per value, everything else is derived from it."""

import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segcal.core.checks import check_choice
from segcal.metrics.rows import COLUMNS, POOLED, Row

if TYPE_CHECKING:
    import pandas as pd

# What is better in each metric: "higher", "lower", nearer to "zero", or None: it describes the data
# or the model, so that nobody can be ranked by it.
DIRECTIONS: dict[str, str | None] = {
    "dsc": "higher",
    "nsd": "higher",
    "hd95": "lower",
    "hd95_max": "lower",
    "hd": "lower",
    "assd": "lower",
    "ece": "lower",
    "cece": "lower",
    "ace": "lower",
    "mce": "lower",
    "adaptive_ece": "lower",
    "signed_gap": "zero",
    "brier": "lower",
    "brier_reliability": "lower",
    "brier_resolution": "higher",
    "brier_uncertainty": None,
    "nll": "lower",
    "class_ece": "lower",
    "class_signed_gap": "zero",
    # What networks say, to be looked at; neither high nor low is good.
    "mean_confidence": None,
    "mean_abs_logit": None,
    # Against known true probabilities (phantoms).
    "truth_ece": "lower",
    "truth_cece": "lower",
    "truth_mae": "lower",
    "truth_kl": "lower",
}
# Undefined where a mask is empty. Their names end in a unit: "hd95_mm", "assd_voxel", "nsd_2mm".
SURFACE = ("nsd", "hd95", "hd95_max", "hd", "assd")
# Of the whole image; their rows say region "all". The others are measured in a region.
SEGMENTATION = ("dsc", *SURFACE)

_WITH_UNIT = re.compile(r"(hd95|hd95_max|hd|assd)_(mm|voxel)|(nsd)_\d+(\.\d+)?(mm|voxel)")


def base_metric(metric: str) -> str:
    """The metric without its unit or tolerance: a key of `DIRECTIONS`, if it is one of ours.

    Example:
        >>> base_metric("hd95_mm"), base_metric("nsd_1.5mm"), base_metric("ece")
        ('hd95', 'nsd', 'ece')
    """
    found = _WITH_UNIT.fullmatch(metric)
    return (found[1] or found[3]) if found else metric


def whole_image(metric: str) -> bool:
    """Whether a metric is of the whole image, so that its rows say region "all".

    Example:
        >>> whole_image("hd95_mm"), whole_image("truth_ece"), whole_image("ece")
        (True, True, False)
    """
    base = base_metric(metric)
    return base in SEGMENTATION or base == "mean_abs_logit" or base.startswith("truth_")


def direction(metric: str) -> str:
    """What is better in a metric, with or without a unit: `"higher"`, `"lower"` or `"zero"`."""
    base = base_metric(metric)
    check_choice("metrics", base, DIRECTIONS)
    better = DIRECTIONS[base]
    if better is None:
        raise ValueError(
            f"Expected argument `metrics` to hold metrics that can be better or worse, but got "
            f"{metric!r}, which describes the data or the model."
        )
    return better


def to_frame(rows: Iterable[Row]) -> "pd.DataFrame":
    """Rows as the long table, columns in the order of `COLUMNS`."""
    import pandas as pd

    return pd.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS))


def check_filled(names: "pd.Series[Any]", source: str) -> None:
    """Raise at the first blank cell of a column of names; row 1 is the first below the head."""
    # None stays None in pandas 2.
    blank = [n for n in names.unique() if n is None or n != n or not str(n).strip()]
    if blank:
        raise ValueError(
            f"Expected column `{names.name}` of {source} to be filled, "
            f"but row {int(names.isin(blank).to_numpy().argmax()) + 1} is empty."
        )


def exactly() -> dict[str, Any]:
    """Arguments with which `read_csv` reads numbers as they were written.

    By default pandas 2 may be off in the last digits; pandas 3 is not, and wants not to be told.
    """
    import pandas as pd

    return {"float_precision": "round_trip"} if pd.__version__ < "3" else {}


def read_table(path: Path | str) -> "pd.DataFrame":
    """A long table that segcal wrote; "001" and "NA" are names, not a number and a gap."""
    import pandas as pd

    names = dict.fromkeys((name for name in COLUMNS[:-1] if name != "seed"), str)
    table: pd.DataFrame = pd.read_csv(
        path, dtype=names, keep_default_na=False, na_values={"value": ["", "nan", "NaN"]},
        **exactly(),
    )  # fmt: skip
    return table


def check_table(table: "pd.DataFrame", source: str = "table") -> "pd.DataFrame":
    """The table with names as strings and values as floats; what is wrong is said with its column.

    `run`, `seed`, `label` and `region` may be missing from a table made elsewhere: there is then
    one run of each method, and one value per case that stands for all labels, in whatever region is
    asked for. Infinite values (other libraries write them for a missed organ) are undefined: NaN.
    """
    import pandas as pd

    needed = ("method", "dataset", "case", "metric", "value")
    for name in needed:
        if name not in table.columns:
            raise ValueError(
                f"Expected {source} to have a column `{name}`, but got {', '.join(table.columns)}."
            )
    if table.empty:
        raise ValueError(f"Expected {source} to have rows, but got none.")
    out = pd.DataFrame(index=table.index)
    for name in COLUMNS[:-1]:
        if name in ("run", "seed") and name in table.columns:
            out[name] = table[name].astype(object).where(table[name].notna(), "").astype(str)
        elif name in table.columns:
            check_filled(table[name], source)
            out[name] = table[name].astype(str)
    values = pd.to_numeric(table["value"], errors="coerce")
    wrong = values.isna() & table["value"].notna()
    if wrong.any():
        raise ValueError(
            f"Expected column `value` of {source} to hold numbers, "
            f"but got {table['value'][wrong].iloc[0]!r}."
        )
    unknown = sorted(m for m in set(out["metric"]) if base_metric(m) not in DIRECTIONS)
    if unknown:
        raise ValueError(
            f"Expected column `metric` of {source} to hold some of {', '.join(DIRECTIONS)} "
            f"(distances with their unit, as hd95_mm or nsd_2mm), but got {', '.join(unknown)}."
        )
    out["value"] = values.astype(float).where(np.isfinite(values.astype(float)))
    return out


def summarize(table: "pd.DataFrame") -> "pd.DataFrame":
    """Mean of each metric over cases, with how many values it rests on and how many were undefined.

    One row per method, dataset, label, region and metric. Several seeds or runs of a case are
    averaged first, so that `std` is the spread over cases; `count` is how many cases have a value,
    `undefined` how many values of the table were NaN or infinite. A mean beside many undefined
    values flatters: read the two together. Rows pooled over a dataset (case "pooled") are left out.
    """
    table = check_table(table)
    table = table[table["case"] != POOLED]
    keys = [c for c in ("method", "dataset", "label", "region", "metric") if c in table.columns]
    undefined = table["value"].isna().groupby([table[k] for k in keys], sort=False).sum()
    cases = table.groupby([*keys, "case"], sort=False)["value"].mean()
    out = cases.groupby(level=keys, sort=False).agg(["mean", "std", "count"])
    return out.assign(undefined=undefined.astype(int)).reset_index()
