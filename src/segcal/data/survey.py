"""What a source holds and how it will be stored, decided before anything is written."""

import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from segcal.core.checks import check_choice
from segcal.core.errors import PathError, read_errors
from segcal.core.text import first_few
from segcal.data._free_memory import free_ram
from segcal.data.case import SourceFile
from segcal.data.grid import IGNORED, GridRecipe, Shape, Spacing
from segcal.data.info import DatasetInfo, Dtype, Recipe
from segcal.data.sources.base import Source, SourceCase

# The U-Net of the paper halves slices three times and quarters them once.
_MULTIPLE = 32
_MAX_WORKERS = 8


def find_cases(
    source: Source,
) -> tuple[dict[str, SourceCase], dict[str, tuple[SourceFile, ...]], list[PathError]]:
    """The cases by name, the files of each, and the problems; no case at all is an error."""
    cases: dict[str, SourceCase] = {}
    files: dict[str, tuple[SourceFile, ...]] = {}
    problems: list[PathError] = []
    # Names that differ in capital letters only would share a folder on some disks.
    names: dict[str, str] = {}
    for case in source.cases():
        if isinstance(case, PathError):
            problems.append(case)
            continue
        try:
            files[case.name] = _source_files(case, source.folder)
        except PathError as problem:
            problems.append(problem)
            continue
        other = names.setdefault(case.name.casefold(), case.name)
        if case.name not in cases and other == case.name:
            cases[case.name] = case
        else:
            where = case.files[0] if case.files else Path(case.name)
            problems.append(PathError(where, f"has the same case name as {other}", "rename one"))
    if not cases:
        where = source.folder or Path(source.name)
        raise next(iter(problems), PathError(where, "holds no cases", f"expected {source.layout}"))
    return cases, files, problems


def _source_files(case: SourceCase, folder: Path | None) -> tuple[SourceFile, ...]:
    """Name, size and time of the files of a case: enough to notice that one has changed."""
    found = []
    for path in (*case.files, *filter(None, [case.mask])):
        with read_errors(path):
            stat = path.stat()
        name = path.relative_to(folder) if folder and path.is_relative_to(folder) else path
        size, time = stat.st_size, stat.st_mtime_ns
        found.append(SourceFile(name=name.as_posix(), bytes=size, mtime_ns=time))
    return tuple(found)


def describe(
    source: Source, cases: Iterable[SourceCase], recipe: Recipe | None, dtype: Dtype
) -> DatasetInfo:
    """The description of the set that `prepare` will write; `prepare` completes it."""
    recipe = recipe or source.recipes()[0]
    check_choice("recipe", recipe, source.recipes())
    grid = GridRecipe()
    if recipe == "paper" and source.paper_grid is not None:
        grid = source.paper_grid
    elif recipe == "padded":
        known = _geometry(cases)
        spacing = _common_spacing(source, [each for _, each in known])
        resample = GridRecipe(spacing_mm=spacing)
        sides = np.max([(1, 1), *(resample.shapes(*each)[0][1:] for each in known)], axis=0)
        y, x = (-(-sides // _MULTIPLE) * _MULTIPLE).tolist()
        grid = GridRecipe(crop=(None, y, x), spacing_mm=spacing)
    if recipe == "native" and isinstance(source.spacing, tuple):
        raise ValueError("Expected argument `spacing` only without --recipe native.")
    return DatasetInfo(
        **dict(source.description), source=source.name, recipe=recipe, dtype=dtype, grid=grid,
        origin=source.origin(),
    )  # fmt: skip


def _geometry(cases: Iterable[SourceCase]) -> Sequence[tuple[Shape, Spacing | None]]:
    """Shape and spacing of all cases whose header can be read; the others fail when loaded."""
    known = []
    for case in cases:
        with suppress(PathError):
            known.append((case.shape(), case.spacing_mm()))
    return known


def _common_spacing(source: Source, known: Sequence[Spacing | None]) -> Spacing | None:
    """The spacing that all cases are resampled to; None if they keep theirs.

    By default the median, as in nnU-Net; None if all have it already.
    """
    if isinstance(source.spacing, tuple):
        return source.spacing
    found = [each for each in known if each is not None]
    if source.spacing == "native" or len(found) < len(known) or not found:
        return None
    z, y, x = (round(float(v), 4) for v in np.median(found, axis=0))
    return None if np.allclose(found, (z, y, x), rtol=0.01) else (z, y, x)


def check_labels(source: Source, cases: Iterable[SourceCase]) -> None:
    """Raise if the labels have gaps, or are 0 and 255, and propose the `--map` to use."""
    found: dict[int, Path] = {0: Path()}

    def labels(case: SourceCase) -> dict[int, Path]:
        # A file that cannot be read is reported when it is loaded.
        with suppress(PathError):
            return case.labels()
        return {}

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for each in pool.map(labels, cases):
            found = {v: path for v, path in each.items() if v >= 0} | found
    classes, table = source.description.classes, source.description.label_map or {}
    stored = {value: table.get(value, value) for value in found if table.get(value) != IGNORED}
    ordered = sorted({0, *stored.values()})
    if len(ordered) > IGNORED:
        problem = f"is one of the label maps, which hold {len(ordered)} labels, like images"
        remedy = f"at most {IGNORED} are possible; are images and labels swapped?"
        raise PathError(found[max(stored)], problem, remedy)
    if classes:
        wrong = set(ordered) - set(classes) and len(ordered) == len(classes)
    else:
        wrong = ordered != list(range(len(ordered)))
    if wrong:
        pairs = {value: ordered.index(now) for value, now in sorted(stored.items())}
        changed = ",".join(f"{value}={new}" for value, new in pairs.items() if value != new)
        remedy = f"add --map {changed}" + (
            "" if classes else ", or name labels 1, 2, … by --classes"
        )
        listed = first_few(ordered, 10)
        raise PathError(found[max(stored)], f"the labels of the data set are {listed}", remedy)


def auto_workers(cases: Iterable[SourceCase], info: DatasetInfo) -> int:
    """As many as cores and memory allow: about four float32 copies per voxel, on either grid."""
    pairs = ((shape, info.grid.shapes(shape, mm)[1]) for shape, mm in _geometry(cases))
    voxels = max((math.prod(before) + math.prod(after) for before, after in pairs), default=1)
    fitting = int(0.8 * free_ram()) // (voxels * 16 * len(info.channels))
    return max(1, min(os.cpu_count() or 1, _MAX_WORKERS, fitting))
