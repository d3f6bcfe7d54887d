"""Prepared cases as ordinary torch datasets: 2-D slices (the paper) and 3-D patches."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from segcal.core.arrays import label_shares
from segcal.core.checks import check_choice, check_int, check_number
from segcal.core.errors import PathError
from segcal.data.dataset import IGNORE_INDEX, PreparedCase, PreparedDataset
from segcal.data.grid import IGNORED
from segcal.data.resample import center_start, crop_or_pad, present
from segcal.data.store import decode_image

Raters = Literal["majority", "random", "mean"]
_KEPT_VOXELS = 2048


class Batch(NamedTuple):
    """Image (B, C, *S) float, target (B, *S) int64 (ignored voxels: -100), and the case names.

    The target "mean" of several readers is (B, K, *S) float, with K zeros where it is ignored.

    A single item is the same without B. torch's default collation keeps the type.
    """

    image: Tensor
    target: Tensor
    case: str | tuple[str, ...]


def to_target(label: Tensor) -> Tensor:
    """Stored labels (uint8) as the target of a loss: int64, ignored voxels -100."""
    return label.long().masked_fill_(label == IGNORED, IGNORE_INDEX)


class ItemDataset(Dataset[Batch]):
    """Items of prepared cases, and how several readers of a case become one target.

    `raters` is "majority" (the label map of the case), "random" (the map of one of the readers who
    judged the item) or "mean" (the share of the readers that drew each class). The reader of item i
    in epoch e depends on (seed, e, i) alone: call `set_epoch` each epoch.
    """

    def __init__(
        self, dataset: PreparedDataset, part: str, fold: int | None, raters: Raters, seed: int
    ) -> None:
        check_choice("raters", raters, get_args(Raters))
        check_int("seed", seed, low=0)
        self.cases, self.num_classes = dataset.part(part, fold), dataset.num_classes
        self.raters, self.seed, self.epoch = raters, seed, 0
        readers = set() if raters == "majority" else {case.readers for case in self.cases}
        if len(readers) > 1 or () in readers:
            problem = "has cases without readers, or with different ones"
            raise PathError(dataset.root, problem, "set `data.raters` to majority")

    def __len__(self) -> int:
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Draw anew; call it before iterating the DataLoader of the epoch."""
        self.epoch = epoch

    def stored_labels(self, case: PreparedCase, box: Sequence[slice] = ()) -> NDArray[np.uint8]:
        """What targets are made of: the label (Z, Y, X), or those of the readers (R, Z, Y, X)."""
        return case.label(box) if self.raters == "majority" else case.raters(box)

    def draws(self) -> Tensor:
        """A random number in [0, 1) for every item, which decides its reader in this epoch."""
        rng = np.random.default_rng([self.seed, self.epoch, 0, 1])
        return torch.from_numpy(rng.random(len(self), dtype=np.float32))

    def targets(self, stored: Tensor, draws: Tensor) -> Tensor:
        """The targets of items: `stored` labels (B, *S) or (B, R, *S), `draws` (B,)."""
        if self.raters == "majority":
            return to_target(stored)
        if self.raters == "mean":
            shares: Tensor = label_shares(stored, self.num_classes, axis=1)
            return shares
        judged = (stored != IGNORED).flatten(2).any(2)
        number = (draws * judged.sum(1)).long() + 1
        # Reader number `number` of those who judged the item; the first one if there is none.
        reader = (judged.cumsum(1) >= number[:, None]).int().argmax(1)
        return to_target(stored[torch.arange(len(stored), device=stored.device), reader])

    def item(self, image: NDArray[Any], stored: NDArray[Any], index: int, case: str) -> Batch:
        """Item `index` from its image and its stored labels."""
        draw = self.draws()[[index]] if self.raters == "random" else torch.zeros(1)
        target = self.targets(torch.from_numpy(stored)[None], draw)[0]
        return Batch(torch.from_numpy(image), target, case)


class SliceDataset(ItemDataset):
    """Every slice of every case of a part, in order.

    Cases of different sizes (recipe `native`) need `size`: their slices are center-cropped or
    padded to it with 0; padding is ignored (-100). `raters` and `seed`: see `ItemDataset`.
    """

    def __init__(
        self,
        dataset: PreparedDataset,
        part: str = "train",
        *,
        fold: int | None = None,
        size: tuple[int, int] | None = None,
        raters: Raters = "majority",
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, part, fold, raters, seed)
        self.size = size
        self._index = [(c, z) for c, case in enumerate(self.cases) for z in range(case.shape[0])]

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> Batch:
        number, z = self._index[index]
        case = self.cases[number]
        stored = self.fit(case.read("image", (slice(None), z)), case.stored_zero())
        image = decode_image(stored, case.properties.scale, case.properties.offset)
        labels = self.fit_labels(self.stored_labels(case, (slice(z, z + 1),)))
        return self.item(image, labels[..., 0, :, :], index % len(self), case.name)

    def shape(self) -> tuple[int, int] | None:
        """The shape (Y, X) of all slices, or None if they differ."""
        if self.size is not None:
            return self.size
        shapes = {case.shape[1:] for case in self.cases}
        return shapes.pop() if len(shapes) == 1 else None

    def fit(self, array: NDArray[Any], fill: Sequence[float]) -> NDArray[Any]:
        """Crop or pad the last two axes to `size`, with one fill value per channel."""
        if self.size is None:
            return array
        start = center_start(array.shape[-2:], self.size)
        channels = zip(array, fill, strict=True)
        return np.stack([crop_or_pad(channel, start, self.size, f) for channel, f in channels])

    def fit_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Crop or pad the last two axes to `size`; padding is ignored."""
        return self.fit(labels, [IGNORED] * len(labels))


class PatchDataset(ItemDataset):
    """Random 3-D patches; a fraction `foreground` of them is centered on a labeled voxel.

    Of these, each class present in the case gets equally many, so small organs are drawn as often
    as large ones. Item i of epoch e depends on (seed, e, i) alone: call `set_epoch` each epoch.
    `raters`: see `ItemDataset`.
    """

    def __init__(
        self,
        dataset: PreparedDataset,
        part: str = "train",
        *,
        patch_size: tuple[int, int, int],
        per_case: int = 4,
        foreground: float = 0.5,
        fold: int | None = None,
        raters: Raters = "majority",
        seed: int = 0,
    ) -> None:
        for side in patch_size:
            check_int("patch_size", side, low=1)
        check_int("per_case", per_case, low=1)
        check_number("foreground", foreground, low=0, high=1)
        super().__init__(dataset, part, fold, raters, seed)
        self.patch_size, self.per_case, self.foreground = patch_size, per_case, foreground
        self._voxels: dict[int, list[NDArray[np.int32]]] = {}

    def __len__(self) -> int:
        return len(self.cases) * self.per_case

    def find_foreground(self) -> None:
        """Find the labeled voxels of all cases now, so that worker processes inherit them."""
        for number in range(len(self.cases)):
            self._foreground_voxels(number)

    def __getitem__(self, index: int) -> Batch:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        rng = np.random.default_rng([self.seed, self.epoch, index])
        number = index % len(self.cases)
        case = self.cases[number]
        start = self._start(number, rng)
        box = [
            slice(max(s, 0), min(s + p, n))
            for s, p, n in zip(start, self.patch_size, case.shape, strict=True)
        ]
        # Only the slices of the box are decompressed; the part outside the volume is padded.
        inside = [min(s, 0) for s in start]
        image = np.asarray(crop_or_pad(case.image(box), inside, self.patch_size, 0))
        labels = crop_or_pad(self.stored_labels(case, box), inside, self.patch_size, IGNORED)
        return self.item(image, labels, index, case.name)

    def _start(self, number: int, rng: np.random.Generator) -> list[int]:
        """First voxel of the patch; the patch lies inside the volume if it fits."""
        shape = self.cases[number].shape
        axes = [(n, p, max(n - p, 0)) for n, p in zip(shape, self.patch_size, strict=True)]
        classes = self._foreground_voxels(number)
        if classes and rng.random() < self.foreground:
            voxels = classes[int(rng.integers(len(classes)))]
            center = voxels[rng.integers(len(voxels))]
            start = [int(c) - p // 2 for c, p in zip(center, self.patch_size, strict=True)]
        else:
            start = [int(rng.integers(free + 1)) for _, _, free in axes]
        return [
            min(max(w, 0), free) if n >= p else (n - p) // 2
            for w, (n, p, free) in zip(start, axes, strict=True)
        ]

    def _foreground_voxels(self, number: int) -> Sequence[NDArray[np.int32]]:
        """Up to 2,048 voxels of each class present in the case; cached."""
        if number not in self._voxels:
            label = self.cases[number].label()
            rng = np.random.default_rng([self.seed, number])
            found = []
            for value in [v for v in present(label) if 0 < v < IGNORED]:
                voxels = np.flatnonzero(label == value)
                if len(voxels) > _KEPT_VOXELS:
                    voxels = rng.choice(voxels, _KEPT_VOXELS, replace=False)
                places = np.stack(np.unravel_index(voxels, label.shape), axis=1)
                found.append(places.astype(np.int32))
            self._voxels[number] = found
        return self._voxels[number]
