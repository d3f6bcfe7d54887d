"""Main results: the metrics of the study per dataset and method."""

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial

from segcal.metrics import find_metric
from segcal.report.blocks import Section
from segcal.report.context import Context
from segcal.report.table_model import Cell, Column, Row, Table, mark_best, metric_column
from segcal.report.text import join


def build(context: Context) -> Section | None:
    """The main table in every region."""
    blocks = context.by_region(partial(main_table, context)) if context.includes("main") else []
    return Section("main", "Main results", blocks) if blocks else None


def main_table(context: Context, region: str) -> Table | None:
    """The methods of group main; a single one is followed by its calibrated variants."""
    main, posthoc = (context.study.in_group(group) for group in ("main", "posthoc"))
    shown = main if len(main) > 1 else [*main, *posthoc]
    rules = {posthoc[0]} if len(main) == 1 and posthoc else set()
    return method_table(
        context, region, shown, name="main", title="Main results", rules=rules, ranked=True
    )


def method_table(
    context: Context,
    region: str,
    methods: Sequence[str],
    *,
    name: str,
    title: str,
    rules: Set[str] = frozenset(),
    ranked: bool = False,
) -> Table | None:
    """Methods × metrics of each dataset; None without rows of these methods.

    Args:
        rules: methods with a line above their row.
        ranked: whether the ranking compares these methods, so that a value is marked by what is
            ranked.
    """
    study = context.study
    columns = [
        metric_column(metric, group=dataset.title, dataset=dataset.name)
        for dataset in context.datasets
        if any((dataset.name, m) in study.present for m in methods)
        for metric in study.metrics
    ]
    if not columns or not methods:
        return None
    shown = [m for m in methods if any((d, m) in study.present for d in study.datasets)]
    failed = [m for m in methods if m not in shown]
    rows = tuple(
        Row(
            method,
            context.title(method),
            tuple(_cell(context, column, method, region, ranked) for column in columns),
            rule=method in rules,
            note=_runs_note(context, method),
        )
        for method in [*shown, *failed]
    )
    table = Table(name, title, tuple(columns), rows, caption(context, region), region=region)
    return mark_best(with_notes(table, context))


def _cell(context: Context, column: Column, method: str, region: str, ranked: bool) -> Cell:
    study, rankings, metric = context.study, context.rankings, column.key
    cell = Cell(context.aggregates.overall(column.dataset, method, metric, region))
    if context.published is not None:
        dataset = study.datasets[column.dataset]
        value = context.published.value(study.methods[method], dataset, metric, region)
        cell = replace(cell, published=value)
    if ranked and rankings and (find_metric(metric).whole_image or region == rankings.region):
        value = rankings.ranked_value(column.dataset, method, metric)
        cell = replace(cell, ranked=value)
    return cell


def _runs_note(context: Context, method: str) -> str:
    """How many runs of a method finished, if not all did."""
    runs = [run for run in context.study.info.runs if run.method == method]
    done = sum(run.state == "done" for run in runs)
    if not runs or done == len(runs):
        return ""
    return "all runs failed" if done == 0 else f"{done} of {len(runs)} runs"


def caption(context: Context, region: str) -> str:
    """Where and over what the numbers of a table are means."""
    kinds = {find_metric(metric).per_structure for metric in context.study.metrics}
    parts = []
    if True in kinds:
        parts.append("Segmentation metrics are measured on the whole volume.")
    if False in kinds:
        parts.append(f"Calibration is measured in region “{region}”, per case.")
    seeds = "; mean ± standard deviation over seeds" if context.aggregates.seeds > 1 else ""
    parts.append(f"Means over cases{seeds}.")
    parts.append("Best in bold, second underlined.")
    return " ".join(parts)


def with_notes(table: Table, context: Context) -> Table:
    """The table with notes on undefined and published numbers."""
    notes = []
    undefined = sum(cell.number.undefined for row in table.rows for cell in row.cells)
    if undefined:
        notes.append(
            f"undef.: undefined values, such as a distance to an empty mask; {undefined} in this "
            "table. Means leave them out, which favors a method that misses structures. In "
            "rankings a missed structure gets the worst value; a structure that is in neither "
            "truth nor prediction is ignored."
        )
    if any(not math.isnan(cell.ranked) for row in table.rows for cell in row.cells):
        notes.append(
            "Bold and underlined follow the ranking. “Ranked as”: the mean in which undefined and "
            "missing values are replaced, if it differs from the mean that is shown."
        )
    published = context.published
    if published is not None and table.has_published:
        others = dict.fromkeys(
            f"{column.title} is in {published.other_unit(column.key)}s there and cannot be compared"
            for column in table.columns
            if published.other_unit(column.key)
        )
        notes.append(
            f"Published: {published.source}." + (f" {join(list(others))}." if others else "")
        )
    return replace(table, notes=(*table.notes, *notes))
