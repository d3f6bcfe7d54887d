"""Penalty weights that change over the epochs.

`schedule(epoch)` is the weight in an epoch; epochs count from 0. The training loop passes it to the
loss with `set_penalty_weight`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from segcal.core.checks import check_choice, check_int, check_number, check_options
from segcal.training.callbacks import ErrorDriven

WeightSchedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """The same weight in every epoch."""

    value: float

    def __post_init__(self) -> None:
        check_number("value", self.value, low=0)

    def __call__(self, epoch: int) -> float:
        return self.value


@dataclass(frozen=True)
class LinearRamp:
    """Linear from `start` in epoch 0 to `end` in epoch `epochs`, then constant."""

    start: float
    end: float
    epochs: int

    def __post_init__(self) -> None:
        check_number("start", self.start, low=0)
        check_number("end", self.end, low=0)
        check_int("epochs", self.epochs, low=1)

    def __call__(self, epoch: int) -> float:
        done = min(max(epoch, 0) / self.epochs, 1.0)
        return (1 - done) * self.start + done * self.end


@dataclass(frozen=True)
class Step:
    """`start`, then the weights in `changes`, each from its epoch on.

    Example:
        >>> weight = Step(0.0, {20: 0.1, 80: 0.05})
        >>> [weight(epoch) for epoch in (19, 20, 79, 80)]
        [0.0, 0.1, 0.1, 0.05]
    """

    start: float
    changes: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_number("start", self.start, low=0)
        for epoch, weight in self.changes.items():
            check_int("changes", epoch, low=0)
            check_number(f"changes[{epoch}]", weight, low=0)

    def __call__(self, epoch: int) -> float:
        passed = [first for first in self.changes if first <= epoch]
        return self.changes[max(passed)] if passed else self.start


@dataclass(frozen=True)
class Multiply:
    """`start`, multiplied by `factor` after every `every` epochs, at most `cap`."""

    start: float
    factor: float
    every: int = 1
    cap: float = 1.0

    def __post_init__(self) -> None:
        check_number("cap", self.cap, low=0)
        check_number("start", self.start, low=0, high=self.cap)
        check_number("factor", self.factor, low=0, open_low=True)
        check_int("every", self.every, low=1)

    def __call__(self, epoch: int) -> float:
        weight = self.start
        for _ in range(max(epoch, 0) // self.every):
            weight = min(weight * self.factor, self.cap)  # a power of `factor` could overflow
        return weight


SCHEDULES: dict[str, Callable[..., WeightSchedule]] = {
    "constant": Constant, "linear": LinearRamp, "step": Step, "multiply": Multiply,
    "error_driven": ErrorDriven,
}  # fmt: skip


def make_schedule(name: str, **options: Any) -> WeightSchedule:
    """The schedule named `name` in `SCHEDULES`, with these options."""
    check_choice("schedule.name", name, SCHEDULES)
    check_options(f"schedule {name!r}", options, inspect.signature(SCHEDULES[name]).parameters)
    return SCHEDULES[name](**options)


def set_penalty_weight(loss: nn.Module, weight: float) -> None:
    """Set the penalty weight of `loss`, and of every loss inside it (`WeightedSum`)."""
    penalized = [module for module in loss.modules() if hasattr(module, "penalty_weight")]
    if not penalized:
        name = type(loss).__name__
        raise ValueError(f"Expected a loss with a penalty weight, but {name} has none.")
    check_number("weight", weight, low=0)
    for module in penalized:
        setattr(module, "penalty_weight", float(weight))  # noqa: B010 (nn.Module's own type forbids =)
