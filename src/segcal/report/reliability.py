"""Reliability curves from the bins of the runs, with intervals from resampled cases."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.report.arrays import open_arrays
from segcal.study import Study

Floats = npt.NDArray[np.float64]
RESAMPLES = 1000
# Bins of one case with fewer voxels are noise: no curve is drawn through them.
FEW_VOXELS = 20
_SUMS = ("count", "confidence", "accuracy")


@dataclass(frozen=True)
class Curve:
    """A reliability curve: per bin the count, mean confidence, accuracy, and its interval."""

    count: Floats
    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats

    @property
    def ece(self) -> float:
        """The calibration error of what is drawn."""
        total = self.count.sum()
        gap = np.nansum(self.count * np.abs(self.accuracy - self.confidence))
        return float(gap / total) if total else float("nan")

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy of what is drawn."""
        total = self.count.sum()
        gap = np.nansum(self.count * (self.confidence - self.accuracy))
        return float(gap / total) if total else float("nan")


@dataclass(frozen=True)
class CaseBins:
    """Bins of a run, or of a method with seeds added: sums (3, cases, M) for each region."""

    cases: list[str]
    regions: dict[str, Floats]

    def of_case(self, case: str, region: str) -> Curve | None:
        """The curve of one case."""
        if region not in self.regions or case not in self.cases:
            return None
        return curve(self.regions[region][:, [self.cases.index(case)]], resamples=0)

    def pooled(self, region: str, resamples: int = RESAMPLES) -> Curve | None:
        """The curve of all cases together."""
        if region not in self.regions:
            return None
        return curve(self.regions[region], resamples=resamples)


def curve(sums: Floats, resamples: int = RESAMPLES, seed: int = 0) -> Curve:
    """Pool sums (3, cases, M) of count, confidence and accuracy.

    The interval is the 95 % percentile interval of each bin's accuracy when cases are drawn with
    replacement; it is NaN where fewer than two cases have voxels in the bin.
    """
    count, confidence, accuracy = sums.sum(axis=1)
    low = high = np.full(count.shape, np.nan)
    cases = sums.shape[1]
    if resamples and cases > 1:
        chances = np.full(cases, 1 / cases)
        times = np.random.default_rng(seed).multinomial(cases, chances, resamples).astype(float)
        drawn = _divide(times @ sums[2], times @ sums[0])
        several = (sums[0] > 0).sum(axis=0) > 1
        low, high = low.copy(), high.copy()
        if several.any():
            low[several], high[several] = np.nanquantile(drawn[:, several], [0.025, 0.975], axis=0)
    return Curve(count, _divide(confidence, count), _divide(accuracy, count), low, high)


def _divide(total: npt.NDArray[Any], count: npt.NDArray[Any]) -> Floats:
    out = np.full(np.shape(total), np.nan)
    return np.asarray(np.divide(total, count, out=out, where=count > 0))


def read_bins(study: Study, prefix: str = "") -> dict[tuple[str, str], CaseBins]:
    """(dataset, method) -> bins; `prefix` "truth_" reads those against the true probabilities."""
    out: dict[tuple[str, str], CaseBins] = {}
    for run, path in study.files("bins.npz"):
        found = read_run_bins(path, prefix)
        if found is None:
            continue
        key = (run.dataset, run.method)
        out[key] = _add(out[key], found, path) if key in out else found
    return out


def read_run_bins(path: Path, prefix: str = "") -> CaseBins | None:
    """The bins of one run; None where it has none of that prefix."""
    with open_arrays(path, "calibration bins") as file:
        if prefix and f"{prefix}top_count" not in file:
            return None
        sums = np.stack([np.asarray(file[f"{prefix}top_{name}"], np.float64) for name in _SUMS])
        cases = [str(name) for name in file["cases"]]
        regions = ["all"] if prefix else [str(name) for name in file["regions"]]
    if sums.ndim != 4 or sums.shape[1:3] != (len(cases), len(regions)):
        raise ValueError(
            f"Expected bins of {len(cases)} cases and {len(regions)} regions in {path}, but got "
            f"shape {sums.shape[1:]}."
        )
    return CaseBins(cases, {region: sums[:, :, i] for i, region in enumerate(regions)})


def _add(ours: CaseBins, theirs: CaseBins, path: Path) -> CaseBins:
    """The bins of two seeds together: the same case adds up, a case of one seed only stays."""
    cases = list(dict.fromkeys([*ours.cases, *theirs.cases]))
    regions = {}
    for region in (r for r in ours.regions if r in theirs.regions):
        first, second = ours.regions[region], theirs.regions[region]
        if first.shape[2] != second.shape[2]:
            raise ValueError(
                f"Expected {first.shape[2]} bins in {path}, as other seeds have, but got "
                f"{second.shape[2]}."
            )
        total = np.zeros((3, len(cases), first.shape[2]))
        total[:, [cases.index(c) for c in ours.cases]] += first
        total[:, [cases.index(c) for c in theirs.cases]] += second
        regions[region] = total
    return CaseBins(cases, regions)
