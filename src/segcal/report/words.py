"""The findings in plain words. Every sentence says a number and where it was measured."""

import math

from segcal.metrics import base_metric, better_direction, is_per_structure
from segcal.report.numbers import Numbers
from segcal.report.phrases import join
from segcal.report.ranks import ALPHA, FEW_CASES, MISSING, Ranks, least_p
from segcal.report.reference import place_words
from segcal.report.seeds import Counted, seed_words
from segcal.report.table import metric_column
from segcal.stats import distinct_hypotheses


def findings(
    numbers: Numbers, ranks: Ranks | None, region: str, counted: Counted | None = None
) -> list[str]:
    """The key findings, most important first."""
    out = [*_winner(numbers, ranks), *_best_of_datasets(numbers, region)]
    out.append(place_words(numbers.study, ranks))
    if ranks is not None:
        out.append(_significance(numbers, ranks))
    if counted:
        out.append(seed_words(numbers, counted))
    out += _shared(numbers)
    out += [*_after_training(numbers, region), *_truth(numbers, region)]
    out += [*_failures(numbers), *_breakdowns(numbers)]
    return [sentence for sentence in out if sentence]


def _title(numbers: Numbers, method: str) -> str:
    return numbers.study.methods[method].title


def _winner(numbers: Numbers, ranks: Ranks | None) -> list[str]:
    if ranks is None:
        return []
    sums = ranks.sums
    first = sums[sums["sum_rank"] == sums["sum_rank"].min()]
    names = join([_title(numbers, m) for m in first["method"]])
    interval = ranks.intervals[ranks.intervals["method"] == ranks.best]
    low, high = (float(interval[f"sum_rank_{end}"].iloc[0]) for end in ("low", "high"))
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
    for dataset in study.datasets.values():
        parts = []
        for metric in study.metrics:
            if base_metric(metric) not in ("dsc", "ece"):
                continue
            digits = metric_column(metric).digits
            values = {
                m: round(numbers.overall(dataset.name, m, metric, region).mean, digits)
                for m in study.compared
            }
            known = {m: v for m, v in values.items() if not math.isnan(v)}
            where = "" if is_per_structure(metric) else f" in region “{region}”"
            if len(known) > 1:
                parts.append(_extremes(numbers, known, metric, where))
            elif len(values) == len(known) == 1:
                ((method, value),) = known.items()
                who = "" if parts else f"{_title(numbers, method)} has "
                parts.append(f"{who}{metric_column(metric).title} {value:.{digits}f}{where}")
        if parts:
            out.append(f"{dataset.title}: {'; '.join(parts)}.")
    return out


def _extremes(numbers: Numbers, values: dict[str, float], metric: str, where: str) -> str:
    """The best and the worst of values as they are printed; those printed alike stand together."""
    pick = (max, min) if better_direction(metric) == "higher" else (min, max)
    best, worst = (choose(values.values()) for choose in pick)
    name = f"{metric_column(metric).title}{where}"
    if best == worst:
        who = "both" if len(values) == 2 else f"all {len(values)}"
        return f"{who} methods have the same {name}, {best:.3f}"
    first, last = (
        [_title(numbers, m) for m, v in values.items() if v == end] for end in (best, worst)
    )
    verb = "has" if len(first) == 1 else "share"
    return f"{join(first)} {verb} the best {name}, {best:.3f} (worst: {join(last)}, {worst:.3f})"


def _shared(numbers: Numbers) -> list[str]:
    """Which datasets have cases that only some methods were tested on."""
    study, out = numbers.study, []
    for dataset in study.datasets.values():
        there = [m for m in study.methods if (dataset.name, m) in study.present]
        shared, total = numbers.shared_cases(dataset.name, there)
        if shared == total:
            continue
        text = f"{dataset.title}: {shared or 'none'} of {total} cases {_was(shared)} tested by "
        text += f"all {len(there)} methods, so that their means are not of the same cases"
        ranked, cases = numbers.shared_cases(dataset.name, study.compared)
        if not ranked:
            text += "; without a common case methods are neither ranked nor tested on it"
        elif ranked < cases:
            text += "; rankings and tests give a case that a method lacks the worst value of any"
        out.append(f"{text}.")
    return out


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _significance(numbers: Numbers, ranks: Ranks) -> str:
    tests, reference = ranks.tests, ranks.reference
    mine = distinct_hypotheses(
        tests[(tests["method"] == reference) | (tests["other"] == reference)]
    )
    sure = mine[mine["p_holm"] < ALPHA]
    won = int((sure["better"] == reference).sum())
    least = max(least_p(ranks).values())
    others, sets = len(ranks.scores.methods) - 1, len(ranks.datasets)
    out = (
        f"Of the {len(mine)} paired comparisons of {_title(numbers, reference)} with the other "
        f"methods ({others} method{'s' * (others > 1)}, {sets} dataset{'s' * (sets > 1)}, "
        f"{len(ranks.scores.metrics)} metrics), "
        f"{won} remain significant in its favour and {len(sure) - won} against it (Wilcoxon over "
        f"cases, Holm over all {ranks.family} tests, α = {ALPHA:g})."
    )
    if least * ranks.family > ALPHA:
        few = join([
            f"{len(c)} cases of {numbers.study.datasets[d].title}"
            for d, c in ranks.scores.cases.items()
            if least_p(ranks)[d] * ranks.family > ALPHA
        ])  # fmt: skip
        out += (
            f" With {few} the exact test gives no p-value below {least:.2g}, so that after "
            "correction hardly any difference there can be significant: more cases are needed."
        )
    return out


def _after_training(numbers: Numbers, region: str) -> list[str]:
    """What calibrators did to the ECE of each dataset, by the digits that are printed."""
    study, out = numbers.study, []
    for dataset in study.datasets.values():
        changes: dict[str, list[str]] = {"lower": [], "the same": [], "higher": []}
        for name in study.in_group("posthoc"):
            base = name.rsplit("+", 1)[0]
            if base == name or base not in study.methods:
                continue
            before = round(numbers.overall(dataset.name, base, "ece", region).mean, 3)
            after = round(numbers.overall(dataset.name, name, "ece", region).mean, 3)
            if math.isnan(before) or math.isnan(after):
                continue
            title = _title(numbers, name)
            if after == before:
                changes["the same"].append(f"{title} ({after:.3f})")
            else:
                how = "lower" if after < before else "higher"
                changes[how].append(f"{title} (from {before:.3f} to {after:.3f})")
        parts = [f"ECE is {how} after {join(which)}" for how, which in changes.items() if which]
        if parts:
            out.append(f"{dataset.title}, region “{region}”: {'; '.join(parts)}.")
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
            text += f"; the order of the methods has a rank correlation of {join(agreements)}"
        out.append(f"{text}.")
    return out


def _failures(numbers: Numbers) -> list[str]:
    failed = numbers.study.failed
    if not failed:
        return []
    total = len(numbers.study.info.runs)
    return [
        f"{len(failed)} of {total} runs did not finish ({join([r.run for r in failed[:3]])}"
        f"{', …' if len(failed) > 3 else ''}); their numbers rest on the other seeds, or are "
        "missing."
    ]


def _breakdowns(numbers: Numbers) -> list[str]:
    """Which trainings lost again what they had learnt: their seeds say less of the method."""
    return [*_broken_runs(numbers), *_broken_candidates(numbers)]


def _broken_candidates(numbers: Numbers) -> list[str]:
    tried = [one for method in numbers.study.info.methods for one in method.chosen_from]
    trained = [training for one in tried for training in one.trainings]
    broken = [training for training in trained if training.broke_down]
    if not broken:
        return []
    best = all(training.tested == training.best_epoch for training in broken)
    judged = "what they had reached before" if best else "what was left"
    return [
        f"Options were chosen by {len(trained)} trainings, {len(broken)} of which broke down and "
        f"were judged by {judged}: see “What was run”. The choice says less of these options."
    ]


def _broken_runs(numbers: Numbers) -> list[str]:
    trained = [(run.run, run.training) for run in numbers.study.info.runs if run.training]
    broken = [(name, training) for name, training in trained if training.broke_down]
    if not broken:
        return []
    each = [
        f"{name} ({training.best_dsc:.3f} in epoch {training.best_epoch}, "
        f"{training.last_dsc:.3f} in epoch {training.epochs})"
        for name, training in broken
    ]
    best = all(training.tested == training.best_epoch for _, training in broken)
    tested = "the best checkpoint, from before" if best else "the last checkpoint"
    return [
        f"{len(broken)} of {len(trained)} trainings broke down: at the end validation DSC was more "
        f"than a tenth below its best. Tested is {tested}: {join(each)}."
    ]


def ranking_note(ranks: Ranks, numbers: Numbers) -> str:
    """What the rankings rest on."""
    out = (
        f"Calibration in region “{ranks.region}”; seeds averaged per case; undefined values by "
        f"policy “{MISSING}”, {ranks.scores.total_undefined} of them: a missed structure gets the "
        "worst value that any method has; where nothing was there and nothing found it is left "
        "out, or the best where others raised a false alarm. Lower is better; "
    )
    if ranks.intervals["sum_rank_low"].isna().all():
        out += f"no intervals, because a dataset has fewer than {FEW_CASES} cases."
    else:
        out += "intervals are 95 % over resampled cases."
    if ranks.unpaired:
        names = join([numbers.study.datasets[d].title for d in ranks.unpaired])
        out += f" Left out, because no case was tested by all methods: {names}."
    if ranks.left_out:
        names = join([_title(numbers, m) for m in ranks.left_out])
        out += f" Not ranked, because a dataset has no finished run of them: {names}."
    return out
