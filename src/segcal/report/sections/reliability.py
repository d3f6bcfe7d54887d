"""Reliability: diagrams of every method, and mean confidence minus accuracy in every region."""

import math
from dataclasses import replace

from segcal.report.blocks import Block, Group, Section, Text
from segcal.report.context import Context
from segcal.report.curves import FEW_VOXELS
from segcal.report.findings.calibration import deciding_region, verdict
from segcal.report.plots.reliability import draw_reliability
from segcal.report.table_model import INTERVAL_NOTE, Cell, Column, Table


def build(context: Context) -> Section | None:
    """Diagrams of the datasets with bins, then the table of confidence minus accuracy."""
    diagrams = context.by_dataset(lambda dataset: [draw_reliability(context, dataset)])
    blocks: list[Block] = []
    if diagrams:
        text = (
            "Accuracy against the confidence of the predicted class; below the dashed line a "
            "network is over-confident. Voxels of all cases and seeds are pooled, so the pooled "
            "ECE differs from the ECE in the tables. Bands: 95 % intervals over patients; "
            "thin lines: single cases; bars: voxels per bin (square root of their number). Bins of "
            f"fewer than {FEW_VOXELS} voxels have a hollow point and no line."
        )
        blocks += [Text(text), Group(diagrams, live="live-reliability")]
    table = confidence_table(context)
    if table is not None:
        blocks += [Text(table.title, "heading"), table]
    return Section("reliability", "Reliability", blocks) if blocks else None


def confidence_table(context: Context) -> Table | None:
    """Mean confidence minus accuracy of every method in every region."""
    study = context.study
    methods = [m for m in study.methods if any((d, m) in study.present for d in study.datasets)]
    columns = tuple(
        Column(region, region, group=dataset.title, dataset=dataset.name)
        for dataset in context.datasets
        if context.methods_of(dataset.name)
        for region in study.regions
    )
    rows = context.rows(methods, lambda m: (_gap(context, c.dataset, m, c.key) for c in columns))
    if all(math.isnan(cell.number.mean) for row in rows for cell in row.cells):
        return None
    caption = (
        "Mean confidence minus accuracy in each region, per case: above 0 over-confident, below 0 "
        f"under-confident. Region “{deciding_region(context)}” decides. Not colored: a gap below "
        "0.01, or seeds that disagree. Errors of opposite sign cancel here, but not in ECE. "
        f"{INTERVAL_NOTE}"
    )
    title = "Over- and under-confidence"
    return Table("confidence", title, columns, rows, caption, compact=True)


def _gap(context: Context, dataset: str, method: str, region: str) -> Cell:
    found = verdict(context.aggregates.gaps(dataset, method, region))
    tone = {"over-confident": "over", "under-confident": "under"}.get(found, "")
    return replace(context.cell(dataset, method, "signed_gap", region), tone=tone)
