"""Calibration after training, and against known true probabilities."""

import math

from segcal.report.context import Context
from segcal.report.text import join


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
        true = [context.aggregates.overall(dataset.name, m, "truth_ece").mean for m in methods]
        if len(methods) < 2 or any(map(math.isnan, true)):
            continue
        best = context.title(methods[true.index(min(true))])
        text = (
            f"{dataset.title}: best calibrated against the true probabilities is {best} (ECE "
            f"{min(true):.3f} over all voxels)"
        )
        agreements = []
        for region in dict.fromkeys((context.region, "all")):
            here = [
                context.aggregates.overall(dataset.name, m, "ece", region).mean for m in methods
            ]
            if len(methods) > 3 and not any(map(math.isnan, here)):
                correlation = spearmanr(true, here)[0]
                agreements.append(f"{correlation:.2f} with ECE in region “{region}”")
        if agreements:
            text += f"; rank correlation {join(agreements)}"
        out.append(f"{text}.")
    return out
