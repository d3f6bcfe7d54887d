"""Inference on whole volumes: slices in batches, or a sliding window."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from segcal.core.checks import check_int

# Windows predicted at a time on a GPU have at most this many voxels, which limits memory.
_VOXELS_PER_BATCH = 1 << 23


@torch.no_grad()
def predict_logits(
    network: nn.Module,
    image: Tensor,
    *,
    batch_size: int = 16,
    patch_size: tuple[int, int, int] | None = None,
) -> Tensor:
    """Image (C, Z, Y, X) → logits (K, Z, Y, X), float32, on the image's device.

    A 2-D network gets `batch_size` slices at a time. A 3-D network gets windows of `patch_size`
    that overlap by half, up to `batch_size` at a time; overlapping logits are averaged with
    Gaussian weights (MONAI).

    Put the network into evaluation mode first; autocasting is up to the caller.

    Example:
        >>> net = nn.Conv2d(1, 3, kernel_size=1)
        >>> predict_logits(net, torch.zeros(1, 5, 8, 8), batch_size=2).shape
        torch.Size([3, 5, 8, 8])
    """
    check_int("batch_size", batch_size, low=1)
    if image.ndim != 4:
        raise ValueError(
            f"Expected argument `image` to be (C, Z, Y, X), but got shape {tuple(image.shape)}."
        )
    if patch_size is None:
        slices = torch.split(image.transpose(0, 1), batch_size)
        return torch.cat([network(part).float() for part in slices]).transpose(0, 1)
    from monai.inferers.utils import sliding_window_inference

    limit = _VOXELS_PER_BATCH if image.is_cuda else _VOXELS_PER_BATCH // 8
    windows = max(min(batch_size, limit // math.prod(patch_size)), 1)
    batch: Any = sliding_window_inference(
        image[None], patch_size, windows, network, overlap=0.5, mode="gaussian"
    )
    logits: Tensor = batch[0].float()
    return logits
