"""Training: validation DSC and ECE by epoch."""

import math

import numpy as np
from matplotlib.axes import Axes

from segcal.report.blocks import Figure, Section, optional_section
from segcal.report.context import Context
from segcal.report.plots.style import INK, WHITE, new_figure
from segcal.report.text import fold
from segcal.study import Dataset, Training

_MOST_ACROSS = 5
# The ECE axis ends at this multiple of the largest ECE of a tested checkpoint: early epochs, and
# trainings that broke down, have much larger values.
_HEADROOM = 2.0


def build(context: Context) -> Section | None:
    """A figure per dataset with training curves."""
    figures = context.by_dataset(lambda d: [draw_training_curves(context, d)], headings=True)
    text = (
        "Validation DSC, and ECE where the true label is foreground, by epoch. Thin lines: single "
        "seeds; thick line: their median, with three seeds or more; points: the tested "
        "checkpoints. Methods are tested at different epochs, and calibration changes during "
        "training: compare the curves, not only the points."
    )
    return optional_section("training", "Training", figures, text=text)


def draw_training_curves(context: Context, dataset: Dataset) -> Figure | None:
    """Two panels per method, DSC above ECE; None if no run of the dataset has a curve."""
    study = context.study
    runs: dict[str, list[Training]] = {}
    for run in study.info.runs:
        if run.dataset == dataset.name and run.training and run.training.course.epochs:
            runs.setdefault(run.method, []).append(run.training)
    methods = [method for method in study.methods if method in runs]
    if not methods:
        return None
    across = min(_MOST_ACROSS, len(methods))
    blocks = -(-len(methods) // across)
    figure = new_figure(0.6 + 1.75 * across, 0.35 + 2.5 * blocks)
    grid = figure.subplots(2 * blocks, across, sharex=True, squeeze=False)
    tested = [_tested(training, "ece") for of in runs.values() for training in of]
    top = min(1.0, _HEADROOM * max((ece for ece in tested if ece > 0), default=1.0))
    for i in range(across * blocks):
        block, column = divmod(i, across)
        pair = grid[2 * block : 2 * block + 2, column]
        if i >= len(methods):
            for axes in pair:
                axes.set_visible(False)
            grid[2 * block - 1, column].tick_params(labelbottom=True)
            continue
        method = methods[i]
        for axes, key, limit in zip(pair, ("dsc", "ece"), (1, top), strict=True):
            _panel(axes, runs[method], key, context.colors[method])
            axes.set_ylim(0, limit)
            axes.tick_params(labelleft=column == 0)
            if column == 0:
                axes.set_ylabel(key.upper())
        pair[0].set_title(fold(context.title(method)), loc="left")
    figure.supxlabel("epoch")
    alt = (
        f"Validation DSC and foreground ECE over the epochs of {len(methods)} methods on "
        f"{dataset.title}, a line per seed, with the tested checkpoints; ECE above {top:.2f} is "
        "cut off"
    )
    return Figure(f"training_{dataset.name}", figure, alt)


def _panel(axes: Axes, trainings: list[Training], key: str, color: str) -> None:
    for training in trainings:
        course = training.course
        axes.plot(course.epochs, course.values(key), color=color, lw=0.7, alpha=0.7)
    epochs = trainings[0].course.epochs
    if len(trainings) > 2 and all(t.course.epochs == epochs for t in trainings):
        median = np.median([t.course.values(key) for t in trainings], axis=0)
        axes.plot(epochs, median, color=INK, lw=0.9)
    for training in trainings:
        axes.plot(
            training.tested, _tested(training, key), "o", color=color, ms=3.6, mew=0.6,
            markeredgecolor=WHITE, zorder=4,
        )  # fmt: skip
    axes.grid(lw=0.4)
    axes.set_axisbelow(True)
    axes.locator_params(axis="both", nbins=4)


def _tested(training: Training, key: str) -> float:
    """The validation value of the tested checkpoint; NaN if unknown."""
    course = training.course
    known = dict(zip(course.epochs, course.values(key), strict=True))
    return known.get(training.tested, math.nan)
