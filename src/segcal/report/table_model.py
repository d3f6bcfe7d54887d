"""Tables of numbers: columns, rows and cells; the best values of a column are marked."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from segcal.metrics import find_metric
from segcal.report.aggregates import Number
from segcal.stats import Estimate

INTERVAL_NOTE = "[ ]: 95 % interval over patients (Student's t)."
ARROWS = {"higher": "↑", "lower": "↓"}


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        group: heading above this column and its neighbors of the same group.
        dataset: the page hides the column when another dataset is selected.
        better: "higher", "lower" or "zero"; None if no value is better than another.
        text: whether the column holds words, not numbers.
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
        """Title, unit and an arrow towards better values."""
        unit = f" ({self.unit})" if self.unit else ""
        arrow = f" {ARROWS[self.better]}" if self.better in ARROWS else ""
        return f"{self.title}{unit}{arrow}"


@dataclass(frozen=True)
class Cell:
    """A number or a text.

    Attributes:
        published: the number that a publication has here.
        ranked: the value that the ranking uses, where it differs from the mean: undefined values
            count as the worst there, and are left out of the mean.
        mark: "best", "second" or "significant".
        signed: print the sign of positive numbers too.
        above_zero: print a small positive number as "<0.001", never as 0.
        tone: "over" or "under"; colored on the page.
        after: text behind the number, such as its interval.
    """

    number: Number = field(default_factory=Number)
    text: str = ""
    published: float | None = None
    ranked: float = math.nan
    mark: Literal["", "best", "second", "significant"] = ""
    signed: bool = False
    above_zero: bool = False
    tone: str = ""
    after: str = ""

    def mean(self, digits: int) -> str:
        """The printed mean; "–" if there is none."""
        if self.text or math.isnan(self.number.mean):
            return self.text or "–"
        if self.above_zero and 0 < self.number.mean < 10.0**-digits:
            return f"<{10.0**-digits:.{digits}f}"
        text = f"{self.number.mean:{'+' if self.signed else ''}z.{digits}f}"
        return text.replace("-", "−")

    def spread(self, digits: int) -> str:
        """The printed standard deviation over seeds, or nothing."""
        known = not self.text and not math.isnan(self.number.spread)
        return f"{self.number.spread:.{digits}f}" if known else ""

    def remarks(self, digits: int) -> list[str]:
        """How many values are undefined, and which value is ranked if that is not the mean."""
        out = [f"{self.number.undefined} undef."] if self.number.undefined else []
        if f"{self.ranked:.{digits}f}" not in ("nan", f"{self.number.mean:.{digits}f}"):
            out.append(f"ranked as {self.ranked:.{digits}f}")
        return out

    @property
    def sort_key(self) -> str:
        """What the page sorts by."""
        if self.text:
            return self.text
        return "" if math.isnan(self.number.mean) else f"{self.number.mean:.8g}"


@dataclass(frozen=True)
class Row:
    """A row; `rule` draws a line above it, `undefined` counts undefined values of all its cells.

    With `case`, the name of a case, the title is a link to its pictures, if the page has some.
    """

    method: str
    title: str
    cells: tuple[Cell, ...]
    rule: bool = False
    note: str = ""
    undefined: int = 0
    case: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its caption and notes.

    Attributes:
        name: of its files in tables/; none are written if `saved` is false.
        region: where its calibration was measured.
        head: heading of the first column.
        compact: the page shows no standard deviations.
        dataset: of the cases that rows name.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    notes: tuple[str, ...] = ()
    region: str = ""
    head: str = "Method"
    compact: bool = False
    saved: bool = True
    dataset: str = ""

    @property
    def groups(self) -> list[tuple[str, str, int]]:
        """Headings above the columns: (text, dataset, number of columns)."""
        equal = itertools.groupby((column.group, column.dataset) for column in self.columns)
        out = [(*key, len(list(columns))) for key, columns in equal]
        return out if any(text for text, _, _ in out) else []


def text_table(
    name: str, title: str, headings: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]
) -> Table:
    """A table of words that is shown and not saved; a row is a method (or "") and its words."""
    head, *others = headings
    columns = tuple(Column(text.lower(), text, text=True) for text in others)
    body = tuple(
        Row(method, first, tuple(Cell(text=word or "–") for word in words))
        for method, (first, *words) in rows
    )
    return Table(name, title, columns, body, head=head, saved=False)


def metric_column(metric: str, *, group: str = "", dataset: str = "", title: str = "") -> Column:
    """The column of a metric: its printed name, unit, direction and digits.

    Example:
        >>> metric_column("hd95_mm").heading, metric_column("ece").heading
        ('HD95 (mm) ↓', 'ECE ↓')
    """
    found = find_metric(metric)
    distance = found.per_structure and found.unit in ("mm", "voxels")
    return Column(
        key=metric, title=title or found.title, unit=found.unit,
        better=found.better, digits=2 if distance else 3, group=group, dataset=dataset,
    )  # fmt: skip


def mean_cell(estimate: Estimate, digits: int = 3, *, signed: bool = False, tone: str = "") -> Cell:
    """A cell with a mean and its interval."""
    after = interval_text(estimate, digits, signed)
    return Cell(Number(estimate.mean), signed=signed, tone=tone, after=after)


def interval_text(estimate: Estimate, digits: int = 3, signed: bool = False) -> str:
    """Such as "[0.012, 0.034]"; nothing if the interval is undefined.

    Example:
        >>> interval_text(Estimate(0.0, -0.01, 0.01), 2, signed=True)
        '[−0.01, +0.01]'
    """
    if math.isnan(estimate.low):
        return ""
    form = f"{{:{'+' if signed else ''}z.{digits}f}}"
    ends = (form.format(value) for value in (estimate.low, estimate.high))
    return f"[{', '.join(ends)}]".replace("-", "−")


def mark_best(table: Table) -> Table:
    """The table with the best and second best value of each column marked.

    Values that print alike share a mark, and two best values leave no second. The worst value is
    never marked, so a single method, or equal values, have no mark. A cell whose ranked value
    differs from its mean is compared by the ranked value.
    """
    cells = [list(row.cells) for row in table.rows]
    for j, column in enumerate(table.columns):
        costs = {i: _cost(row[j], column) for i, row in enumerate(cells)}
        known = [cost for cost in costs.values() if not math.isnan(cost)]
        for i, cost in costs.items():
            place = sum(other < cost for other in known)
            if column.better is not None and place < 2 and cost < max(known, default=cost):
                cells[i][j] = replace(cells[i][j], mark="second" if place else "best")
    rows = (replace(row, cells=tuple(c)) for row, c in zip(table.rows, cells, strict=True))
    return replace(table, rows=tuple(rows))


def _cost(cell: Cell, column: Column) -> float:
    """The printed value, turned so that less is better."""
    value = cell.number.mean if math.isnan(cell.ranked) else cell.ranked
    shown = round(value, column.digits) if not math.isnan(value) else value
    if column.better == "higher":
        return -shown
    return abs(shown) if column.better == "zero" else shown
