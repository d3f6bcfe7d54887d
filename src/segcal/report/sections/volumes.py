"""Volume agreement: predicted minus true volume of each organ, as Bland-Altman plots and table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from scipy.special import stdtrit

from segcal.report.aggregates import Number
from segcal.report.blocks import Block, Figure, Section, optional_section
from segcal.report.context import Context
from segcal.report.plots.style import MUTED, panel_grid
from segcal.report.table_model import Cell, Column, Row, Table, mean_cell
from segcal.report.text import join_few, shorten
from segcal.stats import Estimate, clustered_interval
from segcal.study import Dataset

# How a volume is predicted -> its metric.
_KINDS = {"mask": "predicted_volume_ml", "Σp": "expected_volume_ml"}
_TEXT = (
    "Predicted minus true volume in ml. “Mask”: volume of the predicted label; “Σp”: sum of the "
    "probabilities, which has no bias if the network is calibrated. Each point is a scan; the line "
    "is the bias, the dashed lines are the limits of agreement (bias ± 1.96 standard deviations), "
    "between which the error of 95 % of scans lies if errors are normal."
)
_Z = 1.96
# A mean difference between Σp and the true volumes that is a finding, as a share of the latter.
FAR = 0.1
# Smaller mean differences are no finding, however small the organ is: a voxel of 1 mm.
_VOXEL_ML = 0.001


@dataclass(frozen=True)
class Agreement:
    """Predicted against true volumes of one organ: bias and limits of agreement with intervals.

    `center` is the mean of the predicted and the true volume of each scan, `error` their
    difference.
    """

    organ: str
    kind: str
    center: "pd.Series[float]"
    error: "pd.Series[float]"
    bias: Estimate
    lower: Estimate
    upper: Estimate

    @property
    def true(self) -> float:
        """The mean true volume."""
        return float((self.center - self.error / 2).mean())


def compare_volumes(
    organ: str,
    kind: str,
    predicted: "pd.Series[float]",
    true: "pd.Series[float]",
    patients: Sequence[str],
) -> Agreement:
    """Bland and Altman's bias and limits; the intervals (Student's t) count patients, not scans.

    Example:
        >>> true = pd.Series([10.0, 20.0, 30.0])
        >>> found = compare_volumes("liver", "mask", true + [1, 2, 3], true, ["a", "b", "c"])
        >>> [round(each.mean, 2) for each in (found.bias, found.lower, found.upper)]
        [2.0, 0.04, 3.96]
    """
    error, n = predicted - true, len(set(patients))
    bias, spread, half = clustered_interval(error, patients), float(error.std()), math.nan
    if n > 1:
        half = float(stdtrit(n - 1, 0.975)) * spread * math.sqrt(1 / n + _Z**2 / (2 * (n - 1)))
    limits = (bias.mean + sign * _Z * spread for sign in (-1, 1))
    lower, upper = (Estimate(x, x - half, x + half) for x in limits)
    return Agreement(organ, kind, (predicted + true) / 2, error, bias, lower, upper)


def agreements(context: Context, dataset: Dataset, method: str) -> list[Agreement]:
    """Each organ, by mask and by Σp; scans without a true volume are left out."""
    true, *volumes = (
        context.aggregates.structures(dataset.name, method, metric)
        for metric in ("true_volume_ml", *_KINDS.values())
    )
    out = []
    for organ in true.columns:
        known = true[organ].dropna()
        patients = dataset.patients_of(known.index)
        out += [
            compare_volumes(str(organ), kind, values[organ][known.index], known, patients)
            for kind, values in zip(_KINDS, volumes, strict=True)
            if len(known)
        ]
    return out


def far_volumes(found: Sequence[Agreement]) -> list[str]:
    """Organs whose Σp is far from the true volumes on average, with the mean difference."""
    out = []
    for each in found:
        large = abs(each.bias.mean) > max(FAR * each.true, _VOXEL_ML)
        if each.kind == "Σp" and large and not each.bias.low <= 0 <= each.bias.high:
            share = f" ({100 * each.bias.mean / each.true:+.0f} %)" if each.true > 0 else ""
            difference = f"{each.bias.mean:+.3g} ml{share}".replace("-", "−")
            out.append(f"{each.organ} {difference}")
    return out


def findings(context: Context) -> list[str]:
    """A sentence for each of few networks that has such organs."""
    return [
        f"{context.title(method)}: the sum of the probabilities is far from the true volume, on "
        f"average {join_few(far)}. Do not quote it as a volume; segcal assure corrects it."
        for dataset in context.datasets
        for method in context.few_networks(dataset)
        if (far := far_volumes(agreements(context, dataset, method)))
    ]


def build(context: Context) -> Section | None:
    """A figure per network and a table per dataset, if there are few networks."""
    blocks = context.by_dataset(
        lambda dataset: _blocks(context, dataset), headings=len(context.datasets) > 1
    )
    return optional_section("volumes", "Volume agreement", blocks, text=_TEXT, menu="Volumes")


def _blocks(context: Context, dataset: Dataset) -> list[Block]:
    found = {m: agreements(context, dataset, m) for m in context.few_networks(dataset)}
    found = {method: each for method, each in found.items() if each}
    if not found:
        return []
    columns = [Column("true", "true mean", "ml", digits=2)]
    for kind in _KINDS:
        columns += [
            Column(f"{kind} {key}", title, "ml", digits=2, group=f"{kind} − truth")
            for key, title in (("bias", "bias"), ("lower", "lower limit"), ("upper", "upper limit"))
        ]
    rows = [row for method, each in found.items() for row in _rows(context, method, each)]
    caption = (
        "[ ]: 95 % interval over patients (Student's t; for the limits, Bland and Altman's "
        "approximation). Colored: the interval of the bias, before rounding, excludes 0."
    )
    name, title = f"volumes_{dataset.name}", f"Volume agreement: {dataset.title}"
    table = Table(name, title, tuple(columns), tuple(rows), caption, head="Organ")
    if context.has_many_organs(dataset):
        found = {
            method: _farthest(each, context.most_organs // 2) for method, each in found.items()
        }
    figures = [_draw(context, dataset, method, each) for method, each in found.items()]
    return [*figures, *context.collapse_organs(dataset, [table])]


def _farthest(found: Sequence[Agreement], most: int) -> list[Agreement]:
    """The `most` organs whose volumes are farthest from the truth on average, relative to it."""
    error: dict[str, float] = {}
    for each in found:
        share = abs(each.bias.mean) / each.true if each.true > 0 else math.inf
        error[each.organ] = max(error.get(each.organ, 0.0), share)
    kept = sorted(error, key=lambda organ: error[organ], reverse=True)[:most]
    return [each for organ in kept for each in found if each.organ == organ]


def _rows(context: Context, method: str, found: Sequence[Agreement]) -> list[Row]:
    """A row per organ: the true volume, then bias and limits of each kind."""
    cells: dict[str, list[Cell]] = {}
    for each in found:
        row = cells.setdefault(each.organ, [Cell(Number(each.true))])
        tone = "over" if each.bias.low > 0 else "under" if each.bias.high < 0 else ""
        row.append(mean_cell(each.bias, 2, signed=True, tone=tone))
        row += [mean_cell(limit, 2, signed=True) for limit in (each.lower, each.upper)]
    return [context.row(method, organ, row) for organ, row in cells.items()]


def _draw(context: Context, dataset: Dataset, method: str, found: Sequence[Agreement]) -> Figure:
    """Two panels per organ, of the mask and of Σp, with the same vertical axis."""
    size, color = (2.75, 2.1), context.colors[method]
    figure, panels = panel_grid(len(found), 4, size, (0.4, 0.4), sharex=False, sharey=False)
    for axes, each in zip(panels, found, strict=True):
        axes.axhline(0, color=MUTED, lw=0.6)
        axes.axhline(each.bias.mean, color=color, lw=1.2)
        for limit in (each.lower, each.upper):
            axes.axhline(limit.mean, color=color, lw=0.9, ls=(0, (4, 3)))
        many = len(each.error) > 500
        axes.scatter(each.center, each.error, s=11, lw=0, alpha=0.75, color=color, rasterized=many)
        axes.set_title(f"{shorten(each.organ, 18)}: {each.kind}", loc="left")
    for first, second in zip(panels[::2], panels[1::2], strict=True):
        ends = [*first.get_ylim(), *second.get_ylim()]
        first.set_ylim(min(ends), max(ends))
        second.set_ylim(min(ends), max(ends))
    of = ""
    if context.has_many_organs(dataset):
        of = f"; the {len(found) // len(_KINDS)} organs with the largest bias relative to the truth"
    figure.supxlabel(f"mean of predicted and true volume (ml){of}")
    figure.supylabel("predicted − true (ml)")
    alt = (
        f"Bland-Altman plots of {context.title(method)} on {dataset.title}: volume error against "
        f"volume of each organ, by mask and by sum of probabilities, with bias and limits{of}"
    )
    return Figure(f"volumes_{dataset.name}_{method}", figure, alt)
