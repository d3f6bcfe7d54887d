"""Priors against a brute-force loop, by hand at edges, and in their limits."""

import itertools
import math

import numpy as np
import pytest
import torch

from segcal.losses.priors import BORDERS, ORDER_STATISTICS, PRIORS, neighbourhood_prior


def loop_prior(
    labels: np.ndarray,
    num_classes: int,
    kind: str,
    patch: tuple[int, ...],
    sigma: float,
    border: str,
    ignore: int | None,
) -> np.ndarray:
    """The definition, pixel by pixel: gather (offset, label) pairs, drop the silent, summarise."""
    out = np.zeros((labels.shape[0], num_classes, *labels.shape[1:]))
    space = labels.shape[1:]
    offsets = list(itertools.product(*(range(-(p // 2), p // 2 + 1) for p in patch)))
    gauss = {o: math.exp(-sum(x * x for x in o) / (2 * sigma**2)) for o in offsets}
    others = sum(w for o, w in gauss.items() if any(o))
    for b, *centre in np.ndindex(labels.shape):
        votes: list[tuple[float, int]] = []
        for offset in offsets:
            where = [c + o for c, o in zip(centre, offset, strict=True)]
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
                out[(b, label, *centre)] += weight / sum(w for w, _ in votes)
            continue
        label = {
            "max": found[-1],
            "min": found[0],
            "median": found[(len(found) - 1) // 2],
            "mode": max(sorted(set(found)), key=found.count),
        }[kind]
        out[(b, label, *centre)] = 1
    return out


@pytest.mark.parametrize("ignore", [None, -1, 0, 255])
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("kind", PRIORS)
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
    found = neighbourhood_prior(
        torch.from_numpy(labels), 4, kind, patch, 0.8, border, ignore, dtype=torch.float64
    )
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("kind", PRIORS)
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("shape", [(3, 9, 8), (2, 4, 5, 6), (1, 1, 1), (1, 1, 7)])
def test_sums_to_one_everywhere(shape: tuple[int, ...], border: str, kind: str) -> None:
    labels = torch.randint(5, shape)
    total = neighbourhood_prior(labels, 5, kind, 5, border=border).sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("kind", PRIORS)
def test_one_pixel_patch_is_the_label(kind: str) -> None:
    labels = torch.randint(3, (2, 6, 5))
    expected = torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).float()
    assert torch.equal(neighbourhood_prior(labels, 3, kind, 1), expected)


def test_three_border_rules_by_hand() -> None:
    """Two pixels side by side, labels 0 and 1, patch 3×3."""
    labels = torch.tensor([[[0, 1]]])
    class_one = {b: neighbourhood_prior(labels, 2, border=b)[0, 1, 0].tolist() for b in BORDERS}
    assert class_one["replicate"] == pytest.approx([1 / 3, 2 / 3])
    assert class_one["background"] == pytest.approx([1 / 9, 1 / 9])
    assert class_one["valid"] == pytest.approx([1 / 2, 1 / 2])


def test_gaussian_by_hand() -> None:
    """3×3 centre of a vertical edge: own label ½; the right column has 1 edge and 2 corners."""
    labels = torch.tensor([[[0, 0, 1]] * 3])
    a = math.exp(-1 / (2 * 0.7**2))
    expected = 0.5 * (a + 2 * a**2) / (4 * a + 4 * a**2)
    found = neighbourhood_prior(labels, 2, "gaussian", 3, sigma=0.7)[0, 1, 1, 1]
    assert found.item() == pytest.approx(expected)


def test_corner_voxel_by_hand_in_3d() -> None:
    """One voxel of a 2×2×2 cube: replication weighs a voxel ⅔ and its neighbour ⅓ per axis."""
    labels = torch.zeros(1, 2, 2, 2, dtype=torch.int64)
    labels[0, 0, 0, 0] = 1
    tau = neighbourhood_prior(labels, 2)[0, 1]
    for z, y, x in np.ndindex(2, 2, 2):
        apart = z + y + x
        assert tau[z, y, x].item() == pytest.approx((2 / 3) ** (3 - apart) * (1 / 3) ** apart)


def test_gaussian_knows_its_patch_and_width() -> None:
    labels = torch.randint(3, (1, 16, 16))
    base = neighbourhood_prior(labels, 3, "gaussian", 3, sigma=1.0)
    assert not torch.allclose(base, neighbourhood_prior(labels, 3, "gaussian", 5, sigma=1.0))
    assert not torch.allclose(base, neighbourhood_prior(labels, 3, "gaussian", 3, sigma=2.0))
    # A very wide Gaussian weighs all neighbours alike: ½ own label + ½ mean of the eight others.
    own = torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).float()
    others = (9 * neighbourhood_prior(labels, 3) - own) / 8
    wide = neighbourhood_prior(labels, 3, "gaussian", 3, sigma=1e4)
    torch.testing.assert_close(wide, (own + others) / 2)
    # A very narrow one still gives half to the four nearest, and does not fall to 0/0.
    narrow = neighbourhood_prior(labels, 3, "gaussian", 3, sigma=0.2)
    torch.testing.assert_close(narrow.sum(1), torch.ones(1, 16, 16))
    assert not torch.allclose(narrow, own)


def test_renumbering_classes_moves_only_order_statistics() -> None:
    labels = torch.randint(3, (2, 12, 12))
    swapped = torch.tensor([2, 1, 0])[labels]
    for kind, same in [("mean", True), ("gaussian", True), ("max", False), ("min", False)]:
        a = neighbourhood_prior(labels, 3, kind)
        b = neighbourhood_prior(swapped, 3, kind).flip(1)
        assert torch.equal(a, b) is same, kind


def test_soft_target_of_hard_labels_is_the_same() -> None:
    labels = torch.randint(4, (2, 7, 6, 5))
    soft = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1).double()
    for kind, border in itertools.product(("mean", "gaussian"), BORDERS):
        hard_prior = neighbourhood_prior(labels, 4, kind, border=border, dtype=torch.float64)
        soft_prior = neighbourhood_prior(soft, 4, kind, border=border, dtype=torch.float64)
        torch.testing.assert_close(soft_prior, hard_prior, rtol=0, atol=1e-12)


def test_soft_target_is_averaged() -> None:
    soft = torch.rand(1, 3, 6, 6).softmax(1)
    centre = neighbourhood_prior(soft, 3)[0, :, 2, 3]
    torch.testing.assert_close(centre, soft[0, :, 1:4, 2:5].mean((1, 2)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_any_integer_type(dtype: torch.dtype) -> None:
    labels = torch.randint(4, (1, 5, 5))
    assert torch.equal(neighbourhood_prior(labels.to(dtype), 4), neighbourhood_prior(labels, 4))


def test_unsigned_labels_do_not_wrap_the_ignored_one() -> None:
    """−100 is 156 in a byte."""
    labels = torch.full((1, 4, 4), 156, dtype=torch.uint8)
    assert neighbourhood_prior(labels, 200, ignore_index=-100)[0, 156].eq(1).all()
    with pytest.raises(ValueError, match="but got 156"):
        neighbourhood_prior(labels, 3, ignore_index=-100)


def test_many_classes_and_large_patches_do_not_overflow() -> None:
    labels = torch.randint(300, (1, 9, 9))
    expected = loop_prior(labels.numpy(), 300, "mean", (17, 17), 1.0, "replicate", None)
    found = neighbourhood_prior(labels, 300, "mean", 17, dtype=torch.float64)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    flat = torch.zeros(1, 4, 4, dtype=torch.int64)
    assert neighbourhood_prior(flat, 2, "mean", 17)[0, 0].eq(1).all()


def test_nothing_left_in_the_patch_is_zero() -> None:
    labels = torch.full((1, 5, 5), -100)
    for kind in PRIORS:
        assert not neighbourhood_prior(labels, 3, kind, ignore_index=-100).any(), kind


def test_result_is_a_constant() -> None:
    soft = torch.rand(1, 2, 4, 4).softmax(1).requires_grad_()
    assert not neighbourhood_prior(soft, 2).requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "mode2"}, "one of 'mean', 'gaussian'.*'mode2'.*mean 'mode'"),
        ({"border": "reflect"}, "'replicate', 'background', 'valid', but got 'reflect'"),
        ({"patch_size": 4}, "`patch_size` to be odd.*4"),
        ({"patch_size": (3, 2)}, r"`patch_size` to be odd.*\(3, 2\)"),
        ({"patch_size": (3, 3, 3)}, r"`patch_size` to be one value or 2"),
        ({"patch_size": 0}, "`patch_size` to be odd"),
        ({"sigma": 0.0}, "`sigma` to be a finite number at least 0.2"),
        ({"sigma": float("nan")}, "`sigma`"),
        ({"num_classes": 3}, "labels 0 to 2, but got 3"),
        ({"num_classes": 0}, "`num_classes` to be an integer at least 1"),
        ({"ignore_index": 3, "num_classes": 2}, "labels 0 to 1 or the ignored 3, but got 2"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str) -> None:
    labels = torch.tensor([[[0, 1, 2, 3]] * 4])
    with pytest.raises(ValueError, match=message):
        neighbourhood_prior(labels, **{"num_classes": 4, **change})  # type: ignore[arg-type]


def test_bad_targets_are_named() -> None:
    with pytest.raises(ValueError, match="S 2-D or 3-D and not empty, but got shape"):
        neighbourhood_prior(torch.zeros(4, 4, dtype=torch.int64), 2)
    with pytest.raises(ValueError, match="not empty, but got shape"):
        neighbourhood_prior(torch.zeros(0, 4, 4, dtype=torch.int64), 2)
    with pytest.raises(TypeError, match="`target` to be a tensor, but got ndarray"):
        neighbourhood_prior(np.zeros((1, 4, 4), int), 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sum is off by 1"):
        neighbourhood_prior(torch.ones(1, 2, 4, 4), 2)
    with pytest.raises(ValueError, match="3 classes on axis 1"):
        neighbourhood_prior(torch.full((1, 2, 4, 4), 0.5), 3)
    for kind in ORDER_STATISTICS:
        with pytest.raises(ValueError, match="for a soft target"):
            neighbourhood_prior(torch.full((1, 2, 4, 4), 0.5), 2, kind)


def test_same_on_every_device(device: str) -> None:
    labels = torch.randint(4, (2, 9, 9))
    for kind, border in itertools.product(PRIORS, BORDERS):
        there = neighbourhood_prior(labels.to(device), 4, kind, border=border, ignore_index=1)
        here = neighbourhood_prior(labels, 4, kind, border=border, ignore_index=1)
        torch.testing.assert_close(there.cpu(), here)
