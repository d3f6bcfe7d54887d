"""Logits: their mean size for each true class."""

from segcal.report.blocks import Figure, Section, optional_section
from segcal.report.context import Context
from segcal.report.plots.style import INK, panel_grid, short_titles
from segcal.report.text import shorten
from segcal.study import Dataset

# Logits are drawn on a logarithmic axis if the largest is more than this multiple of the smallest.
_WIDE = 30


def build(context: Context) -> Section | None:
    """A figure per dataset whose runs measured logits."""
    figures = context.by_dataset(lambda dataset: [draw_logits(context, dataset)])
    text = (
        "Mean |logit| over the voxels of each true class, one value per case. Large logits give "
        "high confidence; constraints on the logits keep them small."
    )
    return optional_section("logits", "Size of the logits", figures, text=text, menu="Logits")


def draw_logits(context: Context, dataset: Dataset) -> Figure | None:
    """One box per method, one panel per class."""
    rows = context.aggregates.rows
    rows = rows[(rows["metric"] == "mean_abs_logit") & (rows["dataset"] == dataset.name)]
    if rows["value"].notna().sum() == 0:
        return None
    labels = list(dict.fromkeys(rows["label"].astype(str)))
    methods = [m for m in context.study.methods if m in set(rows["method"])]
    values = rows.groupby(["label", "method", "case"], observed=True)["value"].mean()
    of, by = (values.index.get_level_values(name) for name in ("label", "method"))
    figure, panels = panel_grid(len(labels), 4, (1.75, 0.55 + 0.2 * len(methods)), (1.6, 0.3))
    for axes, label in zip(panels, labels, strict=True):
        boxes = axes.boxplot(
            [values[(of == label) & (by == m)].dropna().to_numpy() for m in methods],
            orientation="horizontal", widths=0.62, patch_artist=True,
            positions=range(len(methods)), flierprops={"marker": ".", "markersize": 3},
        )  # fmt: skip
        # Whiskers and caps come in pairs.
        for i, color in enumerate(context.colors[m] for m in methods):
            boxes["boxes"][i].set(facecolor=f"{color}55", edgecolor=color, linewidth=1.1)
            boxes["medians"][i].set(color=color, linewidth=1.6)
            boxes["fliers"][i].set(markeredgecolor=color, markerfacecolor=color)
            for part in (*boxes["whiskers"][2 * i : 2 * i + 2], *boxes["caps"][2 * i : 2 * i + 2]):
                part.set(color=color, linewidth=1.0)
        axes.set_title(shorten(dataset.class_name(label), 20), loc="left")
        axes.grid(axis="x", lw=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", labelcolor=INK, length=0)
    first = panels[0]
    first.set_yticks(range(len(methods)), short_titles(map(context.title, methods)))
    first.invert_yaxis()
    if values.max() > _WIDE * values.min() > 0:
        first.set_xscale("log")
        first.xaxis.set_major_formatter("{x:g}")
        first.xaxis.set_minor_formatter("")
    else:
        first.set_xlim(left=0)
    figure.supxlabel(
        f"mean |logit| over the voxels of each true class, one value per case ({dataset.title})"
    )
    alt = f"Distribution over cases of mean |logit| per true class and method, {dataset.title}"
    return Figure(f"logits_{dataset.name}", figure, alt)
