"""Tests of the trainers inside nnU-Net; `test_nnunet_real.py` runs them in its environment:

python -m pytest tests/helpers/nnunet_inside.py
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

pytest.importorskip("nnunetv2")

from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

from segcal.integrations.nnunet import TRAINERS, trainer_folder
from segcal.integrations.nnunet.trainers import SegcalTrainer
from segcal.losses import DiceLoss, make_loss

LABELS: dict[str, dict[str, Any]] = {
    "labels": {"background": 0, "a": 1, "b": 2},
    "ignore": {"background": 0, "a": 1, "b": 2, "ignore": 3},
    "regions": {"background": 0, "whole": [1, 2], "b": 2},
    "regions and ignore": {"background": 0, "whole": [1, 2], "b": 2, "ignore": 3},
}
ARCHITECTURE = {
    "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
    "arch_kwargs": {
        "n_stages": 3,
        "features_per_stage": [4, 4, 8],
        "conv_op": "torch.nn.modules.conv.Conv3d",
        "kernel_sizes": [[3, 3, 3]] * 3,
        "strides": [[1, 1, 1], [2, 2, 2], [2, 2, 2]],
        "n_conv_per_stage": [1, 1, 1],
        "n_conv_per_stage_decoder": [1, 1],
        "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
        "norm_op_kwargs": {"affine": True},
        "dropout_op": None,
        "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU",
        "nonlin_kwargs": {"inplace": True},
    },
    "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
}


def make(trainer: type, folder: Path, kind: str, *, batch_dice: bool = False) -> Any:
    """A trainer with its loss, for three scales of 8×8×8 patches."""
    plans = {
        "dataset_name": "Dataset999_Toy",
        "plans_name": "nnUNetPlans",
        "continue_training": False,
        "label_manager": "LabelManager",
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "configurations": {
            "3d_fullres": {
                "data_identifier": "toy",
                "batch_size": 2,
                "patch_size": [8, 8, 8],
                "spacing": [1.0, 1.0, 1.0],
                "normalization_schemes": ["ZScoreNormalization"],
                "architecture": ARCHITECTURE,
                "batch_dice": batch_dice,
            }
        },
    }
    description: dict[str, Any] = {"channel_names": {"0": "MRI"}, "labels": LABELS[kind]}
    if "regions" in kind:
        description["regions_class_order"] = [1, 2]
    built = trainer(plans, "3d_fullres", 0, description, torch.device("cpu"))
    built.loss = built._build_loss()
    return built


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nnUNet_results", "nnUNet_preprocessed", "nnUNet_raw"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("nnUNet_extTrainer", str(trainer_folder()))
    torch.manual_seed(0)


def scales(kind: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits and targets of two scales, as nnU-Net passes them to its loss."""
    logits, targets = [], []
    for size in (8, 4):
        heads = 2 if "regions" in kind else 3
        logits.append(torch.randn(2, heads, size, size, size, requires_grad=True))
        labels = torch.randint(4 if "ignore" in kind else 3, (2, 1, size, size, size)).short()
        if "regions" in kind:
            channels = [(labels == 1) | (labels == 2), labels == 2]
            channels += [labels == 3] if "ignore" in kind else []
            labels = torch.cat(channels, 1)
        targets.append(labels)
    return logits, targets


@pytest.mark.parametrize("name", TRAINERS)
def test_nnunet_finds_the_trainers(name: str) -> None:
    trainer = recursive_find_trainer_class_by_name(name)
    assert issubclass(trainer, nnUNetTrainer)
    assert trainer.__name__ == name
    assert trainer.loss_name == TRAINERS[name].split()[0]


@pytest.mark.parametrize("batch_dice", [False, True])
@pytest.mark.parametrize("kind", ["labels", "ignore", "regions"])
def test_with_cross_entropy_the_loss_equals_nnunets(
    tmp_path: Path, kind: str, batch_dice: bool
) -> None:
    ours = make(SegcalTrainer, tmp_path, kind, batch_dice=batch_dice)
    theirs = make(nnUNetTrainer, tmp_path, kind, batch_dice=batch_dice)
    assert isinstance(ours.loss, DeepSupervisionWrapper)
    assert ours.loss.weight_factors == theirs.loss.weight_factors
    logits, targets = scales(kind)
    torch.testing.assert_close(ours.loss(logits, targets), theirs.loss(logits, targets))


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_on_every_kind_of_label(tmp_path: Path, name: str, kind: str) -> None:
    trainer = recursive_find_trainer_class_by_name(name)
    if "NACL" in name and "regions" in kind:
        with pytest.raises(ValueError, match="constrain=softmax"):
            make(trainer, tmp_path, kind)
        return
    loss = make(trainer, tmp_path, kind).loss
    logits, targets = scales(kind)
    value = loss(logits, targets)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits[0].grad).all()
    assert logits[0].grad.abs().sum() > 0
    if kind == "labels":
        dice = DiceLoss("proper") if "Proper" in name else loss.loss.dc
        share = 0 if name == "nnUNetTrainerACE" else 1
        expected = sum(
            weight * (make_loss(trainer.loss_name)(x, y) + share * dice(x, y))
            for weight, x, y in zip(loss.weight_factors, logits, targets, strict=True)
        )
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("batch_dice", [False, True])
@pytest.mark.parametrize("kind", ["labels", "ignore", "regions", "regions and ignore"])
def test_proper_dice_skips_ignored_voxels(tmp_path: Path, kind: str, batch_dice: bool) -> None:
    trainer = recursive_find_trainer_class_by_name("nnUNetTrainerProperDice")
    loss = make(trainer, tmp_path, kind, batch_dice=batch_dice).loss.loss
    (logits, _), (target, _) = scales(kind)
    sigmoid = "regions" in kind
    labels = target.long()
    if kind == "ignore":
        labels = labels.masked_fill(labels == 3, -100)
    if kind == "regions and ignore":
        labels = labels[:, :-1].masked_fill(labels[:, -1:] == 1, -100)
    options = {"activation": "sigmoid" if sigmoid else "softmax"}
    expected = make_loss("ce", **options)(logits, labels)
    expected += DiceLoss("proper", "batch" if batch_dice else "image", **options)(logits, labels)
    torch.testing.assert_close(loss(logits, target), expected)


def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class nnUNetTrainerMine(recursive_find_trainer_class_by_name("nnUNetTrainerNACL")):  # type: ignore[misc]
        loss_options = {"penalty_weight": 0.3, "prior": "gaussian"}  # noqa: RUF012
        dice_weight = 0.5

    loss = make(nnUNetTrainerMine, tmp_path, "labels").loss.loss
    assert (loss.pixel.penalty_weight, loss.pixel.prior.kind) == (0.3, "gaussian")
    assert loss.dice_weight == 0.5
    monkeypatch.setenv("SEGCAL_NNUNET_OPTIONS", "penalty_weight=0.7 dice_weight=0")
    trainer = make(nnUNetTrainerMine, tmp_path, "labels")
    loss = trainer.loss.loss
    assert (loss.pixel.penalty_weight, loss.dice_weight) == (0.7, 0)
    assert "penalty_weight=0.7" in Path(trainer.log_file).read_text()
    monkeypatch.setenv("SEGCAL_NNUNET_OPTIONS", "constrain=softmax")
    logits, targets = scales("regions")
    assert torch.isfinite(make(nnUNetTrainerMine, tmp_path, "regions").loss(logits, targets))
    monkeypatch.setenv("SEGCAL_NNUNET_OPTIONS", "weight=1")
    with pytest.raises(ValueError, match=r"nacl.*weight"):
        make(nnUNetTrainerMine, tmp_path, "labels")


def test_without_deep_supervision(tmp_path: Path) -> None:
    trainer = make(SegcalTrainer, tmp_path, "labels")
    trainer.enable_deep_supervision = False
    loss = trainer._build_loss()
    logits, targets = scales("labels")
    expected = torch.nn.functional.cross_entropy(logits[0], targets[0][:, 0].long())
    torch.testing.assert_close(
        loss(logits[0], targets[0]), expected + loss.dc(logits[0], targets[0])
    )


def _run_rank(rank: int, folder: str, name: str) -> None:
    """A process of DDP: the loss of its half of the batch, and its gradient."""
    os.environ |= {"nnUNet_compile": "f", "nnUNet_results": f"{folder}/{rank}"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    trainer = make(
        recursive_find_trainer_class_by_name(name), Path(folder), "ignore", batch_dice=True
    )
    assert trainer.is_ddp
    logits, targets = torch.load(f"{folder}/batch.pt")
    mine = [x[rank : rank + 1].detach().requires_grad_() for x in logits]
    value = trainer.loss(mine, [y[rank : rank + 1] for y in targets])
    value.backward()
    assert mine[-1].grad is not None  # every output is used: DDP waits for unused ones
    torch.save((value.detach(), mine[0].grad), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes(tmp_path: Path) -> None:
    """Batch Dice covers both processes; the pixel loss is their mean, as in nnU-Net."""
    name = "nnUNetTrainerSVLS"
    logits, targets = scales("ignore")
    for target in targets:  # equally many voxels in each image: the mean of means is the mean
        target[target == 3] = 0
        target[:, :, 0] = 3
    torch.save(([x.detach() for x in logits], targets), tmp_path / "batch.pt")
    multiprocessing.spawn(_run_rank, (str(tmp_path), name), nprocs=2)
    trainer = make(recursive_find_trainer_class_by_name(name), tmp_path, "ignore", batch_dice=True)
    trainer.loss.weight_factors = (1 / (1 + 1e-6), 1e-6 / (1 + 1e-6))  # what DDP uses, see nnU-Net
    value = trainer.loss(logits, targets)
    value.backward()
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    torch.testing.assert_close(torch.stack([part[0] for part in found]).mean(), value)
    for rank, (_, gradient) in enumerate(found):  # DDP takes the mean over processes
        torch.testing.assert_close(gradient / 2, logits[0].grad[rank : rank + 1])
