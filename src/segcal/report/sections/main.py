"""Main results: the metrics of the study per dataset and method."""

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial

from segcal.metrics import find_metric
from segcal.report.blocks import Section, optional_section
from segcal.report.context import Context
from segcal.report.table_model import INTERVAL_NOTE, Cell, Column, Table, mark_best, metric_column
from segcal.report.text import join


def build(context: Context) -> Section | None:
    """The main table in every region."""
    blocks = context.by_region(partial(main_table, context)) if context.includes("main") else []
    return optional_section("main", "Main results", blocks)


def main_table(context: Context, region: str) -> Table | None:
    """The methods of group main; a single one is followed by its calibrated variants."""
    main, posthoc = (context.study.in_group(group) for group in ("main", "posthoc"))
    shown = main if len(main) > 1 else [*main, *posthoc]
    rules = {posthoc[0]} if len(main) == 1 and posthoc else set()
    return method_table(context, region, shown, "main", "Main results", rules, ranked=True)


def method_table(
    context: Context,
    region: str,
    methods: Sequence[str],
    name: str,
    title: str,
    rules: Set[str],
    ranked: bool = False,
) -> Table | None:
    """Methods × metrics of each dataset; None without rows of these methods.

    Args:
        rules: methods with a line above their row.
        ranked: whether the ranking compares these methods, so that a value is marked by what is
            ranked.
    """
    study = context.study
    shown = [m for m in methods if any((d, m) in study.present for d in study.datasets)]
    columns = tuple(
        metric_column(metric, group=dataset.title, dataset=dataset.name)
        for dataset in context.datasets
        if any((dataset.name, m) in study.present for m in shown)
        for metric in study.metrics
    )
    if not columns:
        return None
    failed = [m for m in methods if m not in shown]
    rows = context.rows(
        [*shown, *failed],
        lambda m: (_cell(context, column, m, region, ranked) for column in columns),
    )
    rows = tuple(
        replace(row, rule=row.method in rules, note=_runs_note(context, row.method)) for row in rows
    )
    table = Table(name, title, columns, rows, caption(context, region), region=region)
    return mark_best(with_notes(table, context))


def _cell(context: Context, column: Column, method: str, region: str, ranked: bool) -> Cell:
    study, rankings, metric = context.study, context.rankings, column.key
    published, value = None, math.nan
    if context.published is not None:
        dataset = study.datasets[column.dataset]
        published = context.published.value(study.methods[method], dataset, metric, region)
    if ranked and rankings and (find_metric(metric).whole_image or region == rankings.region):
        value = rankings.ranked_value(column.dataset, method, metric)
    cell = context.cell(column.dataset, method, metric, region, digits=column.digits)
    return replace(cell, published=published, ranked=value)


def _runs_note(context: Context, method: str) -> str:
    """How many runs of a method finished, if not all did."""
    done = [run.state == "done" for run in context.study.info.runs if run.method == method]
    if all(done):
        return ""
    return f"{sum(done)} of {len(done)} runs" if any(done) else "all runs failed"


def caption(context: Context, region: str) -> str:
    """Where and over what the numbers of a table are means."""
    kinds = {find_metric(metric).per_structure for metric in context.study.metrics}
    out = "Segmentation metrics are measured on the whole volume. " if True in kinds else ""
    if False in kinds:
        out += f"Calibration is measured in region “{region}”, per case. "
    out += f"{INTERVAL_NOTE} "
    seeds = "; mean ± standard deviation over seeds" if context.aggregates.seeds > 1 else ""
    marks = " Best in bold, second underlined." if len(context.study.methods) > 1 else ""
    return f"{out}{grid_note(context)} Means over cases{seeds}.{marks}"


def grid_note(context: Context) -> str:
    """On which grid the numbers were measured."""
    names = {"prepared": "the prepared set", "original": "the original scans"}
    return f"Measured on the grid of {names[context.study.info.measured_grid]}."


def with_notes(table: Table, context: Context) -> Table:
    """The table with notes on undefined and published numbers."""
    notes = []
    cells = [cell for row in table.rows for cell in row.cells]
    undefined = sum(cell.number.undefined for cell in cells)
    if undefined:
        notes.append(
            f"undef.: undefined values, such as a distance to an empty mask; {undefined} in this "
            "table. Means leave them out, which favors a method that misses structures; rankings "
            "give a missed structure the worst value."
        )
    if any(not math.isnan(cell.ranked) for cell in cells):
        notes.append(
            "Bold and underlined follow the ranking. “Ranked as”: the mean in which undefined and "
            "missing values are replaced, if it differs from the mean that is shown."
        )
    published = context.published
    if published is not None and any(cell.published is not None for cell in cells):
        others = dict.fromkeys(
            f"{column.title} is in {published.other_unit(column.key)}s there and cannot be compared"
            for column in table.columns
            if published.other_unit(column.key)
        )
        units = f" {join(list(others))}." if others else ""
        notes.append(f"Published: {published.source}.{units}")
    return replace(table, notes=tuple(notes))
