"""Random transforms of whole batches on their device, in 2-D and 3-D.

One resampling covers flips, rotation, scaling, translation and elastic deformation; changes of the
intensity follow. All random numbers of a step are drawn on the CPU and copied at once, so no step
waits for the device. They depend only on (seed, epoch, step, position in the global batch).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from segcal.core.checks import check_number

# The label of voxels that do not count: the default `ignore_index` of torch and of segcal's losses.
_IGNORED = -100
# Random is (probability, from, to).
Random = Sequence[float]
# If slices are this many times thicker than pixels, or a patch this many times wider than high, its
# slices are deformed only within their plane.
ANISOTROPIC = 3.0
_FACTORS = ("scale", "contrast", "brightness", "gamma")
# Values that change nothing.
_REST = {
    "contrast": 1.0, "brightness": 1.0, "gamma": 1.0, "noise": 0.0, "blur": 0.0,
    "low_resolution": 1.0,
}  # fmt: skip
# Random numbers of an item, without those of the elastic deformation; some are spare.
_SCALARS = 40
# Intervals of the cubic B-splines that deform an image, along each axis.
_INTERVALS = 4


@dataclass(frozen=True)
class BatchedAugmentation:
    """Random transforms of a batch; the defaults follow nnU-Net (Isensee et al., 2021).

    Each option is (probability, from, to); factors are drawn uniformly on a logarithmic scale.
    A probability of 0 switches a transform off.

    Attributes:
        flip: probability to mirror an axis, for each axis alone.
        rotate: angle in degrees; in 3-D one for each axis.
        scale: factor of the size; larger than 1 enlarges.
        translate: shift along each axis, as a fraction of its length.
        elastic: standard deviation of the displacements of the control points of a B-spline (7 per
            axis), as a fraction of the shortest axis.
        contrast: factor of the distance to the mean; the range of values is kept.
        brightness: factor of all values.
        gamma: exponent for values scaled to 0 … 1, a quarter of them inverted; mean and standard
            deviation are restored.
        noise: standard deviation of Gaussian noise, relative to that of the image.
        blur: standard deviation of a Gaussian filter in voxels.
        low_resolution: factor of the resolution, by nearest-neighbor sampling and linear
            interpolation back.
        spacing: size of a voxel along each axis, so that rotation keeps shapes in millimeters.
            Slices are changed only within their plane if they are more than 3 times thicker than
            pixels, or a patch is more than 3 times wider than high.
    """

    flip: float = 0.5
    rotate: Random = (0.3, -30, 30)
    scale: Random = (0.3, 0.7, 1.4)
    translate: Random = (0.2, -0.1, 0.1)
    elastic: Random = (0.2, 0.0, 0.04)
    contrast: Random = (0.15, 0.75, 1.25)
    brightness: Random = (0.15, 0.75, 1.25)
    gamma: Random = (0.3, 0.7, 1.5)
    noise: Random = (0.1, 0.0, 0.3)
    blur: Random = (0.2, 0.5, 1.0)
    low_resolution: Random = (0.25, 0.5, 1.0)
    spacing: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_number("flip", self.flip, low=0, high=1)
        for name in (field.name for field in fields(self)[1:-1]):
            value = getattr(self, name)
            if len(value) != 3 or not 0 <= value[0] <= 1 or value[1] > value[2]:
                raise ValueError(
                    f"Expected option `{name}` to be [probability, from, to], but got {value}."
                )
            if name in (*_FACTORS, "low_resolution") and value[1] <= 0:
                raise ValueError(f"Expected option `{name}` to be positive, but got {value}.")

    def __call__(
        self, image: Tensor, target: Tensor, key: tuple[int, int, int], first: int
    ) -> tuple[Tensor, Tensor]:
        """Transform image (B, C, *S) and target (B, *S), or (B, K, *S) if it is soft.

        Args:
            image, target: on any device.
            key: (seed, epoch, step).
            first: position of the first item in the global batch.
        """
        shape = tuple(image.shape[2:])
        parts = self.draw(key, first, len(image), shape)
        # A transform that no item of the batch needs is skipped, which the host knows.
        used = {name for name, rest in _REST.items() if np.any(parts[name] != rest)}
        moved = _to_device(parts, image.device)
        grid = _affine_grid(moved["theta"], shape)
        if np.any(parts["control"]):
            grid = grid + _displacements(moved["control"], shape)
        image = F.grid_sample(image, grid, align_corners=False)
        target = _resample_target(target, grid)
        return self._change_intensity(image, moved, used), target

    def draw(
        self, key: tuple[int, int, int], first: int, count: int, shape: tuple[int, ...]
    ) -> dict[str, NDArray[np.float32]]:
        """The parameters of each item: the resampling, and the values of the other transforms."""
        dims = len(shape)
        spacing = np.array(self.spacing or [1.0] * dims)
        plane = self._in_plane(shape)
        moving = np.array([not (plane and axis == 0) for axis in range(dims)])
        control = (dims, *[_INTERVALS + 3] * dims)
        # Row i of the stream is that of item i, however many processes share the batch.
        state = np.random.SeedSequence(key).generate_state(2, np.uint64)
        stream = np.random.Generator(np.random.Philox(key=state))
        table = stream.random((first + count, _SCALARS + math.prod(control)))[first:]
        rows = iter(table[:, :_SCALARS].T)

        def value(name: str, rest: float) -> NDArray[Any]:
            """Drawn from the option's range, or `rest` for items that the option spares."""
            chance, low, high = getattr(self, name)
            selected, share = next(rows) < chance, next(rows)
            factor = name in _FACTORS
            drawn = low * (high / low) ** share if factor else low + (high - low) * share
            return np.where(selected, drawn, rest)

        def each_axis(name: str, rest: float) -> NDArray[Any]:
            return np.stack([value(name, rest) for _ in range(dims)], axis=1)

        flip = np.stack([np.where(next(rows) < self.flip, -1.0, 1.0) for _ in range(dims)], axis=1)
        angles = np.radians(each_axis("rotate", 0.0))
        if dims == 2 or plane:
            angles[:, 1:] = 0  # the first is the rotation within the slice
        scale = np.where(moving, value("scale", 1.0)[:, None], 1.0)
        shift = np.where(moving, 2 * each_axis("translate", 0.0), 0.0)
        half = np.array(shape) * spacing / 2
        matrix = _rotations(angles, dims) * (flip / scale)[:, None, :]
        matrix = matrix * half / half[:, None]
        theta = np.concatenate([matrix, shift[:, :, None]], axis=2)
        theta[:, :, :dims] = theta[:, ::-1, :dims][:, :, ::-1]  # grid_sample's order is x, y, z
        theta[:, :, dims] = theta[:, ::-1, dims]
        parts = {name: value(name, rest) for name, rest in _REST.items()}
        parts["inverted"] = (next(rows) < 0.25).astype(float)
        parts["key"] = np.floor(next(rows) * 2**24)
        deformed = value("elastic", 0.0)
        # Uniform numbers of variance 1 in millimeters, then as fractions of half the axes.
        amount = 2 * half[moving].min() * deformed[:, None] * np.where(moving, 1 / half, 0)
        points = math.sqrt(3) * (2 * table[:, _SCALARS:] - 1).reshape(count, *control)
        points *= amount.reshape(count, dims, *[1] * dims)
        parts |= {"theta": theta, "control": points[:, ::-1]}
        return {name: np.ascontiguousarray(part, np.float32) for name, part in parts.items()}

    def _in_plane(self, shape: tuple[int, ...]) -> bool:
        """Whether slices are deformed only within their plane."""
        thick = self.spacing is not None and self.spacing[0] > ANISOTROPIC * min(self.spacing)
        return len(shape) == 3 and (thick or max(shape) > ANISOTROPIC * shape[0])

    def _change_intensity(self, image: Tensor, values: dict[str, Tensor], used: set[str]) -> Tensor:
        space = tuple(range(2, image.ndim))
        names = ("contrast", "brightness", "gamma", "inverted", "noise")
        one = {name: values[name].view(-1, *[1] * (image.ndim - 1)) for name in names}
        if used & {"contrast", "brightness", "gamma"}:
            low, high = image.amin(space, keepdim=True), image.amax(space, keepdim=True)
            mean = image.mean(space, keepdim=True)
            image = ((image - mean) * one["contrast"] + mean).clamp(low, high) * one["brightness"]
            if "gamma" in used:
                low, high = low * one["brightness"], high * one["brightness"]
                image = _gamma(image, low, high, one["gamma"], one["inverted"])
        if "noise" in used:
            spread = image.std(space, keepdim=True)
            image = image + one["noise"] * spread * _gaussian_noise(image, values["key"])
        if used & {"blur", "low_resolution"}:
            image = self._filter(image, values["blur"], values["low_resolution"])
        return image

    def _filter(self, image: Tensor, sigma: Tensor, zoom: Tensor) -> Tensor:
        """Blur and low resolution: one matrix per axis and item."""
        filtered = image
        for axis in range(2, image.ndim):
            if axis == 2 and self._in_plane(tuple(image.shape[2:])):
                continue
            matrix = _filter_matrix(image.shape[axis], sigma, zoom)
            flat = filtered.movedim(axis, 1).flatten(2)
            filtered = (matrix @ flat).view_as(filtered.movedim(axis, 1)).movedim(1, axis)
        changed = (sigma > 0) | (zoom < 1)
        return torch.where(changed.view(-1, *[1] * (image.ndim - 1)), filtered, image)


def _to_device(parts: dict[str, NDArray[np.float32]], device: torch.device) -> dict[str, Tensor]:
    """All arrays by one copy that the host does not wait for."""
    flat = torch.from_numpy(np.concatenate([part.ravel() for part in parts.values()]))
    if device.type == "cuda":
        flat = flat.pin_memory()
    sizes = [part.size for part in parts.values()]
    pieces = torch.split(flat.to(device, non_blocking=True), sizes)
    named = zip(parts.items(), pieces, strict=True)
    return {name: piece.view(part.shape) for (name, part), piece in named}


def _rotations(angles: NDArray[Any], dims: int) -> NDArray[Any]:
    """Rotation matrices (B, D, D): the first angle turns the last two axes, and so on."""
    total = np.tile(np.eye(dims), (len(angles), 1, 1))
    for number in range(1 if dims == 2 else 3):
        one, other = [axis % dims for axis in (number + dims - 2, number + dims - 1)]
        turn = np.tile(np.eye(dims), (len(angles), 1, 1))
        cos, sin = np.cos(angles[:, number]), np.sin(angles[:, number])
        turn[:, one, one], turn[:, one, other] = cos, -sin
        turn[:, other, one], turn[:, other, other] = sin, cos
        total = total @ turn
    return total


def _affine_grid(theta: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Matrices (B, D, D + 1) → positions (B, *S, D): `F.affine_grid` without rounding to TF32."""
    dims = len(shape)
    grid = theta[:, :, dims].view(-1, *[1] * dims, dims)
    for axis, size in enumerate(shape):
        centers = (2 * torch.arange(size, device=theta.device) + 1) / size - 1
        along = centers[:, None] * theta[:, None, :, dims - 1 - axis]  # (B, size, D)
        view = [-1, *(size if other == axis else 1 for other in range(dims)), dims]
        grid = grid + along.view(view)
    return grid


def _displacements(control: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Control points (B, D, n, …) → displacements (B, *S, D) in the units of grid_sample."""
    field = control
    for size in shape:  # each axis in turn moves to the end
        field = torch.tensordot(field, _spline(size, control.device), dims=([2], [1]))
    return field.movedim(1, -1)


@lru_cache(maxsize=16)
def _spline(size: int, device: torch.device) -> Tensor:
    """Weights (size, n) of the control points of a cubic B-spline at each voxel."""
    at = (np.arange(size) + 0.5) / size * _INTERVALS
    left = np.floor(at).astype(int)
    t = at - left
    basis = [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3]
    weights = np.zeros((size, _INTERVALS + 3), np.float32)
    for number, values in enumerate(basis):
        weights[np.arange(size), left + number] = values / 6
    return torch.from_numpy(weights).to(device)


def _resample_target(target: Tensor, grid: Tensor) -> Tensor:
    """Labels by nearest neighbor, class frequencies linearly.

    Voxels outside the image are ignored: their label is unknown. A voxel of class frequencies is
    ignored (K zeros) if most of its weight lies outside or on ignored voxels.
    """
    if target.ndim == grid.ndim:
        soft = F.grid_sample(target, grid, align_corners=False)
        total = soft.sum(1, keepdim=True)
        return torch.where(total >= 0.5, soft / total, 0)
    labels = (target - _IGNORED).float().unsqueeze(1)
    moved = F.grid_sample(labels, grid, "nearest", align_corners=False)
    return moved.squeeze(1).to(target.dtype) + _IGNORED


def _gamma(image: Tensor, low: Tensor, high: Tensor, gamma: Tensor, inverted: Tensor) -> Tensor:
    space = tuple(range(2, image.ndim))
    share = ((image - low) / (high - low + 1e-8)).clamp(0, 1)
    share = inverted + (1 - 2 * inverted) * share
    share = inverted + (1 - 2 * inverted) * share**gamma
    old, mean = torch.var_mean(image, space, keepdim=True)
    new, center = torch.var_mean(share, space, keepdim=True)
    changed = (share - center) * torch.sqrt(old / (new + 1e-12)) + mean
    return torch.where(gamma == 1, image, changed)


def _gaussian_noise(image: Tensor, key: Tensor) -> Tensor:
    """Standard normal numbers of each item, a function of its key and the voxel alone.

    The voxel's number is hashed with the finalizer of MurmurHash3, so that items do not depend on
    the size of the batch, as those of torch's generators do.
    """
    voxels = torch.arange(image[0].numel(), device=image.device)
    mixed = _hash(_hash(voxels) ^ _hash(key.long() + 0x9E3779B9).unsqueeze(1))
    return _normal(mixed).view_as(image)


def _normal(bits: Tensor) -> Tensor:
    """32 random bits → standard normal numbers, all finite."""
    # 23 bits and a half are exact in float32, so that the share stays below 1.
    share = ((bits >> 9).float() + 0.5) / 2**23
    return math.sqrt(2) * torch.erfinv(2 * share - 1)


def _hash(x: Tensor) -> Tensor:
    mask = 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & mask
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & mask
    return x ^ (x >> 16)


def _filter_matrix(size: int, sigma: Tensor, zoom: Tensor) -> Tensor:
    """(B, size, size): a Gaussian filter, then sampling at a lower resolution and back."""
    at = torch.arange(size, device=sigma.device, dtype=torch.float32)
    sigma = sigma.clamp_min(1e-3).view(-1, 1, 1)
    gauss = torch.exp(-0.5 * ((at[:, None] - at) / sigma) ** 2)
    gauss = gauss / gauss.sum(2, keepdim=True)
    count = (size * zoom).round().clamp_min(1).view(-1, 1)
    coarse = ((at + 0.5) * count / size - 0.5).clamp_min(0).minimum(count - 1)
    left = coarse.floor()
    weight = (coarse - left).unsqueeze(2)

    def nearest(index: Tensor) -> Tensor:
        source = ((index + 0.5) * size / count).floor().clamp(max=size - 1)
        return (source.unsqueeze(2) == at).float()

    right = (left + 1).minimum(count - 1)
    return ((1 - weight) * nearest(left) + weight * nearest(right)) @ gauss
