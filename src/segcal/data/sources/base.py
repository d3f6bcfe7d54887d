"""What a source tells about its set, and from a source's files to a case."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError, list_folder
from segcal.data.case import Case, SourceFile
from segcal.data.formats.nifti import Header, check_same_grid, read_header, read_image, read_labels
from segcal.data.grid import GridRecipe, plan_grid
from segcal.data.intensity import ChannelIntensity, Intensity, normalise
from segcal.data.resample import present

T = TypeVar("T")

ENDINGS = (".nii.gz", ".nii")
_WRITTEN = (".nii.gz", ".nii", ".NII.GZ", ".NII", ".nii.GZ")
DEFAULT_COUNTS = (70, 10, 20)


@dataclass(frozen=True)
class SourceCase:
    """The files of one case: one image file per channel, or one file with all channels."""

    name: str
    patient: str
    images: tuple[Path, ...]
    label: Path
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceOptions:
    """What only the user knows about a set: used by `folder` and `msd`."""

    modality: str | None = None
    window: tuple[float, float] | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        names = ("background", *(self.classes or ()))
        if not all(name.strip() for name in names) or len(set(names)) < len(names):
            raise ValueError(
                "Expected argument `classes` to be different names of labels 1, 2, …, "
                f"but got {', '.join(names[1:])!r}."
            )


@dataclass(frozen=True)
class SourceSet:
    """A set as found on disk, before any voxel is read.

    `classes` maps stored labels to names, None when they must be read off the label maps.
    `label_map` maps labels in the files to stored ones, None when they are stored as they are.
    `problems` are cases that cannot be used, such as one whose mask is missing.
    `paper_grid` None means: pad the slices to the smallest multiple of 32 that holds them all.
    """

    name: str
    root: Path
    cases: tuple[SourceCase, ...]
    channels: tuple[str, ...]
    classes: dict[int, str] | None
    intensity: Intensity
    regions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    label_map: Mapping[int, int] | None = None
    problems: tuple[PathError, ...] = ()
    paper_grid: GridRecipe | None = None
    split_counts: tuple[int, int, int] = DEFAULT_COUNTS


@dataclass(frozen=True)
class CaseRecipe:
    """Everything that decides how a case's files become its arrays."""

    root: Path
    grid: GridRecipe
    intensity: Intensity
    channels: int
    labels: tuple[int, ...] | None
    label_map: Mapping[int, int] | None


def load_case(source: SourceCase, recipe: CaseRecipe) -> Case:
    """Read, check, normalise and resample one case."""
    image, header = read_channels(source.images, recipe.channels)
    labels, label_header = read_labels(source.label)
    check_same_grid(label_header, header)
    stored_labels = _map_labels(source.label, labels, recipe)
    digest = hashlib.sha256(repr(image.shape).encode())
    digest.update(np.ascontiguousarray(image, dtype=np.float32).data)
    normal, records = normalise_channels(source.images, image, recipe.intensity)
    grid = plan_grid(header.shape, header.spacing_mm, header.affine, recipe.grid)
    return Case(
        name=source.name,
        patient=source.patient,
        image=grid.apply_image(normal),
        label=grid.apply_labels(stored_labels),
        grid=grid,
        intensity=records,
        voxels_sha256=digest.hexdigest(),
        sources=source_files(source, recipe.root),
        notes=source.notes | header.notes,
    )


def normalise_channels(
    paths: Sequence[Path], image: NDArray[np.floating], intensity: Intensity
) -> tuple[NDArray[np.float32], tuple[ChannelIntensity, ...]]:
    """Normalise an image (C, Z, Y, X) channel by channel; `paths` are named in errors."""
    normal = np.empty(image.shape, dtype=np.float32)
    records = []
    for index, channel in enumerate(image):
        try:
            normal[index], record = normalise(channel, intensity)
        except ValueError as error:
            path = paths[min(index, len(paths) - 1)]
            raise PathError(path, str(error), "leave out the case or change --window") from error
        records.append(record)
    return normal, tuple(records)


def source_files(source: SourceCase, root: Path) -> tuple[SourceFile, ...]:
    """Name, size and time of a case's files: enough to see that one has changed."""
    files = []
    for path in (*source.images, source.label):
        try:
            stat = path.stat()
        except OSError as error:
            raise PathError(path, f"cannot be read ({error.strerror})", "check the path") from error
        name = path.relative_to(root).as_posix()
        files.append(SourceFile(name=name, bytes=stat.st_size, mtime_ns=stat.st_mtime_ns))
    return tuple(files)


def read_channels(paths: Sequence[Path], channels: int) -> tuple[NDArray[np.floating], Header]:
    """The image (C, Z, Y, X) in one file, or in one file per channel on one grid."""
    parts = [read_image(path) for path in paths]
    header = parts[0][1]
    for _, other in parts[1:]:
        check_same_grid(other, header)
    image = np.concatenate([part for part, _ in parts]) if len(parts) > 1 else parts[0][0]
    check_channels(paths[0], len(image), channels)
    return image, header


def check_channels(path: Path, found: int, channels: int) -> None:
    """A case of a set has as many channels as the others."""
    if found != channels:
        raise PathError(
            path,
            f"has {found} channels where the set has {channels}",
            "all cases of a set must have the same channels",
        )


def _map_labels(path: Path, labels: NDArray[np.integer], recipe: CaseRecipe) -> NDArray[np.uint8]:
    known = recipe.label_map or {v: v for v in recipe.labels or range(256)}
    strange = sorted(set(present(labels)) - set(known))
    if strange:
        listed = ", ".join(map(str, sorted(known))) if len(known) < 256 else "0 to 255"
        raise PathError(
            path,
            f"holds label {', '.join(map(str, strange[:5]))}, outside the list {listed}",
            "correct the label map, or name all classes of the set",
        )
    table = np.zeros(max(known) + 1, dtype=np.uint8)
    table[list(known)] = list(known.values())
    return np.asarray(table[labels])


def stem(path: Path) -> str | None:
    """File name without .nii or .nii.gz (or .NII.GZ); None when it is no NIfTI file."""
    for ending in ENDINGS:
        if path.name.lower().endswith(ending) and len(path.name) > len(ending):
            return path.name[: -len(ending)]
    return None


def need_stem(path: Path) -> str:
    """`stem` of an image; a PathError that names the file if it is no NIfTI file."""
    name = stem(path)
    if name is None:
        raise PathError(path, "is not a .nii or .nii.gz file", "convert it or remove it")
    return name


def need_nifti(folder: Path, name: str, what: str) -> Path:
    """The one file `name`.nii.gz or `name`.nii in `folder`; a PathError if there is none or two."""
    found = [p for ending in _WRITTEN if (p := folder / f"{name}{ending}").is_file()]
    for first, second in product(found[:1], found[1:]):
        # Where case does not matter to the file system, two spellings are one file.
        if not first.samefile(second):
            problem = f"gives the name {name} a second time"
            raise PathError(second, problem, "keep one file per case")
    if found:
        return found[0]
    raise PathError(
        folder / f"{name}.nii.gz",
        f"is missing ({what})",
        "complete the download or remove the case",
    )


def gather(
    root: Path, items: Iterable[T], make: Callable[[T], list[SourceCase]], layout: str
) -> tuple[tuple[SourceCase, ...], tuple[PathError, ...]]:
    """The cases that `make` finds in each item, and the problems it met; no case is an error."""
    # By folded name: on some disks cases that differ in capitals alone would share a folder.
    cases: dict[str, SourceCase] = {}
    problems: list[PathError] = []
    for item in items:
        try:
            for case in make(item):
                other = cases.get(case.name.casefold())
                if other is not None:
                    problem = f"gives the case name {case.name} a second time"
                    if other.name != case.name:
                        problem = f"differs from case {other.name} in capital letters only"
                    raise PathError(case.images[0], problem, "keep one file per case")
                cases[case.name.casefold()] = case
        except PathError as problem:
            problems.append(problem)
    if not cases:
        raise problems[0] if problems else PathError(root, "holds no cases", f"expected {layout}")
    return tuple(cases.values()), tuple(problems)


def lonely_labels(folder: Path, names: Iterable[str]) -> tuple[PathError, ...]:
    """Label maps without an image: half a case is a problem whichever half is missing."""
    known = set(names)
    return tuple(
        PathError(path, "has no image of that name", "complete the download or remove it")
        for path in list_folder(folder)
        if (name := stem(path)) and name not in known
    )


def count_channels(cases: Iterable[SourceCase]) -> int:
    """Channels of the first case that can be read; the others must agree when they are read."""
    problem: PathError | None = None
    for case in cases:
        try:
            return max(len(case.images), read_header(case.images[0]).channels)
        except PathError as error:
            problem = problem or error
    raise problem or ValueError("Expected argument `cases` to hold a case, but got none.")
