"""Validation on whole volumes: DSC, and calibration where the true label is foreground."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from segcal.data import PreparedCase
from segcal.data.loaders import free_bytes
from segcal.metrics import CalibrationBins, check_groups, dsc_from_confusion
from segcal.models import predict_logits
from segcal.training.loss_meter import NonFiniteLossError

# The share of free memory that validation volumes may occupy between epochs.
_KEPT_SHARE = 0.1
# Logits (K·Z·Y·X) of the volumes that are scored together: 128 MiB.
_LOGITS_AT_ONCE = 1 << 25
# Pixels that a GPU predicts at a time: 16 slices of 256 × 256, or 256 of 64 × 64.
_PIXELS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class CaseScore:
    """One volume: DSC of each structure, ECE and CECE of the foreground (NaN without any)."""

    name: str
    dsc: dict[str, float]
    ece: float
    cece: float


@dataclass(frozen=True)
class _Stack:
    """Volumes that lie one after another along Z, to be predicted and scored together."""

    names: list[str]
    lengths: list[int]
    image: Tensor  # (C, Z, Y, X)
    target: Tensor  # (Z, Y, X), uint8: an eighth of what stays on the device as int64
    owner: Tensor  # (Z, 1, 1): which volume a slice is of


class Validator:
    """Scores a network on the volumes of `cases`.

    For a 2-D network, cases whose slices have one size are predicted and scored together, as many
    as fit into a bounded memory: on a GPU each question to the device costs more than its answer.

    Args:
        cases: the volumes of this process.
        num_classes: K.
        groups: structures of the DSC, name → labels; None is each class but 0.
        device: where the network is.
        batch_size: slices predicted at a time.
        patch_size: window of a 3-D network, slid over the volume; None predicts slices.
    """

    def __init__(
        self,
        cases: Sequence[PreparedCase],
        num_classes: int,
        *,
        groups: Mapping[str, Sequence[int]] | None,
        device: torch.device,
        batch_size: int,
        patch_size: tuple[int, int, int] | None = None,
    ) -> None:
        self.cases = list(cases)
        self.num_classes = num_classes
        self.groups = check_groups(groups or None, num_classes)
        self.device, self.batch_size, self.patch_size = device, batch_size, patch_size
        needed = sum(math.prod(c.shape) * (4 * c.properties.channels + 1) for c in self.cases)
        self._keep = needed <= _KEPT_SHARE * free_bytes(device)
        self._kept: dict[int, _Stack] = {}
        alone = patch_size is not None
        self._plan = [[i] for i in range(len(self.cases))] if alone else self._alike()

    def score(
        self, network: nn.Module, stop: Callable[[], bool] = lambda: False
    ) -> list[CaseScore] | None:
        """The score of each case; None if `stop` said so in between."""
        was_training = network.training
        network.eval()
        scores: dict[int, CaseScore] = {}
        try:
            for number, members in enumerate(self._plan):
                stack = self._stack(number)
                logits = self._predict(network, stack, stop)
                if logits is None:
                    return None
                scores.update(zip(members, self._score(stack, logits), strict=True))
        finally:
            network.train(was_training)
        return [scores[index] for index in range(len(self.cases))]

    def _alike(self) -> list[list[int]]:
        """Which cases are predicted together: slices of one size, and a bounded memory."""
        plan: list[list[int]] = []
        newest: dict[tuple[int, ...], list[int]] = {}  # of slices of that size
        filled: dict[tuple[int, ...], int] = {}
        for index, case in enumerate(self.cases):
            size = (case.properties.channels, *case.shape[1:])
            more = math.prod(case.shape) * self.num_classes
            if size not in newest or filled[size] + more > _LOGITS_AT_ONCE:
                newest[size], filled[size] = [], 0
                plan.append(newest[size])
            newest[size].append(index)
            filled[size] += more
        return plan

    def _stack(self, number: int) -> _Stack:
        if number in self._kept:
            return self._kept[number]
        cases = [self.cases[index] for index in self._plan[number]]
        lengths = [case.shape[0] for case in cases]
        owner = np.repeat(np.arange(len(cases)), lengths)[:, None, None]
        image = np.concatenate([case.image() for case in cases], axis=1)
        target = np.concatenate([case.label() for case in cases])
        stack = _Stack(
            [case.name for case in cases],
            lengths,
            *(torch.from_numpy(array).to(self.device) for array in (image, target, owner)),
        )
        if self._keep:
            self._kept[number] = stack
        return stack

    def _predict(
        self, network: nn.Module, stack: _Stack, stop: Callable[[], bool]
    ) -> Tensor | None:
        """Logits (K, Z, Y, X) of the stack, float32; None if `stop` said so."""
        whole = self.patch_size is not None
        parts = []
        for part in [stack.image] if whole else torch.split(stack.image, self.batch_size, dim=1):
            if stop():
                return None
            parts.append(
                predict_logits(
                    network, part, batch_size=self.batch_size, patch_size=self.patch_size
                )
            )
        return parts[0] if whole else torch.cat(parts, dim=1)

    def _score(self, stack: _Stack, logits: Tensor) -> list[CaseScore]:
        finite = torch.isfinite(logits).all(0).flatten(1).all(1).cpu()
        if not finite.all():
            name = stack.names[int(stack.owner.flatten()[int(finite.int().argmin())])]
            raise NonFiniteLossError(
                f"the network's logits of validation case {name} are not finite"
            )
        probs, classes = logits.softmax(0), self.num_classes
        # First, for it refuses labels that the network has no class for.
        bins = CalibrationBins.per_volume(probs, stack.target, stack.lengths, stack.target > 0)
        pairs = (stack.owner * classes + stack.target) * classes + probs.argmax(0)
        counts = torch.bincount(pairs.flatten(), minlength=len(bins) * classes**2)
        tables = counts.cpu().numpy().reshape(-1, classes, classes)
        return [
            CaseScore(
                name,
                {key: dsc_from_confusion(table, labels) for key, labels in self.groups.items()},
                one.ece(),
                one.cece(),
            )
            for name, table, one in zip(stack.names, tables, bins, strict=True)
        ]


def slices_at_once(cases: Sequence[PreparedCase], batch_size: int, device: torch.device) -> int:
    """How many slices to predict at a time after training with `batch_size`.

    Small slices leave a GPU idle unless they are many; of large ones no more than 16 unless
    training had more, so that memory is bounded. A CPU gains nothing by more.
    """
    least = max(batch_size, 16)
    if device.type == "cpu":
        return least
    return max(least, _PIXELS_AT_ONCE // max(math.prod(case.shape[1:]) for case in cases))


def summarise(scores: Sequence[CaseScore]) -> dict[str, Any]:
    """Means over the cases, and how many calibration errors were undefined (no foreground)."""
    labels = list(scores[0].dsc)
    each = {label: _mean([score.dsc[label] for score in scores]) for label in labels}
    return {
        "dsc": _mean([value for score in scores for value in score.dsc.values()]),
        "ece": _mean([score.ece for score in scores]),
        "cece": _mean([score.cece for score in scores]),
        "dsc_by_label": each,
        "cases": len(scores),
        "undefined": sum(math.isnan(score.ece) for score in scores),
    }


def _mean(values: Sequence[float]) -> float | None:
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else None
