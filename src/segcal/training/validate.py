"""Validation on whole volumes: DSC and calibration error of each case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from segcal.core.heads import two_classes
from segcal.data import IGNORED, PreparedCase, free_bytes
from segcal.metrics import DEFAULT_REGION, CalibrationBins, check_groups, dsc_from_confusion
from segcal.models import predict_logits
from segcal.training.errors import NonFiniteLossError

# Validation volumes stay in memory between epochs if they take at most this share of it.
_KEPT_SHARE = 0.1
# Volumes are scored together up to this many logits (K·Z·Y·X): 128 MiB.
_MAX_LOGITS = 1 << 25
# A GPU predicts this many pixels at a time: 16 slices of 256 × 256, or 256 of 64 × 64.
_PIXELS_PER_BATCH = 1 << 20


@dataclass(frozen=True)
class CaseScore:
    """DSC of each structure, ECE, CECE and mean NLL of one case."""

    name: str
    dsc: dict[str, float]
    ece: float
    cece: float
    nll: float


@dataclass(frozen=True)
class _Stack:
    """Volumes concatenated along Z, which are predicted and scored together."""

    names: list[str]
    shown: list[Sequence[int]]  # the classes that the labels of each volume show
    lengths: list[int]
    image: Tensor  # (C, Z, Y, X)
    target: Tensor  # (Z, Y, X), uint8: int64 would take eight times the memory
    volume: Tensor  # (Z, 1, 1), the position in `names` of each slice's volume


@dataclass(frozen=True)
class _Counts:
    """Of each volume of a stack: (K, K) confusion, calibration bins and mean NLL."""

    tables: NDArray[np.int64]
    bins: list[CalibrationBins]
    nll: list[float]


class Validator:
    """Scores a network on the volumes of `cases`, those of this process.

    For a 2-D network (no `patch_size`), cases with equal slice sizes are concatenated up to a
    memory limit: on a GPU each transfer of a result takes longer than its computation. `groups` are
    the structures of the DSC, name → labels; None is each class except 0. With `heads` the network
    has a sigmoid for each of them; ECE, CECE and NLL are then means over these problems of two
    classes.
    """

    def __init__(
        self,
        cases: Sequence[PreparedCase],
        num_classes: int,
        *,
        groups: Mapping[str, Sequence[int]] | None,
        heads: bool = False,
        device: torch.device,
        batch_size: int,
        patch_size: tuple[int, int, int] | None = None,
    ) -> None:
        self.cases = list(cases)
        self.num_classes = num_classes
        self.groups = check_groups(groups or None, num_classes)
        self.heads = heads
        self.device, self.batch_size, self.patch_size = device, batch_size, patch_size
        needed = sum(math.prod(c.shape) * (4 * c.properties.channels + 1) for c in self.cases)
        self._keep = needed <= _KEPT_SHARE * free_bytes(device)
        self._kept: dict[int, _Stack] = {}
        single = patch_size is not None
        self._stacks = [[i] for i in range(len(self.cases))] if single else self._group_by_size()

    def score(
        self,
        network: nn.Module,
        stop: Callable[[], bool] = lambda: False,
        observe: Callable[[Tensor, Tensor], None] = lambda logits, target: None,
    ) -> list[CaseScore] | None:
        """The score of each case, in order; None if `stop` returned True in between.

        `observe` gets logits (B, K, *S) and labels (B, *S), in the dimension of the network.
        """
        was_training = network.training
        network.eval()
        scores: dict[int, CaseScore] = {}
        try:
            for number, members in enumerate(self._stacks):
                stack = self._load(number)
                logits = self._predict(network, stack, stop)
                if logits is None:
                    return None
                scores.update(zip(members, self._score(stack, logits), strict=True))
                labels = stack.target.long()
                labels = labels.masked_fill(labels == IGNORED, -100)
                logits = logits.to(labels.device)
                flat = self.patch_size is None
                observe(
                    *((logits.transpose(0, 1), labels) if flat else (logits[None], labels[None]))
                )
        finally:
            network.train(was_training)
        return [scores[index] for index in range(len(self.cases))]

    def _group_by_size(self) -> list[list[int]]:
        """Indices of the cases in each stack: equal slice sizes, limited memory."""
        stacks: list[list[int]] = []
        current: dict[tuple[int, ...], list[int]] = {}  # the stack being filled, by slice size
        filled: dict[tuple[int, ...], int] = {}
        for index, case in enumerate(self.cases):
            size = (case.properties.channels, *case.shape[1:])
            logits = math.prod(case.shape) * self.num_classes
            if size not in current or filled[size] + logits > _MAX_LOGITS:
                current[size], filled[size] = [], 0
                stacks.append(current[size])
            current[size].append(index)
            filled[size] += logits
        return stacks

    def _load(self, number: int) -> _Stack:
        if number in self._kept:
            return self._kept[number]
        cases = [self.cases[index] for index in self._stacks[number]]
        lengths = [case.shape[0] for case in cases]
        image = torch.from_numpy(np.concatenate([case.image() for case in cases], axis=1))
        target = torch.from_numpy(np.concatenate([case.label() for case in cases]))
        volume = torch.from_numpy(np.repeat(np.arange(len(cases)), lengths)[:, None, None])
        # mps has no float64, which the metrics use: its logits are scored on the CPU.
        scored_on = torch.device("cpu") if self.device.type == "mps" else self.device
        names, placed = [case.name for case in cases], image.to(self.device)
        every = range(self.num_classes)
        shown: list[Sequence[int]] = [case.properties.annotated or every for case in cases]
        stack = _Stack(names, shown, lengths, placed, target.to(scored_on), volume.to(scored_on))
        if self._keep:
            self._kept[number] = stack
        return stack

    def _predict(
        self, network: nn.Module, stack: _Stack, stop: Callable[[], bool]
    ) -> Tensor | None:
        """Logits (K, Z, Y, X) of the stack, float32; None if `stop` returned True."""
        if self.patch_size is not None:
            parts: Sequence[Tensor] = [stack.image]
        else:
            parts = torch.split(stack.image, self.batch_size, dim=1)
        logits = []
        batch, patch = self.batch_size, self.patch_size
        for part in parts:
            if stop():
                return None
            logits.append(predict_logits(network, part, batch_size=batch, patch_size=patch))
        return logits[0] if len(logits) == 1 else torch.cat(logits, dim=1)

    def _score(self, stack: _Stack, logits: Tensor) -> list[CaseScore]:
        logits = logits.to(stack.target.device)
        finite = torch.isfinite(logits).all(0).flatten(1).all(1).cpu()
        if not finite.all():
            name = stack.names[int(stack.volume.flatten()[int(finite.int().argmin())])]
            raise NonFiniteLossError(f"the logits of validation case {name} are not finite")
        if self.heads:
            parts = [
                self._count(_inside(stack, labels), two_classes(head, from_probs=False))
                for labels, head in zip(self.groups.values(), logits, strict=True)
            ]
        else:
            parts = [self._count(stack, logits)]
        scores = []
        for i, name in enumerate(stack.names):
            dsc = {}
            for k, (key, labels) in enumerate(self.groups.items()):
                members, part = ((1,), parts[k]) if self.heads else (labels, parts[0])
                shown = {*labels} <= {*stack.shown[i]}
                dsc[key] = dsc_from_confusion(part.tables[i], members) if shown else math.nan
            values = [(p.bins[i].ece(), p.bins[i].cece(), p.nll[i]) for p in parts]
            scores.append(CaseScore(name, dsc, *np.mean(values, axis=0).tolist()))
        return scores

    def _count(self, stack: _Stack, logits: Tensor) -> _Counts:
        """The counts of each volume of a stack, from logits (K, Z, Y, X)."""
        probs, classes = logits.softmax(0), len(logits)
        # First, because it checks that every label has a class.
        counted = stack.target != IGNORED
        bins = CalibrationBins.per_volume(probs, stack.target, stack.lengths, counted)
        pairs = (stack.volume * classes + stack.target) * classes + probs.argmax(0)
        last = len(bins) * classes**2
        # Ignored voxels go to one more count: selecting the others would wait for the device.
        pairs = torch.where(counted, pairs, last)
        counts = torch.bincount(pairs.flatten(), minlength=last + 1)[:last]
        tables = counts.cpu().numpy().reshape(-1, classes, classes)
        return _Counts(tables, bins, _mean_nll(stack, logits))


def _inside(stack: _Stack, labels: Sequence[int]) -> _Stack:
    """The stack with the target of one sigmoid head: 1 inside its region, else 0."""
    members = torch.tensor(labels, device=stack.target.device, dtype=stack.target.dtype)
    inside = torch.isin(stack.target, members).to(stack.target.dtype)
    return replace(stack, target=inside.masked_fill(stack.target == IGNORED, IGNORED))


def _mean_nll(stack: _Stack, logits: Tensor) -> list[float]:
    """Negative log-likelihood of the true class, mean over the voxels of each volume."""
    target = stack.target.long()
    nll = F.cross_entropy(logits[None], target[None], ignore_index=IGNORED, reduction="none")[0]
    sums = [nll.double().sum((1, 2)), (target != IGNORED).double().sum((1, 2))]
    parts = torch.split(torch.stack(sums).cpu(), stack.lengths, dim=1)
    return [float(total / count) for total, count in (part.sum(1) for part in parts)]


def slices_per_batch(cases: Sequence[PreparedCase], batch_size: int, device: torch.device) -> int:
    """How many slices to predict at a time, given the training's `batch_size`.

    Many small slices keep a GPU busy. The number of large ones is limited to 16, or to the
    training's batch size, to limit memory. A CPU does not gain from larger batches.
    """
    minimum = max(batch_size, 16)
    if device.type == "cpu":
        return minimum
    return max(minimum, _PIXELS_PER_BATCH // max(math.prod(case.shape[1:]) for case in cases))


def summarize(scores: Sequence[CaseScore]) -> dict[str, Any]:
    """Means over the cases; undefined values are left out, and None is a mean without any."""
    labels = list(scores[0].dsc)
    return {
        "dsc": _mean([value for score in scores for value in score.dsc.values()]),
        "ece": _mean([score.ece for score in scores]),
        "cece": _mean([score.cece for score in scores]),
        "nll": _mean([score.nll for score in scores]),
        "region": DEFAULT_REGION,
        "dsc_by_label": {k: _mean([score.dsc[k] for score in scores]) for k in labels},
        "cases": len(scores),
    }


def selection_score(metrics: Mapping[str, Any], select: str) -> float:
    """The number by which best.pt is chosen, from the metrics of a validation; larger is better.

    "both" is log DSC − NLL: the logarithm of DSC × the geometric mean of the true classes'
    probabilities.
    """
    dsc, nll = float(metrics["dsc"] or 0.0), metrics["nll"]
    if select == "dsc" or nll is None:
        return dsc
    return -float(nll) if select == "nll" else math.log(max(dsc, 1e-6)) - float(nll)


def _mean(values: Sequence[float]) -> float | None:
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else None
