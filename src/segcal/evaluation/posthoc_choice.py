"""Which calibrator to use: the smallest cross-validated NLL at the boundary and over all voxels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import did_you_mean
from segcal.evaluation.posthoc_verdict import Change, paired_change
from segcal.posthoc import CALIBRATORS, BaseCalibrator, make_calibrator

AUTO = "auto"
NONE = "none"
# The methods that `auto` compares, with their options. All keep the label of every voxel.
# `class_affine` was never the best in nested cross-validation (docs/results/calibrators.md).
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "temperature": {},
    "mixture": {},
    "dirichlet": {"keep_argmax": True},
}
AUTO_TITLE = f"the best of {', '.join(CANDIDATES)} by cross-validation, or none"
# Both are regions in which a calibrated network scores best.
JUDGED = ("all", "predicted_boundary")


def check_method(argument: str, method: str, **options: Any) -> None:
    """Refuse what is neither "auto" nor a calibrator, before any file is read."""
    if method == AUTO:
        return
    if ":" not in method and method not in CALIBRATORS:
        names = [*CALIBRATORS, AUTO]
        raise ValueError(
            f"{argument} {method}: no calibrator has this name.{did_you_mean(method, names)} "
            f"Known: {', '.join(names)}; or an import path package.module:Object"
        )
    make_calibrator(method, **options)


def chose_none(calibrator: BaseCalibrator) -> bool:
    """Whether "auto" chose no method: a temperature of 1 stands for it, which changes nothing."""
    auto = calibrator.about.get("auto")
    return isinstance(auto, dict) and auto.get("chosen") == NONE


def method_of(calibrator: BaseCalibrator) -> str:
    """The method that a calibrator was fitted by, or "none"."""
    return NONE if chose_none(calibrator) else calibrator.method


@dataclass(frozen=True)
class Choice:
    """The chosen method, and why.

    Attributes:
        method: a key of `CANDIDATES`, or "none".
        nll: mean NLL over held-out cases of each method, in each region of `JUDGED`.
        changes: of each method, the change of its relative NLL: the mean over both regions of the
            NLL divided by that of the uncalibrated network.
    """

    method: str
    nll: dict[str, tuple[float, ...]]
    changes: dict[str, Change]

    def lines(self) -> Iterator[str]:
        """A small table, and the reason."""
        yield f"{'method':<13}" + "".join(f"{f'NLL {r}':>24}" for r in JUDGED) + f"{'relative':>10}"
        for name, values in self.nll.items():
            change = self.changes.get(name)
            interval = f"   [{1 + change.low:.3f}, {1 + change.high:.3f}]" if change else ""
            score = 1 + change.difference if change else 1.0
            numbers = "".join(f"{value:>24.4f}" for value in values)
            yield f"{name:<13}{numbers}{score:>10.3f}{interval}"
        reason = "has the smallest relative NLL (mean of both regions, held-out cases)"
        if self.method == NONE:
            reason = "no method lowers the relative NLL of held-out cases"
        elif not self.changes[self.method].high < 0:
            reason += ", but its 95 % interval includes 1"
        yield f"chosen: {self.method}; {reason}"

    def as_dict(self) -> dict[str, Any]:
        """For the file of the calibrator."""
        return {
            "chosen": self.method,
            "nll": {name: dict(zip(JUDGED, v, strict=True)) for name, v in self.nll.items()},
            "relative_nll": {name: 1 + c.difference for name, c in self.changes.items()},
        }


def choose(nll: Mapping[str, NDArray[np.float64]], units: Sequence[str] | None) -> Choice:
    """The method with the smallest relative NLL, if it is smaller than without a method.

    Args:
        nll: of "none" and each method, (cases, regions of `JUDGED`).
        units: patient of each case; None: each case is one.
    """
    plain = _mean(nll[NONE], axis=0)
    relative = {name: _mean(values / plain, axis=1).tolist() for name, values in nll.items()}
    changes = {
        name: paired_change(" and ".join(JUDGED), "nll", relative[NONE], values, units=units)
        for name, values in relative.items()
        if name != NONE
    }
    best = min(changes, key=lambda name: changes[name].difference)
    method = best if changes[best].difference < 0 else NONE
    means = {name: tuple(_mean(v, axis=0).tolist()) for name, v in nll.items()}
    return Choice(method, means, changes)


def _mean(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """The mean of defined values: a case without predicted structures has no boundary."""
    return np.asarray(np.ma.masked_invalid(values).mean(axis).filled(np.nan))
