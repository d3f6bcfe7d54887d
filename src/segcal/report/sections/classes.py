"""Classes: segmentation of each structure, and the calibration error of each class."""

from functools import partial

from segcal.metrics import find_metric
from segcal.report.blocks import Block, Section, optional_section
from segcal.report.context import Context
from segcal.report.sections.main import caption, with_notes
from segcal.report.table_model import Column, Table, mark_best, metric_column
from segcal.study import Dataset


def build(context: Context) -> Section | None:
    """A table per dataset and region."""
    if not context.includes("classes"):
        return None
    blocks = context.by_dataset(lambda dataset: _tables(context, dataset), headings=True)
    return optional_section("classes", "Classes", blocks)


def _tables(context: Context, dataset: Dataset) -> list[Block]:
    if not context.few_networks(dataset):
        return context.by_region(partial(class_table, context, dataset))
    tables = context.by_region(partial(organ_table, context, dataset))
    return context.collapse_organs(dataset, tables)


def class_table(context: Context, dataset: Dataset, region: str) -> Table | None:
    """Methods × (structure and metric, class ECE of each class)."""
    name, aggregates = dataset.name, context.aggregates
    segmentation = [m for m in context.study.metrics if find_metric(m).per_structure]
    found = aggregates.labels(name, segmentation)
    structures = [s for s in dataset.structures if s in found] or found
    columns: dict[tuple[str, ...], Column] = {
        (metric, region, label): metric_column(
            metric, group=dataset.class_name(label), dataset=name
        )
        for label in structures
        for metric in segmentation
    }
    for label in aggregates.labels(name, ["class_ece"]):
        title = dataset.class_name(label)
        column = Column("class_ece", title, better="lower", group="class ECE", dataset=name)
        columns["class_ece", region, label] = column
    if not columns:
        return None
    methods = context.methods_of(name)
    if all(find_metric(metric).per_structure for metric, *_ in columns):
        methods = [m for m in methods if m in context.listed]  # the masks are the same
    rows = context.metric_rows(name, methods, columns)
    table = Table(
        f"classes_{name}", f"Classes of {dataset.title}", tuple(columns.values()), rows,
        caption=caption(context, region), region=region,
    )  # fmt: skip
    return mark_best(with_notes(table, context))


def organ_table(context: Context, dataset: Dataset, region: str) -> Table | None:
    """Networks and organs × metrics, for few networks: many organs stay readable."""
    name, study = dataset.name, context.study
    by_name = [m for m in study.metrics if find_metric(m).per_structure]
    by_number = ["class_ece", "class_signed_gap"]
    columns = tuple(metric_column(metric, dataset=name) for metric in (*by_name, *by_number))
    numbers = {dataset.class_name(k): k for k in context.aggregates.labels(name, by_number)}
    organs = dict.fromkeys([*numbers, *context.aggregates.labels(name, by_name)])
    rows = tuple(
        context.row(method, organ, (
            context.cell(
                name, method, c.key, region,
                organ if c.key in by_name else numbers.get(organ, organ), digits=c.digits,
            )
            for c in columns
        ))
        for method in context.few_networks(dataset)
        for organ in organs
    )  # fmt: skip
    if not rows:
        return None
    text = caption(context, region)
    table = Table(
        f"classes_{name}", f"Classes of {dataset.title}", columns, rows, text, region=region,
        head="Class",
    )  # fmt: skip
    return with_notes(table, context)
