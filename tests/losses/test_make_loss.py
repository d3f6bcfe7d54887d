"""Losses by name and by import path; options that do not exist or do not fit."""

import subprocess
import sys
from typing import Any

import monai.losses
import pytest
import torch
from torch import nn

from helpers.loss_samples import NAMES
from segcal.losses import LOSSES, CrossEntropyLoss, NACLLoss, SegmentationLoss, make_loss


def test_registered_names() -> None:
    assert [name for name in LOSSES if name in NAMES] == NAMES
    assert LOSSES.name_of(NACLLoss) == "nacl"
    for name in NAMES:
        assert isinstance(make_loss(name), SegmentationLoss)


def test_import_paths() -> None:
    assert type(make_loss("torch.nn:CrossEntropyLoss")) is nn.CrossEntropyLoss
    loss = make_loss("monai.losses:DiceCELoss", softmax=True, to_onehot_y=True)
    assert isinstance(loss, monai.losses.DiceCELoss)
    assert make_loss("segcal.losses.nacl:NACLLoss", penalty_weight=0.3).penalty_weight == 0.3
    with pytest.raises(ValueError, match=r"'os:system' must be a subclass of torch.nn.Module"):
        make_loss("os:system")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nalc", {}, r"'nalc'.*'nacl'.*Known: ce, "),
        ("nacl", {"peanlty": "l1"}, r"'nacl' has no option 'peanlty'.*'penalty'.*patch_size"),
        ("torch.nn:CrossEntropyLoss", {"wieght": 1}, r"no option 'wieght'.*'weight'"),
        ("nacl", {"prior": "average"}, "no prior is named 'average'.*mean, gaussian"),
        ("nacl", {"prior": "meann"}, "'mean'"),
        ("nacl", {"penalty": "l3"}, "`penalty` to be one of 'l1', 'l2'"),
        ("nacl", {"constrain": "probs"}, "`constrain` to be one of 'logits', 'softmax'"),
        ("nacl", {"border": "zeros"}, "`border` to be one of"),
        ("nacl", {"patch_size": 2}, "`patch_size` to be odd"),
        ("nacl", {"class_reduction": "max"}, "`class_reduction` to be one of 'mean', 'sum'"),
        ("nacl", {"penalty_weight": -0.1}, "`penalty_weight` to be a finite number at least 0"),
        ("svls", {"sigma": -1.0}, "`sigma`"),
        ("focal", {"gamma": -1.0}, "`gamma`"),
        ("ls", {"alpha": 1.5}, "`alpha` to be a finite number at least 0 and at most 1"),
        ("mbls", {"margin": float("inf")}, "`margin`"),
        ("ce_dice", {"smooth": 0.0}, "`smooth` to be a finite number above 0"),
        ("ce", {"reduction": "average"}, "`reduction` to be one of 'mean', 'sum', 'none'"),
        ("ce", {"class_weights": [1.0, -1.0]}, "`class_weights` to be K finite weights"),
        ("ce", {"class_weights": "abc"}, "`class_weights` to be K finite weights"),
        ("nacl", {"patch_size": ()}, "`patch_size` to be odd"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_loss(name, **options)


def test_bad_options_of_the_wrong_type() -> None:
    with pytest.raises(TypeError, match=r"`penalty_weight` to be a number, but got '0.1'"):
        NACLLoss(penalty_weight="0.1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="peanlty"):
        NACLLoss(peanlty="l1")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="`prior` to be a name"):
        NACLLoss(prior=3)  # type: ignore[arg-type]
    for wrong in (None, 1.5):
        with pytest.raises(TypeError, match="`ignore_index` to be an integer"):
            NACLLoss(ignore_index=wrong)  # type: ignore[arg-type]


def test_the_representation_shows_the_settings() -> None:
    text = repr(NACLLoss(0.3, patch_size=5))
    assert "penalty_weight=0.3" in text
    assert "patch_size=5" in text
    assert torch.nn.Module.__repr__(CrossEntropyLoss(ignore_index=7)).count("ignore_index=7") == 1


def test_importing_the_losses_needs_only_torch_and_numpy() -> None:
    """Neither Triton, which Windows and macOS lack, nor the packages of the extra `app`."""
    script = """
import sys, torch
before = set(sys.modules)
import segcal.losses
for name in ("triton", "monai", "pandas", "matplotlib", "pydantic", "yaml", "rich", "scipy"):
    assert name not in set(sys.modules) - before, name
sys.modules["triton"] = None
loss = segcal.losses.NACLLoss()
loss(torch.randn(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64))
from segcal.losses import kernels
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
