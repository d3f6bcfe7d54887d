"""The interface of a data source: it describes its data set and yields its cases."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.data.case import Case, majority
from segcal.data.formats.nifti import (
    Header,
    check_same_grid,
    read_channels,
    read_header,
    read_labels,
)
from segcal.data.grid import IGNORED, Grid, GridRecipe, Shape, plan_grid
from segcal.data.info import DatasetInfo, Description, Recipe
from segcal.data.intensity import normalize_image
from segcal.data.resample import present


@dataclass(frozen=True)
class SourceCase(ABC):
    """One case of a source. Worker processes receive it, so it must be picklable.

    `patient` decides the splits: cases of one patient stay in one part. NIfTI files need no own
    class, see `NiftiCase`; for another format write a subclass.
    """

    name: str
    patient: str

    @property
    def files(self) -> tuple[Path, ...]:
        """The files it is read from. If one changes, the case is prepared again."""
        return ()

    @abstractmethod
    def shape(self) -> Shape:
        """Shape (Z, Y, X) of the image; fast, reads no voxels."""

    @abstractmethod
    def load(self, info: DatasetInfo) -> Case:
        """Read, check, normalize and resample the case as `info` describes."""


@dataclass(frozen=True)
class NiftiCase(SourceCase):
    """NIfTI files: one image per channel, or one with all channels; and a label map.

    If several readers labeled the case, `label` is None and `raters` has the label map of each
    reader by name; None for a reader without one, whose voxels are then ignored.
    """

    images: tuple[Path, ...]
    label: Path | None
    notes: dict[str, str] = field(default_factory=dict)
    raters: dict[str, Path | None] = field(default_factory=dict)

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self.images, *filter(None, (self.label, *self.raters.values())))

    def shape(self) -> Shape:
        return read_header(self.images[0]).shape

    def load(self, info: DatasetInfo) -> Case:
        image, header = read_channels(self.images, len(info.channels))
        digest = hashlib.sha256(repr(image.shape).encode())
        digest.update(np.ascontiguousarray(image, dtype=np.float32).data)
        normalized, intensity = normalize_image(self.images, image, info.intensity)
        grid = plan_grid(header.shape, header.spacing_mm, header.affine, info.grid)
        raters = {name: _read_label(p, header, grid, info) for name, p in self.raters.items()}
        label = majority(raters.values()) if raters else _read_label(self.label, header, grid, info)
        return Case(
            name=self.name,
            patient=self.patient,
            image=grid.apply_image(normalized),
            label=label,
            grid=grid,
            intensity=intensity,
            voxels_sha256=digest.hexdigest(),
            notes=self.notes | header.notes,
            raters=raters,
        )


def _read_label(
    path: Path | None, header: Header, grid: Grid, info: DatasetInfo
) -> NDArray[np.uint8]:
    """The stored label map of a file; ignored throughout if there is no file."""
    if path is None:
        return np.full(grid.shape, IGNORED, dtype=np.uint8)
    labels, label_header = read_labels(path)
    check_same_grid(label_header, header)
    return grid.apply_labels(_map_labels(path, labels, info))


def _map_labels(path: Path, labels: NDArray[np.integer], info: Description) -> NDArray[np.uint8]:
    known = info.label_map or {v: v for v in info.file_labels or range(256)}
    unknown = sorted(set(present(labels)) - set(known))
    if unknown:
        listed = ", ".join(map(str, sorted(known))) if len(known) < 256 else "0 to 255"
        problem = f"holds label {', '.join(map(str, unknown[:5]))}, outside the list {listed}"
        raise PathError(path, problem, "correct the label map, or name all classes of the data set")
    table = np.zeros(max(known) + 1, dtype=np.uint8)
    table[list(known)] = list(known.values())
    return np.asarray(table[labels])


class Source(ABC):
    """A data set that `segcal prepare` can read; the docstring is the help of its command.

    The keyword arguments of `__init__` become options of the command: the name, the type (str,
    int, float, a Literal, a tuple of them, or None), the default, and the text in `Annotated` as
    help. A source whose first argument is `folder` gets the option --source.

    Attributes:
        name: stored in dataset.yaml as `source`.
        layout: what the folder must hold; shown when no case is found.
        paper_grid: the grid of recipe `paper`; without it the recipe is `padded`.
        knows_patients: False if the files do not tell which cases belong to one patient.
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
        ...             yield NiftiCase(path.name, path.name[:4], images, path / "mask.nii.gz")

        Use it as `segcal prepare my_package.my_module:KneeSource --source … --out …`, or register
        it as an entry point of the group `segcal.sources`.
    """

    name: ClassVar[str] = "custom"
    layout: ClassVar[str] = ""
    paper_grid: ClassVar[GridRecipe | None] = None
    knows_patients: ClassVar[bool] = True

    folder: Path | None = None
    description: Description

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    @abstractmethod
    def cases(self) -> Iterator[SourceCase | PathError]:
        """Yield every case, or a PathError for a case that cannot be used."""

    @classmethod
    def recipes(cls) -> tuple[Recipe, ...]:
        """The recipes that can be chosen; the first is the default."""
        return ("padded" if cls.paper_grid is None else "paper"), "native"

    def settings(self, info: DatasetInfo) -> dict[str, str]:
        """What decides how files become arrays; a case is kept only if its settings are equal."""
        return {
            "grid": info.grid.model_dump_json(),
            "intensity": info.intensity.model_dump_json(),
            "channels": ", ".join(info.channels),
            "labels": json.dumps(info.file_labels),
            "label map": json.dumps(info.label_map),
        }
