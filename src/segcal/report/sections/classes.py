"""Classes: segmentation of each structure, and the calibration error of each class."""

from functools import partial

from segcal.metrics import find_metric
from segcal.report.blocks import Section
from segcal.report.context import Context
from segcal.report.sections.main import caption, with_notes
from segcal.report.table_model import Cell, Column, Row, Table, mark_best, metric_column
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
    methods, rows = context.methods_of(dataset.name), context.aggregates.rows
    here = rows[rows["dataset"] == dataset.name]
    segmentation = [m for m in context.study.metrics if find_metric(m).per_structure]
    found = list(dict.fromkeys(here.loc[here["metric"].isin(segmentation), "label"].astype(str)))
    structures = [s for s in dataset.structures if s in found] or found
    classes = list(dict.fromkeys(here.loc[here["metric"] == "class_ece", "label"].astype(str)))
    columns = {
        (metric, label): metric_column(
            metric, group=dataset.class_name(label), dataset=dataset.name
        )
        for label in structures
        for metric in segmentation
    }
    columns |= {
        ("class_ece", label): Column(
            "class_ece", dataset.class_name(label), "", "lower", 3, "class ECE", dataset.name
        )
        for label in classes
    }
    if not columns or not methods:
        return None
    cells = {
        method: tuple(
            Cell(context.aggregates.of_label(dataset.name, method, metric, label, region))
            for metric, label in columns
        )
        for method in methods
    }
    table = Table(
        f"classes_{dataset.name}", f"Classes of {dataset.title}", tuple(columns.values()),
        tuple(Row(m, context.title(m), cells[m]) for m in methods),
        caption=caption(context, region), region=region,
    )  # fmt: skip
    return mark_best(with_notes(table, context))
