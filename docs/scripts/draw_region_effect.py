"""Draw docs/images/region_effect.png: one calibrated map, six regions, two verdicts.

python docs/scripts/draw_region_effect.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from segcal.metrics import REGIONS, CalibrationBins

GREY = "#666666"
# Okabe and Ito: safe for colour-blind readers.
COLOURS = {
    "all": "#0072B2", "predicted": "#56B4E9", "predicted_boundary": "#000000",
    "foreground": "#D55E00", "union": "#009E73", "boundary": "#CC79A7",
}  # fmt: skip
TITLES = {
    "all": "all voxels",
    "predicted": "predicted label ≠ 0",
    "predicted_boundary": "3 mm around the prediction",
    "foreground": "true label ≠ 0",
    "union": "predicted or true, + 5 mm",
    "boundary": "3 mm around the truth",
}
IMAGES, SIDE = 200, 120


def stated_map() -> np.ndarray:
    """A disc with a soft rim, voxels of 1 mm."""
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2
    return 1 / (1 + np.exp((np.hypot(x, y) - 0.27 * SIDE) / 6))


def truths(p: np.ndarray) -> list[np.ndarray]:
    """In each image the organ is where p > u, one u per image: P(organ) = p at every voxel."""
    return [(p > (i + 0.5) / IMAGES).astype(np.int64) for i in range(IMAGES)]


def measure(p: np.ndarray) -> dict[str, CalibrationBins]:
    probs = np.stack([1 - p, p])
    labels = probs.argmax(0)
    bins = {name: CalibrationBins(2) for name in COLOURS}
    for target in truths(p):
        for name in bins:
            bins[name].update(probs, target, mask=REGIONS[name](target, labels=labels))
    return bins


def draw_map(figure: plt.Figure, axis: plt.Axes, p: np.ndarray) -> None:
    picture = axis.imshow(p, cmap="cividis", vmin=0, vmax=1)
    levels = [0.1, 0.5, 0.9]
    lines = axis.contour(p, levels=levels, colors=["white", "white", "black"], linewidths=1.3)
    middle = SIDE / 2
    places = [(middle, middle - np.flatnonzero(p[SIDE // 2, SIDE // 2 :] < v)[0]) for v in levels]
    axis.clabel(lines, fmt=lambda v: f"truth if u = {v:.1f}", manual=places, fontsize=10)
    axis.set(xticks=[], yticks=[], title="the map, and three of its truths")
    figure.colorbar(picture, ax=axis, shrink=0.85, label="stated probability of the organ")


def draw_reliability(axis: plt.Axes, bins: CalibrationBins, name: str) -> None:
    table, colour = bins.reliability(label=1), COLOURS[name]
    full = table.count > 0
    axis.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.3)
    axis.plot(table.confidence[full], table.accuracy[full], "o-", color=colour, markersize=5)
    axis.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.06), aspect="equal")
    axis.set_title(f"{name}\n{TITLES[name]}", fontsize=12)
    axis.set_xlabel("stated probability")


def draw_bars(axis: plt.Axes, bins: dict[str, CalibrationBins]) -> None:
    values = [bins[name].ece() for name in COLOURS]
    drawn = axis.barh(list(COLOURS), values, color=list(COLOURS.values()))
    axis.bar_label(drawn, [f"{v:.3f}" for v in values], padding=4)
    axis.invert_yaxis()
    axis.set(xlim=(0, 1.25 * max(values)), title="top-label ECE of this calibrated map")
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    p = stated_map()
    bins = measure(p)
    plt.rcParams.update({"font.size": 11, "axes.titlesize": 12})
    figure = plt.figure(figsize=(16, 7), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1, 0.75))
    left, right = top.subplots(1, 2, width_ratios=(1, 1.25))
    draw_map(top, left, p)
    draw_bars(right, bins)
    axes = bottom.subplots(1, 6, sharey=True)
    for axis, name in zip(axes, COLOURS, strict=True):
        draw_reliability(axis, bins[name], name)
    axes[0].set_ylabel("share that is the organ")
    axes[0].annotate(
        "calibrated", (0.72, 0.72), (0.62, 0.35), fontsize=10, color=GREY,
        arrowprops={"arrowstyle": "->", "color": GREY},
    )  # fmt: skip
    out = Path(__file__).parents[1] / "images" / "region_effect.png"
    out.parent.mkdir(exist_ok=True)
    figure.savefig(out, dpi=100)
    print(", ".join(f"{name} {b.ece():.4f}" for name, b in bins.items()))


if __name__ == "__main__":
    main()
