"""Tables of numbers in the terminal."""

from typing import Any

Frame = Any  # pandas.DataFrame; pandas must not load with `segcal --help`


def print_frame(title: str, table: Frame) -> None:
    """Print a table; columns `x_low` and `x_high` are shown with `x` as "22 [18, 27]"."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, title_justify="left")
    columns = _columns(table)
    for name in columns:
        grid.add_column(name, justify="left" if table[name].dtype.kind in "OTU" else "right")
    for row in zip(*columns.values(), strict=True):
        grid.add_row(*(cell.replace("[", r"\[") for cell in row))
    console = Console()
    # A file or a pipe has no width: nothing is cut.
    (console if console.is_terminal else Console(width=1000)).print(grid)


def _columns(table: Frame) -> dict[str, list[str]]:
    out = {}
    for name in table.columns:
        if name in ("low", "high") or name.endswith(("_low", "_high")):
            continue
        prefix = "" if name == "mean" else f"{name}_"  # the interval of `mean` is `low` and `high`
        cells = [_text(value) for value in table[name]]
        if f"{prefix}low" in table.columns:
            low, high = (map(_text, table[f"{prefix}{end}"]) for end in ("low", "high"))
            spans = zip(cells, low, high, strict=True)
            cells = [f"{cell} [{a}, {b}]" if a else cell for cell, a, b in spans]
        out[name] = cells
    return out


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return str(value)
