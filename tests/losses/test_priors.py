"""Priors against a brute-force loop, by hand at edges, in their limits, and the user's own."""

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from segcal.losses import PRIORS, Prior, make_prior, neighborhood_prior
from segcal.losses.priors import BORDERS, KINDS, ORDER_STATISTICS


def loop_prior(
    labels: np.ndarray,
    num_classes: int,
    kind: str,
    patch: tuple[int, ...],
    sigma: float,
    border: str,
    ignore: int | None,
) -> np.ndarray:
    """The definition, pixel by pixel: gather (weight, label) pairs and summarize them."""
    out = np.zeros((labels.shape[0], num_classes, *labels.shape[1:]))
    space = labels.shape[1:]
    offsets = list(itertools.product(*(range(-(p // 2), p // 2 + 1) for p in patch)))
    gauss = {o: math.exp(-sum(x * x for x in o) / (2 * sigma**2)) for o in offsets}
    others = sum(w for o, w in gauss.items() if any(o))
    for b, *center in np.ndindex(labels.shape):
        votes: list[tuple[float, int]] = []
        for offset in offsets:
            where = [c + o for c, o in zip(center, offset, strict=True)]
            inside = all(0 <= w < n for w, n in zip(where, space, strict=True))
            if inside or border == "replicate":
                clamped = tuple(min(max(w, 0), n - 1) for w, n in zip(where, space, strict=True))
                label = labels[(b, *clamped)]
            elif border == "background":
                label = 0
            else:
                continue
            if label == ignore:
                continue
            weight = 1.0 if kind != "gaussian" else gauss[offset] if any(offset) else others
            votes.append((weight, int(label)))
        if not votes:
            continue
        found = sorted(label for _, label in votes)
        if kind in ("mean", "gaussian"):
            for weight, label in votes:
                out[(b, label, *center)] += weight / sum(w for w, _ in votes)
            continue
        label = {
            "max": found[-1],
            "min": found[0],
            "median": found[(len(found) - 1) // 2],
            "mode": max(sorted(set(found)), key=found.count),
        }[kind]
        out[(b, label, *center)] = 1
    return out


@pytest.mark.parametrize("ignore", [None, -1, 0, 255])
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("space", "patch"), [((5, 6), 3), ((4, 7), (5, 3)), ((2, 4, 5), (1, 3, 3)), ((3, 3, 4), 3)]
)
def test_every_prior_equals_the_loop(
    space: tuple[int, ...], patch: int | tuple[int, ...], kind: str, border: str, ignore: int | None
) -> None:
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 4, (2, *space))
    if ignore is not None:
        labels[rng.random(labels.shape) < 0.3] = ignore
    sizes = (patch,) * len(space) if isinstance(patch, int) else patch
    expected = loop_prior(labels, 4, kind, sizes, 0.8, border, ignore)
    found = neighborhood_prior(
        torch.from_numpy(labels), 4, kind, patch, 0.8, border, ignore, dtype=torch.float64
    )
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("shape", [(3, 9, 8), (2, 4, 5, 6), (1, 1, 1), (1, 1, 7)])
def test_sums_to_one_everywhere(shape: tuple[int, ...], border: str, kind: str) -> None:
    labels = torch.randint(5, shape)
    total = neighborhood_prior(labels, 5, kind, 5, border=border).sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("kind", KINDS)
def test_one_pixel_patch_is_the_label(kind: str) -> None:
    labels = torch.randint(3, (2, 6, 5))
    expected = torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).float()
    assert torch.equal(neighborhood_prior(labels, 3, kind, 1), expected)


def test_three_border_rules_by_hand() -> None:
    """Two pixels side by side, labels 0 and 1, patch 3×3."""
    labels = torch.tensor([[[0, 1]]])
    class_one = {b: neighborhood_prior(labels, 2, border=b)[0, 1, 0].tolist() for b in BORDERS}
    assert class_one["replicate"] == pytest.approx([1 / 3, 2 / 3])
    assert class_one["background"] == pytest.approx([1 / 9, 1 / 9])
    assert class_one["valid"] == pytest.approx([1 / 2, 1 / 2])


def test_gaussian_by_hand() -> None:
    """3×3 center of a vertical edge: own label ½; the right column has 1 edge and 2 corners."""
    labels = torch.tensor([[[0, 0, 1]] * 3])
    a = math.exp(-1 / (2 * 0.7**2))
    expected = 0.5 * (a + 2 * a**2) / (4 * a + 4 * a**2)
    found = neighborhood_prior(labels, 2, "gaussian", 3, sigma=0.7)[0, 1, 1, 1]
    assert found.item() == pytest.approx(expected)


def test_corner_voxel_by_hand_in_3d() -> None:
    """One voxel of a 2×2×2 cube: replication weights a voxel ⅔ and its neighbor ⅓ per axis."""
    labels = torch.zeros(1, 2, 2, 2, dtype=torch.int64)
    labels[0, 0, 0, 0] = 1
    tau = neighborhood_prior(labels, 2)[0, 1]
    for z, y, x in np.ndindex(2, 2, 2):
        apart = z + y + x
        assert tau[z, y, x].item() == pytest.approx((2 / 3) ** (3 - apart) * (1 / 3) ** apart)


def test_gaussian_depends_on_patch_and_width() -> None:
    labels = torch.randint(3, (1, 16, 16))
    base = neighborhood_prior(labels, 3, "gaussian", 3, sigma=1.0)
    assert not torch.allclose(base, neighborhood_prior(labels, 3, "gaussian", 5, sigma=1.0))
    assert not torch.allclose(base, neighborhood_prior(labels, 3, "gaussian", 3, sigma=2.0))
    # A very wide Gaussian weights all neighbors equally: ½ own label + ½ mean of the eight others.
    own = torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).float()
    others = (9 * neighborhood_prior(labels, 3) - own) / 8
    wide = neighborhood_prior(labels, 3, "gaussian", 3, sigma=1e4)
    torch.testing.assert_close(wide, (own + others) / 2)
    # A very narrow one still gives half to the four nearest, and does not fall to 0/0.
    narrow = neighborhood_prior(labels, 3, "gaussian", 3, sigma=0.2)
    torch.testing.assert_close(narrow.sum(1), torch.ones(1, 16, 16))
    assert not torch.allclose(narrow, own)


def test_renumbering_classes_changes_only_order_statistics() -> None:
    labels = torch.randint(3, (2, 12, 12))
    swapped = torch.tensor([2, 1, 0])[labels]
    for kind, same in [("mean", True), ("gaussian", True), ("max", False), ("min", False)]:
        a = neighborhood_prior(labels, 3, kind)
        b = neighborhood_prior(swapped, 3, kind).flip(1)
        assert torch.equal(a, b) is same, kind


def test_soft_target_of_hard_labels_is_the_same() -> None:
    labels = torch.randint(4, (2, 7, 6, 5))
    soft = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1).double()
    for kind, border in itertools.product(("mean", "gaussian"), BORDERS):
        hard_prior = neighborhood_prior(labels, 4, kind, border=border, dtype=torch.float64)
        soft_prior = neighborhood_prior(soft, 4, kind, border=border, dtype=torch.float64)
        torch.testing.assert_close(soft_prior, hard_prior, rtol=0, atol=1e-12)


def test_soft_target_is_averaged() -> None:
    soft = torch.rand(1, 3, 6, 6).softmax(1)
    center = neighborhood_prior(soft, 3)[0, :, 2, 3]
    torch.testing.assert_close(center, soft[0, :, 1:4, 2:5].mean((1, 2)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_any_integer_type(dtype: torch.dtype) -> None:
    labels = torch.randint(4, (1, 5, 5))
    assert torch.equal(neighborhood_prior(labels.to(dtype), 4), neighborhood_prior(labels, 4))


def test_a_negative_ignore_index_does_not_wrap_in_unsigned_labels() -> None:
    """−100 is 156 in a byte."""
    labels = torch.full((1, 4, 4), 156, dtype=torch.uint8)
    assert neighborhood_prior(labels, 200, ignore_index=-100)[0, 156].eq(1).all()
    with pytest.raises(ValueError, match="but got 156"):
        neighborhood_prior(labels, 3, ignore_index=-100)


def test_many_classes_and_large_patches_do_not_overflow() -> None:
    labels = torch.randint(300, (1, 9, 9))
    expected = loop_prior(labels.numpy(), 300, "mean", (17, 17), 1.0, "replicate", None)
    found = neighborhood_prior(labels, 300, "mean", 17, dtype=torch.float64)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    flat = torch.zeros(1, 4, 4, dtype=torch.int64)
    assert neighborhood_prior(flat, 2, "mean", 17)[0, 0].eq(1).all()


def test_nothing_left_in_the_patch_is_zero() -> None:
    labels = torch.full((1, 5, 5), -100)
    for kind in KINDS:
        assert not neighborhood_prior(labels, 3, kind, ignore_index=-100).any(), kind


def test_result_is_a_constant() -> None:
    soft = torch.rand(1, 2, 4, 4).softmax(1).requires_grad_()
    assert not neighborhood_prior(soft, 2).requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prior": "mode2"}, "'mode2'.*'mode'.*mean, gaussian"),
        ({"border": "reflect"}, "'replicate', 'background', 'valid', but got 'reflect'"),
        ({"patch_size": 4}, "`patch_size` to be odd.*4"),
        ({"patch_size": (3, 2)}, r"`patch_size` to be odd.*\(3, 2\)"),
        ({"patch_size": (3, 3, 3)}, r"`patch_size` to be one value or 2"),
        ({"patch_size": 0}, "`patch_size` to be odd"),
        ({"sigma": 0.0}, "`sigma` to be a finite number at least 0.2"),
        ({"sigma": float("nan")}, "`sigma`"),
        ({"num_classes": 3}, "labels 0 to 2, but got 3"),
        ({"num_classes": 0}, "`num_classes` to be an integer at least 1"),
        ({"ignore_index": 3, "num_classes": 2}, "labels 0 to 1.*3.*but got 2"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str) -> None:
    labels = torch.tensor([[[0, 1, 2, 3]] * 4])
    with pytest.raises(ValueError, match=message):
        neighborhood_prior(labels, **{"num_classes": 4, **change})  # type: ignore[arg-type]


def test_bad_targets_are_named() -> None:
    with pytest.raises(ValueError, match="S 2-D or 3-D and not empty, but got shape"):
        neighborhood_prior(torch.zeros(4, 4, dtype=torch.int64), 2)
    with pytest.raises(ValueError, match="not empty, but got shape"):
        neighborhood_prior(torch.zeros(0, 4, 4, dtype=torch.int64), 2)
    with pytest.raises(TypeError, match="`target` to be a tensor, but got ndarray"):
        neighborhood_prior(np.zeros((1, 4, 4), int), 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sum is off by 1"):
        neighborhood_prior(torch.ones(1, 2, 4, 4), 2)
    with pytest.raises(ValueError, match="3 classes on axis 1"):
        neighborhood_prior(torch.full((1, 2, 4, 4), 0.5), 3)
    for kind in ORDER_STATISTICS:
        with pytest.raises(ValueError, match="for a soft target"):
            neighborhood_prior(torch.full((1, 2, 4, 4), 0.5), 2, kind)


def test_same_on_every_device(device: str) -> None:
    labels = torch.randint(4, (2, 9, 9))
    for kind, border in itertools.product(KINDS, BORDERS):
        there = neighborhood_prior(labels.to(device), 4, kind, border=border, ignore_index=1)
        here = neighborhood_prior(labels, 4, kind, border=border, ignore_index=1)
        torch.testing.assert_close(there.cpu(), here)


def test_a_prior_is_a_value() -> None:
    sizes = [1, 3, 3]
    prior = Prior("mean", sizes)
    sizes[0] = 5
    assert prior == Prior("mean", (1, 3, 3))
    assert len({prior, Prior("mean", (1, 3, 3)), Prior("mode", (1, 3, 3))}) == 2
    assert pickle.loads(pickle.dumps(prior)) == prior
    with pytest.raises(AttributeError):
        prior.patch_size = 5  # type: ignore[misc]


class Ring(Prior):
    """A user's prior: the proportions in the patch without the pixel itself."""

    def __call__(self, target: Tensor, num_classes: int, **options: Any) -> Tensor:
        own = torch.nn.functional.one_hot(target, num_classes).movedim(-1, 1)
        return (9 * super().__call__(target, num_classes, **options) - own) / 8


def test_a_users_prior_by_path_class_and_instance() -> None:
    labels = torch.randint(3, (2, 6, 5))
    expected = Ring()(labels, 3)
    for prior in (f"{__name__}:Ring", Ring, Ring()):
        assert torch.equal(neighborhood_prior(labels, 3, prior), expected)
        changed = make_prior(prior, border="valid")
        assert changed == Ring(border="valid")
    assert PRIORS.names()[: len(KINDS)] == list(KINDS)


def test_settings_for_a_function_raise() -> None:
    with pytest.raises(ValueError, match=r"`sigma`.*function"):
        make_prior(lambda target, num_classes, **_: target, sigma=2.0)


def test_a_path_to_anything_else_is_not_a_prior() -> None:
    for path in ("os:system", "torch.nn:Conv2d"):
        with pytest.raises(ValueError, match="must be a Prior"):
            make_prior(path)
