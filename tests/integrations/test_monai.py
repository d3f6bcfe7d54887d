"""segcal in MONAI: the metric, and a real trainer and evaluator with segcal's loss."""

from typing import Any

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import DataLoader, Dataset, MetaTensor, decollate_batch, list_data_collate
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import IgniteMetricHandler, StatsHandler, ValidationHandler, from_engine
from monai.networks.nets import BasicUNet
from monai.transforms import Activationsd, Compose

from helpers.metric_samples import make_case
from helpers.two_processes import METRICS, in_two_processes, sample
from segcal.integrations.monai import CalibrationMetric
from segcal.losses import LOSSES, DiceLoss, NACLLoss, WeightedSum
from segcal.metrics import CaseOptions, evaluate_case, voxel_statistics


def value(metric: CalibrationMetric, *batch: Any, **options: Any) -> float:
    metric(*batch, **options)
    return float(metric.aggregate())


def test_values_equal_segcal_metrics() -> None:
    probs, target = sample()
    both = voxel_statistics(probs, target[:, 0], 3, batched=True)
    metric = CalibrationMetric(3, METRICS)
    metric(probs[:3], target[:3])
    metric(decollate_batch(probs[3:]), decollate_batch(target[3:]))  # a list of images
    found = metric.aggregate()
    assert isinstance(found, dict)
    assert list(found) == list(METRICS)
    assert float(found["ece"]) == pytest.approx(both.bins.ece())
    assert float(found["cece"]) == pytest.approx(both.bins.cece())
    assert float(found["brier"]) == pytest.approx(both.scores.brier())
    assert float(found["nll"]) == pytest.approx(both.scores.nll())
    assert len(metric) == 4
    metric.reset()
    assert np.isnan(float(metric.aggregate()["ece"]))


def test_on_any_device(device: str) -> None:
    probs, target = sample()
    found = value(CalibrationMetric(3), probs.to(device), target.to(device))
    assert found == pytest.approx(value(CalibrationMetric(3), probs, target))


def test_options_change_the_result() -> None:
    probs, target = sample()
    base = value(CalibrationMetric(3), probs, target)
    assert value(CalibrationMetric(3, num_bins=4), probs, target) != base
    assert value(CalibrationMetric(3, ignore_index=2), probs, target) != base
    assert value(CalibrationMetric(3, "cece"), probs, target) != base
    assert value(CalibrationMetric(3, region="foreground"), probs, target) != base
    assert value(CalibrationMetric(3, average="cases"), probs, target) != base
    assert value(CalibrationMetric(3, softmax=True), probs.log(), target) == pytest.approx(base)
    one_hot = torch.nn.functional.one_hot(target[:, 0], 3).movedim(-1, 1).float()
    assert value(CalibrationMetric(3), probs, one_hot) == pytest.approx(base)
    assert value(CalibrationMetric(3), probs, target.float()) == pytest.approx(base)


def test_the_mean_over_cases_leaves_out_cases_without_the_region() -> None:
    probs, target = sample(2)
    target[1] = 0
    metric = CalibrationMetric(3, region="foreground", average="cases")
    both = value(metric, probs, target)
    alone = value(CalibrationMetric(3, region="foreground"), probs[:1], target[:1])
    assert both == pytest.approx(alone)
    assert metric.aggregate("voxels") == metric.aggregate("cases")


@pytest.mark.parametrize("region", ["boundary", "predicted_boundary"])
def test_voxel_size_comes_from_the_image(region: str) -> None:
    probs, target = make_case()
    spacing = (4.0, 1.5, 1.5)
    rows = evaluate_case(
        probs, target, spacing, case="x", options=CaseOptions(regions=(region,))
    ).rows
    expected = next(row.value for row in rows if row.metric == "ece")
    batch = torch.from_numpy(probs)[None], torch.from_numpy(target)[None, None]
    known = MetaTensor(batch[1], affine=torch.diag(torch.tensor([*spacing, 1.0])))
    option = CalibrationMetric(3, region=region, spacing_mm=spacing)
    assert value(option, *batch) == pytest.approx(expected)
    assert value(CalibrationMetric(3, region=region), batch[0], known) == pytest.approx(expected)
    images = [batch[0][0]], [known[0]]
    assert value(CalibrationMetric(3, region=region), *images) == pytest.approx(expected)
    at_call = CalibrationMetric(3, region=region)
    assert value(at_call, *batch, spacing_mm=spacing) == pytest.approx(expected)
    with pytest.raises(ValueError, match="Did you mean 'spacing_mm'"):
        at_call(*batch, spacing=spacing)
    with pytest.raises(ValueError, match="`spacing_mm`"):
        CalibrationMetric(3, region=region)(*batch)
    mixed = list_data_collate([MetaTensor(batch[1][0], affine=s * torch.eye(4)) for s in (1, 2)])
    with pytest.raises(ValueError, match="same voxel size"):
        CalibrationMetric(3, region=region)(torch.cat([batch[0], batch[0]]), mixed)


def test_wrong_input_is_named() -> None:
    probs, target = sample()
    with pytest.raises(ValueError, match="looks like logits"):
        CalibrationMetric(3)(3 * probs.logit(), target)
    with pytest.raises(ValueError, match="Expected argument `y`"):
        CalibrationMetric(3)(probs)
    for options, name in (
        ({"metrics": "eec"}, "'eec'"),
        ({"region": "rim"}, "`region`"),
        ({"average": "mean"}, "`average`"),
    ):
        with pytest.raises(ValueError, match=name):
            CalibrationMetric(3, **options)
    with pytest.raises(ValueError, match="`average`"):
        CalibrationMetric(3).aggregate("mean")


def test_two_processes_agree_with_one() -> None:
    metric = CalibrationMetric(3, METRICS)
    metric(*sample())
    expected = {name: float(v) for name, v in metric.aggregate().items()}
    for found in (both["monai"] for both in in_two_processes()):
        assert {name: found[name] for name in METRICS} == pytest.approx(expected, abs=1e-14)
        assert found["cases_ece"] == pytest.approx(float(metric.aggregate("cases")["ece"]))
        assert found["alone_ece"] == pytest.approx(expected["ece"], abs=1e-14)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_by_class_path_in_a_bundle(name: str) -> None:
    target = LOSSES.get(name)
    config = {"loss": {"_target_": f"{target.__module__}.{target.__name__}", "ignore_index": 1}}
    loss = ConfigParser(config).get_parsed_content("loss")
    assert isinstance(loss, target)
    assert loss.ignore_index == 1
    logits = MetaTensor(torch.randn(2, 3, 8, 8), affine=torch.eye(4)).requires_grad_()
    loss(logits, MetaTensor(torch.randint(3, (2, 1, 8, 8)))).backward()
    assert torch.isfinite(logits.grad).all()


def blobs(cases: int) -> list[dict[str, Any]]:
    """Discs in noise, (1, 32, 32), with their labels."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:32, :32]
    items = []
    for _ in range(cases):
        (cy, cx), radius = rng.uniform(10, 22, 2), rng.uniform(5, 9)
        label = ((y - cy) ** 2 + (x - cx) ** 2 < radius**2).astype(np.int64)[None]
        image = (label + rng.normal(0, 0.5, label.shape)).astype(np.float32)
        items.append({"image": image, "label": label})
    return items


def test_trainer_and_evaluator(capsys: pytest.CaptureFixture[str]) -> None:
    """A real run: NACL + Dice, the metric attached to the evaluator that validates each epoch."""
    torch.set_num_threads(1)
    network = BasicUNet(spatial_dims=2, in_channels=1, out_channels=2, features=(8, 8, 8, 8, 8, 8))
    transform = from_engine(["pred", "label"])
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=DataLoader(Dataset(blobs(8)), batch_size=4),
        network=network,
        postprocessing=Compose([Activationsd(keys="pred", softmax=True)]),
        key_val_metric={
            "fg_ece": IgniteMetricHandler(
                CalibrationMetric(2, "ece", region="foreground"), output_transform=transform
            )
        },
        metric_cmp_fn=lambda new, best: new < best,
        additional_metrics={
            "calibration": IgniteMetricHandler(
                CalibrationMetric(2, ["ece", "brier"]), output_transform=transform
            )
        },
    )
    seen: list[dict[str, float]] = []
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=12,
        train_data_loader=DataLoader(Dataset(blobs(24)), batch_size=6, shuffle=True),
        network=network,
        optimizer=torch.optim.Adam(network.parameters(), 1e-2),
        loss_function=WeightedSum(NACLLoss(), DiceLoss()),
        train_handlers=[
            ValidationHandler(1, evaluator, exec_at_start=True),
            StatsHandler(tag_name="loss", output_transform=from_engine(["loss"], first=True)),
        ],
    )
    evaluator.add_event_handler("COMPLETED", lambda e: seen.append(dict(e.state.metrics)))
    trainer.run()
    assert len(seen) == 13
    first, last = seen[0], seen[-1]
    assert {"ece", "brier", "fg_ece"} <= set(last)
    assert isinstance(last["fg_ece"], float)
    assert float(last["brier"]) < 0.25 * float(first["brier"])
    # The metric in the handler is the metric by hand, over the same images.
    with torch.no_grad():
        network.eval()
        items = blobs(8)
        images = torch.from_numpy(np.stack([item["image"] for item in items]))
        labels = torch.from_numpy(np.stack([item["label"] for item in items]))
        by_hand = voxel_statistics(network(images).softmax(1), labels[:, 0], 2, batched=True)
    assert float(last["ece"]) == pytest.approx(by_hand.bins.ece(), abs=1e-5)
    assert evaluator.state.best_metric == min(found["fg_ece"] for found in seen[1:])
    assert evaluator.state.metric_details["fg_ece"].shape[0] == 8
