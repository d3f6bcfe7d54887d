"""What a source holds and how it will be stored, decided before anything is written."""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.data._free_memory import free_ram
from segcal.data.case import SourceFile
from segcal.data.grid import GridRecipe, Shape
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
    for path in case.files:
        try:
            stat = path.stat()
        except OSError as error:
            raise PathError(path, f"cannot be read ({error.strerror})", "check the path") from error
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
        sides = np.max([(1, 1), *(shape[1:] for shape in _shapes(cases))], axis=0)
        y, x = (-(-sides // _MULTIPLE) * _MULTIPLE).tolist()
        grid = GridRecipe(crop=(None, y, x))
    return DatasetInfo(
        **dict(source.description), source=source.name, recipe=recipe, dtype=dtype, grid=grid,
        origin=source.origin(),
    )  # fmt: skip


def _shapes(cases: Iterable[SourceCase]) -> Sequence[Shape]:
    """The shapes of all cases whose header can be read; the others fail when they are loaded."""
    shapes = []
    for case in cases:
        try:
            shapes.append(case.shape())
        except PathError:
            continue
    return shapes


def auto_workers(cases: Iterable[SourceCase], info: DatasetInfo) -> int:
    """As many as cores and memory allow: about four float32 copies per voxel, on either grid."""
    pairs = ((shape, info.grid.shapes(shape)[1]) for shape in _shapes(cases))
    voxels = max((math.prod(before) + math.prod(after) for before, after in pairs), default=1)
    fitting = int(0.8 * free_ram()) // (voxels * 16 * len(info.channels))
    return max(1, min(os.cpu_count() or 1, _MAX_WORKERS, fitting))
