"""Patients instead of cases."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import wilcoxon

from segcal.stats import (
    by_patient,
    collect,
    compare,
    mean_case_rank,
    patients_of,
    sum_rank,
)


def scores_of(values: dict[str, dict[str, float]], metric: str = "dsc"):
    rows = [
        ("d", method, case, "1", "all", metric, value)
        for method, each in values.items()
        for case, value in each.items()
    ]
    columns = ["dataset", "method", "case", "label", "region", "metric", "value"]
    return collect(
        pd.DataFrame(rows, columns=columns), metrics=metric, region="all", missing="worst"
    )


def test_each_patient_has_the_mean_of_its_cases() -> None:
    # Patient 1 has three cases in which a wins; patients 2 and 3 have one each, which it loses.
    a = {"p1_a": 0.9, "p1_b": 0.8, "p1_c": 0.7, "p2_a": 0.5, "p3_a": 0.4}
    b = {"p1_a": 0.8, "p1_b": 0.7, "p1_c": 0.6, "p2_a": 0.6, "p3_a": 0.5}
    scores = scores_of({"a": a, "b": b})
    assert mean_case_rank(scores)["method"][0] == "a"
    found = by_patient(scores, {"d": patients_of(scores.cases["d"], r"p\d")})
    assert found.cases == {"d": ["p1", "p2", "p3"]}
    np.testing.assert_allclose(found.values["d"][:, :, 0], [[0.8, 0.7], [0.5, 0.6], [0.4, 0.5]])
    np.testing.assert_allclose(found.costs["d"], -found.values["d"])
    ranks = mean_case_rank(found)
    assert ranks["method"].tolist() == ["b", "a"]
    np.testing.assert_allclose(ranks["mean_case_rank"], [4 / 3, 5 / 3])
    # The mean over all cases is a's (.66 to .64), that over patients b's (.567 to .6).
    assert sum_rank(scores)["method"][0] == "a"
    assert sum_rank(found)["method"][0] == "b"


def test_tests_count_patients() -> None:
    rng = np.random.default_rng(0)
    cases = [f"p{i // 2:02d}_{i % 2}" for i in range(20)]
    a, b = (dict(zip(cases, rng.random(20), strict=True)) for _ in range(2))
    scores = by_patient(scores_of({"a": a, "b": b}), {"d": patients_of(cases, r"(p\d+)_")})
    (row,) = compare(scores).to_dict("records")
    difference = np.array([a[c] - b[c] for c in cases]).reshape(10, 2).mean(1)
    assert row["cases"] == 10
    assert row["mean_difference"] == pytest.approx(difference.mean())
    assert row["p_value"] == pytest.approx(wilcoxon(difference).pvalue)


def test_signed_errors_of_one_patient_do_not_cancel_in_its_cost() -> None:
    scores = scores_of({"a": {"p1_a": 0.2, "p1_b": -0.2}}, metric="signed_gap")
    found = by_patient(scores, {"d": {"p1_a": "p1", "p1_b": "p1"}})
    assert found.values["d"].item() == pytest.approx(0.0)
    assert found.costs["d"].item() == pytest.approx(0.2)


def test_unnamed_cases_stay_alone_and_undefined_values_are_skipped() -> None:
    scores = scores_of({"a": {"x": 0.5, "y": 0.7, "z": 0.1}, "b": {"x": 0.6, "y": 0.8, "z": 0.2}})
    scores.values["d"][0] = scores.costs["d"][0] = np.nan  # no method has a value of x
    found = by_patient(scores, {"d": {"x": "p", "y": "p"}})
    assert found.cases["d"] == ["p", "z"]
    np.testing.assert_allclose(found.values["d"][:, :, 0], [[0.7, 0.8], [0.1, 0.2]])
    alone = by_patient(scores, {})
    assert alone.cases == scores.cases
    assert np.isnan(alone.values["d"][0]).all()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("(", r"'\(' is not a regular expression"), ("s", "'s' does not match case 'p1_a'")],
)
def test_wrong_patterns(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        patients_of(["p1_a"], pattern)


def test_a_group_that_took_no_part_names_the_pattern() -> None:
    with pytest.raises(ValueError, match="matches an empty name in case 'case7'"):
        patients_of(["case7"], r"(p\d+)?")


def test_messages_show_the_pattern_as_it_was_typed() -> None:
    for pattern, problem in ((r"p\d+", "does not match"), (r"(\d+", "is not a regular expression")):
        with pytest.raises(ValueError, match=problem) as error:
            patients_of(["case"], pattern)
        assert f"'{pattern}'" in str(error.value)
