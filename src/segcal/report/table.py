"""A table of numbers as a thing: columns, rows and cells that know what is best."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from segcal.metrics import better_direction, is_per_structure, metric_title, metric_unit
from segcal.report.numbers import Number

ARROWS = {"higher": "↑", "lower": "↓"}


@dataclass(frozen=True)
class Column:
    """One column. `group` is the heading above it, `dataset` what hides it when another is picked.

    `better` is "higher", "lower", "zero" or None (nothing to be marked); `text` holds words.
    """

    key: str
    title: str
    unit: str = ""
    better: str | None = None
    digits: int = 3
    group: str = ""
    dataset: str = ""
    text: bool = False

    @property
    def heading(self) -> str:
        """Title, unit and the direction of what is better."""
        unit = f" ({self.unit})" if self.unit else ""
        arrow = f" {ARROWS[self.better]}" if self.better in ARROWS else ""
        return f"{self.title}{unit}{arrow}"


@dataclass(frozen=True)
class Cell:
    """A number (or a text) of a table; `mark` is "best", "second", "sure" or nothing.

    `signed` prints the sign, `above_zero` never a 0 that is none, `after` stands behind the number
    (its interval), `tone` is "over" or "under": the page colours it.
    """

    number: Number = field(default_factory=Number)
    text: str = ""
    published: float | None = None
    mark: str = ""
    signed: bool = False
    above_zero: bool = False
    tone: str = ""
    after: str = ""

    def mean(self, digits: int) -> str:
        """The printed mean, "–" where there is none."""
        if self.text or math.isnan(self.number.mean):
            return self.text or "–"
        if self.above_zero and 0 < self.number.mean < 10.0**-digits:
            return f"<{10.0**-digits:.{digits}f}"
        text = f"{self.number.mean:{'+' if self.signed else ''}.{digits}f}"
        return text.replace("-", "−")

    def spread(self, digits: int) -> str:
        """The printed deviation over seeds, or nothing."""
        known = not self.text and not math.isnan(self.number.spread)
        return f"{self.number.spread:.{digits}f}" if known else ""

    @property
    def sort_key(self) -> str:
        """What the page sorts by."""
        if self.text:
            return self.text
        return "" if math.isnan(self.number.mean) else f"{self.number.mean:.8g}"


@dataclass(frozen=True)
class Row:
    """A row of a method; `rule` draws a line above it, `undefined` is of all its cells together."""

    method: str
    title: str
    cells: tuple[Cell, ...]
    rule: bool = False
    note: str = ""
    undefined: int = 0


@dataclass(frozen=True)
class Table:
    """A table with everything that has to be said beside it; `compact`: the page shows no ±."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    notes: tuple[str, ...] = ()
    region: str = ""
    head: str = "Method"
    compact: bool = False

    @property
    def groups(self) -> list[tuple[str, str, int]]:
        """Headings above the columns: (text, dataset, how many columns)."""
        out: list[tuple[str, str, int]] = []
        for column in self.columns:
            if out and out[-1][:2] == (column.group, column.dataset):
                out[-1] = (*out[-1][:2], out[-1][2] + 1)
            else:
                out.append((column.group, column.dataset, 1))
        return out if any(text for text, _, _ in out) else []

    @property
    def has_published(self) -> bool:
        """Whether a number of the paper stands beside one of ours."""
        return any(c.published is not None for row in self.rows for c in row.cells)


def metric_column(metric: str, *, group: str = "", dataset: str = "", title: str = "") -> Column:
    """The column of a metric: its printed name, unit, direction and digits.

    Example:
        >>> metric_column("hd95_mm").heading, metric_column("ece").heading
        ('HD95 (mm) ↓', 'ECE ↓')
    """
    unit = metric_unit(metric)
    distance = is_per_structure(metric) and unit in ("mm", "voxels")
    return Column(
        key=metric, title=title or metric_title(metric), unit=unit,
        better=better_direction(metric), digits=2 if distance else 3, group=group, dataset=dataset,
    )  # fmt: skip


def marked(table: Table, methods: Iterable[str] | None = None) -> Table:
    """The table with the best and second best of each column marked.

    Values that are printed alike are marked alike. Places are those of a race: behind two who share
    the first nobody is second. The last place is never marked: one method alone has nothing to be
    best of, of two only the better is marked, and a column of equal values has no mark.
    """
    chosen = set(methods) if methods is not None else {row.method for row in table.rows}
    cells = [list(row.cells) for row in table.rows]
    for j, column in enumerate(table.columns):
        costs = {
            i: _cost(row.cells[j].number.mean, column)
            for i, row in enumerate(table.rows)
            if row.method in chosen
        }
        known = {i: cost for i, cost in costs.items() if not math.isnan(cost)}
        if column.better is None or len(known) < 2:
            continue
        for i, cost in known.items():
            place = sum(other < cost for other in known.values())
            if place < 2 and cost < max(known.values()):
                cells[i][j] = replace(cells[i][j], mark=("best", "second")[place])
    rows = (replace(row, cells=tuple(c)) for row, c in zip(table.rows, cells, strict=True))
    return replace(table, rows=tuple(rows))


def _cost(value: float, column: Column) -> float:
    shown = round(value, column.digits) if not math.isnan(value) else value
    if column.better == "higher":
        return -shown
    return abs(shown) if column.better == "zero" else shown
