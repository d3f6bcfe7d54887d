"""State of a run that validation updates: multipliers of constraints, weights by stratum.

A loss (or a loss inside a `WeightedSum`), or the schedule of a penalty weight, that has the methods
of `ValidationCallback` takes part in validation. Its state is saved in checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from segcal.core.checks import check_number
from segcal.losses import PenalizedLoss, StratumWeights


@runtime_checkable
class ValidationCallback(Protocol):
    """What takes part in validation. All processes call `update` with the same total."""

    def start(self, num_classes: int, loss: nn.Module) -> None:
        """Create the state; `loss` is the loss of the run, before it is moved to the device."""

    def observe(self, logits: Tensor, target: Tensor) -> Tensor:
        """Additive statistics of logits (B, K, *S) and labels (B, *S), where −100 is ignored."""

    def update(self, total: Tensor) -> None:
        """Change the state, in place, given the statistics added up over all cases."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


def start_callbacks(loss: nn.Module, schedule: Any, num_classes: int) -> list[ValidationCallback]:
    """The callbacks of a run, started."""
    found = [c for c in (*loss.modules(), schedule) if isinstance(c, ValidationCallback)]
    for callback in found:
        callback.start(num_classes, loss)
    return found


class Observations:
    """Statistics of one validation for each callback, added up over batches and processes."""

    def __init__(self, callbacks: Sequence[ValidationCallback]) -> None:
        self.callbacks = callbacks
        self.sums: list[Tensor | None] = [None] * len(callbacks)

    def add(self, logits: Tensor, target: Tensor) -> None:
        for i, callback in enumerate(self.callbacks):
            value, before = callback.observe(logits, target).cpu(), self.sums[i]
            self.sums[i] = value if before is None else before + value

    def update(self, gather: Callable[[Any], list[Any]]) -> None:
        """Update the callbacks; `gather` returns the sums of all processes, in one order."""
        if not self.callbacks:
            return
        for callback, *parts in zip(self.callbacks, *gather(self.sums), strict=True):
            callback.update(torch.stack([part for part in parts if part is not None]).sum(0))


class ErrorDriven:
    """A penalty weight per stratum that follows the error of validation.

    A stratum is a predicted class and a band around the predicted surfaces, see
    `segcal.losses.StratumWeights`. After each validation λ ← λ + rate · (mean confidence −
    accuracy) in every stratum, at least 0: it rests where confidence equals accuracy.

    Args:
        start: λ of all strata before the first validation.
        rate: how fast λ follows.
        distances: bounds of the bands in pixels.
    """

    def __init__(
        self, start: float = 0.1, rate: float = 1.0, distances: Sequence[int] = (1, 3)
    ) -> None:
        self.first = check_number("start", start, low=0)
        self.rate = check_number("rate", rate, low=0)
        self.distances = distances
        self.mean = self.first

    def __call__(self, epoch: int) -> float:
        """The mean of λ over the strata, for the log."""
        return self.mean

    def start(self, num_classes: int, loss: nn.Module) -> None:
        self.strata = StratumWeights(num_classes, self.distances, self.first)
        for module in loss.modules():
            if isinstance(module, PenalizedLoss):
                module.strata = self.strata

    @torch.no_grad()
    def observe(self, logits: Tensor, target: Tensor) -> Tensor:
        """Pixels, summed confidence and correct pixels of each stratum, (3, strata), in float64."""
        index = self.strata.index(logits).masked_fill(target == -100, -1)
        confidence, predicted = logits.softmax(1).max(1)
        values = torch.stack(
            [torch.ones_like(confidence), confidence, predicted == target]
        ).flatten(1)
        # Stratum by stratum: `bincount` adds in no fixed order on a GPU.
        strata = range(self.strata.weights.numel())
        sums = [(values * (index.flatten() == s)).sum(1, dtype=torch.float64) for s in strata]
        return torch.stack(sums, 1)

    def update(self, total: Tensor) -> None:
        pixels, confidence, right = total
        gap = (confidence - right) / pixels.clamp_min(1)
        weights = self.strata.weights
        weights.copy_((weights.cpu() + self.rate * gap).clamp_min(0))
        self.mean = float(weights.mean())

    def state_dict(self) -> dict[str, Any]:
        return self.strata.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.strata.load_state_dict(state)
        self.mean = float(self.strata.weights.mean())
