"""Ignored voxels: 255 in the stored label, -100 in targets, counted nowhere."""

import monai.losses
import numpy as np
import pytest
import torch
from torch import nn

from helpers.trees import msd_tree
from segcal.data import (
    IGNORED,
    MsdSource,
    PatchDataset,
    PreparedDataset,
    ResidentLoader,
    SliceDataset,
    StreamLoader,
    check_dataset,
    prepare,
    write_contact_sheet,
)
from segcal.losses import NACLLoss, SVLSLoss, loss_terms
from segcal.metrics import evaluate_case
from segcal.training.validate import Validator


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedDataset, PreparedDataset]:
    """The same cases of 12 × (34, 35 or 36) × 30 voxels, padded to 64 × 32 slices and native."""
    root = tmp_path_factory.mktemp("ignored")
    source = MsdSource(msd_tree(root / "source", channels=1))
    padded = prepare(source, root / "padded", recipe="padded").dataset
    return padded, prepare(source, root / "native", recipe="native").dataset


def test_padding_is_stored_as_ignored(sets: tuple[PreparedDataset, PreparedDataset]) -> None:
    for padded, native in zip(*sets, strict=True):
        label = padded.label()
        inside = label != IGNORED
        assert inside.sum() == native.label().size
        np.testing.assert_array_equal(label[inside], native.label().ravel())
        assert (padded.image()[0][~inside] == 0).all()
        assert padded.properties.voxels == native.properties.voxels
        assert padded.properties.ignored == label.size - native.label().size
        np.testing.assert_array_equal(padded.grid.restore_labels(label), native.label())
    padded_set, native_set = sets
    assert padded_set.num_classes == native_set.num_classes == 3
    assert check_dataset(padded_set.root).problems == ()
    # By hand: 30 · (34 + 35 + 36) of 3 · 64 · 32 pixels of each slice are inside.
    summary = dict(check_dataset(padded_set.root).summary)
    assert summary["ignored voxels"] == f"{1 - 30 * 105 / (3 * 64 * 32):.1%}" == "48.7%"
    assert write_contact_sheet(padded_set, padded_set.root / "sheet.png") == 3


def test_loaders_deliver_minus_100(sets: tuple[PreparedDataset, PreparedDataset]) -> None:
    slices = SliceDataset(sets[0], "all")
    for one, other in zip(ResidentLoader(slices, 5), StreamLoader(slices, 5), strict=True):
        assert one.target.dtype == torch.int64
        assert torch.equal(one.target, other.target)
        assert set(one.target.unique().tolist()) <= {-100, 0, 1, 2}
        assert (one.target == -100).any()
    # Padding added by the data set itself: 30 of 40 columns remain.
    native = SliceDataset(sets[1], "all", size=(34, 40))[0].target
    assert (native == -100).sum() == 34 * 10
    patches = PatchDataset(sets[1], "all", patch_size=(14, 34, 30), per_case=1, foreground=1.0)
    assert (patches[0].target == -100).sum() == 2 * 34 * 30


def test_patches_are_never_centered_on_ignored_voxels(
    sets: tuple[PreparedDataset, PreparedDataset],
) -> None:
    patches = PatchDataset(sets[0], "all", patch_size=(1, 1, 1), per_case=50, foreground=1.0)
    assert {int(patches[i].target) for i in range(len(patches))} == {1, 2}


@pytest.mark.parametrize("loss", [NACLLoss, SVLSLoss])
def test_priors_do_not_count_padding(
    loss: type[nn.Module], sets: tuple[PreparedDataset, PreparedDataset]
) -> None:
    """Without padding, border="valid" renormalizes over the same neighbors."""
    target = torch.from_numpy(sets[0]["brain_000"].target()).long()
    inside = (target != -100).nonzero()
    (_, top, left), (_, bottom, right) = inside.min(0).values, inside.max(0).values + 1
    logits = torch.randn(len(target), 3, *target.shape[1:], generator=torch.manual_seed(0))
    whole = loss(border="replicate")(logits, target)
    cut = (..., slice(top, bottom), slice(left, right))
    torch.testing.assert_close(whole, loss(border="valid")(logits[cut], target[cut]))
    assert not torch.isclose(whole, loss(border="valid")(logits, target.clamp(min=0)))


def test_losses_of_other_packages_have_no_gradient_there() -> None:
    logits = torch.randn(2, 3, 8, 8, generator=torch.manual_seed(1), requires_grad=True)
    target = torch.randint(0, 3, (2, 8, 8), generator=torch.manual_seed(2))
    target[:, :4] = -100
    loss = monai.losses.DiceCELoss(softmax=True, to_onehot_y=True, lambda_dice=0.0)
    (value,) = loss_terms(loss, logits, target).values()
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient[:, :, :4].abs().max() == 0
    # A mean over all voxels, half of which add 0.
    torch.testing.assert_close(2 * value, nn.CrossEntropyLoss()(logits, target))
    foreground = monai.losses.DiceLoss(softmax=True, to_onehot_y=True, include_background=False)
    (value,) = loss_terms(foreground, logits, target).values()
    (expected,) = loss_terms(foreground, logits[:, :, 4:], target[:, 4:]).values()
    torch.testing.assert_close(value, expected)


def test_validation_and_metrics_do_not_count_padding(
    sets: tuple[PreparedDataset, PreparedDataset],
) -> None:
    """A network of 1 × 1 kernels predicts the same with and without padding."""
    torch.manual_seed(0)
    network = nn.Conv2d(1, 3, 1)
    scores = [
        Validator(list(each), 3, groups=None, device=torch.device("cpu"), batch_size=4).score(
            network
        )
        for each in sets
    ]
    for one, other in zip(scores[0] or (), scores[1] or (), strict=True):
        assert one.dsc == other.dsc
        assert (one.ece, one.cece) == pytest.approx((other.ece, other.cece))
    rows = []
    for dataset in sets:
        case = dataset["brain_001"]
        with torch.no_grad():
            probs = network(torch.from_numpy(case.image()).transpose(0, 1)).softmax(1)
        result = evaluate_case(probs.transpose(0, 1), case.target(), case.spacing_mm, case="a")
        rows.append({(r.metric, r.label, r.region): r.value for r in result.rows})
    assert rows[0] == pytest.approx(rows[1], nan_ok=True)
