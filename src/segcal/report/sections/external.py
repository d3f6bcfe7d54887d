"""External evaluation: each method on its own test cases and on another data set."""

from dataclasses import replace
from functools import partial
from itertools import product

from segcal.core.text import first_few
from segcal.metrics import find_metric
from segcal.report.aggregates import Number
from segcal.report.blocks import Section, Text, optional_section
from segcal.report.context import Context
from segcal.report.findings.verdict import judge
from segcal.report.sections.main import grid_note, with_notes
from segcal.report.table_model import (
    INTERVAL_NOTE,
    Cell,
    Column,
    Table,
    interval_text,
    mean_cell,
    metric_column,
)
from segcal.stats import clustered_interval, unpaired_difference
from segcal.study import EXTERNAL, Dataset, read_evaluation

_TEXT = (
    "The same networks on data sets that they were not trained on, prepared like the training set. "
    "The change is external − internal, with its 95 % interval over the patients of both sets "
    "(Welch); the networks are fixed. Bold: the interval excludes 0."
)


def build(context: Context) -> Section | None:
    """A table per external set and region."""
    blocks = context.by_dataset(
        lambda dataset: [
            block
            for other in dataset.external
            for block in (
                *context.by_region(partial(external_table, context, dataset, other)),
                _seen_note(context, dataset, other),
            )
        ],
        headings=True,
    )
    return optional_section("external", "External evaluation", blocks, text=_TEXT, menu="External")


def external_table(context: Context, dataset: Dataset, other: Dataset, region: str) -> Table | None:
    """Methods × (internal, external and change of each metric)."""
    outside, inside = context.external.get(dataset.name), context.aggregates
    if outside is None or not outside.case_count(other.name):
        return None
    methods = [m for m in context.study.methods if (other.name, m) in outside.study.present]
    columns: list[Column] = []
    cells: dict[str, list[Cell]] = {method: [] for method in methods}
    for metric in context.study.metrics:
        shown = metric_column(metric)
        for key in ("internal", "external", "change"):
            columns.append(Column(f"{metric} {key}", key, digits=shown.digits, group=shown.heading))
        for m, row in cells.items():
            for side, name in ((inside, dataset.name), (outside, other.name)):
                after_mean = interval_text(side.interval(name, m, metric, region), shown.digits)
                row.append(Cell(side.overall(name, m, metric, region), after=after_mean))
            change = Cell()
            before = inside.sample(dataset.name, m, metric, region)
            after = outside.sample(other.name, m, metric, region)
            if before is not None and after is not None:
                units, seeds = zip(before[1:], after[1:], strict=True)
                found = unpaired_difference(before[0], after[0], units, seeds)
                change = mean_cell(found, shown.digits, signed=True)
                if found.low > 0 or found.high < 0:
                    change = replace(change, mark="significant")
            row.append(change)
    caption = (
        f"Trained on {dataset.title}: its {inside.case_count(dataset.name)} test cases, and the "
        f"{outside.case_count(other.name)} external cases of {other.title}. Calibration in region "
        f"“{region}”. {grid_note(context)}"
    )
    table = Table(
        f"external_{dataset.name}_{other.name}", f"{dataset.title} → {other.title}",
        tuple(columns), context.rows(methods, lambda m: cells[m]), caption, region=region,
        compact=True,
    )  # fmt: skip
    return with_notes(table, context)


def _seen_note(context: Context, dataset: Dataset, other: Dataset) -> Text | None:
    """A note on external scans that networks were trained on."""
    seen: dict[str, None] = {}
    for run, path in context.study.files(f"{EXTERNAL}/{other.name}/evaluation.json"):
        found = read_evaluation(path.parent) if run.dataset == dataset.name else None
        seen |= dict.fromkeys(found.info.seen if found is not None else ())
    used = f"{len(seen)} of the external scans were used for training or validation"
    text = f"{used} ({first_few(seen)})."
    return Text(text, "note") if seen else None


def build_groups(context: Context) -> Section | None:
    """DSC and ECE of each group of cases, for datasets whose cases have groups."""
    blocks = context.by_dataset(
        lambda dataset: [
            block
            for each in (dataset, *dataset.external)
            for block in (
                *context.by_region(partial(group_table, context, dataset, each)),
                organ_group_table(context, dataset) if each is dataset else None,
            )
        ],
        headings=True,
    )
    text = "Means over the cases of each group (site, scanner or pathology), seeds averaged."
    return optional_section("case_groups", "Results by group", blocks, text=text, menu="Groups")


def group_table(context: Context, dataset: Dataset, shown: Dataset, region: str) -> Table | None:
    """Methods × (DSC and ECE of each group); `shown` is the dataset or an external set of it."""
    own = shown.name == dataset.name
    aggregates = context.aggregates if own else context.external.get(dataset.name)
    groups = dict.fromkeys(shown.case_groups.values()) if aggregates is not None else {}
    columns: list[Column] = []
    cells: dict[str, list[Cell]] = {}
    for group, metric in product(groups, ("dsc", "ece", "signed_gap")):
        assert aggregates is not None
        values = aggregates.cases(shown.name, metric, region)
        values = values[[shown.case_groups.get(str(case)) == group for case in values.index]]
        if values.empty:
            continue
        heading = f"{group} ({len(values)} cases)"
        columns.append(metric_column(metric, group=heading, dataset=dataset.name))
        for m, column in values.items():
            undefined = int(column.isna().sum())
            number = Number(float(column.mean()), undefined=undefined, cases=len(values))
            found = clustered_interval(column, shown.patients_of(column.index))
            found = found.within(find_metric(metric).limits)
            after = interval_text(found, columns[-1].digits)
            signed_gap = metric == "signed_gap"
            cells.setdefault(str(m), []).append(Cell(number, signed=signed_gap, after=after))
    if not columns:
        return None
    title = f"Groups of {shown.title}{'' if own else ' (external)'}"
    caption = (
        f"{title}. DSC of the whole volume, ECE and signed gap in region “{region}”. "
        f"{INTERVAL_NOTE} {grid_note(context)}"
    )
    name = f"groups_{dataset.name}" + ("" if own else f"_{shown.name}")
    rows = context.rows(cells, lambda m: cells[m])
    return Table(name, title, tuple(columns), rows, caption, region=region, compact=True)


def organ_group_table(context: Context, dataset: Dataset) -> Table | None:
    """Networks and groups × organs: confidence minus accuracy, for few networks."""
    columns = tuple(
        Column(f"gap {k}", organ, dataset=dataset.name)
        for k, organ in enumerate(dataset.labels)
        if k
    )
    rows = []
    for method in context.few_networks(dataset):
        for group in dict.fromkeys(dataset.case_groups.values()):
            found = context.level_sums(dataset, method, group)
            if found:
                gaps = [mean_cell(judge(sums).gap, signed=True) for sums in found.values()]
                rows.append(context.row(method, group, gaps))
    if not rows or not columns:
        return None
    caption = (
        "Confidence minus accuracy of the voxels that the network calls each organ, pooled over "
        "the cases of a group. [ ]: 95 % interval over patients (jackknife and Student's t)."
    )
    name, title = f"group_organs_{dataset.name}", f"Organs by group of {dataset.title}"
    return Table(name, title, columns, tuple(rows), caption, head="Group")
