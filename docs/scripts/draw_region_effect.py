"""Draw docs/images/region_effect.png: one calibrated map, two regions, two verdicts.

python docs/scripts/draw_region_effect.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from segcal.metrics import CalibrationBins

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito: safe for colour-blind readers


def calibrated_map(seed: int = 0, side: int = 700) -> tuple[np.ndarray, np.ndarray]:
    """A disc with a soft rim, and labels drawn from the very probabilities it states."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side - 0.5
    p = 1 / (1 + np.exp((np.hypot(x, y) - 0.27) / 0.05))
    return p, (rng.random(p.shape) < p).astype(np.int64)


def draw_reliability(axis: plt.Axes, bins: CalibrationBins, title: str, colour: str) -> None:
    table = bins.reliability(label=1)
    full = table.count > 0
    width = table.upper - table.lower
    centre = (table.lower + table.upper) / 2
    axis.bar(
        centre[full], table.accuracy[full], width[full], color=colour, alpha=0.35, edgecolor=colour,
        label="observed",
    )  # fmt: skip
    axis.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.5, label="calibrated")
    axis.plot(table.confidence[full], table.accuracy[full], "o", color=colour, markersize=5)
    axis.set(xlim=(0, 1), ylim=(0, 1.04), title=title, aspect="equal")
    axis.set_xlabel("stated probability of the organ")
    axis.set_ylabel("share that is the organ")
    words = f"ECE of the organ: {bins.classwise_ece()[1]:.3f}\n"
    words += f"ECE of the top label: {bins.ece():.3f}"
    axis.text(
        0.97, 0.05, words, transform=axis.transAxes, ha="right", va="bottom", fontsize=12,
        bbox={"facecolor": "white", "edgecolor": colour, "boxstyle": "round,pad=0.35"},
    )  # fmt: skip
    axis.legend(loc="upper left", framealpha=1, edgecolor="none", fontsize=11, borderaxespad=1.2)


def main() -> None:
    p, target = calibrated_map()
    probs = np.stack([1 - p, p])
    everywhere = CalibrationBins(2).update(probs, target)
    inside = CalibrationBins(2).update(probs, target, mask=target != 0)
    plt.rcParams.update({"font.size": 12, "axes.titlesize": 13})
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 4.6), layout="constrained")
    figure.get_layout_engine().set(wspace=0.07)
    picture = axes[0].imshow(p, cmap="cividis", vmin=0, vmax=1)
    axes[0].contour(p, levels=[0.5], colors="white", linewidths=1.5)
    axes[0].set(xticks=[], yticks=[], title="The map; labels are drawn from it")
    figure.colorbar(picture, ax=axes[0], shrink=0.85, label="probability of the organ")
    draw_reliability(axes[1], everywhere, "region all: on the diagonal", BLUE)
    draw_reliability(axes[2], inside, "region foreground: every voxel is organ", ORANGE)
    out = Path(__file__).parents[1] / "images" / "region_effect.png"
    out.parent.mkdir(exist_ok=True)
    figure.savefig(out, dpi=110)
    print(f"top-label ECE: all {everywhere.ece():.4f}, foreground {inside.ece():.4f}")


if __name__ == "__main__":
    main()
