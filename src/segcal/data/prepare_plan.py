"""What `prepare` will write: found, judged by its headers, decided; nothing is written yet."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.data import phantom
from segcal.data.case import Case, SourceFile
from segcal.data.formats.nifti import read_header
from segcal.data.grid import GridRecipe, plan_grid
from segcal.data.intensity import Intensity
from segcal.data.sources import acdc, brats, flare, folder, msd
from segcal.data.sources.base import (
    DEFAULT_COUNTS,
    CaseRecipe,
    SourceOptions,
    SourceSet,
    load_case,
    source_files,
)
from segcal.data.store import DTYPES

RECIPES = ("paper", "native")
SOURCES: dict[str, Callable[[Path, SourceOptions], SourceSet]] = {
    "acdc": acdc.find_cases,
    "flare": flare.find_cases,
    "brats": brats.find_cases,
    "msd": msd.find_cases,
    "folder": folder.find_cases,
}
# Raised whenever the same files and settings would give other arrays than before.
FORMAT = 2
# The paper's U-Net halves slices three times and quarters them once.
_MULTIPLE = 32


@dataclass(frozen=True)
class Plan:
    """What will be written: a maker for each case, and what dataset.yaml says of them all.

    `settings` is everything that decides how files become arrays; a case is kept only if its own
    are the same. `case_bytes` is about what making the largest case takes in memory.
    """

    name: str
    source: str
    recipe: str
    dtype: str
    channels: tuple[str, ...]
    classes: dict[int, str] | None
    regions: dict[str, tuple[int, ...]]
    grid: GridRecipe
    intensity: Intensity
    makers: Mapping[str, Callable[[], Case]]
    sources: Mapping[str, tuple[SourceFile, ...]]
    counts: tuple[int, int, int]
    problems: tuple[PathError, ...]
    settings: dict[str, str]
    root: Path | None = None
    case_bytes: int = 0


def plan_source(
    kind: str,
    source: Path | str,
    *,
    recipe: str = "paper",
    dtype: str = "float16",
    options: SourceOptions | None = None,
) -> Plan:
    """Find a source's cases and decide what to do with them; reads headers, writes nothing."""
    check_choice("kind", kind, SOURCES)
    check_choice("recipe", recipe, RECIPES)
    check_choice("dtype", dtype, DTYPES)
    found = SOURCES[kind](Path(source), options or SourceOptions())
    grid = GridRecipe() if recipe == "native" else found.paper_grid or _padded(found)
    labels = tuple(sorted(found.label_map or found.classes)) if found.classes else None
    case_recipe = CaseRecipe(
        root=found.root,
        grid=grid,
        intensity=found.intensity,
        channels=len(found.channels),
        labels=labels,
        label_map=found.label_map,
    )
    problems = list(found.problems)
    sources: dict[str, tuple[SourceFile, ...]] = {}
    for case in found.cases:
        try:
            sources[case.name] = source_files(case, found.root)
        except PathError as problem:
            problems.append(problem)
    return Plan(
        name=found.name,
        source=kind,
        recipe=recipe,
        dtype=dtype,
        channels=found.channels,
        classes=found.classes,
        regions=found.regions,
        grid=grid,
        intensity=found.intensity,
        makers={
            c.name: partial(load_case, c, case_recipe) for c in found.cases if c.name in sources
        },
        sources=sources,
        counts=found.split_counts,
        problems=tuple(problems),
        settings={
            "format": str(FORMAT),
            "source": kind,
            "dtype": dtype,
            "grid": grid.model_dump_json(),
            "intensity": found.intensity.model_dump_json(),
            "channels": ", ".join(found.channels),
            "labels": json.dumps(labels),
            "label map": json.dumps(found.label_map),
        },
        root=found.root,
        case_bytes=_case_bytes(found, grid),
    )


def plan_phantom(spec: phantom.PhantomSpec | None = None, *, dtype: str = "float16") -> Plan:
    """Plan a set of phantoms; needs no source."""
    check_choice("dtype", dtype, DTYPES)
    spec = spec or phantom.PhantomSpec()
    makers = {f"phantom_{i:04d}": partial(phantom.make_case, spec, i) for i in range(spec.cases)}
    # How many there are changes no case, so a set can be enlarged.
    decided = {k: str(v) for k, v in asdict(spec).items() if k != "cases"}
    return Plan(
        name="phantom",
        source="phantom",
        recipe=f"phantom {spec.dims}-D, seed {spec.seed}",
        dtype=dtype,
        channels=("MR",),
        classes=phantom.CLASSES,
        regions={},
        grid=GridRecipe(),
        intensity=phantom.INTENSITY,
        makers=makers,
        sources=dict.fromkeys(makers, ()),
        counts=DEFAULT_COUNTS,
        problems=(),
        settings={"format": str(FORMAT), "source": "phantom", "dtype": dtype} | decided,
    )


def _padded(found: SourceSet) -> GridRecipe:
    """For sets the paper did not use: keep every voxel, pad slices to a multiple of 32."""
    y, x = _MULTIPLE, _MULTIPLE
    for case in found.cases:
        try:
            shape = read_header(case.images[0]).shape
        except PathError:
            # Named when the case itself is read.
            continue
        y, x = max(y, shape[1]), max(x, shape[2])
    up = [-(-side // _MULTIPLE) * _MULTIPLE for side in (y, x)]
    return GridRecipe(crop=(None, up[0], up[1]))


def _case_bytes(found: SourceSet, grid: GridRecipe) -> int:
    """Memory for the largest case: per voxel about four float32 copies on either grid."""
    most = 0
    for case in found.cases:
        try:
            header = read_header(case.images[0])
        except PathError:
            continue
        stored = plan_grid(header.shape, header.spacing_mm, header.affine, grid).shape
        most = max(most, math.prod(header.shape) + math.prod(stored))
    return most * 16 * len(found.channels)
