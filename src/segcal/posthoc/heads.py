"""Calibration of sigmoid heads: each is a problem of two classes, outside and inside its region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, is_tensor, to_numpy
from segcal.core.heads import Heads, two_classes
from segcal.posthoc._blocks import CLIP_HALF, Spacing
from segcal.posthoc.calibrator import BaseCalibrator, Calibrator, FitReport
from segcal.posthoc.sample import Balance, Sample


class HeadCalibrator(BaseCalibrator):
    """A calibrator of two classes for each region: (1 − p, p) is calibrated, and p returned.

    Where the parts keep the predicted class, every p stays on its side of 0.5.

    Args:
        heads: the name of each region and its labels, in the order of the network's channels.
        parts: a fitted calibrator of two classes for each region; the same one for all is shared.
    """

    def __init__(self, heads: Heads, parts: Sequence[Calibrator]) -> None:
        super().__init__()
        self.heads, self.parts = dict(heads), tuple(parts)
        self.num_classes = len(heads)
        self.keeps_argmax = all(part.keeps_argmax for part in parts)

    @classmethod
    def fit(
        cls,
        heads: Heads,
        make: Callable[[], Calibrator],
        sample: Sample,
        cases: Sequence[int],
        *,
        shared: bool = False,
        balance: Balance = "none",
    ) -> HeadCalibrator:
        """Fit `make()` for each region, or one for all if `shared`.

        `sample` got the heads of each case one after another; `cases` are positions of cases.
        """
        count = len(heads)
        each = [[i * count + k for i in cases] for k in range(count)]
        chosen = [[i for head in each for i in head]] if shared else each
        parts = [make().fit_voxels(sample.select(of_head, balance)) for of_head in chosen]
        found = cls(heads, parts * count if shared else parts)
        reports = [part.report for part in parts if part.report is not None]
        found.report = _total(reports, ["all regions"] if shared else list(heads), len(cases))
        return found

    @property
    def needs_spacing(self) -> bool:
        return any(part.needs_spacing for part in self.parts)

    @property
    def method(self) -> str:
        return self.parts[0].method

    def options(self) -> dict[str, Any]:
        return self.parts[0].options()

    def transform(
        self, logits: Array, *, from_probs: bool = False, spacing_mm: Spacing | None = None
    ) -> Array:
        """Calibrated probabilities (R, *S) of the logits or probabilities of the heads."""
        source = to_numpy(logits, widen_half=False)
        if len(source) != self.num_classes:
            raise ValueError(
                f"Expected argument `logits` to have {self.num_classes} maps "
                f"({', '.join(self.heads)}), but got {len(source)}."
            )
        maps = []
        for part, head in zip(self.parts, source, strict=True):
            pair = as_two_classes(head, from_probs)
            probs = part.transform(pair, from_probs=from_probs, spacing_mm=spacing_mm)[1]
            if self.keeps_argmax:  # rounding may bring p back to 0.5, which is outside
                above = np.nextafter(probs.dtype.type(0.5), probs.dtype.type(1))
                np.maximum(probs, above, out=probs, where=pair[1] > pair[0])
            maps.append(probs)
        result = np.stack(maps)
        if is_tensor(logits):
            import torch

            return torch.from_numpy(result).to(logits.device)
        return result

    def params(self) -> dict[str, Any]:
        """The parameters of each region."""
        return {name: part.params() for name, part in zip(self.heads, self.parts, strict=True)}

    def set_params(self, params: dict[str, Any]) -> None:
        for name, part in zip(self.heads, self.parts, strict=True):
            part.num_classes = 2
            part.set_params(dict(params[name]))


def as_two_classes(head: npt.NDArray[Any], from_probs: bool) -> npt.NDArray[Any]:
    """`two_classes` of one head (*S); half precision keeps its smallest probability."""
    pair: npt.NDArray[Any] = two_classes(head, from_probs=from_probs)
    if from_probs and head.dtype == np.float16:
        np.clip(pair, CLIP_HALF, 1 - CLIP_HALF, out=pair)
    return pair


def _total(reports: Sequence[FitReport], names: Sequence[str], cases: int) -> FitReport:
    """One report of the fits of all regions; the NLL is the mean over their voxels."""
    weights = [report.voxels for report in reports]
    return FitReport(
        cases,
        sum(weights),
        sum(report.used for report in reports),
        float(np.average([report.nll_before for report in reports], weights=weights)),
        float(np.average([report.nll_after for report in reports], weights=weights)),
        sum(report.iterations for report in reports),
        all(report.converged for report in reports),
        reports[0].balance,
        reports[0].from_probs,
        [f"{at} of {n}" for n, r in zip(names, reports, strict=True) for at in r.at_bound],
    )
