"""Verdicts over held-out cases: intervals, patients, words."""

import numpy as np
import pytest

from segcal.evaluation.posthoc_verdict import METRICS, Verdict, paired_change


def test_verdicts() -> None:
    def verdict(ece: float, nll: float) -> Verdict:
        rng = np.random.default_rng(0)
        start = rng.random(12)
        noise = rng.normal(size=12) * 0.02
        changes = [
            paired_change("all", "ece", start, start + ece + noise),
            paired_change("all", "nll", start, start + nll + noise),
        ]
        return Verdict("all", tuple(changes), 0, 1)

    assert verdict(-0.2, -0.2).helped == "yes"
    assert verdict(-0.2, 0.0).helped == "partly"
    assert verdict(-0.2, 0.2).helped == "partly"
    assert verdict(0.0, 0.0).helped == "no"
    assert verdict(0.2, 0.0).helped == "harmed"
    change = paired_change("all", "ece", [0.5, np.nan], [0.1, 0.2])
    assert (change.cases, change.units, change.direction) == (1, 1, "too few")
    empty = paired_change("all", "ece", [np.nan], [np.nan])
    assert (empty.cases, empty.direction) == (0, "unclear")
    nothing = Verdict(
        "all", (*[paired_change("all", m, [1] * 6, [0] * 6) for m in METRICS], empty), 0, 1
    )
    assert nothing.helped == "yes"


def test_the_summary_states_the_region_of_the_audit() -> None:
    """It differs from the verdict: over all voxels ECE is unchanged, in `predicted` it is lower."""
    same, ones = [0.1] * 6, [1.0] * 6
    changes = [paired_change("all", metric, same, same) for metric in METRICS]
    audited = paired_change("predicted", "ece", ones, [0.25] * 6)
    verdict = Verdict("all", (*changes, audited), 0, 1)
    assert verdict.helped == "no"
    assert verdict.summary().count(str(audited)) == 1
    assert "predicted" not in Verdict("all", tuple(changes), 0, 1).summary()
    empty = paired_change("predicted", "ece", [np.nan], [np.nan])
    assert "predicted" not in Verdict("all", (*changes, empty), 0, 1).summary()
    fitted = paired_change("predicted", "nll", ones, [0.25] * 6)
    assert Verdict("predicted", (audited, fitted), 0, 1).summary().count(str(audited)) == 1


def test_it_helped_only_partly_where_the_audited_region_became_worse() -> None:
    ones, less = [1.0] * 6, [0.5] * 6
    fitted = [paired_change("all", metric, ones, less) for metric in METRICS]
    for other, helped in ((less, "yes"), (ones, "yes"), ([1.5] * 6, "partly")):
        verdict = Verdict("all", (*fitted, paired_change("predicted", "ece", ones, other)), 0, 1)
        assert verdict.helped == helped


def test_the_interval_is_students_t() -> None:
    from scipy.stats import ttest_rel

    rng = np.random.default_rng(0)
    before, after = rng.random(9), rng.random(9)
    found = paired_change("all", "ece", before, after)
    low, high = ttest_rel(after, before).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_cases_of_one_patient_count_once() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.random(12), rng.random(12)
    alone = paired_change("all", "ece", before, after)
    copies = paired_change(
        "all", "ece", np.tile(before, 5), np.tile(after, 5), units=np.tile(range(12), 5).tolist()
    )
    assert (copies.cases, copies.units) == (60, 12)
    assert (copies.low, copies.high) == pytest.approx((alone.low, alone.high))
    assert paired_change("all", "ece", np.tile(before, 5), np.tile(after, 5)).high < alone.high
    changes = [
        paired_change("all", m, [1] * 12, [0] * 12, units=[*range(6)] * 2) for m in ("ece", "nll")
    ]
    verdict = Verdict("all", tuple(changes), 0, 1, "patients")
    assert verdict.helped == "yes"
    assert "6 patients, 12 cases" in verdict.summary()


@pytest.mark.parametrize(("patients", "each"), [(2, 1), (3, 4), (6, 1), (10, 10), (20, 1)])
def test_false_positive_rate(patients: int, each: int) -> None:
    """Cases of a patient are much alike; the verdict may be wrong in one of twenty."""
    rng = np.random.default_rng(0)
    units = np.repeat(range(patients), each).tolist()
    wrong = 0
    for _ in range(400):
        after = np.repeat(rng.normal(size=patients), each) + 0.1 * rng.normal(size=len(units))
        change = paired_change("all", "ece", np.zeros(len(units)), after, units=units)
        wrong += change.direction in ("better", "worse")
    assert wrong <= 0.085 * 400
    assert (wrong > 0) == (patients >= 6)
