"""Calibration against known true probabilities, for phantoms."""

from segcal.report.blocks import Section, optional_section
from segcal.report.context import Context
from segcal.report.plots.reliability import draw_reliability
from segcal.report.sections.main import grid_note
from segcal.report.table_model import INTERVAL_NOTE, Column, Table, mark_best, metric_column
from segcal.study import Dataset


def build(context: Context) -> Section | None:
    """A table and diagrams for each dataset with true probabilities."""
    groups = context.by_dataset(
        lambda dataset: [
            truth_table(context, dataset),
            draw_reliability(context, dataset, truth=True),
        ]
    )
    text = (
        "The probability of every class is known at every voxel, so calibration can be measured "
        "without the noise of one drawn label, and without selecting voxels by the label."
    )
    title = "Against the true probabilities"
    return optional_section("truth", title, groups, text=text, menu="True probabilities")


def truth_table(context: Context, dataset: Dataset) -> Table | None:
    """Errors against the true probabilities, beside the ECE against labels in each region."""
    name, aggregates = dataset.name, context.aggregates
    columns: dict[tuple[str, ...], Column] = {
        (metric, "all"): metric_column(metric, group="against the true probabilities", dataset=name)
        for metric in ("truth_ece", "truth_cece", "truth_mae", "truth_kl")
        if aggregates.labels(name, [metric])
    }
    if not columns:
        return None
    for region in context.study.regions:
        column = metric_column("ece", group="ECE against labels", dataset=name, title=region)
        columns["ece", region] = column
    rows = context.metric_rows(name, context.methods_of(name), columns)
    caption = (
        f"True probabilities p* of {dataset.title} are known for all voxels. For comparison, the "
        f"ECE against the labels in each region. {INTERVAL_NOTE} {grid_note(context)}"
    )
    title = f"Against the true probabilities: {dataset.title}"
    table = Table(f"truth_{name}", title, tuple(columns.values()), rows, caption, region="all")
    return mark_best(table)
