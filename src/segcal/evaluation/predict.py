"""Predict a whole volume with one or several networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from segcal.core.arrays import to_numpy
from segcal.core.checks import check_choice
from segcal.data import Grid
from segcal.models import predict_logits
from segcal.posthoc import BaseCalibrator

# The axes of (K, Z, Y, X) that may be flipped.
FLIPS = {"d": 1, "h": 2, "w": 3}
AVERAGES = ("probs", "logits")
NO_LOGITS = (
    "there are no logits to calibrate, because the probabilities of mirrored images were "
    "averaged; set `average: logits`, or leave out `flips`"
)


PatchSize: TypeAlias = tuple[int, int, int] | None


@dataclass(frozen=True)
class Prediction:
    """`probs` and `logits` (K, Z, Y, X), float32; no logits if probabilities were averaged.

    `members`: the predictions of several networks that were averaged.
    """

    probs: Tensor
    logits: Tensor | None
    members: tuple[Prediction, ...] = ()


def predict_case(
    networks: nn.Module | Sequence[nn.Module],
    image: Tensor,
    *,
    patch_size: PatchSize | list[PatchSize] = None,
    batch_size: int = 16,
    flips: Iterable[str] = (),
    average: str = "probs",
    sigmoid: bool = False,
) -> Prediction:
    """Predict a volume with one network, or average over several and over mirror images.

    Args:
        networks: one or more, in evaluation mode, on the device of `image`.
        image: (C, Z, Y, X).
        patch_size: window of a 3-D network, slid over the volume; None predicts slices. A list has
            one for each network.
        batch_size: slices per forward pass.
        flips: axes to mirror, out of "d", "h" and "w"; n axes give 2ⁿ predictions.
        average: `"probs"` averages probabilities, `"logits"` averages logits, which gives more
            confident predictions.
        sigmoid: every output has a sigmoid of its own; the default is a softmax over all.

    Example:
        >>> net = nn.Conv2d(1, 2, kernel_size=1)
        >>> predict_case(net, torch.zeros(1, 3, 8, 8), flips="hw").probs.shape
        torch.Size([2, 3, 8, 8])
    """
    check_choice("average", average, AVERAGES)
    members = [networks] if isinstance(networks, nn.Module) else list(networks)
    sizes = patch_size if isinstance(patch_size, list) else [patch_size] * len(members)
    if not members:
        raise ValueError("Expected argument `networks` to hold a network, but got none.")
    mirrors = _mirrors(flips)
    activate = Tensor.sigmoid if sigmoid else partial(Tensor.softmax, dim=0)

    def predict(network: nn.Module, size: PatchSize) -> Prediction:
        total = None
        for axes in mirrors:
            logits = predict_logits(
                network, image.flip(axes), batch_size=batch_size, patch_size=size
            ).flip(axes)
            if not bool(torch.isfinite(logits).all()):
                raise ValueError("Expected finite logits, but the network gave NaN or infinity.")
            part = logits if average == "logits" else activate(logits)
            total = part if total is None else total + part
        assert total is not None
        if average == "logits":
            mean = total / len(mirrors)
            return Prediction(activate(mean), mean)
        return Prediction(total / len(mirrors), logits if len(mirrors) == 1 else None)

    found = tuple(predict(network, size) for network, size in zip(members, sizes, strict=True))
    if len(found) == 1:
        return found[0]
    if average == "logits":
        mean = sum(one.logits for one in found if one.logits is not None) / len(found)
        assert isinstance(mean, Tensor)
        return Prediction(activate(mean), mean, found)
    return Prediction(_mean_probs(found), None, found)


def _mean_probs(members: Sequence[Prediction]) -> Tensor:
    return torch.stack([member.probs for member in members]).mean(0)


def calibrated(
    found: Prediction, calibrator: BaseCalibrator, spacing_mm: tuple[float, ...]
) -> Prediction:
    """The calibrated prediction. Averaged probabilities are those of calibrated members."""
    members = tuple(calibrated(member, calibrator, spacing_mm) for member in found.members)
    if found.logits is not None:
        probs = calibrator.transform(found.logits, spacing_mm=spacing_mm)
        return Prediction(torch.as_tensor(probs), None, members)
    if not members:
        raise ValueError(NO_LOGITS)
    return Prediction(_mean_probs(members), None, members)


def restore_probs(grid: Grid, probs: Tensor, heads: bool) -> NDArray[np.float32]:
    """Probabilities (K, Z, Y, X) on the original grid; sigmoid heads are 0 where it was cropped."""
    values = to_numpy(probs)
    if not heads:
        return grid.restore_probs(values)
    return grid.restore_probs(np.concatenate([np.zeros_like(values[:1]), values]))[1:]


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
