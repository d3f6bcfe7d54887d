"""Several readers: the network against them, and the readers against each other."""

import math
from dataclasses import replace
from functools import partial

from segcal.report.blocks import Section, optional_section
from segcal.report.context import Context
from segcal.report.sections.main import with_notes
from segcal.report.table_model import INTERVAL_NOTE, Column, Row, Table, mark_best, metric_column
from segcal.study import Dataset

# Up to this many readers, the DSC with each of them has a column of its own.
_MAX_COLUMNS = 6
_FREQUENCY = {"reader_ece": "ECE", "reader_brier": "Brier", "reader_nll": "NLL"}
# The value of a reader against the others, in the column of each metric.
_HUMAN: dict[tuple[str, ...], str] = {
    ("dsc", "all"): "human_dsc",
    ("reader_brier", "all"): "human_brier",
    ("reader_volume_ml", "all"): "human_volume_ml",
}


def build(context: Context) -> Section | None:
    """A table for each dataset whose cases several readers labeled."""
    groups = context.by_dataset(
        lambda dataset: context.by_region(partial(reader_table, context, dataset))
    )
    text = (
        "Several readers labeled each case. The methods are compared with the frequency of each "
        "class among the readers, with their majority, and with each reader. The last row compares "
        "each reader with the others together (their majority or mean). A network that reaches it "
        "agrees with a reader as well as they do; a single other reader usually agrees less."
    )
    return optional_section("readers", "Several readers", groups, text=text, menu="Readers")


def reader_table(context: Context, dataset: Dataset, region: str) -> Table | None:
    """Methods × (frequency, majority, each reader, distribution); the readers are the last row."""
    name, aggregates = dataset.name, context.aggregates
    labels = aggregates.labels(name, ["reader_dsc"])
    if not labels:
        return None
    group = f"against the frequency ({region})"
    columns: dict[tuple[str, ...], Column] = {
        (metric, region): metric_column(metric, group=group, dataset=name, title=title)
        for metric, title in _FREQUENCY.items()
    }
    columns["dsc", "all"] = metric_column("dsc", group="majority", dataset=name)
    each = partial(metric_column, "reader_dsc", group="DSC with reader", dataset=name)
    columns["reader_dsc", "all"] = each(title="mean")
    single = len({label.split("/")[0] for label in labels}) == 1
    for label in labels if len(labels) <= _MAX_COLUMNS else ():
        title = label.split("/")[1] if single else label
        columns["reader_dsc", "all", label] = each(title=title)
    for metric in ("reader_volume_ml", "reader_ged", "reader_crps_ml"):
        columns[metric, "all"] = metric_column(metric, group="distribution", dataset=name)
    methods = context.methods_of(name)
    rows = context.metric_rows(name, methods, columns)
    caption = (
        "Volume error: |Σp − volume of a reader|. Energy distance (1 − IoU) and volume CRPS are of "
        "16 masks p > u at even levels u. Readers: DSC with the majority of the others, Brier "
        f"score and volume error with the mean of the others. Means over cases. {INTERVAL_NOTE}"
    )
    title = f"Several readers: {dataset.title}"
    table = Table(f"readers_{name}", title, tuple(columns.values()), rows, caption, region=region)
    human = {key: _HUMAN.get(key, "human_dsc" if key[2:] else "") for key in columns}
    own = []
    for key, metric in human.items():
        cell = context.cell(name, methods[0], metric, "all", *key[2:], digits=columns[key].digits)
        # The same for every network, so it has no spread over seeds.
        own.append(replace(cell, number=replace(cell.number, spread=math.nan)))
    table = mark_best(with_notes(table, context))
    last = Row("", "each reader", tuple(own), rule=True)
    return replace(table, rows=(*table.rows, last))
