"""Scans before they are predicted: are they readable, and do they lie as the training set did?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from segcal.core.errors import PathError
from segcal.data import (
    UNKNOWN,
    DatasetInfo,
    Header,
    TrainingSpace,
    check_scan,
    grid_orientation,
    scan_grids,
)
from segcal.evaluation.finished_run import FinishedRun

# A spacing this many times below the smallest or above the largest of the training set is told.
FAR = 1.5


def judge_scans(
    images: Mapping[str, Sequence[Path]], info: DatasetInfo
) -> tuple[dict[str, Header], list[PathError]]:
    """The headers of the scans that can be read, and what is wrong with the others."""
    headers, problems = {}, []
    for case, files in images.items():
        try:
            headers[case] = check_scan(files, info)
        except PathError as problem:
            problems.append(problem)
    if not headers:
        raise problems[0]
    return headers, problems


def check_apart(
    out: Path, source: Path, images: Mapping[str, Sequence[Path]], outputs: Sequence[str]
) -> None:
    """Maps must not come to lie where images are looked for: the next time they would be images."""
    if out.exists() and not out.is_dir():
        raise PathError(out, "is a file, not a folder", "choose another --out")
    here, root = out.resolve(), source.resolve()
    below = any(path.parent.resolve() != root for files in images.values() for path in files)
    if here == root or (below and here.parent == root):
        what = ", ".join(f"NAME_{name}" for name in outputs)
        raise PathError(
            out, f"is searched for images, and {what} would be some", "choose another --out"
        )


class Space:
    """What all runs together say of the orientation and spacing that their networks know."""

    def __init__(self, runs: Sequence[FinishedRun]) -> None:
        known = [_space(run) for run in runs]
        self.silent = [run.folder for run, space in zip(runs, known, strict=True) if space is None]
        self.spaces = [space for space in known if space is not None]
        self.orientations = list(dict.fromkeys(c for s in self.spaces for c in s.orientations))

    @property
    def wanted(self) -> str | None:
        """The axis codes to turn scans to; None where the runs do not know, or not only one."""
        if self.silent or len(self.orientations) != 1 or self.orientations[0] == UNKNOWN:
            return None
        return self.orientations[0]

    def warnings(self, scans: Mapping[str, Header], info: DatasetInfo) -> Iterator[str]:
        """What the user should know of these scans: one line for the runs, one for each scan."""
        placed = {
            case: scan_grids(header, info.grid, self.wanted) for case, header in scans.items()
        }
        codes = {case: grid_orientation(file_grid) for case, (file_grid, _) in placed.items()}
        line = self._of_the_runs(list(codes.values()))
        if line:
            yield line
        for case, header in scans.items():
            if self.wanted and codes[case] == UNKNOWN:
                yield (
                    f"{header.path}: its affine is a placeholder; predicted as it is stored, as if "
                    f"it were {self.wanted}"
                )
            far = self._far(placed[case][1].spacing_mm)
            if far:
                yield f"{header.path}: {far}; the network has not seen such voxels"

    def _of_the_runs(self, codes: Sequence[str]) -> str | None:
        as_stored = "scans are predicted as they are stored"
        if self.silent:
            how = "does not say how its training set was oriented (an older version wrote it)"
            return f"{self.silent[0]}: {how}; {as_stored}"
        if len(self.orientations) > 1:
            kinds = ", ".join(self.orientations)
            return f"the training set had mixed orientations ({kinds}); {as_stored}"
        if self.orientations == [UNKNOWN] and set(codes) - {UNKNOWN}:
            return f"the training set's affines were placeholders; {as_stored}"
        return None

    def _far(self, spacing_mm: tuple[float, float, float]) -> str | None:
        """The first axis whose spacing is far outside the range of training, in words."""
        for axis, (name, spacing) in enumerate(zip("zyx", spacing_mm, strict=True)):
            ranges = [space.spacing_mm[axis] for space in self.spaces]
            if not ranges:
                return None
            low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
            if not low / FAR <= spacing <= high * FAR:
                seen = f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
                return f"spacing {spacing:.3g} mm along {name}, where training had {seen} mm"
        return None


def _space(run: FinishedRun) -> TrainingSpace | None:
    """None for runs of versions that did not keep it."""
    if "space" not in run.about:
        return None
    try:
        return TrainingSpace.model_validate(run.about["space"])
    except ValidationError as error:
        raise PathError(run.folder, "has a damaged `space` in run.json", "restore it") from (error)
