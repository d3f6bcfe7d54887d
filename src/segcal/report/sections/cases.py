"""Cases: DSC against ECE, one point per case."""

from segcal.report.blocks import Figure, Group, Section, Text
from segcal.report.context import Context
from segcal.report.plots.style import method_panels
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
    return Section("cases", "Cases", [Text(text), Group(figures, live="live-scatter")])


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
    figure.supxlabel(f"DSC of a case ({dataset.title})", fontsize=8)
    figure.supylabel(f"ECE, {region}", fontsize=8)
    alt = f"Scatter of DSC against ECE in region {region} per case and method, {dataset.title}"
    return Figure(f"cases_{dataset.name}", figure, alt)
