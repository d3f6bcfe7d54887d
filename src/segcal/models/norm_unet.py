"""A U-Net with instance normalization, of the kind that nnU-Net configures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segcal.core.checks import check_int
from segcal.models.unet import CONVS, apply_head

_UPSAMPLERS: dict[int, Any] = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_SLOPE = 0.01
PerAxis = int | Sequence[int]


class NormUNet(nn.Module):
    """U-Net with instance normalization: image (B, C, *S) → logits (B, K, *S).

    Every convolution is followed by instance normalization and leaky ReLU. Strided convolutions
    halve the resolution, transposed convolutions restore it (Isensee et al., 2021). Strides and
    kernels may differ between axes, for volumes with thick slices.

    Args:
        spatial_dims: 2 or 3.
        in_channels: the number of image channels, C.
        out_channels: the number of classes, K.
        filters: channels of each level, from full resolution to the coarsest.
        strides: step between two levels, one value fewer than `filters`; each an integer or one
            integer per axis. None is 2 everywhere.
        kernels: kernel size of each level, in the same form. None is 3 everywhere.
        residual: add the input of each encoder level to its output.
        deep_supervision: in training mode, return the logits and those of this many coarser
            decoder levels, interpolated to full size.

    Example:
        >>> net = NormUNet(3, 1, 4, filters=(8, 16, 16), strides=((1, 2, 2), 2))
        >>> net.divisible_by
        (2, 4, 4)
        >>> net(torch.zeros(1, 1, 6, 16, 8)).shape
        torch.Size([1, 4, 6, 16, 8])
    """

    def __init__(
        self,
        spatial_dims: int,
        in_channels: int,
        out_channels: int,
        filters: Sequence[int] = (32, 64, 128, 256, 512, 512),
        strides: Sequence[PerAxis] | None = None,
        kernels: Sequence[PerAxis] | None = None,
        residual: bool = False,
        deep_supervision: int = 0,
    ) -> None:
        super().__init__()
        check_int("spatial_dims", spatial_dims, low=2, high=3)
        levels = len(filters)
        steps = _per_axis("strides", strides or [2] * (levels - 1), levels - 1, spatial_dims)
        sizes = _per_axis("kernels", kernels or [3] * levels, levels, spatial_dims)
        check_int("deep_supervision", deep_supervision, low=0, high=max(levels - 2, 0))
        self.divisible_by = tuple(math.prod(axis) for axis in zip(*steps, strict=True))
        ones = (1,) * spatial_dims
        self.encoder = nn.ModuleList(
            _Level(a, b, size, step, residual)
            for a, b, size, step in zip(
                [in_channels, *filters], filters, sizes, [ones, *steps], strict=False
            )
        )
        upward = list(zip(filters[:0:-1], filters[-2::-1], steps[::-1], strict=True))
        upsampler = _UPSAMPLERS[spatial_dims]
        self.up = nn.ModuleList(upsampler(a, b, step, step, bias=False) for a, b, step in upward)
        self.decoder = nn.ModuleList(
            _Level(2 * b, b, size, ones, False)
            for (_, b, _), size in zip(upward, sizes[-2::-1], strict=True)
        )
        heads = filters[deep_supervision::-1] if deep_supervision else filters[:1]
        self.heads = nn.ModuleList(CONVS[spatial_dims](b, out_channels, 1) for b in heads)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Conv3d, *_UPSAMPLERS.values())):
                nn.init.kaiming_normal_(cast(Tensor, module.weight), _SLOPE)

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, ...]:
        features, skips = image, []
        for level in self.encoder:
            features = level(features)
            skips.append(features)
        decoded = []
        for up, level, skip in zip(self.up, self.decoder, skips[-2::-1], strict=True):
            features = level(torch.cat([up(features), skip], dim=1))
            decoded.append(features)
        used = decoded[-len(self.heads) :] if self.training else decoded[-1:]
        heads = list(self.heads)[-len(used) :]
        logits = [apply_head(head, part) for head, part in zip(heads, used, strict=True)][::-1]
        mode = "bilinear" if image.ndim == 4 else "trilinear"
        coarse = [F.interpolate(part, image.shape[2:], mode=mode) for part in logits[1:]]
        return (logits[0], *coarse) if coarse else logits[0]


class _Level(nn.Module):
    """Two convolutions, each normalized; the first may be strided."""

    def __init__(
        self, before: int, after: int, size: tuple[int, ...], step: tuple[int, ...], residual: bool
    ) -> None:
        super().__init__()
        conv: Any = CONVS[len(size)]
        padding = tuple(side // 2 for side in size)
        # The normalization removes any bias.
        self.first = conv(before, after, size, step, padding, bias=False)
        self.second = conv(after, after, size, 1, padding, bias=False)
        self.norms = nn.ModuleList(_Norm(after) for _ in range(2))
        self.shortcut = conv(before, after, step, step, bias=False) if residual else None

    def forward(self, features: Tensor) -> Tensor:
        inside = F.leaky_relu(self.norms[0](self.first(features)), _SLOPE)
        inside = self.norms[1](self.second(inside))
        if self.shortcut is not None:
            inside = inside + self.shortcut(features)
        return F.leaky_relu(inside, _SLOPE)


class _Norm(nn.Module):
    """Instance normalization with a learned scale and offset per channel.

    When compiled, it is written out, which keeps the memory format channels_last and fuses it with
    the activation: torch's own converts to the contiguous format and back.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Tensor) -> Tensor:
        # torch refuses a single voxel, the coarsest level of a small image.
        if not torch.compiler.is_compiling() and features[0, 0].numel() > 1:
            return F.instance_norm(features, weight=self.weight, bias=self.bias)
        values, space = features.float(), tuple(range(2, features.ndim))
        variance, mean = torch.var_mean(values, space, correction=0, keepdim=True)
        shape = (-1, *[1] * len(space))
        scale = self.weight.view(shape) * torch.rsqrt(variance + 1e-5)
        return ((values - mean) * scale + self.bias.view(shape)).to(features.dtype)


def _per_axis(name: str, values: Sequence[PerAxis], count: int, dims: int) -> list[tuple[int, ...]]:
    """One tuple per level."""
    expanded = [(v,) * dims if isinstance(v, int) else tuple(v) for v in values]
    if len(expanded) != count or any(len(v) != dims or min(v) < 1 for v in expanded):
        raise ValueError(
            f"Expected argument `{name}` to have {count} values for these `filters`, each a "
            f"positive integer or {dims} of them, but got {list(values)}."
        )
    return expanded
