"""The findings in plain words. Every sentence says a number and where it was measured."""

import math
from collections.abc import Sequence

from segcal.metrics.table import DIRECTIONS, SEGMENTATION, base_metric
from segcal.report.numbers import Numbers
from segcal.report.ranks import ALPHA, MISSING, Ranks, least_p
from segcal.report.table import metric_column
from segcal.report.tables import SMALL_GAP, gap_word

FOREGROUND = (
    "Region “foreground” keeps only voxels whose true label is foreground, as the papers do. That "
    "conditions on the truth: every voxel kept is organ, so a perfectly calibrated network does "
    "not score 0 there and looks under-confident. “union” and “boundary” choose voxels by the "
    "truth too. Use them to compare methods on the same cases; whether one is calibrated is said "
    "by region “all”, where easy background makes all errors small."
)


def findings(numbers: Numbers, ranks: Ranks | None, region: str) -> list[str]:
    """The key findings, most important first."""
    out = [*_winner(numbers, ranks), *_best_of_datasets(numbers, region)]
    if ranks is not None:
        out.append(_significance(numbers, ranks))
    out += [*_after_training(numbers, region), *_truth(numbers, region), *_failures(numbers)]
    return [sentence for sentence in out if sentence]


def _title(numbers: Numbers, method: str) -> str:
    return numbers.study.methods[method].title


def _list(words: Sequence[str]) -> str:
    """
    >>> _list(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _winner(numbers: Numbers, ranks: Ranks | None) -> list[str]:
    if ranks is None:
        return []
    sums = ranks.sums
    first = sums[sums["sum_rank"] == sums["sum_rank"].min()]
    names = _list([_title(numbers, m) for m in first["method"]])
    interval = ranks.intervals.set_index("method").loc[ranks.best]
    low, high = interval["sum_rank_low"], interval["sum_rank_high"]
    span = "" if math.isnan(low) else f"; 95 % interval over cases {low:g} to {high:g}"
    least = len(ranks.datasets) * len(ranks.scores.metrics)
    out = (
        f"{names} {'ranks' if len(first) == 1 else 'share the'} first"
        f"{'' if len(first) == 1 else ' place'} by sum-rank ({first['sum_rank'].iloc[0]:g}, where "
        f"{least} is the best possible and {least * len(sums)} the worst{span})"
    )
    by_case = ranks.cases.iloc[0]
    value = f"{by_case['mean_case_rank']:.2f} of {len(sums)} methods"
    if list(first["method"]) == [by_case["method"]]:
        out += f", and by mean-case-rank ({value})."
    else:
        out += f"; by mean-case-rank it is {_title(numbers, str(by_case['method']))} ({value})."
    return [out]


def _best_of_datasets(numbers: Numbers, region: str) -> list[str]:
    study, out = numbers.study, []
    methods = study.in_group("main", "posthoc") or list(study.methods)
    for dataset in study.datasets.values():
        parts = []
        for metric in study.metrics:
            if base_metric(metric) not in ("dsc", "ece"):
                continue
            sign = -1 if DIRECTIONS[base_metric(metric)] == "higher" else 1
            values = {m: numbers.overall(dataset.name, m, metric, region).mean for m in methods}
            known = {m: v for m, v in values.items() if not math.isnan(v)}
            if len(known) < 2:
                continue
            best = min(known, key=lambda m: sign * known[m])
            worst = max(known, key=lambda m: sign * known[m])
            where = "" if base_metric(metric) in SEGMENTATION else f" in region “{region}”"
            parts.append(
                f"{_title(numbers, best)} has the best {metric_column(metric).title}{where}, "
                f"{known[best]:.3f} (worst: {_title(numbers, worst)}, {known[worst]:.3f})"
            )
        if parts:
            out.append(f"{dataset.title}: {'; '.join(parts)}.")
    return out


def _significance(numbers: Numbers, ranks: Ranks) -> str:
    tests, best = ranks.tests, ranks.best
    mine = tests[(tests["method"] == best) | (tests["other"] == best)]
    sure = mine[mine["p_holm"] < ALPHA]
    won = int((sure["better"] == best).sum())
    least = max(least_p(ranks).values())
    out = (
        f"Of the {len(mine)} paired comparisons of {_title(numbers, best)} with the other methods "
        f"({len(ranks.scores.methods) - 1} methods, {len(ranks.datasets)} "
        f"dataset{'s' if len(ranks.datasets) > 1 else ''}, {len(ranks.scores.metrics)} metrics), "
        f"{won} remain significant in its favour and {len(sure) - won} against it (Wilcoxon over "
        f"cases, Holm over all {len(tests)} pairs, α = {ALPHA:g})."
    )
    if least * len(tests) > ALPHA:
        few = _list([
            f"{len(c)} cases of {numbers.study.datasets[d].title}"
            for d, c in ranks.scores.cases.items()
            if least_p(ranks)[d] * len(tests) > ALPHA
        ])  # fmt: skip
        out += (
            f" With {few} the exact test gives no p-value below {least:.2g}, so that after "
            "correction hardly any difference there can be significant: more cases are needed."
        )
    return out


def confidence_words(numbers: Numbers, region: str) -> list[tuple[str, str]]:
    """(method, sentence): over- or under-confidence of each method."""
    study, out = numbers.study, []
    for method in study.methods.values():
        gaps = {
            d.title: numbers.overall(d.name, method.name, "signed_gap", region).mean
            for d in study.datasets.values()
            if (d.name, method.name) in study.present
        }
        gaps = {title: gap for title, gap in gaps.items() if not math.isnan(gap)}
        if gaps:
            out.append((method.name, f"{method.title} {_gap_sentence(gaps, region)}"))
    return out


def _gap_sentence(gaps: dict[str, float], region: str) -> str:
    words = {gap_word(gap) for gap in gaps.values()}
    several = len(gaps) > 1
    if words == {"balanced"}:
        return (
            f"is balanced: mean confidence and accuracy differ by less than {SMALL_GAP:g} on "
            f"{region}. Errors may still cancel; see its ECE."
        )
    if len(words) == 1:
        verb = "exceeds" if words == {"over-confident"} else "stays below"
        amounts = [
            f"{abs(gap):.3f}" + (f" ({title})" if several else "") for title, gap in gaps.items()
        ]
        return (
            f"is {words.pop()}: mean confidence {verb} accuracy by {_list(amounts)} on {region}."
        )
    parts = [f"{gap_word(gap)} on {title} ({gap:+.3f})" for title, gap in gaps.items()]
    return f"is {_list(parts)}: mean confidence minus accuracy on {region}."


def _after_training(numbers: Numbers, region: str) -> list[str]:
    study, out = numbers.study, []
    for name in study.in_group("posthoc"):
        base = name.rsplit("+", 1)[0]
        if base == name or base not in study.methods:
            continue
        changes = []
        for dataset in study.datasets.values():
            before = numbers.overall(dataset.name, base, "ece", region).mean
            after = numbers.overall(dataset.name, name, "ece", region).mean
            if not math.isnan(before) and not math.isnan(after):
                verb = "lowers" if after < before else "raises"
                changes.append(
                    f"{verb} the ECE of {_title(numbers, base)} from {before:.3f} to {after:.3f} "
                    f"on {dataset.title}"
                )
        if changes:
            out.append(f"{_title(numbers, name)} {_list(changes)} (region “{region}”).")
    return out


def _truth(numbers: Numbers, region: str) -> list[str]:
    """Whether the region's ECE puts methods in the order that the true probabilities do."""
    from scipy.stats import spearmanr

    study, out = numbers.study, []
    for dataset in study.datasets.values():
        methods = [m for m in study.methods if (dataset.name, m) in study.present]
        true = [numbers.overall(dataset.name, m, "truth_ece", "all").mean for m in methods]
        if len(methods) < 2 or any(map(math.isnan, true)):
            continue
        best = methods[true.index(min(true))]
        text = (
            f"{dataset.title}: against the true probabilities {_title(numbers, best)} is the best "
            f"calibrated (ECE {min(true):.3f} over all voxels)"
        )
        agreements = []
        for where in dict.fromkeys((region, "all")):
            here = [numbers.overall(dataset.name, m, "ece", where).mean for m in methods]
            if len(methods) > 3 and not any(map(math.isnan, here)):
                agreements.append(f"{spearmanr(true, here)[0]:.2f} with ECE in region “{where}”")
        if agreements:
            text += f"; the order of the methods has a rank correlation of {_list(agreements)}"
        out.append(f"{text}.")
    return out


def _failures(numbers: Numbers) -> list[str]:
    failed = numbers.study.failed
    if not failed:
        return []
    total = len(numbers.study.info.runs)
    return [
        f"{len(failed)} of {total} runs did not finish ({_list([r.run for r in failed[:3]])}"
        f"{', …' if len(failed) > 3 else ''}); their numbers rest on the other seeds, or are "
        "missing."
    ]


def ranking_note(ranks: Ranks, numbers: Numbers) -> str:
    """What the rankings rest on."""
    out = (
        f"Calibration in region “{ranks.region}”; seeds averaged per case; undefined values by "
        f"policy “{MISSING}” (a missed structure gets the worst value that any method has), "
        f"{ranks.scores.total_undefined} of them. Lower is better; intervals are 95 % over "
        "resampled cases."
    )
    if ranks.left_out:
        names = _list([_title(numbers, m) for m in ranks.left_out])
        out += f" Not ranked, because a dataset has no finished run of them: {names}."
    return out
