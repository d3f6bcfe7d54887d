"""Draw docs/images/predicted_regions.png: the calibrated map of a phantom in every region.

python docs/scripts/draw_predicted_regions.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from segcal.data.phantom import Phantom, PhantomSpec, generate
from segcal.metrics import REGIONS, evaluate_case, pool_cases, predicted_boundary

SPEC = PhantomSpec(dims=2)
PHANTOMS, RATERS = 60, 6
BY_PREDICTION, BY_TRUTH = "#0072B2", "#D55E00"


def measure() -> dict[str, dict[str, float]]:
    """ECE and CECE by region; the prediction is the true probability of every voxel."""
    results = []
    for index in range(PHANTOMS):
        phantom = generate(SPEC, index)
        probs = phantom.truth / phantom.truth.sum(0)
        for rater in range(RATERS):
            target = phantom.draw(np.random.default_rng([index, rater])).astype(int)
            case = f"{index}_{rater}"
            results.append(evaluate_case(probs, target, SPEC.spacing_mm, case=case))
    rows = pool_cases(results)
    return {m: {r.region: r.value for r in rows if r.metric == m} for m in ("ece", "cece")}


def draw_map(axis: plt.Axes, phantom: Phantom) -> None:
    truth = phantom.truth[:, 0]
    labels = truth.argmax(0)
    band = predicted_boundary(labels, labels=labels, spacing_mm=SPEC.spacing_mm[1:])
    axis.imshow(phantom.image[0], cmap="gray")
    axis.imshow(np.ma.masked_where(~band, truth.max(0)), cmap="cividis", vmin=0.3, vmax=1)
    for rater in range(3):
        drawn = phantom.draw(np.random.default_rng([0, rater]))[0]
        axis.contour(drawn > 0, levels=[0.5], colors="white", linewidths=0.7)
    axis.set(xticks=[], yticks=[], title="predicted_boundary in color,\nthree raters in white")


def draw_bars(axis: plt.Axes, values: dict[str, float], title: str) -> None:
    names = ["all", "predicted", "predicted_boundary", "foreground", "union", "boundary"]
    assert set(names) == set(REGIONS)
    colors = [BY_PREDICTION] * 3 + [BY_TRUTH] * 3
    bars = axis.barh(names, [values[name] for name in names], color=colors)
    axis.bar_label(bars, [f"{values[name]:.3f}" for name in names], padding=4)
    axis.invert_yaxis()
    axis.set(xlim=(0, 1.25 * max(values.values())), title=title)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    found = measure()
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    draw_map(axes[0], generate(SPEC, 0))
    draw_bars(axes[1], found["ece"], "ECE of the true probabilities")
    draw_bars(axes[2], found["cece"], "CECE of the true probabilities")
    axes[2].set_yticklabels([])
    figure.savefig(Path(__file__).parents[1] / "images" / "predicted_regions.png", dpi=100)
    print({metric: {r: round(v, 4) for r, v in by.items()} for metric, by in found.items()})


if __name__ == "__main__":
    main()
