"""Predict a whole volume with one or several networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from segcal.core.checks import check_choice
from segcal.models import predict_logits

# The axes of (K, Z, Y, X) that may be flipped.
FLIPS = {"d": 1, "h": 2, "w": 3}
AVERAGES = ("probs", "logits")


@dataclass(frozen=True)
class Prediction:
    """`probs` and `logits` (K, Z, Y, X), float32; no logits if probabilities were averaged."""

    probs: Tensor
    logits: Tensor | None


def predict_case(
    networks: nn.Module | Sequence[nn.Module],
    image: Tensor,
    *,
    patch_size: tuple[int, int, int] | None = None,
    batch_size: int = 16,
    flips: Iterable[str] = (),
    average: str = "probs",
) -> Prediction:
    """Predict a volume with one network, or average over several and over mirror images.

    Args:
        networks: one or more, in evaluation mode, on the device of `image`.
        image: (C, Z, Y, X).
        patch_size: window of a 3-D network, slid over the volume; None predicts slices.
        batch_size: slices per forward pass.
        flips: axes to mirror, out of "d", "h" and "w"; n axes give 2ⁿ predictions.
        average: `"probs"` averages probabilities, `"logits"` averages logits, which gives more
            confident predictions.

    Example:
        >>> net = nn.Conv2d(1, 2, kernel_size=1)
        >>> predict_case(net, torch.zeros(1, 3, 8, 8), flips="hw").probs.shape
        torch.Size([2, 3, 8, 8])
    """
    check_choice("average", average, AVERAGES)
    members = [networks] if isinstance(networks, nn.Module) else list(networks)
    if not members:
        raise ValueError("Expected argument `networks` to hold a network, but got none.")
    total, count = None, 0
    for network in members:
        for axes in _mirrors(flips):
            logits = predict_logits(
                network, image.flip(axes), batch_size=batch_size, patch_size=patch_size
            ).flip(axes)
            if not bool(torch.isfinite(logits).all()):
                raise ValueError("Expected finite logits, but the network gave NaN or infinity.")
            part = logits if average == "logits" else logits.softmax(0)
            total = part if total is None else total + part
            count += 1
    assert total is not None
    if average == "logits":
        mean = total / count
        return Prediction(mean.softmax(0), mean)
    return Prediction(total / count, logits if count == 1 else None)


def _mirrors(flips: Iterable[str]) -> list[tuple[int, ...]]:
    """All sets of the named axes, the empty one first."""
    names = list(dict.fromkeys(flips))
    for name in names:
        check_choice("flips", name, FLIPS)
    axes = [FLIPS[name] for name in names]
    return [chosen for size in range(len(axes) + 1) for chosen in combinations(axes, size)]


def choose_device(device: str | torch.device) -> torch.device:
    """The device of that name; "auto" is the first GPU (CUDA or Apple's MPS), else the CPU."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {device!s}: is not available here ({reason})") from error
    return chosen


@contextmanager
def reproducible_float32() -> Iterator[None]:
    """Compute in 32-bit floats with deterministic algorithms, whatever precision training used."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic
    try:
        cudnn.allow_tf32 = matmul.allow_tf32 = cudnn.benchmark = False
        cudnn.deterministic = True
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic = before
