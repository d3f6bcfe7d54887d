"""The rows of a case: the same numbers as the parts give, in one pass."""

import numpy as np
import pytest
import torch

from helpers.metric_samples import make_case
from segcal.metrics import (
    COLUMNS,
    POOLED,
    REGIONS,
    CalibrationBins,
    CaseOptions,
    CaseResult,
    ProperScores,
    adaptive_ece,
    all_surface_distances,
    brier_parts,
    default_metrics,
    dsc,
    evaluate_case,
    find_metric,
    pool_cases,
)
from segcal.stats import summarize, to_frame

SPACING = (8.0, 1.5, 1.5)
ONLY_ALL = CaseOptions(regions=("all",))


def value(result: CaseResult, metric: str, region: str = "all", label: str = "all") -> float:
    found = [
        r.value for r in result.rows if (r.metric, r.region, r.label) == (metric, region, label)
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("order", ["C", "F"])
def test_half_precision_gives_the_numbers_of_its_values_in_single_precision(order: str) -> None:
    probs, target = make_case()
    half = np.asarray(probs, np.float16, order=order)
    found, wanted = (
        evaluate_case(p, target, SPACING, case="c") for p in (half, half.astype(np.float32))
    )
    np.testing.assert_allclose(
        [r.value for r in found.rows], [r.value for r in wanted.rows], rtol=1e-12, atol=1e-15
    )
    for name in ("top_count", "class_count", "class_confidence", "class_frequency"):
        for region, each in wanted.statistics.items():
            same = getattr(found.statistics[region].bins, name), getattr(each.bins, name)
            np.testing.assert_allclose(*same, rtol=1e-12)


def test_rows_equal_the_parts() -> None:
    probs, target = make_case()
    target[0, :5] = -100
    options = CaseOptions(num_bins=10, nsd_tolerance_mm=1.0)
    result = evaluate_case(probs, target, SPACING, case="c", options=options)
    labels = probs.argmax(0)
    for region, mask_of in REGIONS.items():
        mask = mask_of(target, labels=labels, spacing_mm=SPACING)
        bins = CalibrationBins(3, 10).update(probs, target, mask)
        scores = ProperScores(3).update(probs, target, mask)
        expected = {
            "ece": bins.ece(),
            "cece": bins.cece(),
            "ace": bins.ace(),
            "mce": bins.mce(),
            "signed_gap": bins.signed_gap(),
            "adaptive_ece": adaptive_ece(probs, target, 3, mask, num_bins=10),
            "brier": scores.brier(),
            "nll": scores.nll(),
            "brier_reliability": brier_parts(bins).reliability,
            "brier_resolution": brier_parts(bins).resolution,
            "brier_uncertainty": brier_parts(bins).uncertainty,
            "mean_confidence": probs.max(0)[mask].mean(dtype=np.float64),
        }
        for metric, wanted in expected.items():
            assert value(result, metric, region) == pytest.approx(wanted, abs=1e-9), metric
        for k in range(3):
            assert value(result, "class_ece", region, str(k)) == pytest.approx(
                bins.classwise_ece()[k]
            )
            assert value(result, "class_signed_gap", region, str(k)) == pytest.approx(
                bins.classwise_signed_gap()[k]
            )
        assert (result.statistics[region].bins.class_count == bins.class_count).all()
        assert result.statistics[region].scores.voxels == mask.sum()
    overlap = dsc(labels, target, 3)
    for name, d in all_surface_distances(labels, target, 3, SPACING).items():
        assert value(result, "dsc", label=name) == overlap[name]
        assert value(result, "hd95_mm", label=name) == d.hd95()
        assert value(result, "hd95_max_mm", label=name) == d.hd95("max")
        assert value(result, "hd_mm", label=name) == d.hausdorff()
        assert value(result, "assd_mm", label=name) == d.assd()
        assert value(result, "nsd_1mm", label=name) == d.nsd(1.0)


def test_the_table_is_long_and_complete() -> None:
    probs, target = make_case()
    who = {"run": "r", "method": "m", "seed": 3, "dataset": "d", "case": "c"}
    result = evaluate_case(torch.from_numpy(probs), torch.from_numpy(target), SPACING, **who)
    table = to_frame(result.rows)
    assert tuple(table.columns) == COLUMNS
    for name, wanted in who.items():
        assert (table[name] == wanted).all()
    # The others need logits or true probabilities.
    possible = {metric.key for metric in default_metrics() if metric.requires is None}
    assert set(table["metric"].map(lambda name: find_metric(name).key)) == possible
    assert set(table["region"]) == set(REGIONS)
    assert not table.duplicated(list(COLUMNS[:-1])).any()
    assert result.undefined == 0


def test_cases_pool_by_their_bins() -> None:
    cases = [make_case(seed) for seed in (0, 1)]
    results = [evaluate_case(p, t, SPACING, case=str(i)) for i, (p, t) in enumerate(cases)]
    pooled = results[0].statistics["all"].bins + results[1].statistics["all"].bins
    together = CalibrationBins(3)
    for probs, target in cases:
        together.update(probs, target)
    assert pooled.ece() == pytest.approx(together.ece(), abs=1e-12)
    rows = pool_cases(results)
    assert {row.case for row in rows} == {POOLED}
    assert value(CaseResult(rows, {}), "ece") == pytest.approx(together.ece(), abs=1e-12)
    per_case = {r.metric for r in results[0].rows if r.region == "union"} - {"adaptive_ece"}
    assert {r.metric for r in rows if r.region == "union"} == per_case
    assert len(to_frame(rows)) == len({(r.label, r.region, r.metric) for r in rows})


def test_pools_are_kept_apart_by_run_and_method() -> None:
    probs, target = make_case()
    first, second = (evaluate_case(probs, target, SPACING, case="c", method=m) for m in "ab")
    pooled = [r.method for r in pool_cases([first, second]) if r.metric == "nll"]
    assert pooled == ["a"] * len(REGIONS) + ["b"] * len(REGIONS)
    other = evaluate_case(probs, target, SPACING, case="d", method="a", options=ONLY_ALL)
    with pytest.raises(ValueError, match="`results` to be measured in the same regions"):
        pool_cases([first, other])
    assert pool_cases([]) == []


def test_a_case_needs_little_memory_beside_its_probabilities() -> None:
    import tracemalloc

    probs, target = make_case()
    probs, target = np.tile(probs, (1, 4, 4, 4)), np.tile(target, (4, 4, 4))
    tracemalloc.start()
    evaluate_case(
        probs, target, SPACING, case="c", options=CaseOptions(regions=("all", "foreground"))
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 * target.size


def test_a_case_in_half_precision_needs_ten_bytes_per_voxel() -> None:
    import tracemalloc

    z, y, x = np.ogrid[:160, :160, :192]
    radius = np.sqrt((z - 80) ** 2 + (y - 80) ** 2 + (x - 96) ** 2)
    inside = 1 / (1 + np.exp((radius - 40) / 3))
    probs, target = np.stack([1 - inside, inside]).astype(np.float16), radius < 42
    tracemalloc.start()
    evaluate_case(probs, target.astype(np.int16), 1.0, case="c")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * target.size  # an integer of 8 bytes per voxel would exceed it


def test_a_second_softmax_is_warned_of_once_at_the_line_of_the_caller() -> None:
    probs, target = make_case()
    twice = np.exp(probs) / np.exp(probs).sum(0)
    with pytest.warns(UserWarning, match="second softmax") as caught:
        evaluate_case(twice, target, SPACING, case="c")
    assert [w.filename for w in caught] == [__file__]


def test_every_option_changes_the_result() -> None:
    probs, target = make_case()

    def run(spacing_mm=SPACING, groups=None, ignore_index=-100, **options) -> CaseResult:
        return evaluate_case(
            probs, target, spacing_mm, case="c", options=CaseOptions(**options),
            groups=groups, ignore_index=ignore_index,
        )  # fmt: skip

    plain = run()
    assert value(run(num_bins=3), "ece") != value(plain, "ece")
    for region, narrow in (
        ("union", run(dilate_mm=1.5)), ("boundary", run(width_mm=1.5)),
        ("predicted_boundary", run(width_mm=1.5)),
    ):  # fmt: skip
        voxels = [result.statistics[region].bins.voxels for result in (narrow, plain)]
        assert voxels[0] < voxels[1]
    wide, close = run(nsd_tolerance_mm=4.5), value(plain, "nsd_2mm", label="1")
    assert value(wide, "nsd_4.5mm", label="1") > close
    voxels = run(units="voxel")
    assert value(voxels, "hd_voxel", label="1") != value(plain, "hd_mm", label="1")
    assert not {r.metric for r in voxels.rows} & {"hd_mm", "nsd_2mm"}
    assert value(run(spacing_mm=1.0), "hd_mm", label="1") != value(plain, "hd_mm", label="1")
    assert list(run(regions=["all"]).statistics) == ["all"]
    with pytest.raises(TypeError, match="`regions`"):
        run(regions="all")
    assert value(run(groups={"both": (1, 2)}), "dsc", label="both") > 0
    assert value(run(ignore_index=2), "dsc", label="1") != value(plain, "dsc", label="1")
    missed = np.zeros_like(probs)
    missed[0] = 1
    for empty, wanted in (("nan", np.nan), ("diagonal", np.hypot(48, np.hypot(60, 66)))):
        options = CaseOptions(empty=empty)
        result = evaluate_case(missed, target, SPACING, case="c", options=options)
        assert value(result, "hd95_mm", label="1") == pytest.approx(wanted, nan_ok=True)
    options = CaseOptions(regions=("all", "foreground", "union", "boundary"))
    assert evaluate_case(missed, target, SPACING, case="c", options=options).undefined == 2 * 4
    # Nothing is predicted, so these regions are empty.
    both = evaluate_case(missed, target, SPACING, case="c")
    empty = {row.region for row in both.rows if np.isnan(row.value) and row.metric == "ece"}
    assert empty == {"predicted", "predicted_boundary"}


def test_undefined_is_kept_and_counted() -> None:
    probs, target = make_case()
    no_target = target * 0
    result = evaluate_case(probs, no_target, SPACING, case="c", method="m", dataset="d")
    assert np.isnan(value(result, "ece", "foreground"))
    assert np.isnan(value(result, "adaptive_ece", "boundary"))
    table = summarize(to_frame(result.rows))
    row = table[(table["metric"] == "hd95_mm") & (table["label"] == "1")].iloc[0]
    assert (row["count"], row["undefined"]) == (0, 1)
    row = table[(table["metric"] == "dsc") & (table["label"] == "1")].iloc[0]
    assert (row["count"], row["undefined"], row["mean"]) == (1, 0, 0.0)


def test_all_ignored_is_undefined_not_an_error() -> None:
    probs, target = make_case()
    result = evaluate_case(probs, np.full_like(target, -100), SPACING, case="c")
    assert np.isnan(value(result, "ece"))
    assert np.isnan(value(result, "adaptive_ece"))
    assert np.isnan(value(result, "dsc", label="1"))  # nothing was compared, so nothing agrees


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"regions": ["edge"]}, ValueError, "`regions` to be one of"),
        ({"units": "cm"}, ValueError, "`units` to be one of"),
        ({"empty": "zero"}, ValueError, "`empty` to be one of"),
        ({"num_bins": 0}, ValueError, "`num_bins`"),
        ({"nsd_tolerance_mm": -1.0}, ValueError, "`nsd_tolerance_mm`"),
        ({"groups": {"x": (7,)}}, ValueError, "at most 2"),
        ({"spacing_mm": (1.0, 1.0)}, ValueError, "`spacing_mm`"),
        ({"target": np.zeros((6, 40, 43), int)}, ValueError, "the shape of `target`"),
        ({"probs": [[1.0]]}, TypeError, "`probs` to be a numpy array or a torch tensor"),
        ({"probs": np.zeros((6,))}, ValueError, "the shape of `target`"),
    ],
)
def test_wrong_arguments(change: dict, error: type, message: str) -> None:
    probs, target = make_case()
    names = ("regions", "units", "empty", "num_bins", "nsd_tolerance_mm")
    options = {name: change.pop(name) for name in names if name in change}
    arguments = {"probs": probs, "target": target, "spacing_mm": SPACING, "case": "c", **change}
    with pytest.raises(error, match=message):
        evaluate_case(**arguments, options=CaseOptions(**options))


def test_logits_are_refused() -> None:
    probs, target = make_case()
    with pytest.raises(ValueError, match="looks like logits"):
        evaluate_case(np.log(probs) + 9, target, SPACING, case="c")


def test_volumes_of_structures() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1.0, 1.0, 1.0], (3, 4, 5)).transpose(3, 0, 1, 2)
    target = rng.integers(0, 3, (3, 4, 5))
    target[0] = -100  # ignored voxels have no volume
    result = evaluate_case(
        probs, target, (2.0, 1.0, 1.5), case="a", groups={"both": (1, 2), "one": (1,)}
    )
    found = {(r.metric, r.label): r.value for r in result.rows if r.metric.endswith("volume_ml")}
    for name, labels in (("both", [1, 2]), ("one", [1])):
        counted = [np.isin(x[1:], labels).sum() for x in (target, probs.argmax(0))]
        counted.append(probs[labels, 1:].sum())
        for metric, count in zip(("true", "predicted", "expected"), counted, strict=True):
            assert found[f"{metric}_volume_ml", name] == pytest.approx(0.003 * count)
