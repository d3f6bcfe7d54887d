"""Batches in a seeded, resumable order: from memory if the data set fits, else from disk."""

from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from segcal.core.checks import check_choice, check_int
from segcal.data._free_memory import free_ram
from segcal.data.torch_datasets import Batch, ItemDataset, PatchDataset, SliceDataset

LoaderKind = Literal["auto", "resident", "stream"]
# Fraction of the free memory that a resident data set may use; training needs the rest.
_MEMORY_FRACTION = 0.4


class Loader:
    """Iterating yields the batches of one epoch; iterating again, those of the next.

    An epoch that is left early counts as an epoch: the next one is complete. Only after
    `load_state_dict` does iteration start in the middle of an epoch.

    The order of epoch e depends on (seed, e) alone and is the same for every kind of loader.
    `state_dict` returns the position; a loader that loads it continues with the next batch.
    With several processes, each gets its share of every global batch, in rank order. All shares
    have the same size: if the items do not divide evenly, the first items of the epoch are
    repeated, so a sum over all processes counts up to world_size − 1 items twice.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        check_int("batch_size", batch_size, low=1)
        check_int("seed", seed, low=0)
        check_int("world_size", world_size, low=1)
        check_int("rank", rank, low=0, high=world_size - 1)
        if length < 1:
            raise ValueError("Expected argument `dataset` to hold items, but it is empty.")
        self.length, self.batch_size = length, batch_size
        self.shuffle, self.seed = shuffle, seed
        self.rank, self.world_size = rank, world_size
        self.epoch, self.step = 0, 0
        self._resuming = False

    def __len__(self) -> int:
        return -(-self.length // (self.batch_size * self.world_size))

    def __iter__(self) -> Iterator[Batch]:
        if self.step and not self._resuming:
            self.epoch, self.step = self.epoch + 1, 0
        self._resuming = False
        for batch in self._batches(self.order(self.epoch)[self.step :]):
            self.step += 1
            if self.step == len(self):
                self.epoch, self.step = self.epoch + 1, 0
            yield batch

    def order(self, epoch: int) -> list[Tensor]:
        """The item indices of each batch of an epoch, for this process."""
        items = torch.arange(self.length)
        if self.shuffle:
            mixed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
            items = torch.randperm(self.length, generator=torch.Generator().manual_seed(mixed))
        batches = []
        for share in torch.split(items, self.batch_size * self.world_size):
            missing = -len(share) % self.world_size
            # All processes need the same number of items: the first ones are repeated.
            repeated = items.repeat(-(-missing // self.length))[:missing]
            batches.append(torch.cat([share, repeated]).chunk(self.world_size)[self.rank])
        return batches

    def state_dict(self) -> dict[str, int]:
        """The position, and the settings that decide the order."""
        return {**self._order_settings(), "epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after `state`; a ValueError if it belongs to another order."""
        own = self._order_settings()
        epoch, step = (int(state.get(key, -1)) for key in ("epoch", "step"))
        if {key: state.get(key) for key in own} != own or epoch < 0 or not 0 <= step < len(self):
            raise ValueError(f"Expected argument `state` to fit {own}, but got {state}.")
        self.epoch, self.step, self._resuming = epoch, step, True

    def _order_settings(self) -> dict[str, int]:
        names = ("seed", "length", "batch_size", "world_size", "shuffle")
        return {name: int(getattr(self, name)) for name in names}

    def _batches(self, order: list[Tensor]) -> Iterator[Batch]:
        raise NotImplementedError


class StreamLoader(Loader):
    """Reads from disk, with the DataLoader of torch and its worker processes."""

    def __init__(
        self, dataset: Dataset[Batch], batch_size: int, *, workers: int = 0, **options: Any
    ) -> None:
        super().__init__(len(dataset), batch_size, **options)  # type: ignore[arg-type]
        self.dataset, self.workers = dataset, workers

    def _batches(self, order: list[Tensor]) -> Iterator[Batch]:
        if isinstance(self.dataset, ItemDataset):
            self.dataset.set_epoch(self.epoch)
        if isinstance(self.dataset, PatchDataset) and self.workers:
            # Workers live for one epoch only, so their caches would be lost.
            self.dataset.find_foreground()
        yield from DataLoader(
            self.dataset,
            batch_sampler=[batch.tolist() for batch in order],
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
        )


class ResidentLoader(Loader):
    """Holds all slices in one tensor on `device`, as stored (uint8 or float16).

    A batch is one gather and one scaling there: no file access, no worker, no copy from the host.
    """

    def __init__(
        self,
        dataset: SliceDataset,
        batch_size: int,
        *,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        super().__init__(len(dataset), batch_size, **options)
        shape = dataset.shape()
        if shape is None:
            raise ValueError(
                "Expected argument `dataset` to have slices of one size, but they differ: "
                "give SliceDataset a `size`."
            )
        self.device = torch.device(device)
        self.dataset, self.names = dataset, list[str]()
        first = dataset.cases[0].properties
        dtype = torch.uint8 if first.dtype == "uint8" else torch.float16
        images = torch.empty((len(dataset), first.channels, *shape), dtype=dtype)
        readers = () if dataset.raters == "majority" else (len(first.readers),)
        labels = torch.empty((len(dataset), *readers, *shape), dtype=torch.uint8)
        scale = torch.empty((len(dataset), first.channels, 1, 1))
        offset = torch.empty_like(scale)
        for case in dataset.cases:
            box = slice(len(self.names), len(self.names) + case.shape[0])
            stored = dataset.fit(case.read("image"), case.stored_zero())
            images[box] = torch.from_numpy(stored).transpose(0, 1)
            drawn = torch.from_numpy(dataset.fit_labels(dataset.stored_labels(case)))
            labels[box] = drawn.transpose(0, 1) if readers else drawn
            scale[box, :, 0, 0] = torch.tensor(case.properties.scale)
            offset[box, :, 0, 0] = torch.tensor(case.properties.offset)
            self.names += [case.name] * case.shape[0]
        self.images, self.labels = images.to(self.device), labels.to(self.device)
        self.scale, self.offset = scale.to(self.device), offset.to(self.device)

    def _batches(self, order: list[Tensor]) -> Iterator[Batch]:
        # The order of the epoch is copied to the device once.
        moved = torch.split(torch.cat(order).to(self.device), [len(batch) for batch in order])
        self.dataset.set_epoch(self.epoch)
        draws = self.dataset.draws().to(self.device)
        for batch, index in zip(order, moved, strict=True):
            image = self.images[index].float()
            if self.images.dtype == torch.uint8:
                image = image.mul_(self.scale[index]).add_(self.offset[index])
            names = tuple(self.names[i] for i in batch.tolist())
            target = self.dataset.targets(self.labels[index], draws[index])
            yield Batch(image, target, names)


def resident_bytes(dataset: SliceDataset) -> int | None:
    """Memory that a resident loader needs; None if the slices differ in size."""
    shape = dataset.shape()
    if shape is None or not dataset.cases:
        return None
    first = dataset.cases[0].properties
    per_voxel = first.channels * (1 if first.dtype == "uint8" else 2)
    per_voxel += 1 if dataset.raters == "majority" else len(first.readers)
    return len(dataset) * shape[0] * shape[1] * per_voxel


def free_bytes(device: torch.device | str) -> int:
    """Free memory of a GPU, or of the RAM."""
    device = torch.device(device)
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_ram()


def make_loader(
    dataset: SliceDataset | PatchDataset,
    batch_size: int,
    *,
    device: torch.device | str = "cpu",
    kind: LoaderKind = "auto",
    workers: int = 0,
    **options: Any,
) -> Loader:
    """A resident loader if the slices fit into the free memory of the device, else a stream.

    `options` are those of Loader: shuffle, seed, rank, world_size. Batches of a StreamLoader are
    on the CPU (pinned if there is a GPU).
    """
    check_choice("kind", kind, get_args(LoaderKind))
    check_int("workers", workers, low=0)
    if kind == "auto":
        needed = resident_bytes(dataset) if isinstance(dataset, SliceDataset) else None
        # Each process has its own GPU, but all share the RAM.
        on_gpu = torch.device(device).type == "cuda"
        processes = 1 if on_gpu else max(options.get("world_size", 1), 1)
        free = _MEMORY_FRACTION * free_bytes(device) / processes
        kind = "resident" if needed is not None and needed <= free else "stream"
    if kind == "stream":
        return StreamLoader(dataset, batch_size, workers=workers, **options)
    if not isinstance(dataset, SliceDataset):
        raise ValueError("Expected argument `dataset` to be a SliceDataset for a resident loader.")
    return ResidentLoader(dataset, batch_size, device=device, **options)
