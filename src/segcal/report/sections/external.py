"""External evaluation: each method on its own test cases and on another data set."""

import math
from functools import partial

from segcal.metrics import find_metric
from segcal.report.aggregates import Aggregates, Number
from segcal.report.blocks import Block, Section, Text
from segcal.report.context import Context
from segcal.report.sections.main import grid_note, with_notes
from segcal.report.table_model import Cell, Column, Table, metric_column
from segcal.report.text import signed
from segcal.stats import unpaired_difference
from segcal.study import EXTERNAL, Dataset, read_evaluation

_TEXT = (
    "The same networks on data sets that they were not trained on, prepared like the training set. "
    "The change is external − internal, with its 95 % interval: patients of both sets are drawn "
    "with replacement, independently, and the networks are fixed. Bold: the interval excludes 0."
)


def build(context: Context) -> Section | None:
    """A table per external set and region."""
    blocks = context.by_dataset(
        lambda dataset: [
            block
            for other in dataset.external
            for block in (
                *context.by_region(partial(external_table, context, dataset, other)),
                *_seen_note(context, dataset, other),
            )
        ],
        headings=True,
    )
    if not blocks:
        return None
    return Section("external", "External evaluation", [Text(_TEXT), *blocks], menu="External")


def external_table(context: Context, dataset: Dataset, other: Dataset, region: str) -> Table | None:
    """Methods × (internal, external and change of each metric)."""
    outside, inside = context.external.get(dataset.name), context.aggregates
    present = outside.study.present if outside is not None else set()
    methods = [m for m in context.study.methods if (other.name, m) in present]
    if outside is None or not methods:
        return None
    metrics, columns = context.study.metrics, []
    for metric in metrics:
        shown = metric_column(metric)
        for key in ("internal", "external", "change"):
            columns.append(Column(f"{metric} {key}", key, digits=shown.digits, group=shown.heading))

    def cells(method: str) -> list[Cell]:
        out = []
        for metric in metrics:
            numbers = [
                inside.overall(dataset.name, method, metric, region),
                outside.overall(other.name, method, metric, region),
            ]
            digits = metric_column(metric).digits
            change = _change(context, dataset, other, outside, method, metric, region, digits)
            out += [*map(Cell, numbers), change]
        return out

    title = f"{dataset.title} → {other.title or other.name}"
    counts = inside.case_count(dataset.name), outside.case_count(other.name)
    caption = (
        f"Trained on {dataset.title}: its {counts[0]} test cases, and the {counts[1]} external "
        f"cases of {other.title or other.name}. Calibration in region “{region}”. "
        f"{grid_note(context)}"
    )
    table = Table(
        f"external_{dataset.name}_{other.name}", title, tuple(columns),
        context.rows(methods, cells), caption, region=region, compact=True,
    )  # fmt: skip
    return with_notes(table, context)


def _change(
    context: Context,
    dataset: Dataset,
    other: Dataset,
    outside: Aggregates,
    method: str,
    metric: str,
    region: str,
    digits: int,
) -> Cell:
    before = context.aggregates.cases(dataset.name, metric, region)
    after = outside.cases(other.name, metric, region)
    if method not in before or method not in after:
        return Cell()
    difference, low, high = unpaired_difference(
        before[method], after[method], patients=(dataset.patients, other.patients)
    )
    if math.isnan(low):
        return Cell(Number(difference), signed=True)
    interval = f"[{signed(low, digits)}, {signed(high, digits)}]"
    clear = low > 0 or high < 0
    return Cell(
        Number(difference), signed=True, after=interval, mark="significant" if clear else ""
    )


def _seen_note(context: Context, dataset: Dataset, other: Dataset) -> list[Block]:
    """A note on external scans that networks were trained on."""
    seen: dict[str, None] = {}
    for run, path in context.study.files(f"{EXTERNAL}/{other.name}/evaluation.json"):
        found = read_evaluation(path.parent) if run.dataset == dataset.name else None
        seen |= dict.fromkeys(found.info.seen if found is not None else ())
    if not seen:
        return []
    shown = ", ".join(list(seen)[:3]) + (", …" if len(seen) > 3 else "")
    text = f"{len(seen)} of these external scans were used for training or validation ({shown})."
    return [Text(text, "note")]


def build_groups(context: Context) -> Section | None:
    """DSC and ECE of each group of cases, for datasets whose cases have groups."""
    blocks = context.by_dataset(
        lambda dataset: [
            block
            for each in (dataset, *dataset.external)
            for block in context.by_region(partial(group_table, context, dataset, each))
        ],
        headings=True,
    )
    if not blocks:
        return None
    text = "Means over the cases of each group (site, scanner or pathology), seeds averaged."
    return Section("case_groups", "Results by group", [Text(text), *blocks], menu="Groups")


def group_table(context: Context, dataset: Dataset, shown: Dataset, region: str) -> Table | None:
    """Methods × (DSC and ECE of each group); `shown` is the dataset or an external set of it."""
    own = shown is dataset
    aggregates = context.aggregates if own else context.external.get(dataset.name)
    if not shown.case_groups or aggregates is None:
        return None
    columns: list[Column] = []
    means: list[dict[str, Number]] = []
    for group in dict.fromkeys(shown.case_groups.values()):
        for metric in ("dsc", "ece"):
            values = aggregates.cases(shown.name, metric, region)
            values = values[[shown.case_groups.get(str(case)) == group for case in values.index]]
            if values.empty:
                continue
            heading = f"{group} ({len(values)} cases)"
            columns.append(metric_column(metric, group=heading, dataset=dataset.name))
            undefined = values.isna().sum()
            means.append({
                str(m): Number(float(mean), undefined=int(undefined[m]), cases=len(values))
                for m, mean in values.mean().items()
            })  # fmt: skip
    if not columns:
        return None
    methods = [m for m in context.study.methods if any(m in each for each in means)]
    rows = context.rows(methods, lambda m: (Cell(each.get(m, Number())) for each in means))
    title = f"Groups of {shown.title or shown.name}{'' if own else ' (external)'}"
    dsc = find_metric("dsc").title
    caption = f"{title}. {dsc} of the whole volume, ECE in region “{region}”. {grid_note(context)}"
    name = f"groups_{dataset.name}" + ("" if own else f"_{shown.name}")
    return Table(name, title, tuple(columns), rows, caption, region=region, compact=True)
