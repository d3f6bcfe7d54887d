"""Metrics of sigmoid heads: hand-worked values, and the same as a problem of two classes each."""

import math

import numpy as np
import pytest

from segcal.metrics import CaseResult, evaluate_case, evaluate_heads, pool_cases

HEADS = {"whole": (1, 2), "core": (2,)}
# Voxels: label 1, label 2, background, ignored.
PROBS = np.array([[0.9, 0.4, 0.3, 7.0], [0.2, 0.7, 0.8, 7.0]])
PROBS[:, 3] = 0.5
TARGET = np.array([1, 2, 0, -100])


def values(result: CaseResult, metric: str, region: str = "all") -> dict[str, float]:
    return {
        row.label: row.value for row in result.rows if row.metric == metric and row.region == region
    }


@pytest.fixture(scope="module")
def result() -> CaseResult:
    return evaluate_heads(PROBS, TARGET, 1.0, heads=HEADS, case="a")


def test_hand_worked_values(result: CaseResult) -> None:
    # whole: right with .9, wrong with .6, right with .7. core: right with .8 and .7, wrong with .8.
    assert values(result, "ece") == pytest.approx({
        "whole": (0.1 + 0.6 + 0.3) / 3,
        # .8, right once of twice, and .7, right: |1 − 1.6| + .3
        "core": (abs(1 - 1.6) + 0.3) / 3,
    })  # fmt: skip
    assert values(result, "nll") == pytest.approx({
        "whole": -(math.log(0.9) + math.log(0.4) + math.log(0.7)) / 3,
        "core": -(math.log(0.8) + math.log(0.7) + math.log(0.2)) / 3,
    })  # fmt: skip
    # As of any two classes, both of which count.
    assert values(result, "brier") == pytest.approx({
        "whole": 2 * (0.01 + 0.36 + 0.09) / 3, "core": 2 * (0.04 + 0.09 + 0.64) / 3,
    })  # fmt: skip
    assert values(result, "signed_gap") == pytest.approx({
        "whole": (0.9 + 0.6 + 0.7 - 2) / 3, "core": (0.8 + 0.7 + 0.8 - 2) / 3,
    })  # fmt: skip
    assert values(result, "dsc") == pytest.approx({"whole": 2 / 3, "core": 2 / 3})


def test_regions_are_those_of_the_head(result: CaseResult) -> None:
    # whole is predicted at the first voxel only, core at the second and third.
    assert values(result, "ece", "predicted") == pytest.approx(
        {"whole": 0.1, "core": (0.3 + 0.8) / 2}
    )
    # The true core is one voxel, the true whole two.
    assert values(result, "mean_confidence", "foreground") == pytest.approx(
        {"whole": (0.9 + 0.6) / 2, "core": 0.7}
    )


def test_class_rows_are_of_the_inside(result: CaseResult) -> None:
    found = values(result, "class_signed_gap")
    assert found == pytest.approx({"1": (1.6 - 2) / 3, "2": (1.7 - 1) / 3})


def test_statistics_of_all_heads(result: CaseResult) -> None:
    bins = result.statistics["all"].bins
    assert bins.voxels == 6
    assert bins.class_count.sum(1).tolist() == [6, 3, 3]  # outside of both, inside of each
    assert bins.class_confidence.sum(1) == pytest.approx([6 - 3.3, 1.6, 1.7])
    assert bins.top_accuracy.sum() == 4
    assert result.levels is not None
    assert result.levels.level_count.sum(1).tolist() == [3, 1, 2]


def test_each_head_is_a_case_of_two_classes() -> None:
    rng = np.random.default_rng(0)
    probs, target = rng.random((2, 6, 7, 8)), rng.integers(0, 3, (6, 7, 8))
    raters = {"r": rng.integers(0, 3, (6, 7, 8))}
    members = rng.random((3, 2, 6, 7, 8)) > 0.5
    spacing = (2.0, 1.0, 1.0)
    found = evaluate_heads(
        probs, target, spacing, heads=HEADS, case="a", raters=raters, members=members
    )
    for k, (name, labels) in enumerate(HEADS.items()):
        alone = evaluate_case(
            np.stack([1 - probs[k], probs[k]]), np.isin(target, labels).astype(int), spacing,
            groups={name: (1,)}, case="a",
            raters={"r": np.isin(raters["r"], labels).astype(int)},
            members=members[:, k].astype(int),
        )  # fmt: skip
        label = {"all": name, "1": str(k + 1), name: name, f"{name}/r": f"{name}/r"}
        wanted = {
            (label[r.label], r.region, r.metric): r.value for r in alone.rows if r.label in label
        }
        own = {
            (r.label, r.region, r.metric): r.value for r in found.rows if r.label in label.values()
        }
        assert own.keys() == wanted.keys()
        np.testing.assert_equal([own[key] for key in wanted], list(wanted.values()))
    assert {"pairwise_dice", "reader_nll"} <= {row.metric for row in found.rows}


def test_a_reader_who_did_not_judge_is_not_a_reader_who_saw_nothing() -> None:
    probs, target = PROBS[:, :3], TARGET[:3]
    raters = {"a": target, "b": np.full(3, 255)}
    found = evaluate_heads(
        probs, target, 1.0, heads=HEADS, case="a", raters=raters, ignore_index=255
    )
    alone = evaluate_heads(
        probs, target, 1.0, heads=HEADS, case="a", raters={"a": target}, ignore_index=255
    )
    assert values(found, "reader_brier") == values(alone, "reader_brier")
    assert np.isnan(values(found, "reader_dsc")["whole/b"])


def test_pooled_rows_have_the_weight_of_voxels() -> None:
    rng = np.random.default_rng(1)
    probs, target = rng.random((2, 40)), rng.integers(0, 3, 40)
    cuts = [slice(0, 10), slice(10, 40)]
    parts = [
        evaluate_heads(probs[:, cut], target[cut], 1.0, heads=HEADS, case=str(cut.start))
        for cut in cuts
    ]
    whole = evaluate_heads(probs, target, 1.0, heads=HEADS, case="pooled")
    pooled = CaseResult(pool_cases(parts), {})
    for metric in ("ece", "nll", "class_ece"):
        assert values(pooled, metric) == pytest.approx(values(whole, metric))


def test_another_number_of_maps_is_named() -> None:
    with pytest.raises(ValueError, match=r"2 maps \(whole, core\), but got 3"):
        evaluate_heads(np.zeros((3, 4)), np.zeros(4, int), 1.0, heads=HEADS, case="a")
