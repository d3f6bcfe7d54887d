"""Every source by name."""

from collections.abc import Callable
from pathlib import Path

from segcal.data import acdc, brats, flare, folder, msd
from segcal.data.source import SourceOptions, SourceSet

SOURCES: dict[str, Callable[[Path, SourceOptions], SourceSet]] = {
    "acdc": acdc.find_cases,
    "flare": flare.find_cases,
    "brats": brats.find_cases,
    "msd": msd.find_cases,
    "folder": folder.find_cases,
}
