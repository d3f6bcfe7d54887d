"""Build the parts of a run from its config: loss, optimizer, loader, network, validator."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from segcal.config import LossConfig, OptimizerConfig, TrainConfig, change_config
from segcal.core.checks import check_choice
from segcal.data import Loader, PatchDataset, PreparedDataset, SliceDataset, make_loader
from segcal.losses import LOSSES, DiceLoss, WeightedSum, loss_terms, make_loss
from segcal.models import NETWORKS, NetworkSpec, check_model, make_model
from segcal.training.augment import Augmentation
from segcal.training.callbacks import start_callbacks
from segcal.training.schedule import WeightSchedule, make_schedule, set_penalty_weight
from segcal.training.state import TrainingState
from segcal.training.validate import Validator, slices_per_batch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD,
}  # fmt: skip
# Compiling takes as long as some thousand steps; `compile: auto` does not compile shorter runs.
COMPILE_FROM_STEPS = 4000


def config_from_arguments(
    config: TrainConfig,
    data: Path | str | Mapping[str, Any] | None,
    loss: str | type[nn.Module] | nn.Module | Mapping[str, Any] | None,
    network: str | type[nn.Module] | Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> TrainConfig:
    """The config, changed by the keyword arguments of `train`."""
    changes = dict(settings)
    if data is not None:
        changes["data"] = data if isinstance(data, Mapping) else {"path": str(data)}
    if isinstance(loss, nn.Module):
        kind = type(loss)
        try:
            path = LOSSES.name_of(kind)
        except ValueError:  # defined in a function or in the main script
            path = f"{kind.__module__}:{kind.__qualname__}"
        changes["loss"] = {"name": path, "options": {}, "instance": True}
    elif loss is not None:
        name = LOSSES.name_of(loss) if isinstance(loss, type) else loss
        changes["loss"] = loss if isinstance(loss, Mapping) else {"name": name, "instance": False}
    if network is not None:
        name = NETWORKS.name_of(network) if isinstance(network, type) else network
        changes["model"] = network if isinstance(network, Mapping) else {"name": name}
    return change_config(config, changes)


def with_heads(config: TrainConfig, dataset: PreparedDataset) -> TrainConfig:
    """The config with both settings of sigmoid heads, if one of them is set; see `DataConfig`."""
    options = config.loss.options
    if not config.data.heads and options.get("activation") != "sigmoid":
        return config
    classes = {name: (k,) for k, name in dataset.classes.items() if k > 0}
    heads = config.data.heads or dataset.info.regions or classes
    unknown = sorted({k for labels in heads.values() for k in labels} - set(dataset.classes))
    if unknown:
        known = ", ".join(f"{k} {name}" for k, name in dataset.classes.items() if k > 0)
        raise ValueError(f"`data.heads`: {dataset.root} has no label {unknown[0]}; it has {known}")
    changes: dict[str, Any] = {"data": {"heads": heads}}
    if not config.loss.instance:
        changes["loss"] = {"options": {**options, "activation": "sigmoid"}}
    return change_config(config, changes)


def build_state(
    config: TrainConfig, fabric: Fabric, dataset: PreparedDataset, loss: nn.Module | None = None
) -> TrainingState:
    """All parts of a run; nothing is written. `loss` replaces the loss of the config."""
    loss, schedule = build_loss(config.loss, loss)
    callbacks = start_callbacks(loss, schedule, dataset.num_classes)
    heads = config.data.heads
    if heads and callbacks:
        raise ValueError("`loss`: crac and the schedule error_driven need exclusive classes")
    loss = loss.to(fabric.device)
    loader = build_loader(config, fabric, dataset)
    spec = NetworkSpec(
        **config.model.model_dump(),
        spatial_dims=3 if config.data.mode == "3d" else 2,
        in_channels=len(dataset.info.channels),
        num_classes=len(heads) or dataset.num_classes,
    )
    torch.manual_seed(config.seed)
    try:
        network = make_model(spec)
    except ValueError as error:
        raise ValueError(f"`model`: {error}") from error
    on_cuda = fabric.device.type == "cuda"
    memory_format = torch.contiguous_format
    if config.channels_last == "on" or (config.channels_last == "auto" and on_cuda):
        memory_format = torch.channels_last_3d if spec.spatial_dims == 3 else torch.channels_last
        network = network.to(memory_format=memory_format)  # type: ignore[call-overload]
    network = network.to(fabric.device)
    first = dataset.part("train", config.data.fold)[0]
    size = config.data.patch_size or config.data.size or first.shape[1:]
    check_model(network, spec, size)
    soft = not heads and config.data.raters == "mean"
    check_loss(loss, spec.num_classes, size, fabric.device, heads=bool(heads), soft=soft)
    ema = copy.deepcopy(network).requires_grad_(False) if config.ema is not None else None
    long_run = config.epochs * len(loader) >= COMPILE_FROM_STEPS
    worthwhile = on_cuda and long_run and find_spec("triton") is not None
    compiled = config.compile == "on" or (config.compile == "auto" and worthwhile)
    single = on_cuda and fabric.world_size == 1
    if config.cuda_graph == "on" and not single:
        raise ValueError("`cuda_graph`: on needs a single process with a CUDA device; use auto")
    cuda_graph = single and config.cuda_graph != "off"
    if compiled:
        # reduce-overhead captures forward and backward; not needed where whole steps are captured.
        network.net.compile(mode=None if cuda_graph else "reduce-overhead", dynamic=False)
    optimizer = build_optimizer(config.optimizer, network, fused=on_cuda, capturable=cuda_graph)
    model, fabric_optimizer = fabric.setup(network, optimizer)
    return TrainingState(
        config, fabric, dataset, spec, loader, network, model, fabric_optimizer, loss, schedule,
        Augmentation(config.augment, config.seed) if config.augment else None,
        ema, build_validator(config, fabric, dataset), memory_format, compiled, cuda_graph,
        callbacks,
    )  # fmt: skip


def build_loss(
    config: LossConfig, instance: nn.Module | None = None
) -> tuple[nn.Module, WeightSchedule | None]:
    """The loss, with soft Dice added if `dice_weight` is set, and the schedule of its penalty."""
    if config.instance and instance is None:
        problem = f"this run uses a {config.name} object that was passed to `train`"
        raise ValueError(f"`loss`: {problem}; pass it again: train(..., loss=...)")
    schedule = None
    try:
        loss = make_loss(config.name, **config.options) if instance is None else instance
        if config.schedule is not None:
            schedule = make_schedule(config.schedule.name, **config.schedule.options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`loss`: {error}") from error
    if config.dice_weight:
        both = ("ignore_index", "activation")
        shared = {k: v for k, v in config.options.items() if k in both}
        dice = DiceLoss(config.dice_form, **shared)
        loss = WeightedSum(loss, dice, weights=[1.0, config.dice_weight])
    if schedule is not None:
        set_penalty_weight(loss, schedule(0))
    return loss, schedule


def check_loss(
    loss: nn.Module,
    num_classes: int,
    size: tuple[int, ...],
    device: torch.device,
    *,
    heads: bool = False,
    soft: bool = False,
) -> None:
    """Raise a ValueError unless the loss returns one number for a target as in training."""
    logits = torch.zeros(1, num_classes, *size, device=device)
    shape = (1, num_classes, *size) if heads else (1, *size)
    target = torch.zeros(shape, dtype=torch.int64, device=device)
    if soft:
        target = torch.zeros_like(logits)
        target[:, 0] = 1
    name = type(loss).__name__
    try:
        with torch.no_grad():
            shapes = [tuple(value.shape) for value in loss_terms(loss, logits, target).values()]
    except Exception as error:  # the loss of another package may raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        problem = f"loss {name} failed on logits {tuple(logits.shape)}"
        problem += f" and labels {tuple(target.shape)} ({reason})"
        # The outermost module decides: MONAI's combined losses encode once, for all their parts.
        onehot = [m.to_onehot_y for m in loss.modules() if hasattr(m, "to_onehot_y")]
        if not (soft or heads) and onehot and not onehot[0]:
            problem += "; losses of MONAI need `to_onehot_y: true`, see `loss.options`"
        raise ValueError(problem) from error
    if any(shapes):
        raise ValueError(
            f"Expected loss {name} to return one number, but got a tensor of shape {shapes[0]}; "
            "set its reduction to mean"
        )


def build_optimizer(
    config: OptimizerConfig, network: nn.Module, *, fused: bool, capturable: bool = False
) -> torch.optim.Optimizer:
    """The optimizer; `capturable` makes it, with its learning rate, part of a CUDA graph."""
    check_choice("optimizer.name", config.name, OPTIMIZERS)
    options = {"lr": config.lr, "weight_decay": config.weight_decay, **config.options}
    if fused:
        options.setdefault("fused", True)
    if capturable and config.name in ("adam", "adamw"):
        options.setdefault("capturable", True)
    if capturable and options.get("fused"):
        # A number would be fixed in the graph, which would have to be captured in every epoch.
        options["lr"] = torch.tensor(config.lr, device=next(network.parameters()).device)
    try:
        return OPTIMIZERS[config.name](network.parameters(), **options)
    except TypeError as error:
        problem = f"Expected `optimizer.options` to be arguments of {config.name}: {error}"
        raise ValueError(problem) from error


def build_loader(config: TrainConfig, fabric: Fabric, dataset: PreparedDataset) -> Loader:
    """Training batches; each process gets its share of every batch."""
    data, world = config.data, fabric.world_size
    if config.batch_size % world:
        expected = f"Expected `batch_size` to be divisible by the {world} processes"
        raise ValueError(f"{expected}, but got {config.batch_size}.")
    items: SliceDataset | PatchDataset
    if data.patch_size is not None:
        items = PatchDataset(
            dataset, "train", patch_size=data.patch_size, per_case=data.per_case,
            foreground=data.foreground, fold=data.fold, raters=data.raters, seed=config.seed,
        )  # fmt: skip
    else:
        items = SliceDataset(
            dataset, "train", fold=data.fold, size=data.size, raters=data.raters, seed=config.seed
        )
        if items.shape() is None:
            remedy = "set `data.size`, for example --set data.size=[192,192]"
            raise ValueError(f"the slices of {dataset.root} differ in size; {remedy}")
    return make_loader(
        items, config.batch_size // world, device=fabric.device, kind=data.loader,
        workers=data.workers, seed=config.seed, rank=fabric.global_rank, world_size=world,
    )  # fmt: skip


def build_validator(config: TrainConfig, fabric: Fabric, dataset: PreparedDataset) -> Validator:
    """Validation on this process's share of the cases."""
    cases = dataset.part("val", config.data.fold)
    if not cases:
        raise ValueError(f"{dataset.root} has no validation cases; prepare it with a val split")
    on_slices = config.data.patch_size is None
    batch = slices_per_batch(cases, config.batch_size, fabric.device)
    return Validator(
        cases[fabric.global_rank :: fabric.world_size],
        dataset.num_classes,
        groups=config.data.heads or dataset.info.regions,
        heads=bool(config.data.heads),
        device=fabric.device,
        # Windows of a 3-D network: without gradients, twice the training batch fits.
        batch_size=batch if on_slices else 2 * config.batch_size,
        patch_size=config.data.patch_size,
    )
