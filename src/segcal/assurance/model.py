"""The file assurance.json: what was fitted, on what, and which promises it makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from segcal.assurance.conformal import Referral
from segcal.assurance.dice_line import DiceLine
from segcal.assurance.factor import expected_dice
from segcal.assurance.histogram import Floats
from segcal.assurance.intervals import Interval, Method, Slopes, plain_interval
from segcal.assurance.summary import CaseSummary
from segcal.core.documents import read_model
from segcal.core.errors import PathError
from segcal.core.files import make_parent, write_text
from segcal.posthoc import BaseCalibrator, calibrator_from
from segcal.stats import Estimate

Share = Annotated[float, Field(gt=0, lt=1)]


class Part(BaseModel):
    """A part of the file; immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class OperatingPoint(Part):
    """Means over held-out scans of the masks {p ≥ threshold}, with 95 % intervals."""

    threshold: float
    sensitivity: Estimate
    precision: Estimate
    dice: Estimate
    volume_error: Estimate


class IntervalFit(Part):
    """A kind of volume interval: corrections of its low end, center and high end, conformal factor
    of its width, and cross-validated coverage, width and interval score in ml. The coverage is NaN
    if the patients outside of each fold are too few for an interval.
    """

    slopes: Slopes
    factor: float
    coverage: float
    width_ml: float
    score_ml: float


class StructureFit(Part):
    """One structure. None: the cases do not support the promise, or no threshold keeps it.

    Attributes:
        rho: correlation of the one-factor model.
        method: the kind of volume interval that is used: of `intervals`, the one with the smallest
            interval score; with fewer than 20 patients always "quantile".
        dice_line: correction of the expected Dice.
        outer, inner: thresholds of the conformal masks.
        threshold: that of the largest mean Dice, one of `operating_points`.
        missed: share of the scans without a mask of the structure in which it exists.
    """

    name: str
    rho: float
    method: Method
    intervals: dict[Method, IntervalFit]
    dice_line: DiceLine = DiceLine()
    outer: float | None
    inner: float | None
    threshold: float
    operating_points: tuple[OperatingPoint, ...]
    missed: Annotated[float, Field(ge=0, le=1)] = 1.0


class Scope(Part):
    """Center and scale of each statistic, and for each group (confidence, shape, intensity) the
    largest deviation among the scans of the fit.
    """

    center: dict[str, float]
    scale: dict[str, float]
    limit: dict[str, float]


class FittedCase(Part):
    """A scan of the fit; see `identify`."""

    case: str
    patient: str
    identity: tuple[str, str]


class Assurance(Part):
    """Everything that `apply` and `check` need; see `fit_assurance`.

    Attributes:
        coverage: of volume and Dice intervals.
        risk: largest expected share that outer masks miss and of inner masks that is wrong.
        min_dice, max_failures: the promise of the referral rule.
        calibrated: how the predictions were calibrated before; None in files that do not tell.
        heads: the labels of each structure, if they are sigmoid heads, which may overlap.
        dice_factor: half width of a Dice interval is this times 1.01 − expected Dice.
        referral: the rule; None if the cases do not support it.
        refused: promises that the cases do not support, with what they need.
    """

    format: Literal["segcal-assurance"] = "segcal-assurance"
    version: Literal[1] = 1
    coverage: Share
    risk: Share
    min_dice: Share
    max_failures: Share
    calibrator: dict[str, Any] | None
    calibrated: str | None = None
    structures: tuple[StructureFit, ...]
    heads: dict[str, tuple[int, ...]] = {}
    dice_factor: float | None
    referral: Referral | None
    scope: Scope
    refused: tuple[str, ...]
    cases: tuple[FittedCase, ...]
    versions: dict[str, str]

    @property
    def num_classes(self) -> int:
        """The maps of each case: with the background, or those of sigmoid heads."""
        return len(self.structures) + (not self.heads)

    def save(self, path: Path) -> None:
        """Write the file, completely or not at all."""
        make_parent(path)
        write_text(path, self.model_dump_json(indent=1) + "\n")

    def check_input(self, folder: Path | str, calibrated: str) -> None:
        """Raise a PathError if predictions were calibrated otherwise than those of the fit."""
        if self.calibrated in (None, calibrated):
            return
        was = f"is calibrated by {calibrated}" if calibrated else "is not calibrated"
        fitted = f"was fitted on {self.calibrated or 'uncalibrated predictions'}"
        remedy = "give predictions of the same kind (`segcal predict --raw` does not calibrate)"
        raise PathError(folder, f"{was}, but the assurance {fitted}", remedy)

    def own_calibrator(self) -> BaseCalibrator | None:
        """The calibrator that the file contains."""
        if self.calibrator is None:
            return None
        return calibrator_from(self.calibrator, Path("assurance.json"))

    def interval(self, case: CaseSummary, s: int, method: Method | None = None) -> Interval:
        """The volume interval of structure `s`; NaN if the fit does not support one."""
        structure = self.structures[s]
        method = method or structure.method
        if method not in structure.intervals:
            return Interval(np.nan, np.nan, np.nan)
        plain = plain_interval(case, s, method, structure.rho, self.coverage)
        fitted = structure.intervals[method]
        return plain.scaled(fitted.slopes).widened(fitted.factor)

    def dice(self, case: CaseSummary) -> Estimate:
        """Expected Dice of the argmax masks of a scan, with a conformal interval."""
        dices = [self.structure_dice(case, s) for s in range(len(self.structures))]
        mean = scan_dice(case, dices, [structure.missed for structure in self.structures])
        if self.dice_factor is None:
            return Estimate(mean, np.nan, np.nan)
        half = self.dice_factor * dice_scale(mean)
        return Estimate(mean, max(mean - half, 0.0), min(mean + half, 1.0))

    def structure_dice(self, case: CaseSummary, s: int) -> float:
        """Expected Dice of the argmax mask of structure `s`, corrected by the scans of the fit."""
        fit = self.structures[s]
        return fit.dice_line.corrected(expected_dice(case.histogram(s), case.inside(s), fit.rho))

    def out_of_scope(self, features: dict[str, float]) -> str:
        """Why a scan is unlike those of the fit; empty if it is not."""
        center, limit = self.scope.center, self.scope.limit
        found = deviations(features, center, self.scope.scale)
        worst = max(found, key=lambda key: found[key] / limit[group_of(key)])
        if found[worst] <= limit[group_of(worst)]:
            return ""
        name, value, usual = worst, features[worst], center[worst]
        for scale, original in (("log ", np.exp), ("asinh ", np.sinh)):
            if scale in name:
                name, value, usual = name.replace(scale, ""), original(value), original(usual)
        # It is the sum of the probabilities, not the median or the mask volume of the tables.
        name = name.replace("volume in ml", "expected volume in ml")
        for number, structure in reversed(list(enumerate(self.structures, start=1))):
            name = name.replace(f"class {number}", structure.name)
        return f"{name} is {value:.3g}, in the fit about {usual:.3g}"


def scan_dice(case: CaseSummary, dices: Sequence[float], missed: Sequence[float]) -> float:
    """The expected mean Dice of a scan, from the expected Dice of each structure.

    A structure without an argmax mask is absent, and then it has no Dice, or missed, with Dice 0;
    `missed` is the probability of the second, independent of other structures. If no structure has
    a mask, it is the mean of `dices`.
    """
    marked = [dice for s, dice in enumerate(dices) if case.hard_volume(s)]
    if not marked:
        return nanmean(dices)
    zeros = np.ones(1)  # the probabilities of 0, 1, … missed structures
    for s, share in enumerate(missed):
        if not case.hard_volume(s):
            zeros = np.convolve(zeros, [1 - share, share])
    return float(sum(marked) * (zeros / (len(marked) + np.arange(len(zeros)))).sum())


def missed_share(cases: Sequence[CaseSummary], s: int, weights: Floats) -> float:
    """The share of scans without an argmax mask of structure `s` in which it exists.

    One scan is added that has the structure as often as all scans have it: a structure that exists
    in all scans of the fit is probably missed where it has no mask.
    """
    exists = np.array([case.true_volume(s) > 0 for case in cases])
    unmarked = weights * [not case.hard_volume(s) for case in cases]
    prior = np.average(exists, weights=weights)
    return float((unmarked @ exists + prior) / (unmarked.sum() + 1))


def nanmean(values: Sequence[float]) -> float:
    """The mean of the values that are not NaN; NaN if none is."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else np.nan


def dice_scale(expected: Any) -> Any:
    """Errors of expected Dice grow about in proportion to what is missing to 1."""
    return 1.01 - expected


def deviations(
    features: dict[str, float], center: dict[str, float], scale: dict[str, float]
) -> dict[str, float]:
    """How far each statistic is from its center, in units of its scale."""
    return {k: abs(features[k] - center[k]) / scale[k] for k in center if k in features}


def group_of(statistic: str) -> str:
    """Such as "shape"."""
    return statistic.partition(":")[0]


def load_assurance(path: Path) -> Assurance:
    """Read a file that `segcal assure fit` wrote, or raise a PathError."""
    remedy = "give a file that `segcal assure fit` wrote"
    found = read_model(path, Assurance, "an assurance file", remedy)
    if found.calibrator is not None:
        calibrator_from(found.calibrator, path)
    return found
