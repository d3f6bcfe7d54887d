"""Checks of the long table: a DataFrame with one row per value, columns as in `Row`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segcal.metrics import COLUMNS, Row, find_metric

if TYPE_CHECKING:
    import pandas as pd

# Tables from other tools may lack the other columns.
REQUIRED_COLUMNS = ("method", "dataset", "case", "metric", "value")


def to_frame(rows: Iterable[Row]) -> "pd.DataFrame":
    """Rows as a long table, columns in the order of `COLUMNS`."""
    import pandas as pd

    return pd.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS))


def check_table(table: "pd.DataFrame", source: Path | str = "table") -> "pd.DataFrame":
    """A copy with names as strings and values as floats; an error names `source` and the column.

    The columns `run`, `seed`, `label` and `region` are optional. Without them the table has one
    run per method and one value per case for all labels, and any region may be requested. Infinite
    values, which other libraries write for a missed structure, become NaN.
    """
    import pandas as pd

    values = check_cells(table, source)
    if table.empty:
        raise ValueError(f"{source}: has no rows")
    out = pd.DataFrame(index=table.index)
    for name in COLUMNS[:-1]:
        if name in table.columns:
            column = table[name].astype(object)
            out[name] = column.where(table[name].notna(), "").astype(str)
    return out.assign(value=values)


def check_cells(
    table: "pd.DataFrame", source: Path | str, required: Sequence[str] = REQUIRED_COLUMNS
) -> "pd.Series[float]":
    """The column `value` as floats, infinite values as NaN.

    Raises:
        ValueError: a required column is missing, a name is empty, or a value is not a number.
    """
    import pandas as pd

    missing = [name for name in required if name not in table.columns]
    if missing:
        raise ValueError(
            f"{source}: has no column `{missing[0]}`; its columns are {', '.join(table.columns)}"
        )
    for name in ("method", "dataset", "case", "label", "region", "metric"):
        if name in table.columns:
            check_filled(table[name], source)
    values = pd.to_numeric(table["value"], errors="coerce")
    invalid = values.isna() & table["value"].notna()
    if invalid.any():
        raise ValueError(
            f"{source}: column `value` must hold numbers, "
            f"but row {_first(invalid)} holds {table['value'][invalid].iloc[0]!r}"
        )
    values = values.astype(float)
    return values.where(np.isfinite(values))


def check_filled(names: "pd.Series[Any]", source: Path | str) -> None:
    """Raise at the first empty cell of a column of names; row 1 is the first below the header."""
    empty = [n for n in names.unique() if n is None or n != n or not str(n).strip()]
    if empty:
        blank = names.isna() | names.isin(empty)
        raise ValueError(f"{source}: column `{names.name}` is empty in row {_first(blank)}")


def _first(rows: "pd.Series[bool]") -> int:
    return int(rows.to_numpy().argmax()) + 1


def map_names(names: "pd.Series[Any]", function: Callable[[str], Any]) -> "pd.Series[Any]":
    """`function` of each name, called once for each different name."""
    return names.map({name: function(name) for name in names.unique()})


def in_region(table: "pd.DataFrame", region: str) -> "pd.DataFrame":
    """The rows of a region, and those of metrics of the whole image."""
    if "region" not in table.columns:
        return table
    whole = map_names(table["metric"], lambda name: find_metric(name).whole_image).astype(bool)
    return table[(table["region"] == region) & ~whole | (table["region"] == "all") & whole]
