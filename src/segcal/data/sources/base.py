"""The interface of a data source: it describes its data set and yields its cases."""

import functools
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.data.case import Case, hash_voxels, majority
from segcal.data.formats import (
    SUPPORTED,
    Header,
    check_same_grid,
    files_of,
    read_channels,
    read_header,
    read_labels,
    read_masks,
)
from segcal.data.grid import IGNORED, GridRecipe, Shape, Spacing, plan_grid
from segcal.data.info import DatasetInfo, Description, Recipe
from segcal.data.intensity import normalize_image
from segcal.data.orientation import turn_labels
from segcal.data.resample import present
from segcal.registry import import_path

T = TypeVar("T")

_SPELLINGS = (".nii.gz", ".nii", ".NII.GZ", ".NII", ".nii.GZ")
UNSUPPORTED = ("is not an image of a supported format", f"supported are {SUPPORTED}")
# Names of the image and the labels in .npz and .h5 files.
ARRAYS = ("image", "label")


@dataclass(frozen=True)
class SourceCase(ABC):
    """One case of a source. Worker processes receive it, so it must be picklable.

    `patient` decides the splits: cases of one patient stay in one part. Files of the supported
    formats need no own class, see `FileCase`; for another format write a subclass. Optional facts:
    `group` (site, scanner, pathology), `part` ("test" if the data set says so), `mask` (a file on
    the grid of the image; voxels where it is 0 are ignored) and `annotated` (the classes that the
    label map shows, if these are not all of them).
    """

    name: str
    patient: str
    group: str | None = field(default=None, kw_only=True)
    part: Literal["test"] | None = field(default=None, kw_only=True)
    mask: Path | None = field(default=None, kw_only=True)
    annotated: tuple[int, ...] | None = field(default=None, kw_only=True)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files it is read from. If one changes, the case is prepared again."""
        return ()

    @abstractmethod
    def shape(self) -> Shape:
        """Shape (Z, Y, X) of the image; fast, reads no voxels."""

    def spacing_mm(self) -> Spacing | None:
        """Spacing (Z, Y, X) of the image; fast. None if it is not known before the case is read."""
        return None

    def labels(self) -> dict[int, Path]:
        """The labels that occur in its files, with the file; empty if `load` alone can tell."""
        return {}

    @abstractmethod
    def load(self, info: DatasetInfo) -> Case:
        """Read, check, normalize and resample the case as `info` describes."""


@dataclass(frozen=True)
class FileCase(SourceCase):
    """Files of any supported format: one image per channel, or one with all channels; and labels.

    `label` is a label map, or a mask for each class by its name. A folder of slices is one path.
    `arrays` names the image and the labels in .npz and .h5 files, which may be the same file. If
    several readers labeled the case, `label` is empty and `raters` has the label map of each reader
    by name; None for a reader without one, whose voxels are then ignored.
    """

    images: tuple[Path, ...]
    label: Path | Mapping[str, Path]
    notes: dict[str, str] = field(default_factory=dict)
    arrays: tuple[str, str] = ARRAYS
    raters: Mapping[str, Path | None] = field(default_factory=dict)

    @property
    def files(self) -> tuple[Path, ...]:
        labels = (self.label,) if isinstance(self.label, Path) else self.label.values()
        drawn = filter(None, self.raters.values())
        paths = dict.fromkeys((*self.images, *labels, *drawn))
        return tuple(file for path in paths for file in files_of(path))

    def header(self) -> Header:
        """The header of the first image."""
        return read_header(self.images[0], self.arrays[0])

    def shape(self) -> Shape:
        return self.header().shape

    def spacing_mm(self) -> Spacing:
        return self.header().spacing_mm

    def labels(self) -> dict[int, Path]:
        labels = (self.label,) if isinstance(self.label, Path) else ()
        paths = filter(None, (*labels, *self.raters.values()))
        return {v: path for path in paths for v in present(read_labels(path, self.arrays[1])[0])}

    def load(self, info: DatasetInfo) -> Case:
        image, header = read_channels(self.images, len(info.channels), self.arrays[0])
        normalized, intensity = normalize_image(self.images, image, info.intensity)
        grid = plan_grid(header.shape, header.spacing_mm, header.affine, info.grid)

        def stored(label: Path | Mapping[str, Path] | None) -> NDArray[np.uint8]:
            if label is None:
                return np.full(grid.shape, IGNORED, dtype=np.uint8)
            return grid.apply_labels(_read_label(label, header, info, self.arrays[1]))

        raters = {name: stored(path) for name, path in self.raters.items()}
        return Case(
            name=self.name,
            patient=self.patient,
            image=grid.apply_image(normalized),
            label=majority(raters.values()) if raters else stored(self.label),
            grid=grid,
            intensity=intensity,
            voxels_sha256=hash_voxels(image),
            notes=self.notes | header.notes,
            raters=raters,
        )


def _read_label(
    label: Path | Mapping[str, Path], image: Header, info: DatasetInfo, key: str
) -> NDArray[np.uint8]:
    """The labels of a case on the grid of its image, as they are stored."""
    if isinstance(label, Path):
        labels, header = read_labels(label, key)
    else:
        first = next(iter(label.values()))
        for name in info.classes.values():
            if name not in label and name != info.classes[0]:
                problem = f"has no mask of {name} beside it"
                raise PathError(first, problem, "add an empty one, or leave the class out")
        labels, header = read_masks({v: label[name] for v, name in info.classes.items() if v})
    labels, header = turn_labels(labels, header, image)
    check_same_grid(header, image)
    return _map_labels(header.path, labels, info)


def _map_labels(path: Path, labels: NDArray[np.integer], info: DatasetInfo) -> NDArray[np.uint8]:
    known = info.label_map or {v: v for v in info.file_labels or range(IGNORED)}
    unknown = sorted(set(present(labels)) - set(known))
    if unknown:
        listed = (
            ", ".join(map(str, sorted(known))) if len(known) < IGNORED else f"0 to {IGNORED - 1}"
        )
        problem = f"holds label {', '.join(map(str, unknown[:5]))}, outside the list {listed}"
        named = ", or name all classes (--classes)" if info.source in ("folder", "msd") else ""
        raise PathError(path, problem, f"correct the label map{named}")
    lowest = min(known)
    table = np.zeros(max(known) - lowest + 1, dtype=np.uint8)
    table[[value - lowest for value in known]] = list(known.values())
    return np.asarray(table[labels if lowest == 0 else labels.astype(np.int64) - lowest])


def _absolute(path: Any) -> str:
    if isinstance(path, Path):
        return str(path.absolute())
    raise TypeError(f"{path!r} is not a plain value")


class Source(ABC):
    """A data set that `segcal prepare` can read; the docstring is the help of its command.

    The keyword arguments of `__init__` become options of the command: the name, the type (str,
    int, float, a Literal, a tuple of them, or None), the default, and the text in `Annotated` as
    help. A source whose first argument is `folder` gets the option --source.

    Attributes:
        name: stored in dataset.yaml as `source`.
        layout: what the folder must hold; shown when no case is found.
        paper_grid: the grid of recipe `paper`; without it the recipe is `padded`.
        spacing: the spacing of recipe `padded`: (Z, Y, X) in mm, `median` or `native`.
        knows_patients: False if the files do not tell which cases belong to one patient.
        check_labels: whether the labels of all files are read first, to find gaps in them.
        ask_modality: whether values as in CT stop the preparation.
        folder: the folder it reads; None if it reads none.
        description: the facts about the data set; a class attribute, or set by `__init__`.

    Example:
        >>> class KneeSource(Source):
        ...     '''Knee MR of our department.'''
        ...
        ...     name = "knee"
        ...     layout = "NAME/t2.nii.gz and NAME/mask.nii.gz"
        ...     description = Description(
        ...         name="knees", channels=("T2",), classes={0: "background", 1: "cartilage"}
        ...     )
        ...
        ...     def cases(self):
        ...         for path in sorted(self.folder.iterdir()):
        ...             images = (path / "t2.nii.gz",)
        ...             yield FileCase(path.name, path.name[:4], images, path / "mask.nii.gz")

        Use it as `segcal prepare my_package.my_module:KneeSource --source … --out …`, or register
        it as an entry point of the group `segcal.sources`.
    """

    name: ClassVar[str] = "custom"
    layout: ClassVar[str] = ""
    paper_grid: ClassVar[GridRecipe | None] = None
    check_labels: ClassVar[bool] = False

    knows_patients: bool = True
    ask_modality: bool = False
    spacing: Spacing | Literal["median", "native"] = "native"
    folder: Path | None = None
    description: Description
    _arguments: dict[str, Any]

    def __init_subclass__(cls) -> None:
        """Remember the arguments of the constructor; its signature stays."""
        init: Any = cls.__init__

        @functools.wraps(init)
        def remember(self: "Source", *args: Any, **options: Any) -> None:
            if not hasattr(self, "_arguments"):
                bound = inspect.signature(init).bind(self, *args, **options).arguments
                self._arguments = dict(list(bound.items())[1:])
            init(self, *args, **options)

        cls.__init__ = remember  # type: ignore[method-assign]

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def origin(self) -> dict[str, Any]:
        """`source` and `arguments` with which `SOURCES` makes this source again.

        Empty if the class cannot be imported, or an argument is not a plain value.
        """
        folder = {} if self.folder is None else {"folder": str(self.folder.absolute())}
        try:
            content = {"source": import_path(type(self)), "arguments": self._arguments | folder}
            found: dict[str, Any] = json.loads(json.dumps(content, default=_absolute))
        except (TypeError, ValueError):
            return {}
        return found

    @abstractmethod
    def cases(self) -> Iterator[SourceCase | PathError]:
        """Yield every case, or a PathError for a case that cannot be used."""

    @classmethod
    def recipes(cls) -> tuple[Recipe, ...]:
        """The recipes that can be chosen; the first is the default."""
        return ("padded" if cls.paper_grid is None else "paper"), "native"

    def settings(self, info: DatasetInfo) -> dict[str, str]:
        """What decides how files become arrays; a case is kept only if its settings are equal."""
        padding = {"padding": "ignored"} if info.recipe == "padded" else {}
        return padding | {
            "grid": info.grid.model_dump_json(),
            "intensity": info.intensity.model_dump_json(),
            "channels": ", ".join(info.channels),
            "labels": json.dumps(info.file_labels),
            "label map": json.dumps(info.label_map),
        }


def require_nifti(folder: Path, name: str, what: str) -> Path:
    """The one file NAME.nii.gz or NAME.nii in `folder`; a PathError if there is none or several."""
    found = [p for ending in _SPELLINGS if (p := folder / f"{name}{ending}").is_file()]
    for other in found[1:]:
        # On a case-insensitive file system two spellings are one file.
        if not found[0].samefile(other):
            raise PathError(other, f"is a second file named {name}", "keep one file per case")
    if found:
        return found[0]
    remedy = "complete the download or remove the case"
    raise PathError(folder / f"{name}.nii.gz", f"is missing ({what})", remedy)


def collect(
    items: Iterable[T], find: Callable[[T], list[SourceCase]]
) -> Iterator[SourceCase | PathError]:
    """The cases that `find` returns for each item, or the PathError that it raises."""
    for item in items:
        try:
            yield from find(item)
        except PathError as problem:
            yield problem
