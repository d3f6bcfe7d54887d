"""Metrics by name, and metrics that a user adds."""

import numpy as np
import pytest
import torch

from helpers.metric_samples import make_case
from segcal.metrics import (
    METRICS,
    CaseData,
    CaseOptions,
    Metric,
    RegionData,
    StructureData,
    default_metrics,
    evaluate_case,
    find_metric,
    get_metric,
    pool_cases,
    ranking_direction,
)

SPACING = (8.0, 1.5, 1.5)


def missed_share(structure: StructureData) -> float:
    return float((structure.target & ~structure.predicted).sum() / structure.target.sum())


def overconfidence(region: RegionData) -> float:
    gap = region.bins.top_confidence - region.bins.top_accuracy
    return float(np.maximum(gap, 0).sum() / region.bins.voxels)


def class_volume_ml(case: CaseData) -> np.ndarray:
    counts = np.bincount(case.labels.ravel(), minlength=case.num_classes)
    return counts * np.prod(case.spacing_mm) / 1000


MISSED = Metric("missed", "missed share", missed_share, "lower", "structure")
OVERCONFIDENCE = Metric(
    "overconfidence", "overconfidence", overconfidence, "lower", "region", additive=True
)
VOLUME = Metric("volume", "volume", class_volume_ml, None, "image", unit="ml")


@pytest.fixture
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METRICS, "_objects", dict(METRICS._objects))


def rows_of(result, metric: str) -> dict[tuple[str, str], float]:
    return {(row.label, row.region): row.value for row in result.rows if row.metric == metric}


@pytest.mark.usefixtures("_own_registry")
def test_a_user_metric_of_each_scope() -> None:
    probs, target = make_case()
    METRICS.register("missed", MISSED)
    names = ("missed", f"{__name__}:OVERCONFIDENCE", f"{__name__}:VOLUME")
    options = CaseOptions(regions=("all", "foreground"), metrics=names)
    result = evaluate_case(probs, target, SPACING, case="c", options=options)
    labels = probs.argmax(0)
    expected = ((target == 1) & (labels != 1)).sum() / (target == 1).sum()
    assert rows_of(result, "missed")["1", "all"] == pytest.approx(expected)
    assert set(rows_of(result, "missed")) == {("1", "all"), ("2", "all")}
    values = rows_of(result, "overconfidence")
    assert set(values) == {("all", "all"), ("all", "foreground")}
    assert values["all", "all"] <= rows_of(result, "ece")["all", "all"] + 1e-12
    volumes = rows_of(result, "volume")
    assert volumes["2", "all"] == pytest.approx((labels == 2).sum() * 18 / 1000)
    pooled = {row.metric for row in pool_cases([result])}
    assert "overconfidence" in pooled
    assert not pooled & {"missed", "volume"}
    plain = evaluate_case(probs, target, SPACING, case="c")
    assert not rows_of(plain, "missed")


@pytest.mark.parametrize("seed", range(4))
def test_every_value_is_within_the_limits_of_its_metric(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=4, size=(3, 4, 12, 12))
    probs = np.exp(logits) / np.exp(logits).sum(0)
    raters = {str(r): rng.integers(3, size=(4, 12, 12)) for r in range(3)}
    members = rng.integers(3, size=(2, 4, 12, 12)).astype(np.uint8)
    result = evaluate_case(
        probs, rng.integers(3, size=(4, 12, 12)), SPACING, case="c", logits=logits,
        true_probs=rng.dirichlet(np.ones(3), (4, 12, 12)).transpose(3, 0, 1, 2), raters=raters,
        members=members, options=CaseOptions(regions=("all", "predicted", "foreground")),
    )  # fmt: skip
    measured = {find_metric(row.metric).key for row in result.rows}
    assert measured == {metric.key for metric in default_metrics()}
    for row in result.rows:
        low, high = find_metric(row.metric).limits
        assert np.isfinite(low)
        assert low <= row.value <= high or np.isnan(row.value), row
    assert find_metric("nsd_2mm").limits == (0, 1)
    assert find_metric("unknown").limits == (-np.inf, np.inf)


@pytest.mark.usefixtures("_own_registry")
def test_a_default_metric_is_computed_without_a_request() -> None:
    METRICS.register(
        "missed", Metric("missed", "", missed_share, "lower", "structure", default=True)
    )
    assert rows_of(evaluate_case(*make_case(), SPACING, case="c"), "missed")


@pytest.mark.usefixtures("_own_registry")
def test_a_result_of_the_wrong_shape_names_the_metric() -> None:
    METRICS.register("pair", Metric("pair", "pair", lambda case: [1.0, 2.0], None, "image"))
    with pytest.raises(ValueError, match="'pair' must return a number or 3 numbers"):
        evaluate_case(*make_case(), SPACING, case="c", options=CaseOptions(metrics=("pair",)))
    METRICS.register("word", Metric("word", "word", lambda s: "high", None, "structure"))
    with pytest.raises(TypeError, match="'word' must return a number"):
        evaluate_case(*make_case(), SPACING, case="c", options=CaseOptions(metrics=("word",)))


def test_logits_and_true_probabilities_add_metrics() -> None:
    probs, target = make_case()
    logits = np.log(probs)
    true = np.eye(3, dtype=np.float32)[target].transpose(3, 0, 1, 2)
    result = evaluate_case(
        torch.from_numpy(probs), target, SPACING, case="c", logits=logits, true_probs=true
    )
    sizes = rows_of(result, "mean_abs_logit")
    assert sizes["1", "all"] == pytest.approx(abs(logits).mean(0)[target == 1].mean(), rel=1e-5)
    assert rows_of(result, "truth_ece")["all", "all"] == pytest.approx(
        rows_of(result, "ece")["all", "all"], abs=1e-6
    )
    assert rows_of(result, "truth_mae")["all", "all"] == pytest.approx(
        abs(probs - true).mean(), rel=1e-5
    )
    assert rows_of(result, "truth_kl")["all", "all"] > 0
    assert {r.metric for r in pool_cases([result])} >= {"truth_ece", "truth_cece"}
    with pytest.raises(ValueError, match="`true_probs` to have shape"):
        evaluate_case(probs, target, SPACING, case="c", true_probs=true[:2])


def test_names_of_rows_follow_the_options() -> None:
    options = CaseOptions(nsd_tolerance_mm=1.5, units="voxel")
    assert get_metric("hd95").row_name(options) == "hd95_voxel"
    assert get_metric("nsd").row_name(options) == "nsd_1.5mm"
    assert not get_metric("nsd").is_measured(options)
    assert get_metric("ece").row_name(options) == "ece"


@pytest.mark.parametrize(
    ("name", "key", "title", "unit"),
    [
        ("hd95_max_mm", "hd95_max", "HD95 (max)", "mm"),
        ("assd_voxel", "assd", "ASSD", "voxels"),
        ("nsd_2.5mm", "nsd", "NSD 2.5mm", ""),
        ("nll", "nll", "NLL", "nats"),
        ("ece_mm", "ece_mm", "ece_mm", ""),  # no unit belongs to ECE: another metric
    ],
)
def test_facts_of_a_name(name: str, key: str, title: str, unit: str) -> None:
    metric = find_metric(name)
    assert (metric.key, metric.title, metric.unit) == (key, title, unit)


def test_scopes_and_directions() -> None:
    assert find_metric("nsd_2mm").per_structure
    assert find_metric("truth_kl").whole_image
    assert not find_metric("truth_kl").per_structure
    assert not find_metric("ece").whole_image
    assert not find_metric("nothing").registered
    assert set(default_metrics()) <= {METRICS.get(name) for name in METRICS}
    with pytest.raises(ValueError, match="mean_confidence is descriptive"):
        ranking_direction("mean_confidence")
    with pytest.raises(ValueError, match="Did you mean 'ece'"):
        ranking_direction("ecee")


@pytest.mark.parametrize(
    "change",
    [{"key": "a b"}, {"scope": "voxel"}, {"better": "more"}, {"suffix": "cm"}, {"additive": True}],
)
def test_invalid_metrics_are_rejected(change: dict) -> None:
    arguments = {"key": "k", "title": "", "read": float, "better": "lower", "scope": "structure"}
    with pytest.raises(
        ValueError, match=next(iter(change)) if "additive" not in change else "scope"
    ):
        Metric(**{**arguments, **change})
