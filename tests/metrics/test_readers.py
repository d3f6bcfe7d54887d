"""Several readers: hand-worked values, definitions computed in another way, and limits."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from segcal.core.arrays import label_shares
from segcal.data.case import majority
from segcal.data.phantom import PhantomSpec, make_case
from segcal.metrics import (
    CalibrationBins,
    CaseOptions,
    CaseResult,
    crps,
    energy_distance,
    evaluate_case,
    pool_cases,
    threshold_samples,
)

# Four voxels of 2 mm in 1-D, two classes. Reader c saw nothing; d judged nothing.
RATERS = {
    "a": np.array([1, 1, 1, 0]),
    "b": np.array([1, 1, 0, 0]),
    "c": np.array([0, 0, 0, 0]),
    "d": np.array([255, 255, 255, 255]),
}
INSIDE = np.array([0.9, 0.6, 0.4, 0.0])
PROBS = np.stack([1 - INSIDE, INSIDE])
TARGET = np.array([1, 1, 0, 0])


def values(result: CaseResult, metric: str, region: str = "all") -> dict[str, float]:
    rows = [r for r in result.rows if (r.metric, r.region) == (metric, region)]
    return {row.label: row.value for row in rows}


def measure(raters: dict[str, np.ndarray], probs: np.ndarray = PROBS, **names: str) -> CaseResult:
    return evaluate_case(probs, TARGET, 2.0, case=names.get("case", "c"), raters=raters)


def test_hand_worked_case() -> None:
    found = measure(RATERS)
    # Predicted {0, 1}: with a 2·2/5, with b 1, with c 0.
    dsc = values(found, "reader_dsc")
    assert dsc["1/a"] == pytest.approx(0.8)
    assert dsc["1/b"] == 1
    assert dsc["1/c"] == 0
    assert math.isnan(dsc["1/d"])
    # Σp = 1.9 voxels of 2/1000 ml against 3, 2 and 0.
    volume = values(found, "reader_volume_ml")
    assert [volume[f"1/{r}"] for r in "abc"] == pytest.approx([0.0022, 0.0002, 0.0038])
    assert math.isnan(volume["1/d"])
    # Majority of the others: none of b, c or a, c (a tie is background), {0, 1} of a, b.
    human = values(found, "human_dsc")
    assert [human[f"1/{r}"] for r in "abc"] == [0, 0, 0]
    volumes = values(found, "human_volume_ml")
    assert [volumes[f"1/{r}"] for r in "abc"] == pytest.approx([0.004, 0.001, 0.005])
    # q inside = 2/3, 2/3, 1/3, 0.
    q = np.array([2, 2, 1, 0]) / 3
    assert values(found, "reader_brier")["all"] == pytest.approx(2 * np.mean((INSIDE - q) ** 2))
    nll = -(q * np.log(np.maximum(INSIDE, 1e-12)) + (1 - q) * np.log(1 - INSIDE)).mean()
    assert values(found, "reader_nll")["all"] == pytest.approx(nll)
    # All four voxels are in other bins of the confidence .9, .6, .6, 1: the two .6 share one.
    ece = (abs(0.9 - q[0]) + abs(0.6 - q[1] + 0.6 - (1 - q[2])) + 0) / 4
    assert values(found, "reader_ece")["all"] == pytest.approx(ece)
    # a against the mean of b and c: .5 .5 1 0 apart; b: .5 .5 .5 0; c: 1 1 .5 0.
    brier = np.mean([2 * (0.25 + 0.25 + 1) / 4, 2 * 0.75 / 4, 2 * 2.25 / 4])
    assert values(found, "human_brier")["all"] == pytest.approx(brier)


def test_labels_as_any_array_and_in_any_order() -> None:
    torch_raters = {name: torch.from_numpy(r) for name, r in reversed(RATERS.items())}
    one, other = measure(RATERS), measure(torch_raters)
    for metric in ("reader_dsc", "reader_ged", "reader_crps_ml", "human_brier", "reader_nll"):
        a, b = values(one, metric), values(other, metric)
        assert a.keys() == b.keys()
        assert [a[k] for k in a] == pytest.approx([b[k] for k in a], nan_ok=True), metric
    with pytest.raises(ValueError, match=r"raters\['a'\]"):
        measure({"a": np.zeros(3, dtype=int)})
    assert not values(evaluate_case(PROBS, TARGET, 2.0, case="c"), "reader_dsc")


def test_one_reader_is_the_label() -> None:
    found = measure({"only": TARGET})
    for metric in ("ece", "cece", "brier", "nll", "signed_gap"):
        for region in ("all", "union"):
            own = values(found, f"reader_{metric}", region)["all"]
            assert own == pytest.approx(values(found, metric, region)["all"]), metric
    assert values(found, "reader_dsc")["1/only"] == values(found, "dsc")["1"]
    for metric in ("human_dsc", "human_volume_ml", "human_brier"):
        assert all(math.isnan(v) for v in values(found, metric).values()), metric


def test_pooled_rows_add_up_the_cases() -> None:
    both = [measure(RATERS, case="x"), measure({"a": TARGET, "b": TARGET}, case="y")]
    pooled = {r.metric: r.value for r in pool_cases(both) if r.region == "all" and r.label == "all"}
    parts = [values(result, "reader_brier")["all"] for result in both]
    assert pooled["reader_brier"] == pytest.approx(np.mean(parts))
    with_label_only = evaluate_case(PROBS, TARGET, 2.0, case="z")
    names = {row.metric for row in pool_cases([both[0], with_label_only])}
    assert "brier" in names
    assert "reader_brier" not in names


def test_voxels_that_the_target_ignores_count_for_no_reader() -> None:
    ignored = evaluate_case(
        PROBS, np.where([0, 0, 1, 0], 9, TARGET), 2.0, case="c", raters=RATERS, ignore_index=9
    )
    keep = [0, 1, 3]
    raters = {name: labels[keep] for name, labels in RATERS.items()}
    cut = evaluate_case(PROBS[:, keep], TARGET[keep], 2.0, case="c", raters=raters)
    names = {row.metric for row in cut.rows if row.metric.startswith(("reader_", "human_"))}
    assert len(names) == 12
    for metric in names:
        assert values(ignored, metric) == pytest.approx(values(cut, metric), nan_ok=True), metric


@pytest.mark.filterwarnings("error")
def test_without_a_voxel_that_readers_have_in_common_nothing_is_compared() -> None:
    nobody, first, others = (
        np.where(seen, TARGET, -1) for seen in ([0] * 4, [1, 0, 0, 0], [0, 1, 1, 1])
    )
    for raters in ({"a": nobody, "b": nobody}, {"a": first, "b": others}):
        found = measure(raters)
        for metric in ("reader_ged", "reader_crps_ml"):
            assert math.isnan(values(found, metric)["1"])


def test_structures_of_several_labels_and_empty_policy() -> None:
    probs = np.array([[0.1, 0.2, 0.7], [0.5, 0.2, 0.2], [0.4, 0.6, 0.1]])
    raters = {"a": np.array([1, 2, 0]), "b": np.array([0, 0, 0])}
    options = CaseOptions(empty="paper")
    found = evaluate_case(
        probs, np.array([1, 2, 0]), 1.0, case="c", groups={"both": (1, 2)}, raters=raters,
        options=options,
    )  # fmt: skip
    assert values(found, "reader_dsc") == {"both/a": 1.0, "both/b": 1.0}
    expected = abs(0.9 + 0.8 + 0.3 - 2) / 1000
    assert values(found, "reader_volume_ml")["both/a"] == pytest.approx(expected)


def jaccard_distance(a: np.ndarray, b: np.ndarray) -> float:
    union = int((a | b).sum())
    return 1 - int((a & b).sum()) / union if union else 0.0


def test_energy_distance_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    samples, readers = rng.random((5, 3, 6, 7)) < 0.3, rng.random((4, 3, 6, 7)) < 0.4
    readers[1] = samples[2] = samples[3] = False
    expected = 2 * np.mean([jaccard_distance(a, b) for a, b in product(samples, readers)])
    for masks in (samples, readers):
        expected -= np.mean([jaccard_distance(a, b) for a, b in product(masks, masks)])
    assert energy_distance(samples, readers) == pytest.approx(expected, rel=1e-12)
    assert energy_distance(torch.from_numpy(samples), readers) == pytest.approx(expected)
    assert energy_distance(readers, readers) == pytest.approx(0, abs=1e-12)
    full, nothing = np.ones((1, 4), bool), np.zeros((1, 4), bool)
    assert energy_distance(full, nothing) == 2
    assert energy_distance(nothing, nothing) == 0


def test_crps_is_the_integral_of_the_squared_difference() -> None:
    rng = np.random.default_rng(1)
    samples, observed = rng.normal(3, 1, 7), rng.normal(2, 2, 3)
    x = np.linspace(-10, 15, 250_001)
    below = (samples[:, None] <= x).mean(0)
    integrals = [np.trapezoid((below - (x >= y)) ** 2, x) for y in observed]
    assert crps(samples, observed) == pytest.approx(np.mean(integrals), abs=1e-3)
    assert crps([2.0], [5.0]) == 3


def test_samples_have_the_marginals_of_the_probabilities() -> None:
    probs = np.random.default_rng(2).random((4, 5))
    masks = threshold_samples(probs, count=50)
    assert masks.shape == (50, 4, 5)
    np.testing.assert_allclose(masks.mean(0), probs, atol=0.0101)
    sizes = masks.sum((1, 2))
    assert (np.diff(sizes) <= 0).all()  # nested
    assert threshold_samples(np.array([0.0, 1.0]), 3).tolist() == [[False, True]] * 3


def test_sampled_metrics_of_a_case() -> None:
    found = measure(RATERS)
    masks = np.stack([RATERS[r] == 1 for r in "abc"])
    samples = threshold_samples(INSIDE)
    ged = values(found, "reader_ged")["1"]
    assert ged == pytest.approx(energy_distance(samples, masks))
    expected = crps(samples.sum(1), masks.sum(1)) * 0.002
    assert values(found, "reader_crps_ml")["1"] == pytest.approx(expected)
    # A certain and correct network among readers who agree has distance 0 and error 0.
    certain = np.stack([1 - TARGET, TARGET]).astype(float)
    agreed = measure({"a": TARGET, "b": TARGET}, certain)
    assert values(agreed, "reader_ged")["1"] == values(agreed, "reader_crps_ml")["1"] == 0
    assert values(agreed, "human_dsc") == {"1/a": 1, "1/b": 1}


def test_shares_and_majority() -> None:
    labels = np.array([[0, 1, 2, 255], [1, 1, 255, 255], [2, 0, 2, 255]], dtype=np.uint8)
    shares = label_shares(labels, 3)
    third = np.float32(1 / 3)
    np.testing.assert_allclose(
        shares, [[third, third, 0, 0], [third, 2 * third, 0, 0], [third, 0, 1, 0]]
    )
    assert majority(labels).tolist() == [0, 1, 2, 255]
    batch = torch.from_numpy(labels)[None]
    assert torch.equal(label_shares(batch, 3, axis=1)[0], torch.from_numpy(shares))


def test_true_probabilities_are_calibrated_against_many_readers() -> None:
    total = CalibrationBins(5)
    single = CalibrationBins(5)
    for index in range(3):
        case = make_case(PhantomSpec(dims=2, size=64, raters=100), index)
        assert case.truth is not None
        total.update(case.truth, label_shares(np.stack([*case.raters.values()]), 5), batched=False)
        single.update(case.truth, case.raters["1"], batched=False)
    assert total.ece() < 0.004
    assert total.cece() < 0.004
    assert single.ece() > 2 * total.ece()
