"""Stated confidence: how often a network is right at each level of confidence, per organ."""

from segcal.report.blocks import Section, optional_section
from segcal.report.context import Context
from segcal.report.findings.stated_confidence import level_table
from segcal.report.plots.reliability import draw_organs


def build(context: Context) -> Section | None:
    """A table per dataset, and the reliability of organs if there are few networks."""
    blocks = context.by_dataset(
        lambda dataset: [
            *(draw_organs(context, dataset, method) for method in context.few_networks(dataset)),
            *context.collapse_organs(dataset, [level_table(context, dataset)]),
        ],
        headings=len(context.datasets) > 1,
    )
    return optional_section("stated_confidence", "Stated confidence", blocks)
