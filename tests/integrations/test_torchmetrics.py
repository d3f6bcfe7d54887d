"""The torchmetrics wrappers: the numbers of `segcal.metrics`, in one process and in two."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassCalibrationError

from helpers.metric_samples import make_case
from helpers.two_processes import METRICS, in_two_processes, sample
from segcal.integrations.torchmetrics import CECE, ECE, NLL, Brier, CalibrationMetrics
from segcal.metrics import METRICS as REGISTRY
from segcal.metrics import REGIONS, CaseOptions, Metric, evaluate_case, voxel_statistics


def counted(**options: object) -> CalibrationMetrics:
    metric = CalibrationMetrics(3, METRICS, **options)
    metric.update(*sample())
    return metric


def test_values_equal_segcal_metrics() -> None:
    probs, target = sample()
    both = voxel_statistics(probs, target[:, 0], 3, batched=True)
    expected = {
        "ece": both.bins.ece(),
        "cece": both.bins.cece(),
        "ace": both.bins.ace(),
        "mce": both.bins.mce(),
        "signed_gap": both.bins.signed_gap(),
        "brier": both.scores.brier(),
        "nll": both.scores.nll(),
    }
    found = counted().compute()
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected)
    for kind, name in ((ECE, "ece"), (CECE, "cece"), (Brier, "brier"), (NLL, "nll")):
        metric = kind(3)
        for one, truth in zip(probs, target, strict=True):  # image by image
            metric.update(one[None], truth[None])
        assert float(metric.compute()) == pytest.approx(expected[name], abs=1e-12)


def test_on_any_device(device: str) -> None:
    expected = {name: float(value) for name, value in counted().compute().items()}
    metric = CalibrationMetrics(3, METRICS).to(device)
    metric.update(*(tensor.to(device) for tensor in sample()))
    found = metric.compute()
    assert all(value.device.type == device for value in found.values())
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected)


def test_ece_is_torchmetrics_own_over_all_voxels() -> None:
    probs, target = sample()
    theirs = MulticlassCalibrationError(3, n_bins=15, norm="l1")
    theirs.update(probs, target[:, 0])
    ours = ECE(3)
    ours.update(probs, target)
    assert float(ours.compute()) == pytest.approx(float(theirs.compute()), abs=1e-6)


@pytest.mark.parametrize("region", [name for name in REGIONS if name != "all"])
def test_regions_are_those_of_evaluate_case(region: str) -> None:
    probs, target = make_case()
    spacing = (4.0, 1.5, 1.5)
    rows = evaluate_case(
        probs, target, spacing, case="x", options=CaseOptions(regions=(region,))
    ).rows
    expected = next(row.value for row in rows if row.metric == "ece")
    metric = ECE(3, region=region)
    metric.update(torch.from_numpy(probs)[None], torch.from_numpy(target)[None], spacing_mm=spacing)
    assert float(metric.compute()) == pytest.approx(expected)
    everywhere = ECE(3)
    everywhere.update(torch.from_numpy(probs)[None], torch.from_numpy(target)[None])
    assert float(everywhere.compute()) != pytest.approx(expected)


def test_options_change_the_result() -> None:
    base = counted().compute()
    assert counted(num_bins=5).compute()["ece"] != base["ece"]
    assert counted(ignore_index=1).compute()["nll"] != base["nll"]
    soft = CalibrationMetrics(3, METRICS)
    probs, target = sample()
    soft.update(probs, nn.functional.one_hot(target[:, 0], 3).movedim(-1, 1))
    assert {k: float(v) for k, v in soft.compute().items()} == pytest.approx(
        {k: float(v) for k, v in base.items()}
    )


def test_nothing_counted_is_nan_and_reset_forgets() -> None:
    metric = counted()
    metric.reset()
    assert metric.statistics().bins.voxels == 0
    with pytest.warns(UserWarning, match="before"):
        assert all(torch.isnan(value) for value in metric.compute().values())


def test_a_refused_batch_counts_nothing() -> None:
    probs, target = sample()
    metric = ECE(3)
    metric.update(probs, target)
    before = float(metric.compute())
    with pytest.raises(ValueError, match="looks like logits"):
        metric.update(torch.cat([probs, 3 * probs.logit()]), torch.cat([target, target]))
    with pytest.raises(ValueError, match="Expected the target to have shape"):
        metric.update(probs, target[..., :-1])
    with pytest.raises(ValueError, match="whole labels"):
        metric.update(probs, target + 0.5)
    with pytest.raises(ValueError, match=r"\(B, K, \*S\)"):
        metric.update(probs[0, :, 0], target[0, 0, 0])
    metric._computed = None
    assert float(metric.compute()) == before
    with pytest.raises(ValueError, match="`spacing_mm`"):
        ECE(3, region="union").update(probs, target)
    with pytest.raises(ValueError, match="Did you mean 'brier'"):
        CalibrationMetrics(3, ["brie"])
    with pytest.raises(ValueError, match="at least one"):
        CalibrationMetrics(3, [])


@pytest.mark.parametrize(
    "cast",
    [
        lambda module: module.half(),
        lambda module: module.to(torch.bfloat16),
        lambda module: module.to("cpu", torch.float16),
        lambda module: module.double().float(),
    ],
)
def test_casting_the_model_leaves_the_sums_alone(cast: object) -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), counted())
    before = model[1].metric_state
    cast(model)  # type: ignore[operator]
    assert model[0].weight.dtype != torch.float64
    after = model[1].metric_state
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        assert after[name].dtype in (torch.int64, torch.float64)
        assert torch.equal(after[name], value)
    model[1].set_dtype(torch.float16)
    assert model[1].top_confidence.dtype == torch.float64
    model[1].reset()  # the defaults were not cast either
    assert model[1].top_confidence.dtype == torch.float64


def test_more_voxels_than_float32_can_count() -> None:
    metric = counted()
    metric.voxels += 2**24
    metric.update(*sample(1))
    assert int(metric.voxels) == 2**24 + 5 * 120


def test_pickles_copies_and_checkpoints() -> None:
    metric = counted()
    expected = float(metric.compute()["ece"])
    for twin in (pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)):
        assert float(twin.compute()["ece"]) == expected
    assert metric.state_dict() == {}  # as torchmetrics: only if asked
    metric.persistent(True)
    fresh = CalibrationMetrics(3, METRICS)
    fresh.persistent(True)
    fresh.load_state_dict(metric.state_dict())
    assert fresh.statistics().bins.voxels == 480
    assert float(fresh.compute()["ece"]) == expected


def test_a_collection_counts_once() -> None:
    collection = MetricCollection(
        {"ece": ECE(3), "cece": CECE(3), "fg": ECE(3, region="foreground")}
    )
    probs, target = sample()
    for _ in range(2):
        collection.update(probs, target)
    assert sorted(map(sorted, collection.compute_groups.values())) == [["cece", "ece"], ["fg"]]
    found = collection.compute()
    assert float(found["ece"]) == pytest.approx(float(counted().compute()["ece"]))
    assert float(found["fg"]) != float(found["ece"])


def test_reliability() -> None:
    diagram = counted().reliability()
    assert diagram.count.sum() == 480
    one = counted().reliability(label=2)
    assert one.count.sum() == 480
    assert not np.array_equal(one.count, diagram.count)


def test_two_processes_agree_with_one() -> None:
    expected = {name: float(value) for name, value in counted().compute().items()}
    found = [both["torchmetrics"] for both in in_two_processes()]
    for rank, own in enumerate((360, 120)):
        assert found[rank]["voxels"] == 480
        assert found[rank]["own_voxels"] == own
        assert {name: found[rank][name] for name in METRICS} == pytest.approx(expected, abs=1e-14)
        assert found[rank]["step_ece"] != pytest.approx(expected["ece"])


@pytest.mark.parametrize(
    "other", [{"region": "foreground"}, {"ignore_index": 0}, {"ignore_index": 255}]
)
def test_a_collection_does_not_mix_what_counts_differently(other: dict[str, Any]) -> None:
    """A first batch in which both count the same voxels must not tie them together."""

    def make() -> dict[str, Any]:
        return {"one": ECE(2), "other": ECE(2, **other), "cece": CECE(2)}

    together, alone = MetricCollection(make()), make()
    probs = torch.full((1, 2, 8, 8), 0.1)
    probs[:, 0] = 0.9
    target = torch.ones(1, 8, 8, dtype=torch.long)
    for step in range(3):
        if step:
            target = target.clone()
            target[:, 2:] = 0
        together.update(probs, target)
        for metric in alone.values():
            metric.update(probs, target)
    found = together.compute()
    assert {name: float(v) for name, v in found.items()} == {
        name: float(metric.compute()) for name, metric in alone.items()
    }
    # Those that count alike still count once.
    groups = sorted(sorted(group) for group in together.compute_groups.values())
    assert groups == [["cece", "one"], ["other"]]


def test_a_metric_of_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY, "_objects", dict(REGISTRY._objects))
    twice = Metric("twice_ece", "", lambda s: 2 * s.bins.ece(), "lower", "region", additive=True)
    REGISTRY.register("twice_ece", twice)
    metric = CalibrationMetrics(num_classes=2, metrics=["ece", "twice_ece", "class_ece"])
    metric.update(torch.tensor([[[0.2, 0.4], [0.8, 0.6]]]), torch.tensor([[1, 1]]))
    found = metric.compute()
    assert float(found["twice_ece"]) == 2 * float(found["ece"])
    assert found["class_ece"].shape == (2,)
    assert metric.higher_is_better is False
    assert CalibrationMetrics(num_classes=2, metrics=["signed_gap"]).higher_is_better is None
    with pytest.raises(ValueError, match="'dsc', which cannot be summed"):
        CalibrationMetrics(num_classes=2, metrics=["dsc"])
