"""The state of a run: everything the loop works with, one step of it, and how it is saved."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from segcal.config import TrainConfig
from segcal.core.heads import Heads
from segcal.data import Batch, Loader, PreparedDataset
from segcal.losses import add_up, loss_terms
from segcal.models import NetworkSpec, SegmentationNetwork
from segcal.training.augment import Augmentation
from segcal.training.callbacks import ValidationCallback
from segcal.training.loss_meter import LossMeter
from segcal.training.schedule import WeightSchedule, set_penalty_weight
from segcal.training.validate import Validator

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Settings of an optimizer that depend on the device and do not change the result. The learning rate
# is set in every epoch; in a CUDA graph it is a tensor.
_DEVICE_SETTINGS = {"fused", "foreach", "capturable", "lr"}


@dataclass
class TrainingState:
    """Everything a training loop works with, and how far it is.

    `network` holds the weights; `model` is the same network as Fabric wraps it. `epoch` is the
    current one; `trained` is True between its last step and the end of its validation. `best_dsc`,
    `best_epoch` and `best_score` belong to best.pt; `highest_dsc` is that of all validations.
    """

    config: TrainConfig
    fabric: Fabric
    dataset: PreparedDataset
    spec: NetworkSpec
    loader: Loader
    network: SegmentationNetwork
    model: nn.Module
    optimizer: Any
    loss: nn.Module
    schedule: WeightSchedule | None
    augment: Augmentation | None
    ema: SegmentationNetwork | None
    validator: Validator
    memory_format: torch.memory_format
    compiled: bool
    cuda_graph: bool
    callbacks: Sequence[ValidationCallback] = ()
    epoch: int = 0
    trained: bool = False
    seconds: float = 0.0
    best_dsc: float = -math.inf
    best_epoch: int = -1
    best_score: float = -math.inf
    highest_dsc: float = -math.inf
    lr_scale: float = 1.0
    meter: LossMeter = field(default_factory=LossMeter)
    started: float = field(default_factory=time.monotonic)

    def start_epoch(self) -> None:
        """Set the learning rate and the penalty weight of the epoch."""
        self.started = time.monotonic()
        self.network.train()
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):  # part of a CUDA graph
                group["lr"].fill_(self.learning_rate)
            else:
                group["lr"] = self.learning_rate
        if self.schedule is not None:
            set_penalty_weight(self.loss, self.schedule(self.epoch))

    @property
    def learning_rate(self) -> float:
        """The learning rate of the epoch."""
        return self.lr_scale * self.config.optimizer.lr_at(self.epoch, self.config.epochs)

    @property
    def ema_decay(self) -> float:
        """The decay of the averaged weights in this epoch.

        At first it is smaller, so that the average covers about a fifth of the steps so far. It
        changes by factors of two, because every change captures the CUDA graph again.
        """
        assert self.config.ema is not None
        fifth = 1 + self.epoch * len(self.loader) // 5
        return min(self.config.ema, 1 - 0.5 ** (fifth.bit_length() - 1))

    def end_epoch(self) -> None:
        self.epoch, self.trained, self.seconds, self.meter = self.epoch + 1, False, 0.0, LossMeter()

    def seed(self, step: int) -> None:
        """Seed torch (dropout) from seed, epoch, step and rank alone, so a resume repeats it."""
        key = [self.config.seed, self.epoch, step, self.fabric.global_rank]
        seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
        # torch.manual_seed would also queue a call for each device type that is not initialized.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed(seed)
        elif self.fabric.device.type == "mps":
            torch.mps.manual_seed(seed)

    def place(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """The batch on the device, augmented, in the memory format of the network."""
        device = self.fabric.device
        image = batch.image.to(device, non_blocking=True)
        target = batch.target.to(device, non_blocking=True)
        if self.augment is not None:
            first = self.fabric.global_rank * len(image)
            batch = self.augment(Batch(image, target, batch.case), self.epoch, step, first)
            image, target = batch.image, batch.target
        if self.config.data.heads:
            target = head_targets(target, self.config.data.heads)
        return to_memory_format(image, self.memory_format), target

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The network's logits; an incomplete last batch is not compiled for."""
        complete = len(image) * self.fabric.world_size == self.config.batch_size
        if self.compiled and not self.cuda_graph:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with nullcontext() if complete or not self.compiled else uncompiled():
            heads: Tensor | tuple[Tensor, ...] = self.model(image)
        return heads

    def terms(self, heads: Tensor | tuple[Tensor, ...], target: Tensor) -> dict[str, Tensor]:
        """The parts of the loss; deep supervision averages the heads with weights 1, ½, ¼, …"""
        if isinstance(heads, Tensor):
            return loss_terms(self.loss, heads, target)
        weights = [0.5**depth for depth in range(len(heads))]
        total: dict[str, Tensor] = {}
        for weight, logits in zip(weights, heads, strict=True):
            for name, value in loss_terms(self.loss, logits, target).items():
                share = weight / sum(weights) * value
                total[name] = total[name] + share if name in total else share
        return total

    def step(self, image: Tensor, target: Tensor) -> dict[str, Tensor]:
        """One training step; returns the parts of its loss."""
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
        """The numbers in a step that change from epoch to epoch."""
        groups = self.optimizer.param_groups
        numbers = [group["lr"] for group in groups if not isinstance(group["lr"], Tensor)]
        if self.schedule is not None:
            numbers.append(self.schedule(self.epoch))
        if self.ema is not None:
            numbers.append(self.ema_decay)
        return (*numbers, self.lr_scale)

    @torch.no_grad()
    def update_ema(self) -> None:
        """Update the averaged weights; buffers are copied."""
        if self.ema is None:
            return
        averages: list[Tensor] = list(self.ema.parameters())
        weights: list[Tensor] = list(self.network.parameters())
        torch._foreach_lerp_(averages, weights, 1 - self.ema_decay)
        for average, value in zip(self.ema.buffers(), self.network.buffers(), strict=True):
            average.copy_(value)

    def restart_from(self, weights: dict[str, Tensor]) -> None:
        """Continue from these weights with half the learning rate and a new optimizer state."""
        self.network.load_state_dict(weights)
        if self.ema is not None:
            self.ema.load_state_dict(weights)
        empty = {**self.optimizer.state_dict(), "state": {}}
        self.optimizer.load_state_dict(empty)
        self.lr_scale /= 2

    def time_spent(self) -> float:
        """Seconds in this epoch, without interruptions."""
        return self.seconds + time.monotonic() - self.started

    @property
    def validated_network(self) -> SegmentationNetwork:
        """The network that is validated: the averaged one if there is one."""
        return self.ema or self.network

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs. Random numbers need no state: see `seed`."""
        return {
            "epoch": self.epoch,
            "trained": self.trained,
            "seconds": self.time_spent(),
            "best": {
                "dsc": self.best_dsc, "epoch": self.best_epoch, "score": self.best_score,
                "highest_dsc": self.highest_dsc,
            },
            "lr_scale": self.lr_scale,
            "meter": self.meter.state_dict(),
            "loader": self.loader.state_dict(),
            "network": self.spec.as_dict(),
            "model": self.network.state_dict(),
            "ema": self.ema.state_dict() if self.ema is not None else None,
            "optimizer": self.optimizer.state_dict(),
            "callbacks": [callback.state_dict() for callback in self.callbacks],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["model"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self._load_optimizer(state["optimizer"])
        for callback, saved in zip(self.callbacks, state.get("callbacks", ()), strict=True):
            callback.load_state_dict(saved)
        self.loader.load_state_dict(state["loader"])
        self.meter.load_state_dict(state["meter"])
        self.epoch, self.trained = int(state["epoch"]), bool(state["trained"])
        self.seconds = float(state["seconds"]) if self.loader.step or self.trained else 0.0
        best = state["best"]
        self.best_dsc, self.best_epoch = float(best["dsc"]), int(best["epoch"])
        self.best_score, self.highest_dsc = float(best["score"]), float(best["highest_dsc"])
        self.lr_scale = float(state["lr_scale"])

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        """Load a state that may come from another device.

        Settings such as `fused` stay those of this device (torch also places counters by them), and
        moments get the memory layout of their weights, which fused optimizers require.
        """
        groups = [
            {**old, **{key: own[key] for key in _DEVICE_SETTINGS & own.keys()}}
            for old, own in zip(saved["param_groups"], self.optimizer.param_groups, strict=True)
        ]
        self.optimizer.load_state_dict({**saved, "param_groups": groups})
        for weight, state in self.optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == weight.shape:
                    state[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def head_targets(target: Tensor, heads: Heads) -> Tensor:
    """Labels (B, *S) as the target (B, R, *S) of sigmoid heads: 0, 1, or −100 where ignored."""
    each = [sum(target == label for label in labels) for labels in heads.values()]
    inside = torch.stack([torch.as_tensor(mask, dtype=target.dtype) for mask in each], 1)
    return inside.masked_fill((target == -100)[:, None], -100)


def to_memory_format(image: Tensor, memory_format: torch.memory_format) -> Tensor:
    """The image in this memory format.

    An image of one channel fits both formats; its strides decide which one cuDNN assumes.
    """
    image = image.contiguous(memory_format=memory_format)
    if image.shape[1] > 1 or memory_format == torch.contiguous_format:
        return image
    batch, _, *within = image.stride()
    return image.as_strided(image.shape, (batch, 1, *within))


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled networks without compilation: for shapes that are rare or vary."""
    # torch before 2.6 has no `set_stance`.
    stance = getattr(torch.compiler, "set_stance", lambda _: nullcontext())
    with stance("force_eager"):
        yield
