"""Networks and an image in, probabilities of the whole volume out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from segcal.core.checks import check_choice
from segcal.models import predict_logits

# Letters of the axes of (K, Z, Y, X) that may be flipped.
FLIPS = {"d": 1, "h": 2, "w": 3}
AVERAGES = ("probs", "logits")


@dataclass(frozen=True)
class Prediction:
    """`probs` (K, Z, Y, X), float32; `logits` likewise, None where probabilities were averaged."""

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
        batch_size: slices at a time.
        flips: axes to mirror, of "d", "h" and "w"; n axes make 2ⁿ predictions.
        average: `"probs"` averages probabilities, which is calibrated where the members are;
            `"logits"` averages logits, which is sharper.

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
    """The device of that name; "auto" is the first GPU, if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"Expected argument `device` to be auto, cpu or a GPU that is there, "
            f"but got {device!s} ({reason})."
        ) from error
    return chosen


@contextmanager
def exactly() -> Iterator[None]:
    """32-bit floats throughout, and the same numbers every time: calibration is what is measured.

    The precision of the training run is no part of its weights.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic
    try:
        cudnn.allow_tf32 = matmul.allow_tf32 = cudnn.benchmark = False
        cudnn.deterministic = True
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic = before
