"""Prepared cases as ordinary torch datasets: 2-D slices (the paper) and 3-D patches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from segcal.core.checks import check_int, check_number
from segcal.data.dataset import IGNORE_INDEX, PreparedDataset
from segcal.data.grid import IGNORED
from segcal.data.resample import center_start, crop_or_pad, present
from segcal.data.store import decode_image

_KEPT_VOXELS = 2048


class Batch(NamedTuple):
    """Image (B, C, *S) float, target (B, *S) int64 (ignored voxels: -100), and the case names.

    A single item is the same without B. torch's default collation keeps the type.
    """

    image: Tensor
    target: Tensor
    case: str | tuple[str, ...]


def to_target(label: Tensor) -> Tensor:
    """Stored labels (uint8) as the target of a loss: int64, ignored voxels -100."""
    return label.long().masked_fill_(label == IGNORED, IGNORE_INDEX)


class SliceDataset(Dataset[Batch]):
    """Every slice of every case of a part, in order.

    Cases of different sizes (recipe `native`) need `size`: their slices are center-cropped or
    padded to it with 0; padding is ignored (-100).
    """

    def __init__(
        self,
        dataset: PreparedDataset,
        part: str = "train",
        *,
        fold: int | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        self.cases = dataset.part(part, fold)
        self.num_classes = dataset.num_classes
        self.size = size
        self._index = [(c, z) for c, case in enumerate(self.cases) for z in range(case.shape[0])]

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> Batch:
        number, z = self._index[index]
        case = self.cases[number]
        stored = self.fit(case.read("image", (slice(None), z)), case.stored_zero())
        image = decode_image(stored, case.properties.scale, case.properties.offset)
        label = self.fit(case.label_slice(z)[None], (IGNORED,))[0]
        return Batch(torch.from_numpy(image), to_target(torch.from_numpy(label)), case.name)

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


class PatchDataset(Dataset[Batch]):
    """Random 3-D patches; a fraction `foreground` of them is centered on a labeled voxel.

    Of these, each class present in the case gets equally many, so small organs are drawn as often
    as large ones. Item i of epoch e depends on (seed, e, i) alone: call `set_epoch` each epoch.
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
        seed: int = 0,
    ) -> None:
        for side in patch_size:
            check_int("patch_size", side, low=1)
        check_int("per_case", per_case, low=1)
        check_int("seed", seed, low=0)
        check_number("foreground", foreground, low=0, high=1)
        self.cases, self.num_classes = dataset.part(part, fold), dataset.num_classes
        self.patch_size, self.per_case, self.foreground = patch_size, per_case, foreground
        self.seed, self.epoch = seed, 0
        self._voxels: dict[int, list[NDArray[np.int32]]] = {}

    def __len__(self) -> int:
        return len(self.cases) * self.per_case

    def set_epoch(self, epoch: int) -> None:
        """Draw new patches; call it before iterating the DataLoader of the epoch."""
        self.epoch = epoch

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
        label = crop_or_pad(case.label(box), inside, self.patch_size, IGNORED)
        return Batch(torch.from_numpy(image), to_target(torch.from_numpy(label)), case.name)

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
