"""The parts of a run: built from its config, saved to and restored from a state."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from segcal.config import LossConfig, OptimizerConfig, TrainConfig
from segcal.core.checks import check_choice
from segcal.data import Batch, Loader, PatchDataset, PreparedDataset, SliceDataset, make_loader
from segcal.losses import DiceLoss, SegmentationLoss, WeightedSum, make_loss
from segcal.losses.base import add_up
from segcal.models import NetworkSpec, SegmentationNetwork, check_model, make_model
from segcal.training.augment import Augmentation
from segcal.training.loss_meter import LossMeter
from segcal.training.schedule import WeightSchedule, make_schedule, set_penalty_weight
from segcal.training.validate import Validator, slices_at_once

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
# Settings of an optimizer that do not change what it computes.
_HOW = {"fused", "foreach", "capturable"}
# Those that must be told that they become part of a CUDA graph.
_CAPTURABLE = ("adam", "adamw")
# Compiling takes the time of some thousand steps; `compile: auto` leaves shorter runs alone.
COMPILE_FROM_STEPS = 4000


@dataclass
class TrainingState:
    """Everything a training loop works with, and where it stands.

    `epoch` is the one under way; `trained` says that its steps are done and validation is not.
    """

    config: TrainConfig
    fabric: Fabric
    dataset: PreparedDataset
    spec: NetworkSpec
    loader: Loader
    network: SegmentationNetwork
    model: nn.Module
    optimizer: Any
    loss: SegmentationLoss | WeightedSum
    schedule: WeightSchedule | None
    augment: Augmentation | None
    ema: SegmentationNetwork | None
    validator: Validator
    memory_format: torch.memory_format
    compiled: bool
    captured: bool
    epoch: int = 0
    trained: bool = False
    seconds: float = 0.0
    best_dsc: float = -math.inf
    best_epoch: int = -1
    meter: LossMeter = field(default_factory=LossMeter)
    started: float = field(default_factory=time.monotonic)

    def start_epoch(self) -> None:
        """Set what changes from epoch to epoch."""
        self.started = time.monotonic()
        self.network.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.optimizer.lr_at(self.epoch)
        if self.schedule is not None:
            set_penalty_weight(self.loss, self.schedule(self.epoch))

    def place(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """The batch on the device, augmented, in the network's memory format."""
        device = self.fabric.device
        image = batch.image.to(device, non_blocking=True)
        target = batch.target.to(device, non_blocking=True)
        if self.augment is not None:
            first = self.fabric.global_rank * len(image)
            batch = self.augment(Batch(image, target, batch.case), self.epoch, step, first)
            image, target = batch.image, batch.target
        return in_format(image, self.memory_format), target

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The network's logits; an incomplete last batch is not worth compiling anew."""
        whole = len(image) * self.fabric.world_size == self.config.batch_size
        if self.compiled and not self.captured:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with nullcontext() if whole or not self.compiled else uncompiled():
            heads: Tensor | tuple[Tensor, ...] = self.model(image)
        return heads

    def terms(self, heads: Tensor | tuple[Tensor, ...], target: Tensor) -> dict[str, Tensor]:
        """The parts of the loss; with deep supervision the heads' mean, weighted 1, ½, ¼, …"""
        if isinstance(heads, Tensor):
            return self.loss.terms(heads, target)
        weights = [0.5**depth for depth in range(len(heads))]
        total: dict[str, Tensor] = {}
        for weight, logits in zip(weights, heads, strict=True):
            for name, value in self.loss.terms(logits, target).items():
                share = weight / sum(weights) * value
                total[name] = total[name] + share if name in total else share
        return total

    def step(self, image: Tensor, target: Tensor) -> dict[str, Tensor]:
        """One step of training, and the parts of its loss."""
        terms = self.terms(self.forward(image), target)
        self.fabric.backward(add_up(terms))
        if self.config.clip is not None:
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.update_ema()
        return {name: value.detach() for name, value in terms.items()}

    def step_settings(self) -> tuple[float, ...]:
        """The numbers of a step that change from epoch to epoch."""
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        return (*rates, *([] if self.schedule is None else [self.schedule(self.epoch)]))

    @torch.no_grad()
    def update_ema(self) -> None:
        """Move the average of the weights a step on; counters and statistics are copied."""
        if self.ema is None or self.config.ema is None:
            return
        averages: list[Tensor] = list(self.ema.parameters())
        weights: list[Tensor] = list(self.network.parameters())
        torch._foreach_lerp_(averages, weights, 1 - self.config.ema)
        for average, value in zip(self.ema.buffers(), self.network.buffers(), strict=True):
            average.copy_(value)

    def time_spent(self) -> float:
        """Seconds in this epoch, interruptions not counted."""
        return self.seconds + time.monotonic() - self.started

    def next_epoch(self) -> None:
        self.epoch, self.trained, self.seconds, self.meter = self.epoch + 1, False, 0.0, LossMeter()

    def weights(self) -> dict[str, Tensor]:
        """The weights that are validated: the average, where one is kept."""
        return (self.ema or self.network).state_dict()

    def state_dict(self) -> dict[str, Any]:
        """All that decides how the run goes on. Random numbers need no state: see `seed_step`."""
        return {
            "epoch": self.epoch,
            "trained": self.trained,
            "seconds": self.time_spent(),
            "best": {"dsc": self.best_dsc, "epoch": self.best_epoch},
            "meter": self.meter.state_dict(),
            "loader": self.loader.state_dict(),
            "network": self.spec.as_dict(),
            "model": self.network.state_dict(),
            "ema": self.ema.state_dict() if self.ema is not None else None,
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["model"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(self._as_here(state["optimizer"]))
        self._lay_out_state()
        self.loader.load_state_dict(state["loader"])
        self.meter.load_state_dict(state["meter"])
        self.epoch, self.trained = int(state["epoch"]), bool(state["trained"])
        self.seconds = float(state["seconds"]) if self.loader.step or self.trained else 0.0
        self.best_dsc = float(state["best"]["dsc"])
        self.best_epoch = int(state["best"]["epoch"])

    def _as_here(self, saved: dict[str, Any]) -> dict[str, Any]:
        """An optimizer's state that computes as this device does, not the one it was saved on.

        By these settings torch also decides where a state's counters are to be.
        """
        groups = [
            {**there, **{key: here[key] for key in _HOW & here.keys()}}
            for there, here in zip(saved["param_groups"], self.optimizer.param_groups, strict=True)
        ]
        return {**saved, "param_groups": groups}

    def _lay_out_state(self) -> None:
        """Moments in the order in memory of their weights, which fused optimizers insist on.

        A run of a CPU keeps both contiguous, one of a GPU channels last.
        """
        for weight, state in self.optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == weight.shape:
                    state[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def build_state(config: TrainConfig, fabric: Fabric, dataset: PreparedDataset) -> TrainingState:
    """All parts of a run; nothing is written."""
    loss, schedule = build_loss(config.loss)
    loader = build_loader(config, fabric, dataset)
    spec = NetworkSpec(
        config.model.name,
        spatial_dims=3 if config.data.mode == "3d" else 2,
        in_channels=len(dataset.info.channels),
        num_classes=dataset.num_classes,
        options=config.model.options,
        divisible_by=config.model.divisible_by,
    )
    torch.manual_seed(config.seed)
    network = make_model(spec)
    on_gpu = fabric.device.type == "cuda"
    memory_format = torch.contiguous_format
    if config.channels_last == "on" or (config.channels_last == "auto" and on_gpu):
        memory_format = torch.channels_last_3d if spec.spatial_dims == 3 else torch.channels_last
        network = network.to(memory_format=memory_format)  # type: ignore[call-overload]
    network = network.to(fabric.device)
    check_model(network, spec, _image_size(config, dataset))
    ema = copy.deepcopy(network).requires_grad_(False) if config.ema is not None else None
    long_run = config.epochs * len(loader) >= COMPILE_FROM_STEPS
    pays = on_gpu and long_run and find_spec("triton") is not None
    compiled = config.compile == "on" or (config.compile == "auto" and pays)
    captured = _captures(config, fabric)
    if compiled:
        # Its own graphs, of a forward and a backward pass, are for where whole steps are not one.
        network.net.compile(mode=None if captured else "reduce-overhead", dynamic=False)
    optimizer = build_optimizer(config.optimizer, network, fused=on_gpu, captured=captured)
    model, wrapped = fabric.setup(network, optimizer)
    cases = dataset.part("val", config.data.fold)
    if not cases:
        raise ValueError(f"Expected {dataset.root} to have validation cases, but got none.")
    validator = Validator(
        cases[fabric.global_rank :: fabric.world_size],
        dataset.num_classes,
        groups=dataset.info.regions,
        device=fabric.device,
        batch_size=slices_at_once(cases, config.batch_size, fabric.device),
        patch_size=config.data.patch_size,
    )
    augment = Augmentation(config.augment, config.seed) if config.augment else None
    return TrainingState(
        config, fabric, dataset, spec, loader, network, model, wrapped, loss.to(fabric.device),
        schedule, augment, ema, validator, memory_format, compiled, captured,
    )  # fmt: skip


def _captures(config: TrainConfig, fabric: Fabric) -> bool:
    """Whether steps are to be replayed as CUDA graphs."""
    can = fabric.device.type == "cuda" and fabric.world_size == 1
    if config.cuda_graph == "on" and not can:
        raise ValueError(
            "Expected `cuda_graph` to be on for one process with a GPU only; set it to auto."
        )
    return can and config.cuda_graph != "off"


def build_loss(
    config: LossConfig,
) -> tuple[SegmentationLoss | WeightedSum, WeightSchedule | None]:
    """The loss, with soft Dice beside it if asked for, and the schedule of its penalty."""
    try:
        loss: SegmentationLoss | WeightedSum = make_loss(config.name, **config.options)
        schedule = None
        if config.schedule is not None:
            schedule = make_schedule(config.schedule.name, **config.schedule.options)
    except TypeError as error:
        raise ValueError(f"Expected `loss` to have options that it takes: {error}") from error
    if config.dice_weight:
        shared = {k: v for k, v in config.options.items() if k == "ignore_index"}
        loss = WeightedSum(loss, DiceLoss(**shared), weights=[1.0, config.dice_weight])
    if schedule is not None:
        set_penalty_weight(loss, schedule(0))
    return loss, schedule


def build_optimizer(
    config: OptimizerConfig, network: nn.Module, *, fused: bool, captured: bool = False
) -> torch.optim.Optimizer:
    check_choice("optimizer.name", config.name, OPTIMIZERS)
    told: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, **config.options}
    if fused:
        told.setdefault("fused", True)
    if captured and config.name in _CAPTURABLE:
        told.setdefault("capturable", True)
    try:
        return OPTIMIZERS[config.name](network.parameters(), **told)
    except TypeError as error:
        raise ValueError(
            f"Expected `optimizer.options` to be arguments of {config.name}: {error}"
        ) from error


def build_loader(config: TrainConfig, fabric: Fabric, dataset: PreparedDataset) -> Loader:
    """Training batches; each process takes its share of every global batch."""
    data, world = config.data, fabric.world_size
    if config.batch_size % world:
        raise ValueError(
            f"Expected `batch_size` to be divisible by the {world} processes, "
            f"but got {config.batch_size}."
        )
    items: SliceDataset | PatchDataset
    if data.patch_size is not None:
        items = PatchDataset(
            dataset, "train", patch_size=data.patch_size, per_case=data.per_case,
            foreground=data.foreground, fold=data.fold, seed=config.seed,
        )  # fmt: skip
    else:
        items = SliceDataset(dataset, "train", fold=data.fold, size=data.size)
        if items.shape() is None:
            raise ValueError(
                f"Expected slices of one size in {dataset.root}, but they differ; "
                "set `data.size`, such as --set data.size=[192,192]."
            )
    return make_loader(
        items, config.batch_size // world, device=fabric.device, kind=data.loader,
        workers=data.workers, seed=config.seed, rank=fabric.global_rank, world_size=world,
    )  # fmt: skip


def _image_size(config: TrainConfig, dataset: PreparedDataset) -> tuple[int, ...]:
    if config.data.patch_size is not None:
        return config.data.patch_size
    return config.data.size or dataset.part("train", config.data.fold)[0].shape[1:]


def in_format(image: Tensor, memory_format: torch.memory_format) -> Tensor:
    """The image in that order; one of a single channel fits both, and its strides decide."""
    image = image.contiguous(memory_format=memory_format)
    if image.shape[1] > 1 or memory_format == torch.contiguous_format:
        return image
    batch, _, *within = image.stride()
    return image.as_strided(image.shape, (batch, 1, *within))


def seed_step(seed: int, epoch: int, step: int, rank: int) -> None:
    """Random numbers (dropout) of a step depend on these four alone, so a resume repeats them."""
    mixed = np.random.SeedSequence([seed, epoch, step, rank]).generate_state(1, np.uint64)[0]
    # torch.manual_seed would, at every step, also note a call for each kind of device not there.
    torch.default_generator.manual_seed(int(mixed))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(int(mixed))


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled networks as plain ones: for shapes that come once an epoch, or vary."""
    if not hasattr(torch.compiler, "set_stance"):  # torch before 2.6
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
