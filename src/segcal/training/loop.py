"""The training loop, from a config to a run folder."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from segcal.config import TrainConfig
from segcal.core.checks import require
from segcal.core.errors import PathError
from segcal.core.signals import StopRequest
from segcal.data import PreparedDataset, open_dataset, training_space
from segcal.models import count_parameters
from segcal.study.run_folder import RunFolder
from segcal.training.checkpoint import BEST, LAST, read_last, write_checkpoint, write_last
from segcal.training.cuda_graph import CapturedStep
from segcal.training.device import describe, gather, make_fabric, numerics, resolve
from segcal.training.loss_meter import CHECK_EVERY, Interrupted, NonFiniteLossError, TrainingError
from segcal.training.progress import Reporter
from segcal.training.state import TrainingState, build_state, seed_step, uncompiled
from segcal.training.tensorboard import Board
from segcal.training.validate import summarize

# Validation DSC below this part of the best (of one worth the name) is told as a breakdown.
FALLEN, WORTH = 0.5, 0.2


@dataclass(frozen=True)
class TrainResult:
    """Where the run is, how many epochs it has, and its best validation DSC."""

    folder: Path
    epochs: int
    best_dsc: float
    best_epoch: int


def train(config: TrainConfig, out: Path | str, *, resume: bool = False) -> TrainResult:
    """Train as `config` says, into the folder `out`.

    With `resume` a run goes on where it was stopped; on one device, in fp32, it ends with the very
    weights it would have had. A folder without a run is then simply begun.

    Raises:
        ValueError: a config, data set or folder that cannot be used; nothing is written.
        TrainingError: a run that cannot go on (NaN, memory); last.pt holds its last good state.
        Interrupted: SIGTERM or SIGINT came; last.pt holds the state at that step.
    """
    config = resolve(config)
    if config.tensorboard:
        require("tensorboard")
    with numerics(config), StopRequest() as signals:
        fabric = make_fabric(config)
        dataset = open_dataset(config.data.path)
        dataset.check_parts(config.data.fold)
        folder = RunFolder(Path(out), resume=resume)
        if fabric.is_global_zero:
            folder.check(config, dataset.fingerprint, _case_names(dataset, config))
        reporter = Reporter(config.epochs, silent=not fabric.is_global_zero)
        try:
            with folder, reporter:
                job = build_state(config, fabric, dataset)
                run = Run(job, folder, signals, reporter)
                run.open()
                result = run.loop()
                best = f"{result.best_dsc:.4f} (epoch {result.best_epoch + 1})"
                reporter.say(f"{out}: {result.epochs} epochs, best validation DSC {best}")
                if result.best_dsc == 0:
                    reporter.say(f"{out}: no validation found any structure; train it longer")
                return result
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, TrainingError) or not _out_of_memory(error):
                raise
            raise TrainingError(_memory_advice(config, error)) from error


@dataclass
class Run:
    """A job, the folder it is kept in, and who may interrupt it."""

    job: TrainingState
    folder: RunFolder
    signals: StopRequest
    reporter: Reporter
    captured: CapturedStep | None = None
    fallen: bool = False

    def loop(self) -> TrainResult:
        """Epoch after epoch: train, validate, log, save."""
        job, config = self.job, self.job.config
        self.reporter.start_run(job.epoch)
        if job.epoch < config.epochs:
            cases = len(job.dataset.part("train", config.data.fold))
            self.reporter.say(
                f"{self.folder.path}: training cases: {cases}, steps an epoch: {len(job.loader)}, "
                f"device: {describe(job.fabric)['device']}"
            )
        if job.captured:
            self.captured = CapturedStep(job, self.reporter.say)
        with Board(self.folder.path, config.tensorboard and self.first, job.epoch) as board:
            while job.epoch < config.epochs:
                job.start_epoch()
                if not job.trained:
                    self.train_epoch()
                row = self.log_row()
                last = job.epoch + 1 == config.epochs
                if last or (job.epoch + 1) % config.validate_every == 0:
                    row["val"] = self.validate()
                row["seconds"] = round(job.time_spent(), 3)
                job.next_epoch()
                if self.first:
                    # The log first: a line too many is cut off on resume, one too few is lost.
                    self.folder.log(row)
                    write_last(self.folder.path, self.state())
                board.add(row)
                self.reporter.end_epoch(row)
        return TrainResult(self.folder.path, job.epoch, job.best_dsc, job.best_epoch)

    def train_epoch(self) -> None:
        """The steps of an epoch, from wherever the loader stands."""
        job, config, fabric = self.job, self.job.config, self.job.fabric
        steps, alone = len(job.loader), fabric.world_size == 1
        # On a CPU there is nothing to wait for, and a step may take seconds.
        often = 1 if alone and fabric.device.type == "cpu" else CHECK_EVERY
        do_step = self.captured or job.step
        for step, batch in enumerate(job.loader, start=job.loader.step):
            seed_step(config.seed, job.epoch, step, fabric.global_rank)
            image, target = job.place(batch, step)
            terms = do_step(image, target)
            job.meter.add(terms, batch.case)
            ended = step + 1 == steps
            asked = alone and self.signals.received is not None
            if ended or asked or (step + 1) % often == 0:
                job.trained = ended
                self.look(step)

    def look(self, step: int) -> None:
        """Now and then: fetch the losses, stop on NaN, stop on a signal, show progress."""
        job = self.job
        bad = job.meter.look()
        # Processes agree here, so that none waits for another that has left.
        found = gather(job.fabric, (bad, self.signals.received))
        for cases, _ in found:
            if cases is not None:
                names = ", ".join(dict.fromkeys(cases))
                raise NonFiniteLossError(
                    f"{self.folder.path}: the loss became NaN or infinite in epoch "
                    f"{job.epoch + 1}, in a batch of {names}; the state before is in {LAST}. "
                    "Lower `optimizer.lr`, set `clip`, or look at these cases."
                )
        for _, number in found:
            if number is not None:
                self.interrupt(number)
        seen = job.meter.items * job.fabric.world_size
        rate = seen / max(job.time_spent(), 1e-9)
        self.reporter.step(job.epoch, step + 1, len(job.loader), job.meter.means(), rate)

    def validate(self) -> dict[str, Any]:
        """Scores of the validation volumes; a new best is saved."""
        job, fabric = self.job, self.job.fabric
        alone = fabric.world_size == 1

        def stop() -> bool:
            return alone and self.signals.received is not None

        with fabric.autocast(), uncompiled() if job.compiled else nullcontext():
            mine = job.validator.score(job.ema or job.network, stop)
        if mine is None:
            assert self.signals.received is not None
            self.interrupt(self.signals.received)
        scores = [score for share in gather(fabric, mine) for score in share]
        metrics = summarize(sorted(scores, key=lambda score: score.name))
        if metrics["dsc"] > job.best_dsc:
            job.best_dsc, job.best_epoch = metrics["dsc"], job.epoch
            if self.first:
                write_checkpoint(self.folder.path / BEST, self.best_state(metrics))
        self.warn(metrics["dsc"])
        return metrics

    def warn(self, dsc: float) -> None:
        """Say it once when a training loses again what it had learnt."""
        best, before = self.job.best_dsc, self.fallen
        self.fallen = best >= WORTH and dsc < FALLEN * best
        if self.fallen and not before:
            self.reporter.say(
                f"epoch {self.job.epoch + 1}: validation DSC fell to {dsc:.4f} from {best:.4f} "
                f"(epoch {self.job.best_epoch + 1}, kept in {BEST}): the training may have broken "
                "down. Lower `optimizer.lr` or set `clip`."
            )

    def log_row(self) -> dict[str, Any]:
        """What the log says of the epoch's training; losses are means over all processes."""
        job = self.job
        everyone = gather(job.fabric, job.meter.state_dict())
        job.meter.items = sum(one["items"] for one in everyone)
        for name in job.meter.sums:
            job.meter.sums[name] = sum(one["sums"][name] for one in everyone)
        row: dict[str, Any] = {"epoch": job.epoch, "lr": job.config.optimizer.lr_at(job.epoch)}
        if job.schedule is not None:
            row["penalty_weight"] = job.schedule(job.epoch)
        return {**row, "losses": job.meter.means()}

    def interrupt(self, number: int) -> None:
        """Save where the run stands, between two steps, and leave."""
        if self.first:
            write_last(self.folder.path, self.state())
        raise Interrupted(
            f"{self.folder.path}: stopped by signal {number} in epoch {self.job.epoch + 1}; "
            f"its state is saved, continue with --resume",
            number,
        )

    def open(self) -> None:
        """Take the folder, describe the run in it, and go to where it stands."""
        job = self.job
        content: dict[str, Any] | None = None
        failure: ValueError | None = None
        if self.first:
            try:
                content = self._take_folder()
            except ValueError as error:
                failure = error
        # Every process learns of a refusal, and what the first one found.
        failure, content = gather(job.fabric, (failure, content))[0]
        if failure is not None:
            raise failure
        if content is not None:
            try:
                job.load_state_dict(content)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                raise PathError(self.folder.path, f"its state does not fit ({reason})") from error
        if self.first:
            self.folder.trim_log(job.epoch)
            if content is None:
                write_last(self.folder.path, self.state())

    def _take_folder(self) -> dict[str, Any] | None:
        """The state to go on from, if there is one."""
        job, say = self.job, self.reporter.say
        self.folder.hold()
        # Once more, now that nobody else can write: two may have looked at the same moment.
        cases = _case_names(job.dataset, job.config)
        self.folder.check(job.config, job.dataset.fingerprint, cases)
        trained = job.dataset.part("train", job.config.data.fold)
        about = {
            "dataset": job.dataset.info.name,
            "data_fingerprint": job.dataset.fingerprint,
            # What evaluation and prediction need to know of the data, which may be elsewhere then.
            "data": job.dataset.info.model_dump(mode="json", exclude={"cases", "skipped"}),
            "space": training_space(case.grid for case in trained).model_dump(mode="json"),
            "cases": cases,
            "parameters": count_parameters(job.network),
            "compiled": job.compiled,
            **describe(job.fabric),
        }
        self.folder.describe(job.config, about)
        found = read_last(self.folder.path, self.folder.run_id, warn=say)
        if found is None:
            return None
        path, content = found
        say(f"continuing {path} after {content['epoch']} epochs")
        return content

    @property
    def first(self) -> bool:
        return bool(self.job.fabric.is_global_zero)

    def state(self) -> dict[str, Any]:
        return {"run_id": self.folder.run_id, **self.job.state_dict()}

    def best_state(self, metrics: dict[str, Any]) -> dict[str, Any]:
        job = self.job
        return {
            "run_id": self.folder.run_id,
            "epoch": job.epoch,
            "network": job.spec.as_dict(),
            "model": job.weights(),
            "metrics": metrics,
            "classes": dict(job.dataset.classes),
            "data_fingerprint": job.dataset.fingerprint,
        }


def _case_names(dataset: PreparedDataset, config: TrainConfig) -> dict[str, list[str]]:
    parts = ("train", "val")
    return {part: [case.name for case in dataset.part(part, config.data.fold)] for part in parts}


def _out_of_memory(error: BaseException) -> bool:
    cpu = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or cpu


def _memory_advice(config: TrainConfig, error: BaseException) -> str:
    settings = f"`batch_size` ({config.batch_size})"
    if config.data.patch_size is not None:
        settings += f" or `data.patch_size` ({list(config.data.patch_size)})"
    else:
        settings += " or set `data.loader` to stream"
    return f"out of memory ({str(error).splitlines()[0]}); lower {settings}"
