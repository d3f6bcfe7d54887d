"""The training loop, from a config to a run folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from segcal.config import TrainConfig
from segcal.core.checks import require
from segcal.core.memory import all_freed_memory_kept
from segcal.core.signals import StopRequest, signal_name
from segcal.core.text import count
from segcal.data import Batch, PreparedDataset, open_dataset, verify_cases
from segcal.models import read_checkpoint, write_checkpoint
from segcal.study import BEST, LAST, RunFolder, broke_down, read_run_config
from segcal.training.build import build_state, config_from_arguments, with_heads
from segcal.training.callbacks import Observations
from segcal.training.cuda_graph import CudaGraphStep
from segcal.training.device import (
    choose_accelerator,
    device_name,
    gather,
    make_fabric,
    numerics,
    processes,
    resolve,
)
from segcal.training.errors import Interrupted, NonFiniteLossError, TrainingError
from segcal.training.loss_meter import CHECK_EVERY
from segcal.training.progress import Reporter, add_row, open_tensorboard
from segcal.training.recipes import apply_recipe
from segcal.training.resume import case_names, open_run, save_last
from segcal.training.state import TrainingState, uncompiled
from segcal.training.validate import selection_score, summarize

# A state that is written in fewer seconds is written after every epoch.
_QUICK_SAVE = 0.2


@dataclass(frozen=True)
class TrainResult:
    """The run folder, the number of epochs, and validation DSC and epoch (from 1) of best.pt."""

    folder: Path
    epochs: int
    best_dsc: float
    best_epoch: int


def train(
    config: TrainConfig | None = None,
    out: Path | str | None = None,
    *,
    data: Path | str | Mapping[str, Any] | None = None,
    loss: str | type[nn.Module] | nn.Module | Mapping[str, Any] | None = None,
    network: str | type[nn.Module] | Mapping[str, Any] | None = None,
    resume: bool = False,
    **settings: Any,
) -> TrainResult:
    """Train a network into the folder `out`.

    Args:
        config: settings; those that are not set are filled in by its recipe, by default that of
            the NACL paper. Without a config, the recipe is `strong`.
        out: the run folder.
        data: the prepared data set; or a mapping, the section `data` of the config.
        loss: a name, an import path `package.module:Class`, a class, or an object that maps
            (logits, target) to one number; or a mapping, the section `loss` of the config.
        network: a name, an import path or a class; or a mapping, the section `model` of the config.
        resume: continue the run in `out`; on one device in fp32 the weights are bit-identical to
            those of an uninterrupted run. A folder without a run starts a new one.
        settings: other keys of the config, such as `epochs=20`, `recipe="paper"` or
            `optimizer={"lr": 3e-4}`.

    Raises:
        ValueError: the config, data set or folder is invalid; nothing is written.
        TrainingError: the run cannot continue (NaN, memory); last.pt holds its last valid state.
        Interrupted: stopped by SIGTERM or SIGINT; last.pt holds the state at that step.
    """
    if out is None:
        raise TypeError("train() needs `out`, the folder of the run")
    config = config or TrainConfig(recipe="strong")
    choices: list[str] = []
    config, dataset = complete_config(
        config_from_arguments(config, data, loss, network, settings),
        Path(out) if resume else None,
        choices.append,
    )
    if config.tensorboard:
        require("tensorboard")
    on_cpu = choose_accelerator(config.device) == "cpu"
    with numerics(config), all_freed_memory_kept(on_cpu), StopRequest() as stop:
        fabric = make_fabric(config)
        dataset.check_parts(config.data.fold)
        for part in ("train", "val"):
            verify_cases(dataset.part(part, config.data.fold))
        folder = RunFolder(Path(out), resume=resume)
        if fabric.is_global_zero:
            folder.check(config, dataset.fingerprint, case_names(dataset, config))
        reporter = Reporter(config.epochs, silent=not fabric.is_global_zero)
        try:
            with folder, reporter:
                for choice in choices:
                    reporter.say(choice)
                instance = loss if isinstance(loss, nn.Module) else None
                state = build_state(config, fabric, dataset, instance)
                open_run(state, folder, reporter.say)
                return TrainingLoop(state, folder, stop, reporter).run()
        except (torch.cuda.OutOfMemoryError, MemoryError) as error:
            raise TrainingError(_memory_advice(config, error)) from error
        except RuntimeError as error:
            if isinstance(error, TrainingError) or "allocate memory" not in str(error):
                raise
            raise TrainingError(_memory_advice(config, error)) from error


def complete_config(
    config: TrainConfig, run: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> tuple[TrainConfig, PreparedDataset]:
    """All settings of a run, and its data; `run` is the folder of a run to continue, if any.

    `say` gets the choices of the recipe.
    """
    if not config.data.path:
        raise ValueError("Expected argument `data` to name a prepared data set, but got none.")
    dataset = open_dataset(config.data.path)
    existing = read_run_config(run) if run is not None else None
    config = apply_recipe(
        config, dataset, processes=math.prod(processes()), existing=existing, say=say
    )
    return resolve(with_heads(config, dataset)), dataset


@dataclass
class TrainingLoop:
    """Trains, validates, logs and saves, epoch by epoch."""

    state: TrainingState
    folder: RunFolder
    stop: StopRequest
    reporter: Reporter
    broken_down: bool = False
    saved: float = -math.inf
    save_seconds: float = 0.0

    def run(self) -> TrainResult:
        state, config, folder = self.state, self.state.config, self.folder
        first, say = state.fabric.is_global_zero, self.reporter.say
        self.reporter.start_timing(state.epoch)
        if state.epoch < config.epochs:
            cases = len(state.dataset.part("train", config.data.fold))
            device = device_name(state.fabric.device)
            steps = len(state.loader)
            say(f"{folder.path}: {cases} training cases, {steps} steps per epoch, device: {device}")
        step = CudaGraphStep(state, say) if state.cuda_graph else state.step
        tensorboard = config.tensorboard and first
        with open_tensorboard(folder.path, state.epoch) if tensorboard else nullcontext() as writer:
            while state.epoch < config.epochs:
                state.start_epoch()
                if not state.trained:
                    self.train_epoch(step)
                row = self.log_row()
                last = state.epoch + 1 == config.epochs
                if last or (state.epoch + 1) % config.validate_every == 0:
                    row["val"] = self.validate()
                    row["selected"] = state.best_epoch == state.epoch
                    if self.broken_down and config.recover and state.lr_scale == 1 and not last:
                        row["restarted_from"] = self.restart()
                row["seconds"] = round(state.time_spent(), 3)
                state.end_epoch()
                if first:
                    # The log first: a resume removes a line too many, but cannot add a lost one.
                    folder.log(row)
                self.save(last)
                if writer is not None:
                    add_row(writer, row)
                self.reporter.end_epoch(row)
        best = f"{state.best_dsc:.4f} (epoch {state.best_epoch + 1})"
        what = "best validation DSC" if config.select == "dsc" else "validation DSC of best.pt"
        say(f"{folder.path}: {count(state.epoch, 'epoch')}, {what} {best}")
        if state.highest_dsc <= 0:
            say(f"{folder.path}: no structure was found in any validation; train for more epochs")
        return TrainResult(folder.path, state.epoch, state.best_dsc, state.best_epoch + 1)

    def train_epoch(self, do_step: Callable[[Tensor, Tensor], dict[str, Tensor]]) -> None:
        """The remaining steps of the epoch."""
        state, fabric = self.state, self.state.fabric
        steps = len(state.loader)
        # On a CPU a check costs nothing, and a step may take seconds.
        check_every = 1 if fabric.world_size == 1 and fabric.device.type == "cpu" else CHECK_EVERY
        for step, batch in enumerate(self.batches(), start=state.loader.step):
            state.seed(step)
            image, target = state.place(batch, step)
            terms = do_step(image, target)
            state.meter.add(terms, batch.case)
            ended = step + 1 == steps
            if ended or self.stopped() or (step + 1) % check_every == 0:
                state.trained = ended
                self.check(step)

    def batches(self) -> Iterator[Batch]:
        """The batches of the loader, whose workers may have got the signal to stop as well."""
        try:
            yield from self.state.loader
        except RuntimeError:
            if not self.stopped():
                raise
            self.check(self.state.loader.step)

    def stopped(self) -> bool:
        """Whether to stop now; several processes stop together, in `check`."""
        return self.state.fabric.world_size == 1 and self.stop.received is not None

    def check(self, step: int) -> None:
        """Fetch the losses, stop on NaN or a signal, show progress."""
        state = self.state
        found = gather(state.fabric, (state.meter.fetch(), self.stop.received))
        for cases, _ in found:
            if cases is not None:
                names = ", ".join(dict.fromkeys(cases))
                raise NonFiniteLossError(
                    f"{self.folder.path}: the loss became NaN or infinite in epoch "
                    f"{state.epoch + 1}, in a batch of {names} ({LAST} holds the state before); "
                    "lower `optimizer.lr`, set `clip`, or check these cases"
                )
        for _, number in found:
            if number is not None:
                self.interrupt(number)
        rate = state.meter.items * state.fabric.world_size / max(state.time_spent(), 1e-9)
        self.reporter.step(state.epoch, step + 1, len(state.loader), state.meter.means(), rate)

    def log_row(self) -> dict[str, Any]:
        """The epoch's row of the log; losses are means over all processes."""
        state = self.state
        meters = gather(state.fabric, state.meter.state_dict())
        state.meter.items = sum(meter["items"] for meter in meters)
        for name in state.meter.sums:
            state.meter.sums[name] = sum(meter["sums"][name] for meter in meters)
        row: dict[str, Any] = {"epoch": state.epoch, "lr": state.learning_rate}
        if state.schedule is not None:
            row["penalty_weight"] = state.schedule(state.epoch)
        return {**row, "losses": state.meter.means()}

    def validate(self) -> dict[str, Any]:
        """Metrics of the validation cases; the weights are saved if DSC is the best so far."""
        state, fabric = self.state, self.state.fabric
        with fabric.autocast(), uncompiled() if state.compiled else nullcontext():
            observed = Observations(state.callbacks)
            own = state.validator.score(state.validated_network, self.stopped, observed.add)
        if own is None:
            assert self.stop.received is not None
            self.interrupt(self.stop.received)
        observed.update(lambda sums: gather(fabric, sums))
        scores = [score for share in gather(fabric, own) for score in share]
        metrics = summarize(sorted(scores, key=lambda score: score.name))
        dsc = metrics["dsc"] or 0.0  # None if no case has or predicts a structure
        warned, self.broken_down = self.broken_down, broke_down(dsc, state.highest_dsc)
        if self.broken_down and not warned:
            self.reporter.say(
                f"epoch {state.epoch + 1}: validation DSC dropped to {dsc:.4f} from its best value "
                f"{state.highest_dsc:.4f} ({BEST} is of epoch {state.best_epoch + 1}): the "
                "training may have broken down; lower `optimizer.lr` or set `clip`"
            )
        state.highest_dsc = max(state.highest_dsc, dsc)
        score = selection_score(metrics, state.config.select)
        if score > state.best_score:
            state.best_dsc, state.best_epoch, state.best_score = dsc, state.epoch, score
            if fabric.is_global_zero:
                write_checkpoint(self.folder.path / BEST, {
                    "run_id": self.folder.run_id,
                    "epoch": state.epoch,
                    "network": state.spec.as_dict(),
                    "model": state.validated_network.state_dict(),
                    "metrics": metrics,
                    "classes": dict(state.dataset.classes),
                    "data_fingerprint": state.dataset.fingerprint,
                })  # fmt: skip
        return metrics

    def restart(self) -> int:
        """Return to the weights of best.pt with half the learning rate; returns their epoch."""
        state, first = self.state, self.state.fabric.is_global_zero
        saved = read_checkpoint(self.folder.path / BEST)["model"] if first else None
        state.restart_from(gather(state.fabric, saved)[0])
        self.broken_down = False
        self.reporter.say(
            f"epoch {state.epoch + 1}: training continues from {BEST} (epoch "
            f"{state.best_epoch + 1}) with half the learning rate"
        )
        return state.best_epoch

    def save(self, last: bool) -> None:
        """Write last.pt; while writing is slow, only so often that it takes a tenth of the time."""
        begin = time.monotonic()
        slow = self.save_seconds > _QUICK_SAVE
        if not last and slow and begin - self.saved < 9 * self.save_seconds:
            return
        save_last(self.state, self.folder)
        self.saved = time.monotonic()
        self.save_seconds = self.saved - begin

    def interrupt(self, number: int) -> NoReturn:
        """Save the state between two steps and stop."""
        save_last(self.state, self.folder)
        raise Interrupted(
            f"{self.folder.path}: stopped by {signal_name(number)} in epoch "
            f"{self.state.epoch + 1}; its state is saved, continue with --resume",
            number,
        )


def _memory_advice(config: TrainConfig, error: BaseException) -> str:
    settings = f"`batch_size` ({config.batch_size})"
    if config.data.patch_size is not None:
        settings += f" or `data.patch_size` ({list(config.data.patch_size)})"
    else:
        settings += " or set `data.loader` to stream"
    return f"out of memory ({str(error).splitlines()[0]}); lower {settings}"
