"""Over- and under-confidence of each method."""

import math

from segcal.report.context import Context
from segcal.report.text import join, signed

# Confidence and accuracy that differ by less than this are balanced.
BALANCED_GAP = 0.01
REGION_NOTE = (
    "“Balanced”: on average confidence matches accuracy. Single ranges of confidence may still be "
    "off: see the reliability diagrams. Region “foreground” holds the voxels whose true label is "
    "foreground, as in the literature; “union” and “boundary” use the true label too. A perfectly "
    "calibrated network need not score 0 in a region that is selected by the truth; it mostly looks "
    "under-confident there. Use these regions to compare methods on the same cases. Region “all” "
    "decides whether a network is calibrated; easy background makes all errors small there."
)
# The region that decides, because it is not selected by the truth.
DECISIVE = "all"
# So many balanced calibrated methods are named in one sentence.
_MANY = 3


def confidence_verdict(gap: float) -> str:
    """The verdict for a difference between mean confidence and accuracy.

    Example:
        >>> confidence_verdict(0.002), confidence_verdict(-0.2)
        ('balanced', 'under-confident')
    """
    if abs(gap) < BALANCED_GAP:
        return "balanced"
    return "over-confident" if gap > 0 else "under-confident"


def verdict(gaps: list[float]) -> str:
    """The verdict of all seeds, or "mixed": opposite errors of two seeds are not balanced.

    Example:
        >>> verdict([0.002, -0.004]), verdict([0.3, 0.2]), verdict([0.3, -0.3])
        ('balanced', 'over-confident', 'mixed')
    """
    found = {confidence_verdict(gap) for gap in gaps}
    return found.pop() if len(found) == 1 else "mixed"


def confidence_findings(context: Context) -> list[tuple[str, str]]:
    """(method, sentence) for each method; method "" for several in one sentence.

    Region "all" decides if it was measured; the gap in the study's region follows it.
    """
    out: dict[str, str] = {}
    balanced = []
    for method in context.study.methods.values():
        decisive = _gaps(context, method.name, DECISIVE)
        here = _gaps(context, method.name, context.region)
        if decisive:
            text = describe_gaps(decisive, DECISIVE)
            if context.region != DECISIVE and here:
                text += f" {_in_region(here, decisive, context.region)}"
            if method.group == "posthoc" and {verdict(g) for g in decisive.values()} == {
                "balanced"
            }:
                balanced.append(method.name)
        elif here:
            text = (
                f"{describe_gaps(here, context.region)} Region “all”, which decides, was not "
                "measured."
            )
        else:
            continue
        out[method.name] = f"{method.title}: {text}"
    if len(balanced) < _MANY:
        return list(out.items())
    together = (
        f"{join([context.title(m) for m in balanced])}: balanced; mean confidence and accuracy "
        f"differ by less than {BALANCED_GAP:g} over all voxels."
    )
    return [*((m, text) for m, text in out.items() if m not in balanced), ("", together)]


def _gaps(context: Context, method: str, region: str) -> dict[str, list[float]]:
    """Title of each dataset -> the gap of each seed."""
    found = {d.title: context.aggregates.gaps(d.name, method, region) for d in context.datasets}
    return {title: gaps for title, gaps in found.items() if gaps}


def describe_gaps(gaps: dict[str, list[float]], region: str) -> str:
    """The verdict for gaps (dataset -> one per seed) in a region, with their size."""
    found = {verdict(each) for each in gaps.values()}
    where = "over all voxels" if region == DECISIVE else f"in region “{region}”"
    if found == {"balanced"}:
        return (
            f"balanced; mean confidence and accuracy differ by less than {BALANCED_GAP:g} {where}."
        )
    if len(found) == 1 and found != {"mixed"}:
        amounts = join([
            f"{abs(_mean(each)):.3f}" + (f" ({title})" if len(gaps) > 1 else "")
            for title, each in gaps.items()
        ])  # fmt: skip
        relation = "above" if found == {"over-confident"} else "below"
        return f"{found.pop()}; mean confidence is {amounts} {relation} accuracy {where}."
    parts = [
        _disagreement(each, title if len(gaps) > 1 else "")
        if verdict(each) == "mixed"
        else f"{verdict(each)} on {title} ({signed(_mean(each))})"
        for title, each in gaps.items()
    ]
    open_question = " Seeds disagree: no verdict." if found == {"mixed"} else ""
    return f"{join(parts)}; mean confidence minus accuracy {where}.{open_question}"


def _disagreement(gaps: list[float], title: str) -> str:
    """How many seeds have which verdict."""
    found = [confidence_verdict(gap) for gap in gaps]
    counts = [f"{each} with {found.count(each)}" for each in dict.fromkeys(found)]
    dataset = f" on {title}" if title else ""
    span = f"{signed(min(gaps))} to {signed(max(gaps))}"
    return f"{join(counts)} of {len(gaps)} seeds{dataset} ({span})"


def _in_region(here: dict[str, list[float]], decisive: dict[str, list[float]], region: str) -> str:
    """The gap in another region, and whether its verdict differs."""
    shown = [
        signed(_mean(gaps)) + (f" ({title})" if len(here) > 1 else "")
        for title, gaps in here.items()
    ]
    out = f"Region “{region}”: {join(shown)}"
    other = [t for t, gaps in here.items() if verdict(gaps) != verdict(decisive.get(t, []))]
    if other:
        on = f" on {join(other)}" if len(here) > 1 else ""
        out += f"; another verdict{on}, but this region is selected by the truth"
    return f"{out}."


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
