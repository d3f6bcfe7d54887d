"""Mean losses of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# Steps between two transfers of the losses from the device. Each transfer waits for the GPU.
CHECK_EVERY = 25


class LossMeter:
    """Sums the parts of the loss over an epoch.

    The values of each step stay on the device until `fetch` transfers them all at once.
    """

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.items = 0
        self._pending: list[tuple[Tensor, tuple[str, ...]]] = []

    def add(self, terms: dict[str, Tensor], cases: Sequence[str]) -> None:
        for name in terms:
            self.sums.setdefault(name, 0.0)
        # Stacking copies: the compiled network reuses the memory of the values that it returns.
        self._pending.append((torch.stack([v.detach() for v in terms.values()]), tuple(cases)))

    def fetch(self) -> tuple[str, ...] | None:
        """Add up the pending values; return the cases of the first batch with a non-finite loss."""
        if not self._pending:
            return None
        values = torch.stack([value for value, _ in self._pending]).cpu().double()
        bad = None
        for row, (_, cases) in zip(values, self._pending, strict=True):
            if bad is None and not bool(torch.isfinite(row).all()):
                bad = cases
            self.items += len(cases)
            for name, value in zip(self.sums, row.tolist(), strict=True):
                self.sums[name] += value * len(cases)
        self._pending.clear()
        return bad

    def means(self) -> dict[str, float]:
        """The mean of each part over the items seen so far, and their total as `loss`."""
        parts = {name: value / max(self.items, 1) for name, value in self.sums.items()}
        return {"loss": sum(parts.values())} | {k: v for k, v in parts.items() if k != "loss"}

    def state_dict(self) -> dict[str, Any]:
        return {"sums": dict(self.sums), "items": self.items}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums, self.items = dict(state["sums"]), int(state["items"])
