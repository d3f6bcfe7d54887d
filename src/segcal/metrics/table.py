"""The long table: one row per value, everything else is derived from it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("run", "method", "seed", "dataset", "case", "label", "region", "metric", "value")

# What is better in each metric: "higher", "lower", or nearer to "zero".
DIRECTIONS: dict[str, str] = {
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
    "brier_uncertainty": "lower",
    "nll": "lower",
    "class_ece": "lower",
    "class_signed_gap": "zero",
}
# Of the whole image; their rows say region "all". The others are measured in a region.
SEGMENTATION = ("dsc", "nsd", "hd95", "hd95_max", "hd", "assd")


@dataclass(frozen=True)
class Row:
    """One value of one case. `value` is NaN where the metric is undefined; the row is kept.

    label: a structure's name, a class's number, or "all" for values over all classes.
    region: where calibration was measured; "all" for segmentation metrics.
    """

    run: str
    method: str
    seed: int
    dataset: str
    case: str
    label: str
    region: str
    metric: str
    value: float


def to_frame(rows: Iterable[Row]) -> "pd.DataFrame":
    """Rows as the long table, columns in the order of `COLUMNS`."""
    import pandas as pd

    return pd.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS))


def check_table(table: "pd.DataFrame", source: str = "table") -> "pd.DataFrame":
    """The table with names as strings and values as floats; what is wrong is said with its column.

    `run`, `seed`, `label` and `region` may be missing from a table made elsewhere: there is then
    one run of each method, and one value per case that stands for all labels, in whatever region is
    asked for.
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
        if name in table.columns:
            if table[name].isna().any() and name in needed:
                where = int(table[name].isna().to_numpy().argmax()) + 1
                raise ValueError(
                    f"Expected column `{name}` of {source} to be filled, but row {where} is empty."
                )
            out[name] = table[name].astype(str)
    values = pd.to_numeric(table["value"], errors="coerce")
    wrong = values.isna() & table["value"].notna()
    if wrong.any():
        raise ValueError(
            f"Expected column `value` of {source} to hold numbers, "
            f"but got {table['value'][wrong].iloc[0]!r}."
        )
    unknown = sorted(set(out["metric"]) - set(DIRECTIONS))
    if unknown:
        raise ValueError(
            f"Expected column `metric` of {source} to hold some of {', '.join(DIRECTIONS)}, "
            f"but got {', '.join(unknown)}."
        )
    out["value"] = values.astype(float)
    return out


def summarize(table: "pd.DataFrame") -> "pd.DataFrame":
    """Mean of each metric over cases, with how many values it rests on and how many were undefined.

    One row per method, dataset, label, region and metric: `mean` and `std` of the defined values,
    `count` of them, and `undefined`. A mean beside many undefined values flatters: read the two
    together.
    """
    table = check_table(table)
    keys = [c for c in ("method", "dataset", "label", "region", "metric") if c in table.columns]
    grouped = table.groupby(keys, sort=False)["value"]
    out = grouped.agg(["mean", "std", "count", "size"]).reset_index()
    out["undefined"] = out.pop("size") - out["count"]
    return out
