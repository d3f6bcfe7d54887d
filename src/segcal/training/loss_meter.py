"""What is watched while a run trains: the loss, and signals that ask it to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

# Steps between two looks at the losses. Each look waits for the GPU, so it is not every step.
CHECK_EVERY = 25


class TrainingError(RuntimeError):
    """A run that cannot go on; its last good state is in last.pt."""


class NonFiniteLossError(TrainingError):
    """The loss of a batch is NaN or infinite."""


class Interrupted(TrainingError):
    """A signal asked the run to stop; its state is saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        """So that it can travel from another process."""
        return type(self), (str(self), self.number)


class LossMeter:
    """Mean loss parts of an epoch, read from the device only now and then.

    Step values wait on the device; `look` fetches them, adds them up and finds the first batch
    whose loss is not finite.
    """

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.items = 0
        self._waiting: list[tuple[Tensor, tuple[str, ...]]] = []

    def add(self, terms: dict[str, Tensor], cases: Sequence[str]) -> None:
        # Stacking copies: the compiled network reuses the memory of what it returns.
        for name in terms:
            self.sums.setdefault(name, 0.0)
        self._waiting.append((torch.stack([v.detach() for v in terms.values()]), tuple(cases)))

    def look(self) -> tuple[str, ...] | None:
        """Fetch what waits. Returns the cases of the first batch with a bad loss, or None."""
        if not self._waiting:
            return None
        values = torch.stack([value for value, _ in self._waiting]).double().cpu()
        bad = None
        for row, (_, cases) in zip(values, self._waiting, strict=True):
            if bad is None and not bool(torch.isfinite(row).all()):
                bad = cases
            self.items += len(cases)
            for name, value in zip(self.sums, row.tolist(), strict=True):
                self.sums[name] += value * len(cases)
        self._waiting.clear()
        return bad

    def means(self) -> dict[str, float]:
        """Mean of each part over the items seen, and their sum as `loss`."""
        parts = {name: value / max(self.items, 1) for name, value in self.sums.items()}
        return {"loss": sum(parts.values()), **parts}

    def state_dict(self) -> dict[str, Any]:
        return {"sums": dict(self.sums), "items": self.items}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums, self.items = dict(state["sums"]), int(state["items"])
