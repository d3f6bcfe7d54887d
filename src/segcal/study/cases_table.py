"""`cases.csv`, the long table: one line per value of a case, with the columns of `Row`.

Evaluations, audits and studies write it; `segcal rank` and `segcal report` read it. A compressed
table, `cases.csv.xz`, is read in the same way.
"""

import csv
import io
import lzma
import zlib
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segcal.core.errors import PathError
from segcal.core.files import write_text
from segcal.metrics import COLUMNS, Row
from segcal.stats import check_cells

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "'")


def neutral(name: Any) -> Any:
    """A name that a spreadsheet does not take for a formula: "=1" becomes "'=1"."""
    return f"'{name}" if isinstance(name, str) and name.startswith(_FORMULA) else name


def write_frame(path: Path, frame: "pd.DataFrame", float_format: str | None = None) -> None:
    """Write a table for people; its texts are `neutral`."""
    texts = frame.select_dtypes(exclude="number").columns
    frame = frame.assign(**{c: frame[c].map(neutral) for c in texts})
    write_text(path, frame.to_csv(index=False, float_format=float_format))


def write_cases_table(path: Path, rows: Iterable[Row]) -> None:
    """Write rows to `path`; the file is complete or not there."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        *names, value = attrgetter(*COLUMNS)(row)
        writer.writerow([*map(neutral, names), value])
    write_text(path, text.getvalue())


def read_cases_table(
    path: Path | str, *, required: Sequence[str] = COLUMNS, limit: int | None = None
) -> "pd.DataFrame":
    """The rows of a table, each number exactly as it was written.

    Columns of names have the dtype `category` of strings: "001" and "NA" are names, not a number
    and a missing value. Pass `observed=True` to `groupby`. Infinite values become NaN.

    Args:
        path: a CSV file, or a compressed one (.csv.xz, .csv.gz).
        required: columns that must be present; `segcal.stats.REQUIRED_COLUMNS` for tables from
            other tools.
        limit: read only the first `limit` bytes; by default the whole file.

    Raises:
        PathError: the file is missing, cut off, not a table, or lacks a column, a name or a number.
    """
    import pandas as pd

    path = Path(path)
    # pandas 2 may change the last digits of a number; pandas 3 does not and has no such option.
    exact: dict[str, Any] = {"float_precision": "round_trip"} if pd.__version__ < "3" else {}
    try:
        _check_complete(path, limit)
        table: pd.DataFrame = pd.read_csv(
            path if limit is None else io.BytesIO(path.read_bytes()[:limit]),
            dtype=dict.fromkeys(COLUMNS[:-1], str),
            keep_default_na=False,
            na_values={"value": ["", "nan", "NaN"]},
            **exact,
        )
    except FileNotFoundError as error:
        raise PathError(path, "does not exist", "check the path") from error
    except IsADirectoryError as error:
        remedy = "give the table in it, such as cases.csv"
        raise PathError(path, "is a folder, not a table", remedy) from error
    except OSError as error:
        raise PathError(path, f"cannot be read ({error.strerror or error})") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise PathError(path, f"is not a CSV table ({error})") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise PathError(path, f"is damaged ({error})", "copy it again") from error
    try:
        table["value"] = check_cells(table, path, required)
    except ValueError as error:
        raise PathError(path, str(error).removeprefix(f"{path}: ")) from error
    return _categorical(table)


def read_cases_tables(
    paths: Sequence[Path], *, required: Sequence[str] = COLUMNS
) -> "pd.DataFrame":
    """The rows of several tables of different runs; see `read_cases_table`.

    A table without rows, with other columns than the first or with the same row raises.
    """
    import pandas as pd

    tables = [read_cases_table(path, required=required) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        if table.empty:
            raise PathError(path, "has no rows")
    if len(tables) == 1:
        return tables[0]
    for path, table in zip(paths, tables, strict=True):
        different = set(table.columns) ^ set(tables[0].columns)
        if different:
            name = min(different)
            has, lacks = (path, paths[0]) if name in table.columns else (paths[0], path)
            remedy = "rank tables with the same columns"
            raise PathError(lacks, f"has no column `{name}`, but {has} has", remedy)
    # A column whose tables have different names loses its categories.
    table = _categorical(pd.concat(tables, ignore_index=True))
    twice = table.duplicated([name for name in table.columns if name != "value"])
    if twice.any():
        row = table[twice].iloc[0]
        value = f"{row['metric']} of method {row['method']} in case {row['case']}"
        files = ", ".join(map(str, paths))
        raise ValueError(f"{files}: several of these tables have {value}; give each run once")
    return table


def empty_cases_table() -> "pd.DataFrame":
    """A table without rows, for a study in which no run is finished."""
    import pandas as pd

    return _categorical(pd.DataFrame(columns=list(COLUMNS)).astype({"value": float}))


def _categorical(table: "pd.DataFrame") -> "pd.DataFrame":
    """Columns of names as categories. `read_csv` would turn the category "001" into a number."""
    names = [name for name in COLUMNS[:-1] if name in table.columns]
    table = table.astype(dict.fromkeys(names, "category"))
    for name in names:
        categories = list(table[name].cat.categories)
        if any(str(each).startswith("'") for each in categories):  # see `neutral`
            original = [str(each).removeprefix("'") for each in categories]
            table[name] = table[name].cat.rename_categories(original)
    return table


def _check_complete(path: Path, limit: int | None) -> None:
    """Raise if the last line does not end: its number may have lost digits."""
    size = path.stat().st_size
    if limit is not None and size < limit:
        raise PathError(path, f"has {size} of {limit} bytes", "copy or write it again")
    if path.suffix in (".gz", ".xz") or size == 0:
        return
    with path.open("rb") as stream:
        stream.seek((size if limit is None else limit) - 1)
        if stream.read(1) not in (b"\n", b"\r"):
            raise PathError(path, "is cut off in its last line", "copy or write it again")
