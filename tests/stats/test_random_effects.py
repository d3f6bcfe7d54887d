"""Differences between methods once seeds and cases both count."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import f_oneway, t, ttest_1samp

from segcal.stats import (
    RandomEffectsTest,
    collect,
    compare,
    compare_with_random_effects,
    distinct_hypotheses,
    holm,
    two_way_random_effects,
)

RNG = np.random.default_rng(0)


def draw(
    seeds: int, cases: int, *, seed: float, case: float = 1.0, rest: float = 1.0, times: int = 1
) -> np.ndarray:
    """(times, seeds, cases) of no difference, from deviations of seeds, cases and the rest."""
    rng = np.random.default_rng([seeds, cases, round(100 * seed)])
    return np.asarray(
        seed * rng.normal(size=(times, seeds, 1))
        + case * rng.normal(size=(times, 1, cases))
        + rest * rng.normal(size=(times, seeds, cases))
    )


def test_by_hand() -> None:
    found = two_way_random_effects([[1, 2, 3], [3, 6, 3]])
    assert found.mean == 3
    # Seed means 2 and 4: 3·(1 + 1) = 6 over 1. Case means 2, 4, 3: 2·(1 + 1 + 0) = 4 over 2.
    # The rest: [[0, −1, 1], [0, 1, −1]], sum of squares 4 over 2.
    assert (found.seed_variance, found.case_variance, found.rest_variance) == (
        pytest.approx((6 - 2) / 3), 0, 2,
    )  # fmt: skip
    # (6 + 2 − 2) / 6 = 1; its freedom 6² / (6²/1 + 2²/2 + 2²/2) = 0.9, but never below 1 (seeds).
    assert found.freedom == 1
    assert found.seed_share == pytest.approx(4 / 6)
    assert found.high - found.mean == pytest.approx(t.ppf(0.975, 1))
    assert found.mean - found.low == pytest.approx(t.ppf(0.975, 1))
    assert found.p == pytest.approx(2 * t.sf(3, 1))
    assert (found.seeds, found.cases, found.left_out) == (2, 3, 0)


@pytest.mark.parametrize("shape", [(2, 7), (3, 20), (5, 4)])
def test_against_the_analysis_of_variance_outside(shape: tuple[int, int]) -> None:
    """scipy's one-way F gives the mean squares of seeds and of cases; least squares the rest."""
    d = draw(*shape, seed=2.0)[0] + 0.3
    seeds, cases = shape
    found = two_way_random_effects(d)
    within = d - d.mean(axis=1, keepdims=True)
    of_seed = f_oneway(*d).statistic * (within**2).sum() / (d.size - seeds)
    within = d - d.mean(axis=0)
    of_case = f_oneway(*d.T).statistic * (within**2).sum() / (d.size - cases)
    design = np.hstack([
        np.kron(np.eye(seeds), np.ones((cases, 1))), np.kron(np.ones((seeds, 1)), np.eye(cases))
    ])  # fmt: skip
    left = d.ravel() - design @ np.linalg.lstsq(design, d.ravel(), rcond=None)[0]
    free = (seeds - 1) * (cases - 1)
    of_rest = (left**2).sum() / free
    assert found.rest_variance == pytest.approx(of_rest)
    assert found.seed_variance == pytest.approx((of_seed - of_rest) / cases)
    assert found.case_variance == pytest.approx((of_case - of_rest) / seeds)
    total = of_seed + of_case - of_rest
    freedom = total**2 / (of_seed**2 / (seeds - 1) + of_case**2 / (cases - 1) + of_rest**2 / free)
    assert found.freedom == pytest.approx(freedom)
    half = t.ppf(0.975, freedom) * math.sqrt(total / d.size)
    assert (found.low, found.high) == pytest.approx((d.mean() - half, d.mean() + half))
    assert found.p == pytest.approx(2 * t.sf(abs(d.mean()) / math.sqrt(total / d.size), freedom))


@pytest.mark.parametrize(("seeds", "cases", "seed"), [(3, 20, 0.0), (3, 20, 0.7), (5, 30, 1.5)])
def test_no_difference_is_rarely_called_one(seeds: int, cases: int, seed: float) -> None:
    many = draw(seeds, cases, seed=seed, times=1000)
    found = [two_way_random_effects(d) for d in many]
    counted = np.mean([each.p < 0.05 for each in found])
    alone = np.mean([ttest_1samp(d.mean(axis=0), 0).pvalue < 0.05 for d in many])
    assert 0.01 < counted < 0.08
    assert alone > 0.2 if seed else alone < 0.08
    assert np.mean([each.low < 0 < each.high for each in found]) == pytest.approx(1 - counted)


@pytest.mark.parametrize("seeds", [2, 3])
def test_strict_holds_its_level_where_few_seeds_disagree(seeds: int) -> None:
    """Small p-values of few seeds are too small by far; a test over the means of seeds is not."""
    many = draw(seeds, 40, seed=1.0, times=1500)
    plain, strict = (
        np.array([two_way_random_effects(d, strict=how).p for d in many]) for how in (False, True)
    )
    assert (strict >= plain).all()
    assert np.mean(plain < 0.005) > 0.015
    assert np.mean(strict < 0.005) < 0.012
    assert np.mean(strict < 0.05) < 0.07
    d = many[0]
    over_means = ttest_1samp(d.mean(axis=1), 0)
    found, usual = two_way_random_effects(d, strict=True), two_way_random_effects(d)
    assert found.p == pytest.approx(max(over_means.pvalue, usual.p))
    low, high = over_means.confidence_interval()
    assert (found.low, found.high) == pytest.approx((min(low, usual.low), max(high, usual.high)))


def test_a_true_difference_is_found() -> None:
    many = draw(5, 30, seed=0.2, times=200) + 1.5
    assert np.mean([two_way_random_effects(d).p < 0.05 for d in many]) > 0.95


def test_more_cases_do_not_help_where_seeds_disagree() -> None:
    few, many = (two_way_random_effects(draw(3, cases, seed=3.0)[0]) for cases in (10, 1000))
    assert many.seed_share > 0.99
    assert many.high - many.low > 0.3 * (few.high - few.low)
    agreeing = two_way_random_effects(draw(3, 1000, seed=0.0)[0])
    assert agreeing.seed_share < 0.5
    assert agreeing.high - agreeing.low < 0.1 * (many.high - many.low)


def test_components_below_zero_are_zero_and_never_narrow_the_interval() -> None:
    d = np.array([[1.0, 2.0, 4.0, 3.0], [2.0, 1.0, 3.0, 4.0]])  # seed means are equal
    found = two_way_random_effects(d)
    assert found.seed_variance == 0
    assert found.seed_share == 0
    alone = ttest_1samp(d.mean(axis=0), 0)
    assert found.p >= alone.pvalue - 1e-12
    assert 1 <= found.freedom <= 3


def test_one_seed_counts_cases_alone_and_says_so() -> None:
    d = RNG.normal(0.3, 1, 12)
    found = two_way_random_effects(d[None])
    outside = ttest_1samp(d, 0)
    assert not found.counts_seeds
    assert (found.seeds, found.cases) == (1, 12)
    assert found.p == pytest.approx(outside.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(outside.confidence_interval()))
    assert math.isnan(found.seed_share)
    assert two_way_random_effects(np.stack([d, d + 1])).counts_seeds


def test_limits() -> None:
    one_case = two_way_random_effects([[1.0], [2.0]])
    assert one_case.mean == 1.5
    assert math.isnan(one_case.low)
    assert math.isnan(one_case.p)
    nothing = two_way_random_effects([[float("nan")], [1.0]])
    assert (nothing.cases, nothing.left_out) == (0, 1)
    assert math.isnan(nothing.mean)
    equal = two_way_random_effects([[0.1] * 3] * 2)
    assert equal.low == equal.high == pytest.approx(0.1)
    assert equal.p == 0
    assert math.isnan(equal.seed_share)
    assert two_way_random_effects(np.zeros((2, 3))).p == 1
    assert two_way_random_effects(np.zeros((1, 3))).p == 1
    # Equal in every case: only seeds differ, and a t test over seeds is what remains.
    d = np.array([[0.1], [0.2], [0.4]]) + np.zeros((3, 5))
    assert two_way_random_effects(d).p == pytest.approx(ttest_1samp([0.1, 0.2, 0.4], 0).pvalue)
    assert two_way_random_effects(d).seed_share == pytest.approx(1)


def test_cases_with_a_gap_are_left_out_and_counted() -> None:
    d = draw(3, 6, seed=1.0)[0]
    holed = np.insert(d, 2, [0.5, float("nan"), 9.0], axis=1)
    expected = vars(two_way_random_effects(d)) | {"left_out": 1}
    assert two_way_random_effects(holed) == RandomEffectsTest(**expected)


def test_confidence_is_of_the_interval() -> None:
    d = draw(3, 6, seed=1.0)[0]
    wide = two_way_random_effects(d, confidence=0.99)
    narrow = two_way_random_effects(d, confidence=0.5)
    assert wide.low < narrow.low < wide.mean < narrow.high < wide.high
    assert wide.p == narrow.p
    with pytest.raises(ValueError, match="`confidence`"):
        two_way_random_effects(d, confidence=1.5)
    with pytest.raises(ValueError, match=r"`differences` to have the shape \(seeds, cases\)"):
        two_way_random_effects([1.0, 2.0])


# Tables.


def make_table(**columns: object) -> pd.DataFrame:
    """Three methods, three seeds, six patients of two cases, one dataset, DSC and ECE."""
    rng = np.random.default_rng(3)
    patient, edge = rng.normal(size=6) / 20, {"a": 0.0, "b": 0.03, "c": 0.002}
    rows = [
        (m, s, "d", f"p{i}_{j}", f"p{i}", "1", region, metric,
         0.7 + sign * edge[m] + patient[i] + rng.normal() / 100)
        for m in edge for s in range(3) for i in range(6) for j in range(2)
        for metric, region, sign in (("dsc", "all", 1), ("ece", "foreground", -1))
    ]  # fmt: skip
    names = ["method", "seed", "dataset", "case", "patient", "label", "region", "metric", "value"]
    return pd.DataFrame(rows, columns=names).assign(**columns)


def by_hand(table: pd.DataFrame, method: str, other: str, unit: str, metric: str) -> np.ndarray:
    rows = table[table["metric"] == metric]
    each = rows.groupby(["method", "seed", unit])["value"].mean()
    return np.asarray((each[method] - each[other]).unstack(unit))


GAP = {"metrics": "signed_gap", "region": "foreground"}
OPTIONS = {"metrics": ["dsc", "ece"], "region": "foreground"}


def test_each_method_against_a_reference_with_patients_and_holm() -> None:
    table = make_table()
    out = compare_with_random_effects(table, reference="b", **OPTIONS)
    assert out[["metric", "method", "other"]].to_numpy().tolist() == [
        ["dsc", "b", "a"], ["dsc", "b", "c"], ["ece", "b", "a"], ["ece", "b", "c"],
    ]  # fmt: skip
    for _, row in out.iterrows():
        d = by_hand(table, "b", row["other"], "patient", row["metric"])
        expected = two_way_random_effects(d)
        assert row["mean_difference"] == pytest.approx(expected.mean)
        assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))
        assert (row["p_value"], row["seed_share"]) == pytest.approx(
            (expected.p, expected.seed_share)
        )
        assert row["p_cases"] == pytest.approx(ttest_1samp(d.mean(axis=0), 0).pvalue)
    assert out["p_holm"].tolist() == pytest.approx(holm(out["p_value"]).tolist())
    assert out["p_cases_holm"].tolist() == pytest.approx(holm(out["p_cases"]).tolist())
    assert out[["seeds", "cases", "left_out"]].drop_duplicates().to_numpy().tolist() == [[3, 6, 0]]
    assert out["region"].tolist() == ["all", "all", "foreground", "foreground"]
    assert out["better"].tolist() == ["b"] * 4


@pytest.mark.parametrize("reference", ["b", None])
def test_the_same_hypothesis_counts_once(reference: str | None) -> None:
    """`c2` has the masks of `c` and another confidence, as after a calibrator."""
    table = make_table()
    twin = table[table["method"] == "c"].assign(method="c2")
    twin["value"] += np.where(twin["metric"] == "ece", RNG.normal(size=len(twin)) / 50, 0.0)

    def over_cases(table: pd.DataFrame, reference: str | None, **options: object) -> pd.DataFrame:
        return compare(collect(table, **options), reference)

    for test in (compare_with_random_effects, over_cases):
        options = {"reference": reference, **OPTIONS}
        alone = test(table, **options)
        out = test(pd.concat([table, twin]), **options)
        assert len(distinct_hypotheses(alone)) == len(alone)
        pair = out[["method", "other"]].agg(set, axis=1)
        same = (out["metric"] == "dsc") & pair.apply(lambda both: "c2" in both)
        assert distinct_hypotheses(out).index.tolist() == out.index[~same].tolist()
        rest = out[~same]
        assert rest["p_holm"].tolist() == pytest.approx(holm(rest["p_value"]).tolist())
        for row in out[same].itertuples():
            if {row.method, row.other} == {"c", "c2"}:
                assert (row.p_value, row.p_holm, row.better) == (1, 1, "neither")
                continue
            original = (
                {"c2": "c"}.get(row.method, row.method),
                {"c2": "c"}.get(row.other, row.other),
            )
            found = out[(out["metric"] == "dsc") & (pair == set(original))]
            assert row.p_holm == found["p_holm"].item()


def test_every_argument_changes_the_table() -> None:
    table = make_table()
    base = compare_with_random_effects(table, **OPTIONS)
    assert base[["method", "other"]].to_numpy().tolist()[:3] == [["a", "b"], ["a", "c"], ["b", "c"]]
    assert len(compare_with_random_effects(table, **OPTIONS, reference="a")) == 4
    assert len(compare_with_random_effects(table, metrics="dsc")) == 3
    strict = compare_with_random_effects(table, **OPTIONS, strict=True)
    assert (strict["p_value"] >= base["p_value"]).all()
    assert (strict["p_value"] > base["p_value"]).any()
    assert strict["p_cases"].equals(base["p_cases"])
    narrow = compare_with_random_effects(table, **OPTIONS, confidence=0.5)
    assert (narrow["high"] - narrow["low"] < base["high"] - base["low"]).all()
    alone = compare_with_random_effects(table, **OPTIONS, patients={})
    assert set(alone["cases"]) == {12}
    assert set(base["cases"]) == {6}
    named = {"d": {f"p{i}_{j}": f"p{i}" for i in range(6) for j in range(2)}}
    from_names = compare_with_random_effects(
        table.drop(columns="patient"), **OPTIONS, patients=named
    )
    pd.testing.assert_frame_equal(from_names, base)
    pd.testing.assert_frame_equal(
        compare_with_random_effects(table.drop(columns="patient"), **OPTIONS), alone
    )
    with pytest.raises(ValueError, match="in region 'boundary'"):
        compare_with_random_effects(table, metrics=["dsc", "ece"], region="boundary")
    with pytest.raises(ValueError, match="`reference` to be one of 'a', 'b', 'c'"):
        compare_with_random_effects(table, **OPTIONS, reference="z")


def test_gaps_of_some_leave_the_case_and_gaps_of_all_the_label() -> None:
    table = make_table().query("metric == 'dsc'").assign(metric="hd95_mm")
    more = pd.concat([table, table.assign(label="2", value=table["value"] + 1)])
    whole = compare_with_random_effects(more, metrics="hd95", reference="a")
    absent = more.copy()
    absent.loc[(absent["label"] == "2") & (absent["case"] == "p0_0"), "value"] = float("inf")
    found = compare_with_random_effects(absent, metrics="hd95", reference="a")
    assert found["left_out"].tolist() == [0, 0]
    assert found["cases"].tolist() == [6, 6]
    missed = more.copy()
    where = (missed["label"] == "2") & (missed["case"] == "p0_0") & (missed["method"] == "b")
    missed.loc[where & (missed["seed"] == 1), "value"] = float("nan")
    found = compare_with_random_effects(missed, metrics="hd95", reference="a")
    assert found["left_out"].tolist() == [1, 0]
    assert found["cases"].tolist() == [6, 6]  # the other case of the patient speaks for it
    left = compare_with_random_effects(more[more["case"] != "p0_0"], metrics="hd95", reference="a")
    assert found["mean_difference"][0] == pytest.approx(left["mean_difference"][0])
    assert found["mean_difference"][0] != pytest.approx(whole["mean_difference"][0])


def test_a_seed_that_failed_everywhere_is_not_hidden() -> None:
    table = make_table().query("metric == 'dsc'").assign(metric="hd95_mm")
    table.loc[(table["method"] == "b") & (table["seed"] == 1), "value"] = float("nan")
    out = compare_with_random_effects(table, metrics="hd95", reference="a").set_index("other")
    assert out["left_out"].to_dict() == {"b": 12, "c": 0}
    assert math.isnan(out.loc["b", "mean_difference"])


def test_seeds_that_only_one_method_has_do_not_count() -> None:
    table = make_table()
    table = table[~((table["method"] == "c") & (table["seed"] > 0))]
    out = compare_with_random_effects(table, metrics="dsc", reference="a").set_index("other")
    assert out["seeds"].to_dict() == {"b": 3, "c": 1}
    assert math.isnan(out.loc["c", "p_holm"])
    assert out.loc["c", "p_value"] == out.loc["c", "p_cases"]
    assert out.loc["b", "p_holm"] == out.loc["b", "p_value"]  # a family of one
    plain = compare_with_random_effects(table.drop(columns="seed").drop_duplicates(
        ["method", "case", "metric"]), metrics="dsc", reference="a")  # fmt: skip
    assert set(plain["seeds"]) == {1}
    assert plain["p_holm"].isna().all()


def test_methods_without_a_common_case_have_no_difference() -> None:
    table = make_table()
    first = table["case"].isin(["p0_0", "p1_0", "p2_0"])
    table = table[(table["method"] == "a") == first]
    out = compare_with_random_effects(table, metrics="dsc", reference="a")
    assert out["mean_difference"].isna().all()
    assert out["better"].tolist() == ["neither", "neither"]
    assert out["cases"].tolist() == [0, 0]
    assert out["left_out"].tolist() == [12, 12]
    assert out["p_holm"].isna().all()


def test_nearer_to_zero_is_better_and_pooled_rows_and_duplicates_do_not_enter() -> None:
    table = make_table().query("metric == 'ece'").assign(metric="signed_gap")
    table.loc[table["method"] == "b", "value"] *= -1.2
    out = compare_with_random_effects(table, **GAP, reference="b").set_index("other")
    assert (out["mean_difference"] > 0).all()
    assert out["better"].to_dict() == {"a": "a", "c": "c"}
    pooled = table[table["case"] == "p0_0"].assign(case="pooled", patient="pooled", value=99.0)
    both = compare_with_random_effects(pd.concat([table, pooled]), **GAP, reference="b")
    pd.testing.assert_frame_equal(both.set_index("other"), out)
    with pytest.raises(ValueError, match="several rows have method"):
        compare_with_random_effects(pd.concat([table, table.head(1)]), **GAP)


def test_a_case_without_a_patient_is_refused() -> None:
    table = pd.DataFrame(
        [
            (m, s, "d", f"c{c}", "dsc", 0.5 + 0.01 * c, "p1" if c else None)
            for m in "ab" for s in (0, 1) for c in range(6)
        ],
        columns=["method", "seed", "dataset", "case", "metric", "value", "patient"],
    )  # fmt: skip
    with pytest.raises(ValueError, match="column `patient` is empty in row 1"):
        compare_with_random_effects(table, metrics="dsc", reference="a")
