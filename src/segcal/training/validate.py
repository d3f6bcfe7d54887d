"""Validation on whole volumes: DSC, and calibration where the true label is foreground."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from segcal.data import PreparedCase
from segcal.data.loader import free_bytes
from segcal.metrics import CalibrationBins
from segcal.metrics.overlap import check_groups, dsc_of
from segcal.models import predict_logits
from segcal.training.watch import NonFiniteLossError

# The share of free memory that validation volumes may occupy between epochs.
_KEPT_SHARE = 0.1


@dataclass(frozen=True)
class CaseScore:
    """One volume: DSC of each structure, ECE and CECE of the foreground (NaN without any)."""

    name: str
    dsc: dict[str, float]
    ece: float
    cece: float


class Validator:
    """Scores a network on the volumes of `cases`.

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
        needed = sum(math.prod(c.shape) * (4 * c.properties.channels + 8) for c in self.cases)
        self._keep = needed <= _KEPT_SHARE * free_bytes(device)
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}

    def score(
        self, network: nn.Module, stop: Callable[[], bool] = lambda: False
    ) -> list[CaseScore] | None:
        """The score of each case; None if `stop` said so in between."""
        was_training = network.training
        network.eval()
        scores = []
        try:
            for name, image, target in self._volumes():
                if stop():
                    return None
                probs = self._predict(network, name, image)
                scores.append(self._score(name, probs, target))
        finally:
            network.train(was_training)
        return scores

    def _volumes(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        for case in self.cases:
            if case.name in self._kept:
                yield case.name, *self._kept[case.name]
                continue
            image = torch.from_numpy(case.image()).to(self.device)
            target = torch.from_numpy(case.label()).to(self.device).long()
            if self._keep:
                self._kept[case.name] = image, target
            yield case.name, image, target

    def _predict(self, network: nn.Module, name: str, image: Tensor) -> Tensor:
        """(C, Z, Y, X) → probabilities (K, Z, Y, X), float32."""
        logits = predict_logits(
            network, image, batch_size=self.batch_size, patch_size=self.patch_size
        )
        if not bool(torch.isfinite(logits).all()):
            raise NonFiniteLossError(
                f"the network's logits of validation case {name} are not finite"
            )
        return logits.softmax(0)

    def _score(self, name: str, probs: Tensor, target: Tensor) -> CaseScore:
        pairs = target.flatten() * self.num_classes + probs.argmax(0).flatten()
        table = torch.bincount(pairs, minlength=self.num_classes**2).cpu().numpy()
        bins = CalibrationBins(self.num_classes)
        with warnings.catch_warnings():
            # An untrained network is as unsure as probabilities that were softmaxed twice.
            warnings.simplefilter("ignore", UserWarning)
            bins.update(probs, target, target > 0, batched=False)
        return CaseScore(
            name,
            dsc_of(table.reshape(self.num_classes, -1), self.groups),
            bins.ece(),
            bins.cece(),
        )


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
