"""The course of every training: validation DSC and ECE by epoch."""

import math
from typing import TYPE_CHECKING

import numpy as np

from segcal.report.figures import Drawing, new_figure
from segcal.report.numbers import Numbers
from segcal.report.style import INK, WHITE, colours, fold
from segcal.study import Dataset, Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ACROSS = 5
# The axis of ECE ends at this many times the largest of a checkpoint that is tested: in the first
# epochs, and where a training broke down, it is many times larger.
_ROOM = 2.0


def draw_courses(numbers: Numbers, dataset: Dataset) -> Drawing | None:
    """Two panels per method, DSC above ECE; None where no run of the dataset has a course."""
    study = numbers.study
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
    tone = colours(list(study.methods))
    tested = [_tested(training, "ece") for of in runs.values() for training in of]
    top = min(1.0, _ROOM * max((ece for ece in tested if ece > 0), default=1.0))
    for i, method in enumerate(methods):
        block, column = divmod(i, across)
        for j, key in enumerate(("dsc", "ece")):
            axes = grid[2 * block + j, column]
            _panel(axes, runs[method], key, tone[method])
            axes.set_ylim(0, 1 if key == "dsc" else top)
            axes.tick_params(labelleft=column == 0)
        grid[2 * block, column].set_title(fold(study.methods[method].title), loc="left")
    for block in range(blocks):
        grid[2 * block, 0].set_ylabel("DSC")
        grid[2 * block + 1, 0].set_ylabel("ECE")
    for i in range(len(methods), across * blocks):
        block, column = divmod(i, across)
        grid[2 * block, column].set_visible(False)
        grid[2 * block + 1, column].set_visible(False)
        grid[2 * block - 1, column].tick_params(labelbottom=True)
    figure.supxlabel("epoch", fontsize=8)
    alt = (
        f"Validation DSC and foreground ECE over the epochs of {len(methods)} methods on "
        f"{dataset.title}, a line per seed, with the checkpoints that were tested; ECE above "
        f"{top:.2f} is cut off"
    )
    return Drawing(f"training_{dataset.name}", figure, alt)


def _panel(axes: "Axes", trainings: list[Training], key: str, colour: str) -> None:
    for training in trainings:
        course = training.course
        axes.plot(course.epochs, course.values(key), color=colour, lw=0.7, alpha=0.7)
    epochs = trainings[0].course.epochs
    if len(trainings) > 2 and all(t.course.epochs == epochs for t in trainings):
        middle = np.median([t.course.values(key) for t in trainings], axis=0)
        axes.plot(epochs, middle, color=INK, lw=0.9)
    for training in trainings:
        axes.plot(
            training.tested, _tested(training, key), "o", color=colour, ms=3.6, mew=0.6,
            markeredgecolor=WHITE, zorder=4,
        )  # fmt: skip
    axes.grid(lw=0.4)
    axes.set_axisbelow(True)
    axes.locator_params(axis="both", nbins=4)


def _tested(training: Training, key: str) -> float:
    """What the tested checkpoint had on the validation cases; NaN where that is unknown."""
    course = training.course
    known = dict(zip(course.epochs, course.values(key), strict=True))
    return known.get(training.tested, math.nan)
