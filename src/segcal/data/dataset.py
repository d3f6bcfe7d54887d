"""A prepared set: dataset.yaml, splits.json and the cases, read lazily."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from segcal.core.checks import check_choice
from segcal.core.errors import LeakError, PathError
from segcal.data.case import CaseProperties
from segcal.data.grid import Grid, GridRecipe, Spacing
from segcal.data.intensity import Intensity
from segcal.data.splits import PARTS, Splits, read_splits, shared
from segcal.data.store import decode_image, open_array, read_properties

_OPEN_ARRAYS = 2048


class DatasetInfo(BaseModel):
    """`dataset.yaml`. Its presence says that the set is complete.

    `classes` names every stored label; `regions` are unions of labels that are scored as one.
    `fingerprint` changes whenever a stored voxel, label, property or setting does; splits do not
    count.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[2] = 2
    name: str
    source: str
    recipe: str
    dtype: Literal["float16", "uint8"]
    channels: tuple[str, ...]
    classes: dict[int, str]
    regions: dict[str, tuple[int, ...]] = {}
    grid: GridRecipe
    intensity: Intensity
    has_truth: bool = False
    cases: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    versions: dict[str, str]
    fingerprint: str


@dataclass(frozen=True)
class PreparedCase:
    """A stored case. Arrays are read when asked for; a slice reads one chunk.

    Axes are (C, Z, Y, X) and (Z, Y, X), spacing (Z, Y, X).
    """

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def properties(self) -> CaseProperties:
        return read_properties(self.folder)

    @property
    def patient(self) -> str:
        return self.properties.patient

    @property
    def spacing_mm(self) -> Spacing:
        return self.properties.spacing_mm

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.properties.shape

    @property
    def grid(self) -> Grid:
        """The way back to the original grid: `grid.restore_labels`, `grid.restore_probs`."""
        return self.properties.grid

    def image(self) -> NDArray[np.float32]:
        """The whole image (C, Z, Y, X)."""
        return self._decode(self.read("image"))

    def label(self) -> NDArray[np.uint8]:
        """The whole label map (Z, Y, X)."""
        return self.read("label")

    def truth(self) -> NDArray[np.float32] | None:
        """True class probabilities (K, Z, Y, X) where they are known (phantoms), else None."""
        if "truth" not in self.properties.sha256:
            return None
        return np.asarray(self.read("truth"), dtype=np.float32)

    def image_slice(self, index: int) -> NDArray[np.float32]:
        """Slice `index` of the image, (C, Y, X)."""
        return self._decode(self.read("image", (slice(None), index)))

    def label_slice(self, index: int) -> NDArray[np.uint8]:
        """Slice `index` of the label map, (Y, X)."""
        return self.read("label", index)

    def image_box(self, box: Sequence[slice]) -> NDArray[np.float32]:
        """The box (Z, Y, X slices) of the image, (C, z, y, x)."""
        return self._decode(self.read("image", (slice(None), *box)))

    def label_box(self, box: Sequence[slice]) -> NDArray[np.uint8]:
        """The box (Z, Y, X slices) of the label map."""
        return self.read("label", tuple(box))

    def stored_zero(self) -> tuple[float, ...]:
        """The stored value that decodes to 0 (as near as the scale allows), per channel."""
        pairs = zip(self.properties.scale, self.properties.offset, strict=True)
        if self.properties.dtype == "float16":
            return (0.0,) * self.properties.channels
        return tuple(float(np.clip(np.rint(-offset / scale), 0, 255)) for scale, offset in pairs)

    def stored(self, name: str) -> Any:
        """The array `name` as it is stored, to be sliced."""
        return _open_cached(self.folder / f"{name}.b2nd")

    def read(self, name: str, key: Any = slice(None)) -> NDArray[Any]:
        """The part `key` of the array `name` as it is stored; a PathError if it is damaged."""
        array = self.stored(name)
        try:
            return np.asarray(array[key])
        except IndexError:
            raise
        except Exception as error:
            raise PathError(
                self.folder / f"{name}.b2nd",
                f"cannot be unpacked ({error})",
                "delete its folder and run `segcal prepare` again",
            ) from error

    def _decode(self, stored: NDArray[Any]) -> NDArray[np.float32]:
        return decode_image(stored, self.properties.scale, self.properties.offset)


_arrays: OrderedDict[Path, tuple[int, Any]] = OrderedDict()


def _open_cached(path: Path) -> Any:
    """Keep the arrays used last open: opening costs several times more than reading a slice."""
    try:
        # A set that was prepared anew under the same name must not be served from the old file.
        written = path.stat().st_mtime_ns
    except OSError as error:
        raise PathError(
            path, f"cannot be read ({error.strerror})", "run `segcal data check`"
        ) from error
    found = _arrays.get(path)
    if found is None or found[0] != written:
        _arrays[path] = (written, open_array(path))
    _arrays.move_to_end(path)
    while len(_arrays) > _OPEN_ARRAYS:
        _arrays.popitem(last=False)
    return _arrays[path][1]


@dataclass(frozen=True)
class PreparedDataset:
    """What `open_dataset` returns: iterate over it, index it by case name, or take a part."""

    root: Path
    info: DatasetInfo

    @cached_property
    def splits(self) -> Splits:
        return read_splits(self.root / "splits.json")

    @property
    def fingerprint(self) -> str:
        return self.info.fingerprint

    @property
    def classes(self) -> dict[int, str]:
        return self.info.classes

    @property
    def num_classes(self) -> int:
        """K, background included: a matter of the set, not of the labels present in a case."""
        return max(self.info.classes) + 1

    def __len__(self) -> int:
        return len(self.info.cases)

    def __iter__(self) -> Iterator[PreparedCase]:
        return (self[name] for name in self.info.cases)

    def __getitem__(self, name: str) -> PreparedCase:
        if name not in self.info.cases:
            raise KeyError(f"{self.root}: has no case {name!r}")
        return PreparedCase(self.root / "cases" / name)

    def part(self, part: str, fold: int | None = None) -> list[PreparedCase]:
        """The cases of "train", "val" or "test"; with `fold`, of that fold's train or val."""
        check_choice("part", part, (*PARTS, "all"))
        if part == "all":
            return list(self)
        splits: Any = self.splits
        if fold is not None and part != "test":
            if not 0 <= fold < len(self.splits.folds):
                raise ValueError(
                    f"Expected argument `fold` to be 0 to {len(self.splits.folds) - 1}, "
                    f"but got {fold}."
                )
            splits = self.splits.folds[fold]
        return [self[name] for name in getattr(splits, part)]

    def check_parts(self, fold: int | None = None) -> None:
        """Refuse splits in which two parts share a patient or a scan.

        Whoever edits splits.json may do that; a network would be judged by what it has seen.
        """
        unknown = [n for p in PARTS for n in getattr(self.splits, p) if n not in self.info.cases]
        if unknown:
            raise PathError(
                self.root / "splits.json", f"names {unknown[0]}, which is no case", "correct it"
            )
        cases = {part: self.part(part, fold) for part in PARTS}
        every = [case.properties for each in cases.values() for case in each]
        found = shared(
            {part: [case.name for case in each] for part, each in cases.items()},
            {one.name: one.patient for one in every},
            {one.name: one.voxels_sha256 for one in every},
        )
        if found:
            raise LeakError(
                self.root / "splits.json",
                found[0] if fold is None else f"in fold {fold}, {found[0]}",
                "correct it; `segcal data check` lists all",
            )


def open_dataset(folder: Path | str) -> PreparedDataset:
    """Open a set that `segcal prepare` has written."""
    root = Path(folder)
    path = root / "dataset.yaml"
    if not path.is_file():
        if (root / "cases").is_dir():
            raise PathError(root, "is not finished", "run the same `segcal prepare` again")
        raise PathError(root, "is not a prepared set", "make one with `segcal prepare`")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        info = DatasetInfo.model_validate(content)
    except (OSError, ValueError, yaml.YAMLError, ValidationError) as error:
        reason = "; ".join(str(error).splitlines()[:3])
        raise PathError(
            path, f"is not a set's description ({reason})", "prepare it again"
        ) from error
    return PreparedDataset(root, info)
