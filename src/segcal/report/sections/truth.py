"""Calibration against known true probabilities, for phantoms."""

from segcal.report.blocks import Section, Text
from segcal.report.context import Context
from segcal.report.plots.reliability import draw_reliability
from segcal.report.table_model import Cell, Row, Table, mark_best, metric_column
from segcal.study import Dataset

TRUTH_METRICS = ("truth_ece", "truth_cece", "truth_mae", "truth_kl")


def build(context: Context) -> Section | None:
    """A table and diagrams for each dataset with true probabilities."""
    groups = context.by_dataset(
        lambda dataset: [
            truth_table(context, dataset),
            draw_reliability(context, dataset, truth=True),
        ]
    )
    if not groups:
        return None
    text = (
        "The probability of every class is known at every voxel, so calibration can be measured "
        "without the noise of one drawn label, and without selecting voxels by the label."
    )
    title = "Against the true probabilities"
    return Section("truth", title, [Text(text), *groups], menu="True probabilities")


def truth_table(context: Context, dataset: Dataset) -> Table | None:
    """Errors against the true probabilities, beside the ECE against labels in each region."""
    rows = context.aggregates.rows
    found = set(rows.loc[rows["dataset"] == dataset.name, "metric"])
    metrics = [m for m in TRUTH_METRICS if m in found]
    methods = context.methods_of(dataset.name)
    if not metrics or not methods:
        return None
    columns = {
        (metric, "all"): metric_column(
            metric, group="against the true probabilities", dataset=dataset.name
        )
        for metric in metrics
    }
    columns |= {
        ("ece", region): metric_column(
            "ece", group="ECE against labels", dataset=dataset.name, title=region
        )
        for region in context.study.regions
    }
    body = tuple(
        Row(
            method,
            context.title(method),
            tuple(
                Cell(context.aggregates.overall(dataset.name, method, metric, region))
                for metric, region in columns
            ),
        )
        for method in methods
    )
    caption = (
        f"True probabilities p* of {dataset.title} are known for all voxels. For comparison, the "
        "ECE against the labels in each region."
    )
    title = f"Against the true probabilities: {dataset.title}"
    table = Table(
        f"truth_{dataset.name}", title, tuple(columns.values()), body, caption, region="all"
    )
    return mark_best(table)
