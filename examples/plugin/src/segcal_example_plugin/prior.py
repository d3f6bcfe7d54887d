"""A prior: one function from labels to class proportions."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_prior(
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Class proportions (B, K, *S) of a pixel and its direct neighbors, without the diagonal ones.

    Ignored neighbors do not count.
    """
    counts = torch.ones_like(target) if ignore_index is None else (target != ignore_index).long()
    labels = torch.where(counts.bool(), target, 0)
    one_hot = F.one_hot(labels, num_classes).movedim(-1, 1).to(dtype) * counts.unsqueeze(1)
    total = one_hot.clone()
    for axis in range(2, one_hot.ndim):
        first, last = one_hot.narrow(axis, 0, 1), one_hot.narrow(axis, -1, 1)
        padded = torch.cat([first, one_hot, last], axis)  # the border is replicated
        size = one_hot.shape[axis]
        total += padded.narrow(axis, 0, size) + padded.narrow(axis, 2, size)
    return total / total.sum(1, keepdim=True).clamp(min=1)
