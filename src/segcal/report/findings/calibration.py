"""Over- and under-confidence, calibration after training, and against true probabilities."""

import math

from segcal.metrics import BALANCED_GAP, confidence_verdict
from segcal.report.context import Context
from segcal.report.text import count, join, signed

REGION_NOTE = (
    "“Balanced”: on average confidence matches accuracy. Single ranges of confidence may still be "
    "off: see the reliability diagrams. Region “all” decides whether a network is calibrated; easy "
    "background makes all errors small there. Region “foreground” holds the voxels whose true "
    "label is foreground, as in the literature; “union” and “boundary” use the true label too. In "
    "a region that is selected by the truth, a perfectly calibrated network need not score 0; it "
    "mostly looks under-confident. Use these regions to compare methods on the same cases."
)
# This region decides, because it is not selected by the truth.
DECISIVE = "all"
_VERDICTS = ("over-confident", "under-confident", "balanced", "seeds disagree")


def verdict(gaps: list[float]) -> str:
    """The verdict that all seeds share; opposite errors of two seeds are not balanced.

    Example:
        >>> verdict([0.002, -0.004]), verdict([0.3, 0.2]), verdict([0.3, -0.3])
        ('balanced', 'over-confident', 'seeds disagree')
    """
    found = {confidence_verdict(gap) for gap in gaps}
    return found.pop() if len(found) == 1 else "seeds disagree"


def confidence_findings(context: Context) -> list[str]:
    """The methods of each dataset by verdict, with mean confidence minus accuracy.

    Region "all" decides if it was measured; methods with another verdict in the study's region are
    counted.
    """
    out = []
    for dataset in context.datasets:
        region = DECISIVE if DECISIVE in context.study.regions else context.region
        found: dict[str, list[str]] = {each: [] for each in _VERDICTS}
        other = 0
        for method in context.study.methods:
            gaps = context.aggregates.gaps(dataset.name, method, region)
            if not gaps:
                continue
            here = context.aggregates.gaps(dataset.name, method, context.region)
            other += verdict(here) != verdict(gaps)
            found[verdict(gaps)].append(f"{context.title(method)} ({_gap(gaps)})")
        where = "over all voxels" if region == DECISIVE else f"in region “{region}”"
        for each, methods in found.items():
            if methods:
                limit = f" (less than {BALANCED_GAP:g})" if each == "balanced" else ""
                out.append(f"{dataset.title}, {where}: {each}{limit}: {join(methods)}.")
        if other:
            total = count(sum(map(len, found.values())), "method")
            out.append(
                f"{dataset.title}: region “{context.region}” gives another verdict for {other} of "
                f"{total}: see Reliability."
            )
    return out


def _gap(gaps: list[float]) -> str:
    """The mean over seeds, or their range if they disagree."""
    if verdict(gaps) == "seeds disagree":
        return f"{signed(min(gaps))} to {signed(max(gaps))}"
    return signed(math.fsum(gaps) / len(gaps))


def after_training(context: Context) -> list[str]:
    """How calibrators changed the ECE of each dataset, by the digits that tables show."""
    study, out = context.study, []
    for dataset in context.datasets:
        changes: dict[str, list[str]] = {"lower": [], "unchanged": [], "higher": []}
        for name in study.in_group("posthoc"):
            base = name.rsplit("+", 1)[0]
            if base == name or base not in study.methods:
                continue
            before, after = (
                round(context.aggregates.overall(dataset.name, m, "ece").mean, 3)
                for m in (base, name)
            )
            if math.isnan(before) or math.isnan(after):
                continue
            change = "lower" if after < before else "higher" if after > before else "unchanged"
            changes[change].append(f"{context.title(name)} ({before:.3f} → {after:.3f})")
        parts = [f"{how} with {join(which)}" for how, which in changes.items() if which]
        if parts:
            out.append(f"{dataset.title}: ECE in region “{context.region}” {'; '.join(parts)}.")
    return out


def against_truth(context: Context) -> list[str]:
    """The best method against the true probabilities, and whether ECE ranks methods likewise."""
    from scipy.stats import spearmanr

    out = []
    for dataset in context.datasets:
        methods = context.methods_of(dataset.name)
        true = _means(context, dataset.name, "truth_ece", "all")
        if len(methods) < 2 or any(map(math.isnan, true)):
            continue
        best = context.title(methods[true.index(min(true))])
        text = (
            f"{dataset.title}: best calibrated against the true probabilities is {best} (ECE "
            f"{min(true):.3f} over all voxels)"
        )
        measured = {
            r: _means(context, dataset.name, "ece", r)
            for r in dict.fromkeys((context.region, "all"))
        }
        agreements = [
            f"{signed(spearmanr(true, here)[0], 2)} with ECE in region “{region}”"
            for region, here in measured.items()
            if len(methods) > 3 and not any(map(math.isnan, here))
        ]
        out.append(text + (f"; rank correlation {join(agreements)}." if agreements else "."))
    return out


def _means(context: Context, dataset: str, metric: str, region: str) -> list[float]:
    methods = context.methods_of(dataset)
    return [context.aggregates.overall(dataset, m, metric, region).mean for m in methods]
