"""Over- and under-confidence in plain words."""

import math

from segcal.report.numbers import Numbers
from segcal.report.phrases import join, signed
from segcal.report.tables import SMALL_GAP, gap_word

FOREGROUND = (
    "Region “foreground” keeps only voxels whose true label is foreground, as the papers do. That "
    "conditions on the truth: every voxel kept is organ, so a perfectly calibrated network need "
    "not score 0 there; mostly it looks under-confident. “union” and “boundary” choose voxels by "
    "the truth too. Use them to compare methods on the same cases; whether one is calibrated is "
    "said by region “all”, where easy background makes all errors small."
)
DECIDES = "all"
# Calibrated methods that are balanced are said in one sentence from this number on.
_MANY = 3


def confidence_words(numbers: Numbers, region: str) -> list[tuple[str, str]]:
    """(method, sentences): over- or under-confidence of each method; "" for several together.

    Region "all" decides wherever it was measured, since the others choose voxels by the truth; the
    gap in `region` is said beside it.
    """
    study, repaired = numbers.study, []
    out: list[tuple[str, str]] = []
    for method in study.methods.values():
        everywhere = _gaps(numbers, method.name, DECIDES)
        here = _gaps(numbers, method.name, region)
        if everywhere:
            if method.group == "posthoc" and _verdicts(everywhere) == {"balanced"}:
                repaired.append(len(out))
            more = _beside(here, everywhere, region) if region != DECIDES else ""
            text = gap_sentence(everywhere, DECIDES) + more
        elif here:
            text = (
                f"{gap_sentence(here, region)} That region cannot say whether a network is "
                "calibrated, and region “all” was not measured."
            )
        else:
            continue
        out.append((method.name, f"{method.title} {text}"))
    if len(repaired) < _MANY:
        return out
    titles = [study.methods[out[i][0]].title for i in repaired]
    together = (
        f"{join(titles)} are balanced: mean confidence and accuracy differ by less than "
        f"{SMALL_GAP:g} over all voxels."
    )
    return [*(each for i, each in enumerate(out) if i not in repaired), ("", together)]


def _verdicts(gaps: dict[str, list[float]]) -> set[str]:
    """What the datasets call a method."""
    return {verdict(each) for each in gaps.values()}


def _gaps(numbers: Numbers, method: str, region: str) -> dict[str, list[float]]:
    """Title of each dataset -> the gap of each seed."""
    found = {
        dataset.title: numbers.gaps(dataset.name, method, region)
        for dataset in numbers.study.datasets.values()
    }
    return {title: gaps for title, gaps in found.items() if gaps}


def verdict(gaps: list[float]) -> str:
    """What all seeds are called, or "mixed": opposite errors of two seeds are no balance.

    Example:
        >>> verdict([0.002, -0.004]), verdict([0.3, 0.2]), verdict([0.3, -0.3])
        ('balanced', 'over-confident', 'mixed')
    """
    words = {gap_word(gap) for gap in gaps}
    return words.pop() if len(words) == 1 else "mixed"


def gap_sentence(gaps: dict[str, list[float]], region: str) -> str:
    """What is said of a method with these gaps (dataset -> one of each seed) in a region."""
    words = _verdicts(gaps)
    where = "over all voxels" if region == DECIDES else f"in region “{region}”"
    if words == {"balanced"}:
        return (
            f"is balanced: mean confidence and accuracy differ by less than {SMALL_GAP:g} {where}. "
            "Errors may still cancel; see its ECE."
        )
    if len(words) == 1 and words != {"mixed"}:
        verb = "exceeds" if words == {"over-confident"} else "stays below"
        amounts = [
            f"{abs(_mean(each)):.3f}" + (f" ({title})" if len(gaps) > 1 else "")
            for title, each in gaps.items()
        ]
        return f"is {words.pop()}: mean confidence {verb} accuracy by {join(amounts)} {where}."
    parts = [
        _mixed(each, title if len(gaps) > 1 else "")
        if verdict(each) == "mixed"
        else f"{verdict(each)} on {title} ({signed(_mean(each))})"
        for title, each in gaps.items()
    ]
    unsure = " Its seeds disagree: no verdict." if words == {"mixed"} else ""
    return f"is {join(parts)}: mean confidence minus accuracy {where}.{unsure}"


def _mixed(gaps: list[float], title: str) -> str:
    """Seeds that disagree: how many are called what."""
    words = [gap_word(gap) for gap in gaps]
    counts = [f"{word} with {words.count(word)}" for word in dict.fromkeys(words)]
    on = f" on {title}" if title else ""
    span = f"{signed(min(gaps))} to {signed(max(gaps))}"
    return f"{join(counts)} of {len(gaps)} seeds{on} ({span})"


def _beside(here: dict[str, list[float]], everywhere: dict[str, list[float]], region: str) -> str:
    """The gap in the region of the tables, and whether it would have been called otherwise."""
    shown = [
        signed(_mean(gaps)) + (f" ({title})" if len(here) > 1 else "")
        for title, gaps in here.items()
    ]
    if not shown:
        return ""
    other = [t for t, gaps in here.items() if verdict(gaps) != verdict(everywhere.get(t, []))]
    out = f" In region “{region}”: {join(shown)}"
    if other:
        on = f" on {join(other)}" if len(here) > 1 else ""
        out += f"; the regions disagree{on}, and this one is chosen by the truth"
    return f"{out}."


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
