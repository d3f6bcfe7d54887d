"""A prepared set: dataset.yaml, splits.json and the cases, read on demand."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.arrays import label_shares
from segcal.core.checks import check_choice, check_int
from segcal.core.documents import first_reason, parse_yaml
from segcal.core.errors import LeakError, PathError, read_errors
from segcal.data.case import CaseProperties
from segcal.data.grid import IGNORED, Grid, Shape, Spacing
from segcal.data.info import DatasetInfo
from segcal.data.splits import PARTS, Splits, read_splits, shared
from segcal.data.store import REBUILD, decode_image, open_array, read_properties

# The default `ignore_index` of torch's and segcal's losses and metrics.
IGNORE_INDEX = -100


@dataclass(frozen=True)
class PreparedCase:
    """A stored case. Arrays are read on demand; reading a slice decompresses one chunk.

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
    def group(self) -> str | None:
        """Site, scanner or pathology, where it is known."""
        return self.properties.group

    @property
    def spacing_mm(self) -> Spacing:
        return self.properties.spacing_mm

    @property
    def shape(self) -> Shape:
        return self.properties.shape

    @property
    def grid(self) -> Grid:
        """Returns to the original grid: `grid.restore_labels`, `grid.restore_probs`."""
        return self.properties.grid

    def image(self, box: Sequence[slice] = ()) -> NDArray[np.float32]:
        """The image (C, Z, Y, X), or the box (Z, Y, X slices) of it."""
        return self._decode(self.read("image", (slice(None), *box)))

    def label(self, box: Sequence[slice] = ()) -> NDArray[np.uint8]:
        """The label map (Z, Y, X), or the box (Z, Y, X slices) of it; 255 marks ignored voxels."""
        return self.read("label", tuple(box) or slice(None))

    def target(self) -> NDArray[np.int16]:
        """The label map (Z, Y, X) as metrics and losses expect it: ignored voxels are -100."""
        label = self.label()
        return np.where(label == IGNORED, np.int16(IGNORE_INDEX), label)

    def image_slice(self, index: int) -> NDArray[np.float32]:
        """Slice `index` of the image, (C, Y, X)."""
        return self._decode(self.read("image", (slice(None), index)))

    def label_slice(self, index: int) -> NDArray[np.uint8]:
        """Slice `index` of the label map, (Y, X)."""
        return self.read("label", index)

    def truth(self) -> NDArray[np.float32] | None:
        """True class probabilities (K, Z, Y, X) where they are known (phantoms), else None."""
        if "truth" not in self.properties.sha256:
            return None
        return np.asarray(self.read("truth"), dtype=np.float32)

    @property
    def readers(self) -> tuple[str, ...]:
        """Names of the readers; none if the case has one label map only."""
        return tuple(self.properties.readers)

    def raters(self, box: Sequence[slice] = ()) -> NDArray[np.uint8]:
        """The label maps of all readers (R, Z, Y, X), or the box (Z, Y, X slices) of them.

        255 marks voxels that a reader did not judge: all of them if the reader has no file.
        """
        if not self.readers:
            raise PathError(self.folder, "has one label map only", "use its label")
        return self.read("raters", (slice(None), *box))

    def frequency(self, num_classes: int, box: Sequence[slice] = ()) -> NDArray[np.float32]:
        """The share of the readers that drew each class, (K, Z, Y, X), or the box of it.

        It is 0 for all classes where no reader judged the voxel.
        """
        return np.asarray(label_shares(self.raters(box), num_classes))

    def stored_zero(self) -> tuple[float, ...]:
        """The stored value that decodes to 0 (or the nearest to it), per channel."""
        if self.properties.dtype == "float16":
            return (0.0,) * self.properties.channels
        pairs = zip(self.properties.scale, self.properties.offset, strict=True)
        return tuple(float(np.clip(np.rint(-offset / scale), 0, 255)) for scale, offset in pairs)

    def stored(self, name: str) -> Any:
        """The array `name` as it is stored; slicing it reads voxels."""
        path = self.folder / f"{name}.b2nd"
        with read_errors(path, "run `segcal data check`"):
            return _open_cached(path, path.stat().st_mtime_ns)

    def read(self, name: str, key: Any = slice(None)) -> NDArray[Any]:
        """The part `key` of the array `name` as it is stored; a PathError if it is damaged."""
        array = self.stored(name)
        try:
            return np.asarray(array[key])
        except IndexError:
            raise
        except Exception as error:
            path, problem = self.folder / f"{name}.b2nd", f"cannot be decompressed ({error})"
            raise PathError(path, problem, REBUILD) from error

    def _decode(self, stored: NDArray[Any]) -> NDArray[np.float32]:
        return decode_image(stored, self.properties.scale, self.properties.offset)


@lru_cache(maxsize=2048)
def _open_cached(path: Path, written: int) -> Any:
    """Recently used arrays stay open: opening takes several times longer than reading a slice.

    `written`, the time of the file, changes when the set is prepared again in the same folder.
    """
    return open_array(path)


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
        """K, background included; it does not depend on the labels present in a case."""
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
        """The cases of "train", "val", "test" or "all"; with `fold`, train and val of that fold."""
        check_choice("part", part, (*PARTS, "all"))
        if part == "all":
            return list(self)
        splits: Any = self.splits
        if fold is not None and part != "test":
            splits = self.splits.folds[check_int("fold", fold, low=0, high=len(splits.folds) - 1)]
        return [self[name] for name in getattr(splits, part)]

    def check_parts(self, fold: int | None = None) -> None:
        """Raise if two parts share a patient or a scan: an edited splits.json may do that."""
        path = self.root / "splits.json"
        unknown = [n for p in PARTS for n in getattr(self.splits, p) if n not in self.info.cases]
        if unknown:
            raise PathError(path, f"lists an unknown case {unknown[0]}", "correct it")
        cases = {part: self.part(part, fold) for part in PARTS}
        properties = [case.properties for each in cases.values() for case in each]
        found = shared(
            {part: [case.name for case in each] for part, each in cases.items()},
            {one.name: one.patient for one in properties},
            {one.name: one.voxels_sha256 for one in properties},
        )
        if found:
            problem = found[0] if fold is None else f"in fold {fold}, {found[0]}"
            raise LeakError(path, problem, "correct it; `segcal data check` lists all")


def open_dataset(folder: Path | str) -> PreparedDataset:
    """Open a set that `segcal prepare` has written."""
    root = Path(folder)
    path = root / "dataset.yaml"
    if not path.is_file():
        if (root / "cases").is_dir():
            raise PathError(root, "is not finished", "run the same `segcal prepare` again")
        raise PathError(root, "is not a prepared set", "make one with `segcal prepare`")
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
        return PreparedDataset(root, DatasetInfo.model_validate(content))
    except (OSError, ValueError) as error:
        reason = str(error) if isinstance(error, OSError) else first_reason(error)
        problem = f"is not the description of a set ({reason})"
        raise PathError(path, problem, "prepare the set again") from error
