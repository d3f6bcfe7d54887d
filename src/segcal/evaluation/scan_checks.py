"""Check scans before they are predicted: readable, and similar to the training set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from segcal.core.errors import PathError
from segcal.data import UNKNOWN, DatasetInfo, Header, check_scan, grid_orientation, scan_grids

if TYPE_CHECKING:
    from segcal.evaluation.finished_run import FinishedRun

# Warn about a spacing that is this many times below the smallest or above the largest of training.
FAR = 1.5


def read_headers(
    images: Mapping[str, Sequence[Path]], info: DatasetInfo
) -> tuple[dict[str, Header], list[PathError]]:
    """The headers of the readable scans, and the problems of the others."""
    headers, problems = {}, []
    for case, files in images.items():
        try:
            headers[case] = check_scan(files, info)
        except PathError as problem:
            problems.append(problem)
    if not headers:
        raise problems[0]
    return headers, problems


def check_output_folder(out: Path, source: Path, images: Mapping[str, Sequence[Path]]) -> None:
    """Refuse a folder in which the next call would find the maps as images."""
    if out.exists() and not out.is_dir():
        raise PathError(out, "is a file, not a folder", "choose another --out")
    target, root = out.resolve(), source.resolve()
    nested = any(path.parent.resolve() != root for files in images.values() for path in files)
    if target == root or (nested and target.parent == root):
        problem = "must not be the input folder, or beside its cases"
        remedy = "choose another --out: the maps would be read as images next time"
        raise PathError(out, f"--out {problem}", remedy)


class Space:
    """The orientations and spacings on which all runs together were trained."""

    def __init__(self, runs: Sequence[FinishedRun]) -> None:
        self.spaces = [run.info.space for run in runs]
        self.orientations = list(dict.fromkeys(c for s in self.spaces for c in s.orientations))

    @property
    def orientation(self) -> str | None:
        """The axis codes to turn scans to; None if they are unknown or mixed."""
        if len(self.orientations) != 1 or self.orientations[0] == UNKNOWN:
            return None
        return self.orientations[0]

    def warnings(self, scans: Mapping[str, Header], info: DatasetInfo) -> Iterator[str]:
        """Warnings about the training set and about single scans, one line each."""
        target = self.orientation
        placed = {case: scan_grids(header, info.grid, target) for case, header in scans.items()}
        codes = {case: grid_orientation(file_grid) for case, (file_grid, _) in placed.items()}
        if len(self.orientations) > 1:
            mixed = ", ".join(self.orientations)
            yield f"the training set has mixed orientations ({mixed}); scans are not reoriented"
        elif self.orientations == [UNKNOWN] and set(codes.values()) - {UNKNOWN}:
            yield "the affines of the training set are placeholders; scans are not reoriented"
        for case, header in scans.items():
            if target and codes[case] == UNKNOWN:
                yield f"{header.path}: its affine is a placeholder; it is read as {target}"
            unusual = self._unusual_spacing(placed[case][1].spacing_mm)
            if unusual:
                yield f"{header.path}: {unusual}; the network was not trained on such voxels"

    def _unusual_spacing(self, spacing_mm: tuple[float, float, float]) -> str | None:
        """Describes the first axis whose spacing is far outside the range of training."""
        for axis, (name, spacing) in enumerate(zip("zyx", spacing_mm, strict=True)):
            ranges = [space.spacing_mm[axis] for space in self.spaces]
            low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
            if not low / FAR <= spacing <= high * FAR:
                seen = f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
                return f"spacing {spacing:.3g} mm along {name}, but {seen} mm in training"
        return None
