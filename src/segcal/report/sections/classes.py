"""Classes: segmentation of each structure, and the calibration error of each class."""

from functools import partial

from segcal.metrics import find_metric
from segcal.report.blocks import Section
from segcal.report.context import Context
from segcal.report.sections.main import caption, with_notes
from segcal.report.table_model import Cell, Column, Table, mark_best, metric_column
from segcal.study import Dataset


def build(context: Context) -> Section | None:
    """A table per dataset and region."""
    if not context.includes("classes"):
        return None
    blocks = context.by_dataset(
        lambda dataset: context.by_region(partial(class_table, context, dataset)), headings=True
    )
    return Section("classes", "Classes", blocks) if blocks else None


def class_table(context: Context, dataset: Dataset, region: str) -> Table | None:
    """Methods × (structure and metric, class ECE of each class)."""
    name, aggregates = dataset.name, context.aggregates
    segmentation = [m for m in context.study.metrics if find_metric(m).per_structure]
    found = aggregates.labels(name, segmentation)
    structures = [s for s in dataset.structures if s in found] or found
    columns = {
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
    rows = context.rows(
        context.methods_of(name),
        lambda m: (Cell(aggregates.overall(name, m, *key)) for key in columns),
    )
    table = Table(
        f"classes_{name}", f"Classes of {dataset.title}", tuple(columns.values()), rows,
        caption=caption(context, region), region=region,
    )  # fmt: skip
    return mark_best(with_notes(table, context))
