"""May the confidence of a network be used? One rule, from two errors with intervals over patients.

Both are about the voxels that the network calls an organ (region `predicted`). The *error* is the
ECE of the pooled voxels of all patients: how far what it says is from how often it is right. It is
at least as large as the signed gap. *Remaining* is what calibration cannot repair: each confidence
is replaced by the accuracy that the other patients have in its bin, and the mean confidence of a
patient is compared with the accuracy in this patient.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Literal

import numpy as np

from segcal.metrics import POOR_DSC
from segcal.report.aggregates import Number
from segcal.report.context import Context
from segcal.report.curves import FEW_VOXELS, Floats
from segcal.report.table_model import Cell, Column, Table, interval_text, mean_cell
from segcal.report.text import count, join, join_few, signed
from segcal.stats import Estimate, jackknife_interval, mean_interval
from segcal.study import Dataset

Answer = Literal["trust", "repair", "do not use", "cannot tell"]

# Conventions, not results: an error of 5 percentage points is accepted over all patients, and of
# 10 points in a single patient after calibration.
TOLERANCE = 0.05
PATIENT_TOLERANCE = 0.10
# Fewer patients do not show how much patients differ.
MIN_PATIENTS = 10
REGION = "predicted"
_UNKNOWN = Estimate(np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Verdict:
    """The numbers behind an answer.

    Attributes:
        gap: mean confidence minus accuracy.
        error, remaining: the two errors of the rule.
        patients: with a voxel in the region.
        dsc: of the masks.
        exceptions: of several organs those that have another answer, if that of all is "trust":
            errors of opposite sign cancel in the voxels of all organs.
        organs: how many there are.
        audited: patients with and without a voxel in the region.
        hard: whether every confidence is 1, as in masks stored as probabilities.
        flat: whether no confidence is above that of a softmax of probabilities.
        poor_organs: of several organs those with poor masks, if the mean DSC is not poor.
    """

    gap: Estimate
    error: Estimate
    remaining: Estimate
    patients: int
    dsc: Estimate = _UNKNOWN
    exceptions: tuple[tuple[str, Answer], ...] = ()
    organs: int = 0
    audited: int = 0
    hard: bool = False
    flat: bool = False
    poor_organs: tuple[str, ...] = ()

    @property
    def poor_masks(self) -> bool:
        """Whether the masks are too poor for the confidence to matter."""
        return self.dsc.mean < POOR_DSC

    @property
    def title(self) -> str:
        """The answer with its exceptions; after the masks, if they are poor."""
        by_answer: dict[Answer, list[str]] = {}
        for organ, answer in self.exceptions:
            by_answer.setdefault(answer, []).append(organ)
        apart = [f"{join_few(organs)} ({answer})" for answer, organs in by_answer.items()]
        title: str = self.answer
        if apart:
            none = len(self.exceptions) == self.organs
            title += " for all organs together, but for none alone: " if none else ", except "
            title += ", ".join(apart)
        return f"poor masks (confidence: {title})" if self.poor_masks else title

    @property
    def needs_repair(self) -> bool:
        """Whether the confidence of all organs together, or of one, is too far off, and calibration
        can correct that.
        """
        return "repair" in (self.answer, *(answer for _, answer in self.exceptions))

    @property
    def answer(self) -> Answer:
        """The rule: an interval has to exclude a tolerance to decide."""
        if self.patients < MIN_PATIENTS:
            return "cannot tell"
        if self.remaining.low > PATIENT_TOLERANCE:
            return "do not use"
        if self.error.high <= TOLERANCE:
            return "trust"
        return "repair" if self.error.low > TOLERANCE else "cannot tell"


def judge(sums: Floats) -> Verdict:
    """The verdict on sums (3, patients, bins) of count, confidence and accuracy.

    Patients without a voxel are left out. Bins in which the other patients have fewer than
    `FEW_VOXELS` voxels are not repaired.

    Example:
        >>> sums = np.zeros((3, 12, 1))
        >>> sums[0], sums[1], sums[2] = 1000, 900, 650  # says 90 %, is right in 65 %
        >>> found = judge(sums)
        >>> found.answer, round(found.gap.mean, 2), round(found.remaining.mean, 2)
        ('repair', 0.25, 0.0)
    """
    audited = sums.shape[1]
    sums = sums[:, sums[0].sum(axis=1) > 0]
    n = sums.shape[1]
    if not n:
        return Verdict(_UNKNOWN, _UNKNOWN, _UNKNOWN, 0, audited=audited)
    # The first row is of all patients, the others are without one of them each.
    rows = np.vstack([np.ones((1, n)), 1 - np.eye(n) if n > 1 else np.empty((0, n))])
    counted, confidence, right = rows @ sums
    gaps = (confidence - right) / counted.sum(axis=1, keepdims=True)
    over, error = gaps.sum(axis=1), np.abs(gaps).sum(axis=1)
    return Verdict(
        gap=jackknife_interval(float(over[0]), over[1:]).within((-1, 1)),
        error=jackknife_interval(float(error[0]), error[1:]).within((0, 1)),
        remaining=mean_interval(np.abs(_repaired_gaps(sums))).within((0, 1)),
        patients=n,
        audited=audited,
        hard=bool((sums[1] == sums[0]).all()),
    )


def _repaired_gaps(sums: Floats) -> Floats:
    """Mean confidence minus accuracy of each patient after the repair by the other patients."""
    counted, confidence, right = sums
    others, others_right = (each.sum(axis=0) - each for each in (counted, right))
    learned = np.divide(others_right, others, out=np.zeros_like(others), where=others > 0)
    repaired = np.where(others >= FEW_VOXELS, counted * learned, confidence)
    return np.asarray((repaired - right).sum(axis=1) / counted.sum(axis=1))


def verdicts(context: Context, dataset: Dataset) -> dict[str, Verdict]:
    """Network -> verdict over all organs; empty if there are many networks, or no bins."""
    out = {}
    for method in context.few_networks(dataset):
        sums = context.patient_sums(dataset, method, REGION)
        if sums is None:
            continue
        found = replace(
            judge(sums),
            dsc=context.aggregates.interval(dataset.name, method, "dsc"),
            flat=_is_flat(context, dataset, method),
        )
        if len(dataset.structures) > 1 and not found.poor_masks:
            names = dataset.structures
            dsc = context.aggregates.interval
            poor = (n for n in names if dsc(dataset.name, method, "dsc", None, n).mean < POOR_DSC)
            found = replace(found, poor_organs=tuple(poor))
        if found.answer == "trust":
            organs = {name: each.answer for name, each in _of_organs(context, dataset, method)}
            apart = tuple((name, answer) for name, answer in organs.items() if answer != "trust")
            apart = apart if len(organs) > 1 else ()
            found = replace(found, exceptions=apart, organs=len(organs))
        out[method] = found
    return out


def _is_flat(context: Context, dataset: Dataset, method: str) -> bool:
    """Whether the softmax of probabilities explains that no confidence is higher, anywhere.

    Only in an audit: runs of segcal have one softmax, and undertrained networks look like two.
    """
    sums = context.patient_sums(dataset, method, "all")
    if sums is None or context.study.info.kind != "audit":
        return False
    counted, confidence, _ = sums.sum(axis=1)
    known = counted > 0
    highest = math.e / (math.e + len(dataset.labels) - 1)
    return bool(known.any() and (confidence[known] <= counted[known] * (highest + 1e-4)).all())


def _of_organs(context: Context, dataset: Dataset, method: str) -> Iterator[tuple[str, Verdict]]:
    for label, sums in context.level_sums(dataset, method).items():
        name = dataset.class_name(label)
        dsc = context.aggregates.interval(dataset.name, method, "dsc", None, name)
        yield name, replace(judge(sums), dsc=dsc)


def sentences(context: Context) -> list[str]:
    """The verdict on each network, with its numbers and its reason, as the terminal shows it."""
    check = " Check that predictions and labels agree in the order of classes and in orientation."
    audit = context.study.info.kind == "audit"
    return [
        f"{context.title(method)}: {describe(verdict)}{check * (audit and verdict.poor_masks)}"
        for dataset in context.datasets
        for method, verdict in verdicts(context, dataset).items()
    ]


def describe(verdict: Verdict) -> str:
    """The verdict, its numbers and its reason."""
    v, limit = verdict, f"{100 * TOLERANCE:g} points"
    if v.patients == 1 or v.gap.low > 0 or v.gap.high < 0:
        ends = sorted((abs(v.gap.low), abs(v.gap.high)))
        size = _points(Estimate(abs(v.gap.mean), *ends))
        gap = f"{'over' if v.gap.mean > 0 else 'under'}-confident by {size}"
    else:
        low, mean, high = (signed(100 * end, 1) for end in (v.gap.low, v.gap.mean, v.gap.high))
        gap = f"confidence − accuracy {mean} [{low}, {high}], so no direction is shown"
    left = f"the mean confidence of a patient is still off by {_points(v.remaining)} points"
    reason = {
        "trust": f"This is within {limit}" + ", but not shown for every organ" * bool(v.exceptions),
        "repair": f"This is more than {limit}; after calibration {left}",
        "do not use": f"Even after calibration {left}: the error differs from patient to patient",
        "cannot tell": f"The interval includes the limit of {limit}: more patients are needed",
    }[v.answer]
    if v.patients < MIN_PATIENTS:
        reason = f"A verdict needs {MIN_PATIENTS} patients"
    masks = (
        f"The mean DSC is {v.dsc.mean:.3f}, below {POOR_DSC:g}; calibration cannot repair that. "
    )
    if v.poor_organs:
        whose = f"The mean DSC of {join_few(v.poor_organs)} is below {POOR_DSC:g}"
        masks = f"{whose}: if that is unexpected, check the order of the classes. "
    hard = "Every confidence is exactly 1, so these look like masks and not like probabilities. "
    flat = "No confidence is above that of a softmax of probabilities: was softmax applied twice? "
    poor = v.poor_masks or bool(v.poor_organs)
    start = f"{v.title}. {masks * poor}{hard * v.hard}{flat * v.flat}"
    if not v.patients:
        return f"{start}It calls no voxel an organ: there is no confidence to judge."
    patients = count(v.patients, "patient")
    if v.audited > v.patients:
        patients = f"{v.patients} of {v.audited} patients (in the others it predicts no organ)"
    return (
        f"{start}Where it calls a voxel an organ, confidence and accuracy differ by "
        f"{_points(v.error)} percentage points (pooled ECE; {gap}). {reason}. "
        f"{patients}{', 95 % intervals' if v.patients > 1 else ''}."
    )


def _points(estimate: Estimate) -> str:
    """Percentage points with interval, such as "12.1 [10.9, 13.3]"."""
    points = Estimate(*(100 * value for value in estimate))
    return f"{points.mean:.1f} {interval_text(points, 1)}".rstrip()


def verdict_table(context: Context, dataset: Dataset, most: int | None = None) -> Table | None:
    """Networks and organs: the verdict, its numbers, and DSC.

    `most` limits the organs of a network to those with the largest pooled ECE.
    """
    columns = (
        Column("verdict", "Verdict", text=True),
        Column("error", "pooled ECE"),
        Column("gap", "confidence − accuracy"),
        Column("remaining", "error per patient after calibration"),
        Column("dsc", "DSC"),
        Column("patients", "patients", digits=0),
    )
    rows = []
    for method, overall in verdicts(context, dataset).items():
        organs = list(_of_organs(context, dataset, method))
        if most is not None:
            organs.sort(key=lambda organ: np.nan_to_num(organ[1].error.mean), reverse=True)
        rows += [
            context.row(method, name, _cells(found))
            for name, found in [("all organs", overall), *organs[:most]]
        ]
    if not rows:
        return None
    caption = (
        f"Trust: the interval of the pooled ECE is at most {TOLERANCE:g}. Repair: it is above. "
        "Do not use: after calibration, the interval of the error per patient is above "
        f"{PATIENT_TOLERANCE:g}. Cannot tell: the interval includes {TOLERANCE:g}, or there "
        f"are fewer than {MIN_PATIENTS} patients. Poor masks: the mean DSC is below "
        f"{POOR_DSC:g}, which calibration cannot repair. All in the voxels that the network "
        "calls an organ, per organ by the levels of “Stated confidence”. [ ]: 95 % interval "
        "over patients (jackknife and Student's t). Error per "
        "patient: |mean confidence − accuracy|, where each confidence is replaced by the "
        "accuracy of the other patients in its bin. The verdict is about the confidence, not "
        "about the masks: see DSC and volumes."
    )
    name, title = f"verdict_{dataset.name}", f"Verdict: {dataset.title}"
    if most is not None:
        name, title = f"{name}_worst", f"{title}, worst organs"
        caption = f"The {most} organs with the largest pooled ECE. {caption}"
    return Table(name, title, columns, tuple(rows), caption, head="Organ")


def _cells(verdict: Verdict) -> tuple[Cell, ...]:
    tone = "over" if verdict.poor_masks or verdict.answer in ("do not use", "repair") else ""
    return (
        Cell(text=replace(verdict, exceptions=()).title, tone=tone),
        mean_cell(verdict.error),
        mean_cell(verdict.gap, signed=True),
        mean_cell(verdict.remaining),
        mean_cell(verdict.dsc),
        Cell(Number(verdict.patients)),
    )


_POOR_MASKS = (
    "look at the worst cases. If predictions and labels differ in the order of their classes or in "
    "their orientation, correct that; otherwise train again. No calibrator improves the masks."
)
_SECOND_SOFTMAX = (
    "find out whether softmax was applied twice when the probabilities were saved, for example by "
    "the network and by the script. If it was, save them again and repeat the audit."
)
_NO_REPAIR = (
    "nothing needs to be repaired. Volumes with intervals, and which scans to review, are derived "
    "from labeled cases that the network was not trained on:"
)
_CALIBRATED = (
    "the predictions are calibrated already. Fit the calibrator on more cases, or on cases more "
    "like these, and apply it to the original predictions."
)
_CALIBRATE = (
    "fit a calibrator on labeled cases that are neither in the training nor in this audit, apply "
    "it, and audit the result:"
)


def next_step(context: Context, method: str, verdict: Verdict) -> tuple[str, list[str]]:
    """What to do next with the predictions that were audited, and the commands for it."""
    options = context.study.methods[method].options
    folder, given = options.get("predictions", "PREDICTIONS"), options.get("kind", "probs")
    files = f"HELD_OUT/{method} --labels HELD_OUT_LABELS"
    unusable = [organ for organ, answer in verdict.exceptions if answer == "do not use"]
    unclear = verdict.answer == "cannot tell" and verdict.patients >= MIN_PATIENTS
    more = f"audit more patients than these {verdict.patients}"
    if verdict.hard:
        return "audit the softmax of the network; these predictions have no confidence.", []
    if verdict.flat:
        return _SECOND_SOFTMAX, []
    if verdict.poor_masks:
        return _POOR_MASKS, []
    if unusable and not verdict.needs_repair:
        differs = "the error differs from patient to patient, so no calibrator repairs it."
        return f"look at the worst cases of {join_few(unusable)}: {differs}", []
    if verdict.answer == "trust" and not verdict.needs_repair:
        return _NO_REPAIR, [f"segcal assure fit --probs {files} --out {method}_assurance.json"]
    if options.get("calibrated") and unclear:
        return f"{more}; the predictions are calibrated already.", []
    if options.get("calibrated") and verdict.needs_repair:
        return _CALIBRATED, []
    if verdict.needs_repair or unclear:
        out = _new_folder(context, method)
        return f"{more}, or {_CALIBRATE}" if unclear else _CALIBRATE, [
            f"segcal calibrate --{given} {files} --method auto --out {method}_calibrator.json",
            f"segcal apply {method}_calibrator.json --{given} {quote(folder)} --out {out}",
            f"segcal audit --probs {out} --labels LABELS --out audit_{out}",
        ]
    if verdict.answer == "do not use":
        return "look at the worst cases and train again; no calibrator repairs this.", []
    return f"audit more patients, at least {MIN_PATIENTS} in whom it finds an organ.", []


def _new_folder(context: Context, method: str) -> str:
    """A folder for calibrated predictions that no network of the audit was read from."""
    methods = context.study.methods.values()
    existing = {Path(each.options.get("predictions", "")).name for each in methods}
    out = f"{method}_calibrated"
    while out in existing:
        out += "_again"
    return out


def next_steps(context: Context, dataset: Dataset) -> list[tuple[str, list[str]]]:
    """The next steps of all networks of a dataset; networks with the same advice share one."""
    merged: dict[str, tuple[list[str], list[str]]] = {}
    found = verdicts(context, dataset)
    for method, verdict in found.items():
        text, commands = next_step(context, method, verdict)
        titles, every = merged.setdefault(text, ([], []))
        titles.append(context.title(method))
        every += commands
    return [
        (f"Next{f', {join(titles)}' if len(found) > 1 else ''}: {text}", commands)
        for text, (titles, commands) in merged.items()
    ]
