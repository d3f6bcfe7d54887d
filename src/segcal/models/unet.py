"""The U-Net of Murugesan et al. (2023): plain convolutions, no normalization."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segcal.core.checks import check_int

CONVS: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
_POOLS: dict[int, type[nn.MaxPool2d] | type[nn.MaxPool3d]] = {2: nn.MaxPool2d, 3: nn.MaxPool3d}


class UNet(nn.Module):
    """The U-Net of Murugesan et al. (2023): image (B, C, *S) → logits (B, K, *S).

    Each level has two 3×3 convolutions with ReLU and no normalization. The encoder uses
    max-pooling; the decoder uses nearest-neighbor upsampling and concatenated skip connections; a
    1×1 convolution returns the logits. Weights have PyTorch's default initialization. The default
    sizes are those of the paper.

    Every side of S must be divisible by the product of `pools` (32); `make_model` pads and crops
    other images.

    Args:
        spatial_dims: 2 or 3.
        in_channels: the number of image channels, C.
        out_channels: the number of classes, K.
        filters: channels of each level, from full resolution to the coarsest.
        pools: pooling factor between two levels; one value fewer than `filters`.

    Example:
        >>> UNet(2, in_channels=1, out_channels=4)(torch.zeros(1, 1, 64, 32)).shape
        torch.Size([1, 4, 64, 32])
    """

    def __init__(
        self,
        spatial_dims: int,
        in_channels: int,
        out_channels: int,
        filters: Sequence[int] = (32, 64, 128, 256, 512),
        pools: Sequence[int] = (2, 2, 2, 4),
    ) -> None:
        super().__init__()
        check_int("spatial_dims", spatial_dims, low=2, high=3)
        for name, values in (("filters", filters), ("pools", pools)):
            for value in values:
                check_int(name, value, low=1)
        if len(pools) != len(filters) - 1 or not pools:
            raise ValueError(
                "Expected argument `pools` to have one value fewer than `filters` and at least "
                f"one, but got {list(pools)} for {list(filters)}."
            )
        self.divisible_by = math.prod(pools)
        self.pools = tuple(pools)
        widths = [in_channels, *filters]
        encoder = zip(widths, filters, strict=False)
        self.down = nn.ModuleList(_two_convs(spatial_dims, a, b) for a, b in encoder)
        self.pool = nn.ModuleList(_POOLS[spatial_dims](factor) for factor in pools)
        decoder = zip(filters[::-1], filters[-2::-1], strict=False)
        self.up = nn.ModuleList(_two_convs(spatial_dims, a + b, b) for a, b in decoder)
        self.head = CONVS[spatial_dims](filters[0], out_channels, kernel_size=1)

    def forward(self, image: Tensor) -> Tensor:
        features = image
        skips = []
        for convs, pool in zip(self.down, [*self.pool, None], strict=True):
            features = convs(features)
            if pool is not None:
                skips.append(features)
                features = pool(features)
        for convs, skip, factor in zip(self.up, skips[::-1], self.pools[::-1], strict=True):
            features = convs(torch.cat([_upsample(features, factor), skip], dim=1))
        return apply_head(self.head, features)


def _two_convs(spatial_dims: int, in_channels: int, out_channels: int) -> nn.Sequential:
    conv = CONVS[spatial_dims]
    return nn.Sequential(
        conv(in_channels, out_channels, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        conv(out_channels, out_channels, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
    )


def _upsample(features: Tensor, factor: int) -> Tensor:
    """Nearest-neighbor upsampling.

    When compiled, it is a broadcast in channels-last order, whose gradient is a sum: the compiled
    gradient of `interpolate` uses atomic additions, which took a sixth of a training step.
    """
    if not torch.compiler.is_compiling():
        return F.interpolate(features, scale_factor=float(factor), mode="nearest")
    batch, channels, *space = features.shape
    repeated = features.movedim(1, -1)
    for axis in range(len(space)):
        repeated = repeated.unsqueeze(2 * axis + 2)
    pairs = [size for side in space for size in (side, factor)]
    sides = [factor * side for side in space]
    result = repeated.expand(batch, *pairs, channels).reshape(batch, *sides, channels)
    return result.movedim(-1, 1)


def apply_head(head: Any, features: Tensor) -> Tensor:
    """`head(features)`; faster if half precision is compiled."""
    half = features.dtype in (torch.bfloat16, torch.float16)
    if torch.compiler.is_compiling() and features.is_cuda and half:
        return head_padded_to_eight(features, head)
    logits: Tensor = head(features)
    return logits


def head_padded_to_eight(features: Tensor, head: Any) -> Tensor:
    """`head(features)`, computed with additional classes of weight 0.

    Tensor cores need a multiple of eight channels; other counts take two to three times as long.
    """
    weight, bias = head.weight, head.bias
    classes, missing = len(weight), -len(weight) % 8
    weights = F.pad(weight, [0, 0] * (weight.ndim - 1) + [0, missing])
    convolve = F.conv2d if weight.ndim == 4 else F.conv3d
    logits: Tensor = convolve(features, weights, F.pad(bias, [0, missing]))[:, :classes]
    order = torch.channels_last if weight.ndim == 4 else torch.channels_last_3d
    return logits.contiguous(memory_format=order)
