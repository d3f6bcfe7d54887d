"""What a prepared set holds, in words: for `segcal prepare` and `segcal data check`."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segcal.core.text import count, first_few
from segcal.data.case import CaseProperties
from segcal.data.dataset import PreparedDataset
from segcal.data.orientation import axis_codes
from segcal.data.splits import PARTS

MAX_LINES = 20


def report_lines(
    dataset: PreparedDataset, cases: Sequence[CaseProperties], knows_patients: bool
) -> list[str]:
    """Cases, patients, parts, images, grid and ignored voxels; then at most 20 warnings."""
    info, splits = dataset.info, dataset.splits
    patients = count(len({c.patient for c in cases}), "patient")
    note = "" if knows_patients else " (each case counts as one; see --patient)"
    sizes = ", ".join(f"{len(getattr(splits, part))} {part}" for part in PARTS)
    groups = Counter(c.group for c in cases if c.group)
    readers = sorted({reader for case in cases for reader in case.readers})
    rows = [
        ("parts", f"{sizes}; {count(len(splits.folds), 'fold')}"),
        ("images", f"{', '.join(info.channels)}; {info.intensity}; {info.dtype}"),
        ("classes", ", ".join(f"{k} {name}" for k, name in sorted(info.classes.items()))),
        ("readers", f"{len(readers)} ({', '.join(readers)})" if readers else ""),
        ("spacing", f"{spacing_text(cases)} mm (z, y, x)"),
        ("shape", f"{axis_ranges(np.array([c.shape for c in cases]), 'd')} (recipe {info.recipe})"),
        ("ignored", f"{ignored_share(cases):.1%} of voxels"),
        ("groups", ", ".join(f"{name} {n}" for name, n in sorted(groups.items()))),
    ]
    lines = [f"{dataset.root}: {count(len(cases), 'case')} of {patients}{note}"]
    lines += [f"  {title:<8} {value}" for title, value in rows if value]
    return lines + at_most(_warnings(dataset, cases))


def _warnings(dataset: PreparedDataset, cases: Sequence[CaseProperties]) -> list[str]:
    info, splits = dataset.info, dataset.splits
    present = {label for case in cases for label in case.voxels}
    absent = [f"{k} {name}" for k, name in sorted(info.classes.items()) if k not in present]
    listed = {*splits.train, *splits.val, *splits.test, *splits.excluded}
    unlisted = [c.name for c in cases if c.name not in listed]
    lines = [mixed_orientations(cases)]
    if absent:
        lines.append(f"warning: no case has class {', '.join(absent)}")
    if unlisted:
        path = dataset.root / "splits.json"
        remedy = "add them, or remove the file and run the same command again"
        lines.append(f"warning: {path} has no part for {first_few(unlisted)}; {remedy}")
    lines += [f"identical scans: {' = '.join(group)}" for group in splits.duplicates]
    if splits.excluded:
        lines.append(f"in no part, as a test scan is identical: {', '.join(splits.excluded)}")
    lines += [
        f"warning: {case.name}: voxels outside {record.low:g} to {record.high:g} were clipped"
        for case in cases
        for record in case.intensity
        if info.intensity.kind == "zscore" and record.low is not None and record.high is not None
    ]
    return [line for line in lines if line]


def at_most(lines: list[str], limit: int = MAX_LINES) -> list[str]:
    """The first lines, and how many more there are."""
    if len(lines) <= limit:
        return lines
    return [*lines[: limit - 1], f"… and {len(lines) - limit + 1} more"]


def spacing_text(cases: Sequence[CaseProperties]) -> str:
    """Spacing (Z, Y, X) in mm of the stored grids, and of the files if it differs."""
    stored = axis_ranges(np.array([c.spacing_mm for c in cases]), ".3g")
    files = axis_ranges(np.array([c.grid.original_spacing_mm for c in cases]), ".3g")
    return stored if stored == files else f"{stored}, resampled from {files}"


def ignored_share(cases: Sequence[CaseProperties]) -> float:
    """The share of the stored voxels that do not count."""
    return sum(c.ignored for c in cases) / sum(int(np.prod(c.shape)) for c in cases)


def orientation(cases: Sequence[CaseProperties]) -> str:
    """Where the axes of the source files point, and in how many cases."""
    counts = Counter(axis_codes(c.grid.affine) for c in cases)
    if len(counts) == 1:
        return f"{next(iter(counts))} (x, y, z of the source files)"
    return ", ".join(f"{code} in {count(n, 'case')}" for code, n in counts.most_common())


def mixed_orientations(cases: Sequence[CaseProperties]) -> str:
    """A warning if the axes of the source files point in different directions, or ""."""
    codes = {axis_codes(c.grid.affine) for c in cases}
    if len(codes) < 2:
        return ""
    planes = {"RLAPSI".index(code[2]) // 2 for code in codes}
    differs = "left and right may differ" if len(planes) == 1 else "the plane of the slices differs"
    remedy = "unless that is intended, reorient the files first (nibabel.as_closest_canonical)"
    what = f"mixed orientations ({orientation(cases)})"
    return f"warning: {what}; {differs} between cases; {remedy}"


def axis_ranges(values: NDArray[np.generic], form: str) -> str:
    """The range of each column, joined by ×."""
    return " × ".join(_range(column, form) for column in values.T)


def _range(values: NDArray[np.generic], form: str) -> str:
    low, high = values.min(), values.max()
    same = format(low, form) == format(high, form)
    return format(low, form) if same else f"{low:{form}}–{high:{form}}"
