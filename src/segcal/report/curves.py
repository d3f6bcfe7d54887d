"""Reliability curves from the calibration bins of runs, with intervals over patients."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import divide
from segcal.core.errors import PathError
from segcal.stats import pooled_proportion
from segcal.study import open_arrays

Floats = npt.NDArray[np.float64]
# No curve is drawn through bins with fewer voxels: their accuracy is mostly noise.
FEW_VOXELS = 20
# The "region" of bins against known true probabilities; they hold all voxels.
TRUTH = "truth"


@dataclass(frozen=True)
class Curve:
    """Per bin: voxel count, mean confidence, accuracy, and the interval of the accuracy."""

    count: Floats
    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats

    @property
    def ece(self) -> float:
        """Calibration error over all voxels of the curve."""
        return self._mean(np.abs(self.accuracy - self.confidence))

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy over all voxels of the curve."""
        return self._mean(self.confidence - self.accuracy)

    def _mean(self, values: Floats) -> float:
        total = self.count.sum()
        return float(np.nansum(self.count * values) / total) if total else float("nan")


@dataclass(frozen=True)
class CaseBins:
    """Bins of a run, or of all seeds of a method added: sums (3, cases, bins) for each region.

    `levels` are sums (3, cases, K, levels) of `ConfidenceLevels`; None in an older file.
    """

    cases: list[str]
    regions: dict[str, Floats]
    levels: Floats | None = None

    def of_case(self, case: str, region: str) -> Curve | None:
        """The curve of one case."""
        if region not in self.regions or case not in self.cases:
            return None
        return curve(self.regions[region][:, [self.cases.index(case)]])


def curve(sums: Floats) -> Curve:
    """Pool sums (3, patients, bins) of count, confidence and accuracy over patients.

    The 95 % interval of each bin's accuracy is `pooled_proportion`; it is NaN where fewer than two
    patients have voxels in the bin.
    """
    count, confidence, _ = sums.sum(axis=1)
    bins = zip(sums[2].T, sums[0].T, strict=True)
    accuracy, low, high = np.array([pooled_proportion(*each) for each in bins]).reshape(-1, 3).T
    return Curve(count, divide(confidence, count), accuracy, low, high)


def read_bins(path: Path) -> CaseBins:
    """The bins of one run; those against true probabilities, if it has some, as region `TRUTH`."""
    regions: dict[str, Floats] = {}
    with open_arrays(path, "calibration bins") as file:
        cases = [str(name) for name in file["cases"]]
        for prefix, names in (("", [*map(str, file["regions"])]), ("truth_", [TRUTH])):
            if prefix and f"{prefix}top_count" not in file:
                continue
            keys = [f"{prefix}top_{name}" for name in ("count", "confidence", "accuracy")]
            sums = np.stack([np.asarray(file[key], np.float64) for key in keys])
            if sums.ndim != 4 or sums.shape[1:3] != (len(cases), len(names)):
                raise PathError(
                    path,
                    f"bins of shape {sums.shape[1:]} do not fit {len(cases)} cases and "
                    f"{len(names)} regions",
                    "evaluate the run again",
                )
            regions |= {name: sums[:, :, i] for i, name in enumerate(names)}
        levels = None
        if "level_count" in file:
            keys = [f"level_{name}" for name in ("count", "confidence", "accuracy")]
            levels = np.stack([np.asarray(file[key], np.float64) for key in keys])
    return CaseBins(cases, regions, levels)


def add_bins(ours: CaseBins, theirs: CaseBins, path: Path) -> CaseBins:
    """The bins of two seeds: counts of the same case add up, other cases are kept."""
    cases = list(dict.fromkeys([*ours.cases, *theirs.cases]))

    def add(first: Floats, second: Floats) -> Floats:
        total = np.zeros((3, len(cases), *first.shape[2:]))
        total[:, [cases.index(c) for c in ours.cases]] += first
        total[:, [cases.index(c) for c in theirs.cases]] += second
        return total

    regions = {}
    for region in (r for r in ours.regions if r in theirs.regions):
        first, second = ours.regions[region], theirs.regions[region]
        if first.shape[2] != second.shape[2]:
            raise PathError(
                path,
                f"has {second.shape[2]} bins, but other seeds of the method have {first.shape[2]}",
                "evaluate all seeds with the same number of bins",
            )
        regions[region] = add(first, second)
    levels = None
    if ours.levels is not None and theirs.levels is not None:
        levels = add(ours.levels, theirs.levels)
    return CaseBins(cases, regions, levels)
