"""Augmentation: image and label change together, and reproducibly."""

import pytest
import torch

from segcal.config import Named
from segcal.data import Batch
from segcal.training.augment import Augmentation


def batch(count: int = 4) -> Batch:
    target = torch.zeros(count, 16, 16, dtype=torch.int64)
    target[:, 2:7, 3:12] = 1
    target[:, 9:12, 3:6] = 3
    return Batch(target[:, None].float() * 2, target, ("a",) * count)


def flips(seed: int = 0) -> Augmentation:
    return Augmentation([Named(name="RandAxisFlipd", options={"prob": 0.5})], seed)


def test_spatial_transforms_change_image_and_label_together() -> None:
    names = [
        Named(name="RandFlipd", options={"prob": 0.5, "spatial_axis": 0}),
        Named(name="RandRotated", options={"prob": 1.0, "range_x": 0.6}),
        Named(name="RandZoomd", options={"prob": 1.0, "min_zoom": 0.8, "max_zoom": 1.3}),
    ]
    before = batch()
    after = Augmentation(names, 0)(before, 0, 0, 0)
    assert type(after.image) is torch.Tensor
    assert after.target.dtype == torch.int64
    assert set(after.target.unique().tolist()) <= {0, 1, 3}  # 2 would be an interpolated label
    assert not torch.equal(after.target, before.target)
    # The image was twice the label, and still is, except for interpolation at the edges.
    assert float((after.image[:, 0] - 2 * after.target).abs().mean()) < 0.6
    flipped = flips()(before, 0, 0, 0)
    assert torch.equal(flipped.image[:, 0], 2.0 * flipped.target)


def test_soft_labels_are_transformed_like_labels() -> None:
    before = batch()
    soft = torch.nn.functional.one_hot(before.target, 4).movedim(-1, 1).float()
    after = flips()(before._replace(target=soft), 0, 0, 0)
    assert after.target.shape == (4, 4, 16, 16)
    assert torch.equal(after.target.argmax(1), flips()(before, 0, 0, 0).target)


def test_intensity_transforms_do_not_change_labels() -> None:
    before = batch()
    noise = Named(name="RandGaussianNoised", options={"prob": 1.0})
    after = Augmentation([noise], 0)(before, 0, 0, 0)
    assert torch.equal(after.target, before.target)
    assert not torch.equal(after.image, before.image)


def test_random_numbers_depend_only_on_seed_epoch_step_and_position() -> None:
    noise = Named(name="RandGaussianNoised", options={"prob": 1.0})
    augment = Augmentation([noise], 0)
    first = augment(batch(), 3, 5, 0).image
    augment(batch(), 9, 9, 0)  # other calls in between make no difference
    assert torch.equal(augment(batch(), 3, 5, 0).image, first)
    # Two processes with half the batch each draw what one process draws.
    halves = [augment(batch(2), 3, 5, start).image for start in (0, 2)]
    assert torch.equal(torch.cat(halves), first)
    for epoch, step, place in ((4, 5, 0), (3, 6, 0), (3, 5, 1)):
        assert not torch.equal(augment(batch(), epoch, step, place).image, first)
    assert not torch.equal(Augmentation([noise], 1)(batch(), 3, 5, 0).image, first)


def test_a_transform_that_changes_the_size_is_an_error() -> None:
    shrink = Named(name="Zoomd", options={"zoom": 0.5, "keep_size": False})
    with pytest.raises(ValueError, match=r"Zoomd to keep the image's shape \(1, 16, 16\)"):
        Augmentation([shrink], 0)(batch(), 0, 0, 0)
