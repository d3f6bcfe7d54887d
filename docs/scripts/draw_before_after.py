r"""Draw docs/images/before_after.png: a mask, its confidence and its reliability, before and after.

The case shown is the one with the median DSC of the test set. On a CPU, from Task04_Hippocampus of
the Medical Segmentation Decathlon:

segcal prepare msd --source Task04_Hippocampus --out hippocampus --classes anterior,posterior \
  --modality mr --patient '\d+'
segcal train --data hippocampus --out run --recipe paper --loss ce_dice --epochs 6 \
  --set 'model.options.filters=[8,16,32,64]' --set 'model.options.pools=[2,2,2]' \
  --set batch_size=32 --set validate_every=2
segcal evaluate run
segcal evaluate run --calibrator temperature
python docs/scripts/draw_before_after.py run
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

OUT = Path(__file__).parents[1] / "images" / "before_after.png"
REGION = "predicted"
COLORS = ("#0072B2", "#D55E00")  # anterior, posterior


def median_case(run: Path) -> int:
    """Position of the test case with the median DSC."""
    table = pd.read_csv(run / "cases.csv")
    table = table[(table.metric == "dsc") & (table.case != "pooled")]
    means = table.groupby("case").value.mean().sort_values()
    name = means.index[len(means) // 2]
    return list(np.load(run / "slices.npz")["cases"]).index(name)


def show(axes: Axes, picture: np.ndarray, title: str, **options: float | str) -> None:
    axes.imshow(picture, interpolation="nearest", **options)
    axes.set_title(title, fontsize=10)
    axes.set_axis_off()


def draw_reliability(axes: Axes, folder: Path, title: str) -> None:
    """Accuracy against confidence of all test cases together, in the predicted organs."""
    bins = np.load(folder / "bins.npz")
    region = list(bins["regions"]).index(REGION)
    count, confidence, right = (
        bins[key][:, region].sum(0) for key in ("top_count", "top_confidence", "top_accuracy")
    )
    used = count > 0
    axes.plot([0.3, 1], [0.3, 1], color="#999999", lw=1, ls=":")
    x, y = confidence[used] / count[used], right[used] / count[used]
    axes.fill_between(x, x, y, color="#D55E00", alpha=0.2, lw=0)
    axes.plot(x, y, marker="o", ms=4, color="#222222", lw=1.2)
    gap = 100 * (confidence.sum() - right.sum()) / count.sum()
    axes.set_title(title, fontsize=10)
    axes.text(
        0.33,
        0.93,
        f"confidence − accuracy:\n{gap:+.1f} percentage points".replace("-", "−"),
        fontsize=9,
    )
    axes.set(xlim=(0.3, 1.01), ylim=(0.3, 1.05), xlabel="stated confidence", aspect="equal")
    axes.spines[["top", "right"]].set_visible(False)


def main(run: Path) -> None:
    calibrated = run / "calibrated" / "temperature"
    case = median_case(run)
    before, after = np.load(run / "slices.npz"), np.load(calibrated / "slices.npz")
    at = int((before[f"truth_{case}"] > 0).sum(axis=(1, 2)).argmax())  # with most foreground
    labels, image = before[f"labels_{case}"][at], before[f"image_{case}"][at]
    rows, columns = np.nonzero(image != image[-1, -1])  # without padding
    cut = np.s_[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    figure, axes = plt.subplots(
        1, 5, figsize=(12, 3.4), width_ratios=[1, 1, 1, 1.5, 1.5], layout="constrained"
    )
    show(axes[0], image[cut], "mask, truth (dotted)", cmap="gray")
    for label, color in enumerate(COLORS, start=1):
        for key, style in (("labels", "solid"), ("truth", "dotted")):
            mask = before[f"{key}_{case}"][at][cut] == label
            axes[0].contour(mask, [0.5], colors=color, linewidths=1.6, linestyles=style)
    for axis, arrays, title in (
        (axes[1], before, "confidence before"),
        (axes[2], after, "confidence after"),
    ):
        picture = arrays[f"confidence_{case}"][at][cut] / 255
        show(axis, picture, title, cmap="magma", vmin=0.4, vmax=1)
        axis.contour(labels[cut] > 0, [0.5], colors="white", linewidths=1)
    figure.colorbar(axes[2].images[0], ax=axes[2], fraction=0.05, pad=0.03)
    draw_reliability(axes[3], run, "before")
    draw_reliability(axes[4], calibrated, "after")
    axes[3].set_ylabel("share that is right")
    figure.savefig(OUT, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
