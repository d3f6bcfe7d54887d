"""A section as a user would write it, with every kind of block."""

from segcal.report import (
    Bullets,
    Cell,
    Column,
    Context,
    DataFile,
    Figure,
    Group,
    Row,
    Section,
    Table,
    Text,
    new_figure,
)


def build(context: Context) -> Section:
    """A section with every kind of block."""
    figure = new_figure(2, 1)
    figure.subplots().plot([0, 1], [0, 1])
    rows = tuple(
        Row(m, context.title(m), (Cell(context.aggregates.overall("d", m, "dsc")),))
        for m in context.study.methods
    )
    table = Table("own", "Own table", (Column("dsc", "DSC"),), rows, "Own caption.")
    hidden = Group([Text("In here.", "note")], summary="More")
    return Section(
        "own",
        "Own <section>",
        [
            Text("A paragraph."), Bullets(["One.", "Two."]), table,
            Figure("own_figure", figure, "a line"), hidden,
            DataFile("own_rows", context.aggregates.rows),
        ],
    )  # fmt: skip


def nothing(context: Context) -> None:
    """A section that this study has nothing for."""


again = build
