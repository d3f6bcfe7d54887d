"""How the metrics of a case are computed: one object, passed from the settings to the metrics."""

from dataclasses import dataclass
from typing import get_args

from segcal.core.checks import check_choice, check_int, check_number
from segcal.metrics.overlap import EmptyPolicy
from segcal.metrics.regions import REGIONS
from segcal.metrics.surface import Units


@dataclass(frozen=True)
class CaseOptions:
    """Options of `evaluate_case`.

    Attributes:
        regions: names of `REGIONS` in which calibration is measured.
        num_bins: bins of the calibration errors.
        dilate_mm: margin of the region `union`.
        width_mm: half width of the regions `boundary` and `predicted_boundary`.
        nsd_tolerance_mm: tolerance of the surface Dice, which is part of its name in rows.
        units: unit of surface distances. Regions and the tolerance of the surface Dice are always
            in mm; with "voxel" there is no row of the surface Dice.
        empty: value of segmentation metrics for empty masks; see `dsc` and `SurfaceDistances`.
        metrics: further metrics besides the default ones: registered names, or import paths
            `package.module:Object`.

    Example:
        >>> CaseOptions(regions=("all",)).num_bins
        15
    """

    regions: tuple[str, ...] = tuple(REGIONS)
    num_bins: int = 15
    dilate_mm: float = 5.0
    width_mm: float = 3.0
    nsd_tolerance_mm: float = 2.0
    units: Units = "mm"
    empty: EmptyPolicy = "nan"
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("regions", "metrics"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"Expected argument `{name}` to be a tuple of names, not a string.")
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        for region in self.regions:
            check_choice("regions", region, REGIONS)
        check_choice("units", self.units, get_args(Units))
        check_choice("empty", self.empty, get_args(EmptyPolicy))
        check_int("num_bins", self.num_bins, low=1, high=10_000)
        check_number("dilate_mm", self.dilate_mm, low=0)
        check_number("width_mm", self.width_mm, low=0, open_low=True)
        check_number("nsd_tolerance_mm", self.nsd_tolerance_mm, low=0)
