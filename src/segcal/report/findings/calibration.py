"""Over- and under-confidence, calibration after training, and against true probabilities."""

import math
from typing import NamedTuple

import pandas as pd

from segcal.metrics import BALANCED_GAP, confidence_verdict
from segcal.report.context import Context
from segcal.report.text import count, join, signed

REGION_NOTE = (
    "“Balanced”: confidence matches accuracy on average; see the reliability diagrams for details. "
    "Region “predicted” decides, or “all” where it was not measured: a calibrated network scores 0 "
    "in both and in “predicted_boundary”; easy background makes all errors small in “all”. The "
    "other regions are selected by the truth, so a perfectly calibrated network need not score 0 "
    "(it mostly looks under-confident): use them to compare methods on the same cases."
)
_VERDICTS = ("over-confident", "under-confident", "balanced", "seeds disagree")


def verdict(gaps: list[float]) -> str:
    """The verdict that all seeds share; opposite errors of two seeds are not balanced.

    Example:
        >>> verdict([0.002, -0.004]), verdict([0.3, 0.2]), verdict([0.3, -0.3])
        ('balanced', 'over-confident', 'seeds disagree')
    """
    found = {confidence_verdict(gap) for gap in gaps}
    return found.pop() if len(found) == 1 else "seeds disagree"


def deciding_region(context: Context) -> str:
    """Where over-confidence is judged: a region that is not selected by the truth, if measured."""
    found = [region for region in ("predicted", "all") if region in context.study.regions]
    return found[0] if found else context.region


def confidence_findings(context: Context) -> list[str]:
    """The methods of each dataset by verdict, with mean confidence minus accuracy.

    `deciding_region` decides; methods with another verdict in the study's region are counted.
    """
    out = []
    region = deciding_region(context)
    where = "over all voxels" if region == "all" else f"in region “{region}”"
    for dataset in context.datasets:
        found: dict[str, list[str]] = {each: [] for each in _VERDICTS}
        other = total = 0
        for method in context.listed:
            gaps = context.aggregates.gaps(dataset.name, method, region)
            if not gaps:
                continue
            here = context.aggregates.gaps(dataset.name, method, context.region)
            other += verdict(here) != verdict(gaps)
            total += 1
            shown = signed(math.fsum(gaps) / len(gaps))
            if verdict(gaps) == "seeds disagree":
                shown = f"{signed(min(gaps))} to {signed(max(gaps))}"
            found[verdict(gaps)].append(f"{context.title(method)} ({shown})")
        for each, methods in found.items():
            if methods:
                limit = f" (less than {BALANCED_GAP:g})" if each == "balanced" else ""
                out.append(f"{dataset.title}, {where}: {each}{limit}: {join(methods)}.")
        if other:
            out.append(
                f"{dataset.title}: region “{context.region}” gives another verdict for {other} of "
                f"{count(total, 'method')}: see Reliability."
            )
    return out


class _Change(NamedTuple):
    """The mean ECE of a network without and with a calibrator, rounded as in tables."""

    network: str
    calibrator: str
    before: float
    after: float

    @property
    def kind(self) -> str:
        if self.after == self.before:
            return "unchanged"
        return "lower" if self.after < self.before else "higher"


def after_training(context: Context) -> list[str]:
    """How calibrators changed the ECE of each dataset: one by one, or by calibrator if many."""
    out = []
    describe = _each if len(context.listed) == len(context.study.methods) else _by_calibrator
    for dataset in context.datasets:
        changes = []
        for name in context.study.in_group("posthoc"):
            network, plus, calibrator = name.rpartition("+")
            means = (context.aggregates.overall(dataset.name, m, "ece").mean
                     for m in (network, name))  # fmt: skip
            change = _Change(network, calibrator, *(round(mean, 3) for mean in means))
            if plus and not math.isnan(change.before + change.after):
                changes.append(change)
        where = f"{dataset.title}: ECE in region “{context.region}”"
        out += [f"{where} {text}." for text in describe(context, changes)]
    return out


def _each(context: Context, changes: list[_Change]) -> list[str]:
    parts = []
    for kind, which in _by_kind(changes).items():
        named = [
            f"{context.title(f'{c.network}+{c.calibrator}')} ({c.before:.3f} → {c.after:.3f})"
            for c in which
        ]
        parts.append(f"{kind} with {join(named)}")
    return ["; ".join(parts)] if parts else []


def _by_calibrator(context: Context, changes: list[_Change]) -> list[str]:
    """How many networks each calibrator improved, with the largest change."""
    out = []
    for calibrator in dict.fromkeys(change.calibrator for change in changes):
        mine = [change for change in changes if change.calibrator == calibrator]
        parts = []
        for kind, which in _by_kind(mine).items():
            most = max(which, key=lambda c: abs(c.after - c.before))
            change = f"{context.title(most.network)}, {most.before:.3f} → {most.after:.3f}"
            parts.append(
                f"{kind} for {len(which)}" + f" (most for {change})" * (kind != "unchanged")
            )
        out.append(f"with {calibrator}, {count(len(mine), 'method')}: {join(parts)}")
    return out


def _by_kind(changes: list[_Change]) -> dict[str, list[_Change]]:
    found = {k: [c for c in changes if c.kind == k] for k in ("lower", "unchanged", "higher")}
    return {kind: which for kind, which in found.items() if which}


def against_truth(context: Context) -> list[str]:
    """The best method against the true probabilities, and whether ECE ranks methods likewise."""
    out = []
    for dataset in context.datasets:
        methods = context.methods_of(dataset.name)
        true, *measured = (
            [context.aggregates.overall(dataset.name, m, metric, region).mean for m in methods]
            for metric, region in (("truth_ece", "all"), *(("ece", r) for r in context.regions))
        )
        if len(methods) < 2 or any(map(math.isnan, true)):
            continue
        best = context.title(methods[true.index(min(true))])
        agreements = [
            f"{signed(_rank_correlation(true, here), 2)} with ECE in region “{region}”"
            for region, here in zip(context.regions, measured, strict=True)
            if region in (context.region, "all")
            if len(methods) > 3 and not any(map(math.isnan, here))
        ]
        agreement = f"; rank correlation {join(agreements)}" if agreements else ""
        out.append(
            f"{dataset.title}: best calibrated against the true probabilities is {best} (ECE "
            f"{min(true):.3f} over all voxels){agreement}."
        )
    return out


def _rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's; pandas computes it without the slow import of scipy.stats."""
    table = pd.DataFrame({"one": one, "other": other}).corr("spearman")
    return float(table.to_numpy()[0, 1])
