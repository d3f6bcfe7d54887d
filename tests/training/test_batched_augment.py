"""Batched augmentation: hand-worked transforms, labels, reproducibility, every option."""

from typing import Any

import pytest
import torch
from torch import Tensor

from segcal.training.batched_augment import (
    BatchedAugmentation,
    _filter_matrix,
    _gaussian_noise,
    _normal,
)

RANDOM = (
    "rotate", "scale", "translate", "elastic", "contrast", "brightness", "gamma", "noise", "blur",
    "low_resolution",
)  # fmt: skip
OFF: dict[str, Any] = {"flip": 0.0} | dict.fromkeys(RANDOM, (0.0, 1.0, 1.0))
KEY = (0, 3, 5)


def augment(image: Tensor, target: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    return BatchedAugmentation(**{**OFF, **options})(image, target, KEY, 0)


def batch(*size: int, count: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(count, 2, *size), torch.randint(0, 4, (count, *size))


@pytest.mark.parametrize("size", [(9, 12), (6, 9, 12)])
def test_without_transforms_nothing_changes(size: tuple[int, ...]) -> None:
    image, target = batch(*size)
    moved, labels = augment(image, target)
    torch.testing.assert_close(moved, image, atol=1e-4, rtol=0)
    assert torch.equal(labels, target)


@pytest.mark.parametrize("size", [(9, 12), (6, 9, 12)])
def test_flips_mirror_image_and_labels(size: tuple[int, ...]) -> None:
    image, target = batch(*size)
    moved, labels = augment(image, target, flip=1.0)
    axes = tuple(range(-len(size), 0))
    torch.testing.assert_close(moved, image.flip(axes), atol=1e-4, rtol=0)
    assert torch.equal(labels, target.flip(axes))


def test_rotation_by_a_right_angle_is_exact() -> None:
    image, target = batch(11, 11)
    moved, labels = augment(image, target, rotate=(1, 90, 90))
    torch.testing.assert_close(moved, image.rot90(-1, (2, 3)), atol=1e-4, rtol=0)
    assert torch.equal(labels, target.rot90(-1, (1, 2)))


def test_rotation_keeps_shapes_in_millimeters() -> None:
    """A bar of 8 × 2 mm in pixels of 1 × 2 mm: 8 rows and 1 column, then 2 rows and 4 columns."""
    target = torch.zeros(1, 16, 17, dtype=torch.int64)
    target[:, 4:12, 8] = 1
    _, labels = augment(torch.zeros(1, 1, 16, 17), target, rotate=(1, 90, 90), spacing=(1, 2))
    rows, columns = (labels[0] == 1).nonzero(as_tuple=True)
    assert len(rows.unique()) == 2
    assert len(columns.unique()) in (4, 5)  # an even length around the center of an odd axis


def test_scaling_and_translation_are_exact() -> None:
    image, target = batch(8, 8)
    moved, labels = augment(image, target, translate=(1, 0.25, 0.25))
    assert torch.equal(labels[:, :6, :6], target[:, 2:, 2:])
    torch.testing.assert_close(moved[:, :, :6, :6], image[:, :, 2:, 2:], atol=1e-4, rtol=0)
    assert bool((labels[:, 6:] == -100).all())  # outside the image
    assert bool((moved[:, :, 7] == 0).all())
    _, large = augment(image, target, scale=(1, 2, 2))
    assert torch.equal(large[:, ::2, ::2], target[:, 2:6, 2:6])


def test_ignored_voxels_stay_ignored_and_labels_are_never_mixed() -> None:
    image, target = batch(16, 16)
    target[:, :4] = -100
    _, labels = augment(image, target, flip=1.0)
    assert torch.equal(labels[:, -4:], torch.full_like(labels[:, -4:], -100))
    _, labels = augment(image, 3 * (target > 1), rotate=(1, 10, 30), elastic=(1, 0.05, 0.05))
    assert set(labels.unique().tolist()) == {-100, 0, 3}


def test_soft_targets_are_interpolated_and_ignored_as_zeros() -> None:
    image, target = batch(16, 16)
    soft = torch.nn.functional.one_hot(target, 4).movedim(-1, 1).float()
    soft[:, :, :4] = 0  # ignored
    _, moved = augment(image, soft, rotate=(1, 20, 20))
    total = moved.sum(1)
    counted = total > 0
    torch.testing.assert_close(total[counted], torch.ones_like(total[counted]))
    assert 0 < int((~counted).sum()) < total.numel()
    assert bool(((moved > 0.01) & (moved < 0.99)).any())


@pytest.mark.parametrize("size", [(24, 20), (10, 24, 20)])
@pytest.mark.parametrize("name", RANDOM)
def test_every_transform_depends_on_its_range_and_its_probability(
    name: str, size: tuple[int, ...]
) -> None:
    image, target = batch(*size)
    _, low, high = getattr(BatchedAugmentation(), name)
    high = 0.9 if name == "low_resolution" else high  # 1 is no change
    full, _ = augment(image, target, **{name: (1, low, high)})
    strongest, _ = augment(image, target, **{name: (1, high, high)})
    changed = (full - image).abs().flatten(1).amax(1) > 1e-3
    assert bool(changed.all())
    assert not torch.allclose(full, strongest)
    half, _ = augment(image.repeat(8, *[1] * (image.ndim - 1)), target.repeat(8, *[1] * len(size)),
                      **{name: (0.5, low, high)})  # fmt: skip
    changed = (half - image.repeat(8, *[1] * (image.ndim - 1))).abs().flatten(1).amax(1) > 1e-3
    assert 4 <= int(changed.sum()) < 32


def test_random_numbers_depend_only_on_the_key_and_the_position() -> None:
    image, target = batch(16, 16, count=4)
    transform = BatchedAugmentation(noise=(1, 0.1, 0.3))
    first = transform(image, target, KEY, 0)[0]
    for key in ((0, 3, 6), (0, 4, 5), (1, 3, 5)):
        assert not torch.equal(transform(image, target, key, 0)[0], first)
    halves = [transform(image[i : i + 2], target[i : i + 2], KEY, i)[0] for i in (0, 2)]
    assert torch.equal(torch.cat(halves), first)
    assert not torch.equal(transform(image[:2], target[:2], KEY, 2)[0], first[:2])


def test_thick_slices_are_changed_only_within_their_plane() -> None:
    target = torch.arange(6).view(1, 6, 1, 1).expand(2, 6, 16, 16).contiguous()
    image, defaults = target[:, None].float(), BatchedAugmentation()
    names = ("rotate", "scale", "elastic", "blur")
    spatial = {name: (1, *getattr(defaults, name)[1:]) for name in names}
    _, labels = augment(image, target, spacing=(5, 1, 1), **spatial)
    inside = labels != -100
    assert torch.equal(labels[inside], target[inside])
    _, labels = augment(image, target, spacing=(2.5, 1, 1), **spatial)
    assert not torch.equal(labels[labels != -100], target[labels != -100])


def test_noise_is_standard_normal_and_differs_between_items() -> None:
    noise = _gaussian_noise(torch.zeros(2, 1, 256, 256), torch.tensor([1.0, 2.0])).flatten(1)
    assert noise.mean(1).tolist() == pytest.approx([0, 0], abs=0.02)
    assert noise.std(1).tolist() == pytest.approx([1, 1], abs=0.02)
    assert float((noise**4).mean()) == pytest.approx(3, abs=0.1)
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.02


def test_filter_matrices() -> None:
    identity, blurred, coarse = _filter_matrix(
        8, torch.tensor([0.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 0.5])
    )
    assert torch.equal(identity, torch.eye(8))
    weights = torch.exp(-0.5 * torch.arange(-3.0, 5) ** 2)
    torch.testing.assert_close(blurred[3], weights / weights.sum())
    # Coarse voxels are 2k + 1; between them, linear interpolation.
    assert coarse[:4].argmax(1).tolist() == [1, 1, 3, 3]
    assert coarse[1, [1, 3]].tolist() == [0.75, 0.25]
    torch.testing.assert_close(coarse.sum(1), torch.ones(8))


@pytest.mark.parametrize(
    "options", [{"flip": 2}, {"rotate": (0.5, 1)}, {"scale": (1, 0, 2)}, {"noise": (1, 2, 1)}]
)
def test_invalid_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        BatchedAugmentation(**options)


def test_noise_is_finite_for_all_bits() -> None:
    extremes = _normal(torch.tensor([0, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000]))
    assert extremes.isfinite().all()
    assert extremes[0] == -extremes[1] < -5
    assert extremes[2:].abs().max() < 1e-6
