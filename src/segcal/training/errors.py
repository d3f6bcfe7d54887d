"""Errors that end a training run after it has started."""

from __future__ import annotations

from typing import Self


class TrainingError(RuntimeError):
    """The run cannot continue; last.pt holds its last valid state."""


class NonFiniteLossError(TrainingError):
    """The loss of a batch, or a logit in validation, is NaN or infinite."""


class Interrupted(TrainingError):
    """The run was stopped by a signal; its state is saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        """Pickling: worker processes send it to the main process."""
        return type(self), (str(self), self.number)
