"""What a stated confidence is worth: how often a network is right where it calls an organ."""

import math

from segcal.metrics import LEVELS
from segcal.report.aggregates import Number
from segcal.report.context import Context
from segcal.report.curves import FEW_VOXELS, Curve
from segcal.report.table_model import Cell, Column, Table, interval_text
from segcal.report.text import count
from segcal.stats import Estimate
from segcal.study import Dataset

_MOST_SENTENCES = 4
# The sentence is about this level and those above it; lower levels are in the table.
_FIRST = LEVELS.index(0.95)
INTERVALS = (
    "Voxels of all cases are pooled by predicted class. [ ]: 95 % interval over patients (Korn and "
    "Graubard: the voxels of a patient are dependent). Cases count as patients where no patients "
    "are given."
)


def sentences(context: Context) -> list[str]:
    """Per network and organ: “when it says 95 to 99 %, it is right in N %”, worst organs first."""
    out = []
    for dataset in context.datasets:
        for method in context.few_networks(dataset):
            found = context.levels(dataset, method)
            worst = sorted(found, key=lambda k: -_gap(found[k]))
            for label in worst[:_MOST_SENTENCES]:
                parts = _parts(found[label])
                if parts:
                    where = dataset.class_name(label)
                    out.append(f"{context.title(method)}, {where}: when it says {parts}.")
            if len(worst) > _MOST_SENTENCES:
                rest = count(len(worst) - _MOST_SENTENCES, "further organ")
                out.append(f"{context.title(method)}: {rest} under “Stated confidence”.")
    return out


def _parts(curve: Curve) -> str:
    """Such as "95 to 99 %, it is right in 81.2 % [74.0, 87.1]; 99 to 100 %: 93.0 % […]"."""
    out: list[str] = []
    for i in range(_FIRST, len(LEVELS) - 1):
        if curve.count[i] >= FEW_VOXELS:
            link = ": " if out else ", it is right in "
            right = f"{100 * curve.accuracy[i]:.1f} % {_interval(curve, i)}".rstrip()
            out.append(f"{_level(i)}{link}{right}")
    return "; ".join(out)


def _level(i: int) -> str:
    return f"{100 * LEVELS[i]:g} to {100 * LEVELS[i + 1]:g} %"


def _interval(curve: Curve, i: int) -> str:
    percent = Estimate(*(100 * float(each[i]) for each in (curve.accuracy, curve.low, curve.high)))
    return interval_text(percent, 1)


def _gap(curve: Curve) -> float:
    """Confidence minus accuracy over the levels of the sentence."""
    weight = curve.count[_FIRST:]
    gap = (curve.confidence - curve.accuracy)[_FIRST:]
    total = float(weight.sum())
    return float((weight * gap)[weight > 0].sum()) / total if total else -math.inf


def level_table(context: Context, dataset: Dataset) -> Table | None:
    """Networks and organs × levels: how often the label is right, in percent."""
    methods = context.methods_of(dataset.name)
    curves = {method: context.levels(dataset, method) for method in methods}
    # With two classes no prediction has a confidence below 50 %.
    lowest = any(c.count[0] >= FEW_VOXELS for found in curves.values() for c in found.values())
    shown = range(0 if lowest else 1, len(LEVELS) - 1)
    columns = tuple(
        Column(f"level_{i}", f"says {_level(i)}", digits=1, dataset=dataset.name) for i in shown
    )
    rows = tuple(
        context.row(method, dataset.class_name(label), (_cell(curve, i) for i in shown))
        for method, found in curves.items()
        for label, curve in found.items()
    )
    if not rows:
        return None
    caption = (
        "How often the network is right, in %, where it predicts an organ with the confidence of "
        f"the column. A calibrated network is right as often as it says. {INTERVALS} Colored: the "
        f"interval excludes the mean confidence. –: fewer than {FEW_VOXELS} voxels."
    )
    title = f"Stated confidence: {dataset.title}"
    return Table(f"stated_confidence_{dataset.name}", title, columns, rows, caption, head="Organ")


def _cell(curve: Curve, i: int) -> Cell:
    if curve.count[i] < FEW_VOXELS:
        return Cell()
    confidence = curve.confidence[i]
    tone = "over" if curve.high[i] < confidence else "under" if curve.low[i] > confidence else ""
    number = Number(100 * float(curve.accuracy[i]))
    return Cell(number, after=_interval(curve, i), tone=tone)
