"""Cases: DSC against ECE, one point per case, and the worst cases of each network."""

import pandas as pd

from segcal.report.aggregates import Number
from segcal.report.blocks import Block, Figure, Group, Section, Text
from segcal.report.context import WORST, Context
from segcal.report.plots.style import method_panels
from segcal.report.table_model import Cell, Column, Row, Table, metric_column
from segcal.report.text import signed
from segcal.study import Dataset


def build(context: Context) -> Section | None:
    """A figure per dataset with DSC and ECE."""
    figures = context.by_dataset(lambda dataset: [draw_cases(context, dataset)])
    if not figures:
        return None
    text = (
        "Each point is a case: its DSC against its ECE, seeds averaged. Cases at the upper left "
        "have both a poor segmentation and a poor calibration."
    )
    blocks: list[Block] = [Text(text), Group(figures, live="live-scatter")]
    worst = context.by_dataset(
        lambda dataset: [worst_cases(context, dataset)], headings=len(context.datasets) > 1
    )
    if worst:
        blocks += [Text("Worst cases", "heading"), *worst]
    return Section("cases", "Cases", blocks)


def draw_cases(context: Context, dataset: Dataset) -> Figure | None:
    """One panel per method; the cases of all methods are gray in the background."""
    region = context.region
    dsc = context.aggregates.cases(dataset.name, "dsc")
    ece = context.aggregates.cases(dataset.name, "ece", region).reindex(dsc.index)
    methods = [m for m in dsc.columns if m in ece.columns]
    if not methods:
        return None
    figure, panels = method_panels(map(context.title, methods), 1.65)
    every = (dsc[methods].to_numpy().ravel(), ece[methods].to_numpy().ravel())
    for axes, method in zip(panels, methods, strict=True):
        # Pixels, because thousands of points make a page slow; this gray fits light and dark.
        axes.scatter(*every, s=6, color="#8a939b", alpha=0.3, lw=0, rasterized=True)
        axes.scatter(
            dsc[method], ece[method], s=13, color=context.colors[method],
            marker=context.markers[method], lw=0, alpha=0.85, rasterized=len(dsc) > 500,
        )  # fmt: skip
        axes.grid(lw=0.4)
        axes.set_axisbelow(True)
    figure.supxlabel(f"DSC of a case ({dataset.title})")
    figure.supylabel(f"ECE, {region}")
    alt = f"Scatter of DSC against ECE in region {region} per case and method, {dataset.title}"
    return Figure(f"cases_{dataset.name}", figure, alt)


def worst_cases(context: Context, dataset: Dataset) -> Table | None:
    """The cases with the lowest DSC and with the largest ECE of each network, if they are few."""
    columns = (
        metric_column("dsc"),
        Column("organ", "lowest DSC", text=True),
        metric_column("ece"),
        Column("signed_gap", "confidence − accuracy"),
        Column("volume", "largest volume error", text=True),
    )
    rows = []
    for method in context.few_networks(dataset):
        values = context.case_values(dataset.name, method, ("dsc", "ece", "signed_gap"))
        organs = context.aggregates.structures(dataset.name, method, "dsc")
        predicted, true = (
            context.aggregates.structures(dataset.name, method, f"{kind}_volume_ml")
            for kind in ("predicted", "true")
        )
        several = len(context.methods_of(dataset.name)) > 1
        lowest = {str(case) for case in values["dsc"].nsmallest(WORST).index}
        worst = context.worst_cases(dataset.name, method)
        divider = next((case for case in worst if case not in lowest), None)
        for case in worst:
            numbers = values.loc[[case]].iloc[0]
            title = f"{context.title(method)}, {case}" if several else str(case)
            note = "lowest DSC" if case in lowest else "largest ECE"
            rows.append(Row(method, title, (
                Cell(Number(float(numbers["dsc"]))), Cell(text=_lowest(organs, case)),
                Cell(Number(float(numbers["ece"]))),
                Cell(Number(float(numbers["signed_gap"])), signed=True),
                Cell(text=_largest_error(predicted, true, case)),
            ), rule=case == divider, note=note, case=case))  # fmt: skip
    if not rows:
        return None
    caption = (
        f"The {WORST} cases with the lowest DSC, then, after a line, those of the {WORST} with the "
        f"largest ECE that are not among them. ECE in region “{context.region}”. Volume error: "
        "predicted mask minus truth."
    )
    title = f"Worst cases: {dataset.title}"
    return Table(
        f"worst_{dataset.name}", title, columns, tuple(rows), caption, head="Case",
        dataset=dataset.name,
    )  # fmt: skip


def _lowest(organs: pd.DataFrame, case: str) -> str:
    found = organs.loc[case].dropna() if case in organs.index else organs.iloc[0, :0]
    return f"{found.idxmin()} {found.min():.3f}" if len(found) else "–"


def _largest_error(predicted: pd.DataFrame, true: pd.DataFrame, case: str) -> str:
    if case not in predicted.index:
        return "–"
    error = (predicted - true).loc[case].dropna().to_dict()
    if not error:
        return "–"
    organ = max(error, key=lambda name: abs(error[name]))
    return f"{organ} {signed(error[organ], 2)} ml"
