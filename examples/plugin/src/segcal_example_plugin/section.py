"""A report section: one function from the context of a study to blocks."""

from segcal.report import Cell, Column, Context, Row, Section, Table, Text


def build(context: Context) -> Section | None:
    """Volume errors of every method, if they were measured."""
    tables = [table for dataset in context.datasets if (table := _table(context, dataset.name))]
    if not tables:
        return None
    text = "Mean absolute difference between the predicted and the true volume of a structure."
    return Section("volume_errors", "Volume errors", [Text(text), *tables])


def _table(context: Context, dataset: str) -> Table | None:
    measured = context.aggregates.rows
    measured = measured[(measured["dataset"] == dataset) & (measured["metric"] == "volume_error")]
    if measured.empty:
        return None
    column = Column("volume_error", "Volume error", unit="ml", better="lower")
    rows = tuple(
        Row(
            method,
            context.title(method),
            (Cell(context.aggregates.overall(dataset, method, "volume_error", "all")),),
        )
        for method in context.methods_of(dataset)
    )
    return Table(f"volume_errors_{dataset}", f"Volume error: {dataset}", (column,), rows)
