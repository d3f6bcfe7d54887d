"""`segcal train`: a thin command over `segcal.training`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segcal.cli import _options as opt
from segcal.core.errors import PathError
from segcal.core.progress import show_progress

if TYPE_CHECKING:
    from segcal.config import TrainConfig


def train(
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    data: Annotated[Path | None, typer.Option(help="Prepared data set.")] = None,
    nnunet_raw: Annotated[
        Path | None,
        typer.Option(help="Instead of --data: a raw nnU-Net folder, prepared beside --out."),
    ] = None,
    folds: Annotated[
        str | None,
        typer.Option(help="Folds to train: all, or 0,2; one run per fold, in --out/fold0, …"),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="ce, ce_proper_dice, nacl, … (segcal list losses), or package.module:Class."
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="strong (default) or paper; fills in what you do not set.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with settings; other options override it.")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value, such as optimizer.lr=3e-4; may be repeated."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, if there is one.")
    ] = False,
    precision: Annotated[str | None, typer.Option(help="auto, 32, tf32 or bf16-mixed.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cuda, mps or cpu.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs, 100 by default.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of weights, order and augmentation.")
    ] = None,
    posthoc: Annotated[
        str | None,
        typer.Option(help="Calibrator to fit after the training: auto, temperature, …"),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as YAML; do not train.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Folds to train at the same time.", min=1)] = 1,
    launcher: opt.Launcher = "local",
    address: opt.Address = None,
) -> None:
    """Train a network by a recipe that adapts to the data, or with your settings."""
    from segcal.config import to_yaml
    from segcal.losses import LOSSES
    from segcal.training import (
        Interrupted,
        TrainingError,
        close_process_group,
        complete_config,
        is_first_process,
    )
    from segcal.training import train as run

    if out is None and not print_config:
        raise ValueError("--out is required: the folder of the run")
    workers = opt.workers(jobs, launcher, address, "auto")
    if folds is None and (jobs > 1 or launcher == "ray"):
        raise ValueError(
            "--jobs and --launcher need --folds; one training on several GPUs: torchrun"
        )
    if nnunet_raw is not None:
        if data is not None:
            raise ValueError("give either --data or --nnunet-raw")
        data = _prepare_nnunet(nnunet_raw, out)
    if loss is not None:
        try:
            LOSSES.get(loss)
        except ValueError as error:
            raise ValueError(f"--loss {loss}: {error}") from error
    flags: dict[str, Any] = {
        "recipe": recipe, "data.path": str(data) if data is not None else None, "loss.name": loss,
        "precision": precision, "device": device, "epochs": epochs, "seed": seed,
        "posthoc": posthoc,
    }  # fmt: skip
    flags = {key: value for key, value in flags.items() if value is not None}
    resume = resume and out is not None
    runs = _Options(config, flags, override or (), resume).runs(out or Path(), folds)
    folder, settings = runs[0]
    if out is None or print_config:
        complete, _ = complete_config(
            settings, folder if resume else None, lambda line: typer.echo(f"# {line}")
        )
        typer.echo(to_yaml(complete), nl=False)
        return
    for other, _ in runs[1:]:
        if other.exists() and not resume:
            raise PathError(other, "exists already", "continue it with --resume")
    method = settings.posthoc
    for _, each in runs:
        if method is not None:
            _check_posthoc(method, each)
    try:
        if jobs > 1 or launcher == "ray":
            _train_together(out, runs, resume, workers)
        else:
            for folder, each in runs:
                run(each, folder, resume=resume)
    except TrainingError as error:
        opt.warn(str(error))
        raise typer.Exit(128 + error.number if isinstance(error, Interrupted) else 1) from error
    close_process_group()
    if method is not None and is_first_process():
        _calibrate(out, method, settings.device)


@dataclass(frozen=True)
class _Options:
    """The options that decide the settings of runs; `flags` and `overrides` as in `make_config`."""

    config: Path | None
    flags: Mapping[str, Any]
    overrides: Sequence[str]
    resume: bool

    def runs(self, out: Path, folds: str | None) -> list[tuple[Path, TrainConfig]]:
        """Folder and settings of the run, or of one run per fold."""
        if folds is None:
            return [(out, self.settings(out))]
        data = self.settings(out / "fold0", 0).data.path
        folders = {number: out / f"fold{number}" for number in _folds(folds, data)}
        return [(folder, self.settings(folder, number)) for number, folder in folders.items()]

    def settings(self, folder: Path, fold: int | None = None) -> TrainConfig:
        """The settings of a run: those in its folder if it is resumed, changed by the options.

        A fold that was not started has those of another fold, if there is no --data.
        """
        from segcal.config import make_config

        known = [folder / "config.yaml"] if self.resume else []
        if known and fold is not None and "data.path" not in self.flags:
            known += sorted(folder.parent.glob("fold*/config.yaml"))
        old = next((path for path in known if path.is_file() and self.config is None), None)
        flags = dict(self.flags) if fold is None else {**self.flags, "data.fold": fold}
        settings = make_config(old or self.config, flags=flags, overrides=self.overrides)
        if "recipe" not in settings.model_fields_set and old is None:
            settings = settings.model_copy(update={"recipe": "strong"})
        if not settings.data.path and self.resume and self.config is None:
            raise PathError(folder, "holds no run to resume", "check --out, or add --data")
        if not settings.data.path:
            raise ValueError("--data is required: the folder of a prepared data set")
        return settings


def _train_together(
    out: Path, runs: Sequence[tuple[Path, TrainConfig]], resume: bool, workers: int
) -> None:
    """Train folds at the same time; their lines go to files beside their folders."""
    from segcal.core.jobs import run_jobs

    out.mkdir(parents=True, exist_ok=True)
    tasks = {f.name: partial(_train_fold, settings, f, resume) for f, settings in runs}
    typer.echo(f"{len(tasks)} folds, {workers} at the same time; progress: {out}/fold*.log")
    with closing(run_jobs(tasks, workers)) as finished:
        for name, result in finished:
            if isinstance(result, PathError):
                raise result
            typer.echo(f"{out / name}: {result}")


def _train_fold(settings: TrainConfig, folder: Path, resume: bool) -> str:
    """Train in a process of its own; returns what was reached."""
    from segcal.training import train as run

    log = folder.with_name(f"{folder.name}.log")
    with log.open("a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        result = run(settings, folder, resume=resume)
    return f"{result.epochs} epochs, validation DSC of best.pt {result.best_dsc:.4f}"


def _check_posthoc(method: str, settings: TrainConfig) -> None:
    """Refuse a calibrator that cannot be fitted, before the training."""
    from segcal.data import open_dataset
    from segcal.evaluation import check_method

    check_method("--posthoc", method)
    part = open_dataset(settings.data.path).part("val", settings.data.fold)
    if method == "auto" and len({case.patient for case in part}) < 2:
        remedy = "name a method, such as --posthoc temperature"
        raise ValueError(f"--posthoc auto: compares methods over two validation patients; {remedy}")


def _calibrate(run: Path, method: str, device: str) -> None:
    """Fit the calibrator of a run or of its folds, unless one of the present weights exists."""
    from segcal.cli.calibrate import print_fit
    from segcal.evaluation import calibrator_path, fit_and_save, saved_calibrator

    path = calibrator_path(run, method)
    if saved_calibrator(run, method) is not None:
        typer.echo(f"{path}: is up to date; evaluate and predict use it (--raw switches it off)")
        return
    with show_progress() as progress:
        fitted = fit_and_save(run, method, device=device, progress=progress, say=opt.warn)
    print_fit(fitted, path)
    typer.echo("evaluate and predict use this calibrator; --raw switches it off")


def _folds(text: str, data: str) -> list[int]:
    """The folds that --folds names."""
    from segcal.data import open_dataset

    count = len(open_dataset(data).splits.folds)
    parts = text.split(",") if text != "all" else map(str, range(count))
    numbers = [int(part) if part.strip().isdecimal() else count for part in parts]
    if not numbers or max(numbers) >= count:
        expected = "expected all, or numbers from 0 separated by commas"
        raise ValueError(f"--folds {text}: {expected}; {data} has {count} folds")
    return list(dict.fromkeys(numbers))


def _prepare_nnunet(raw: Path, out: Path | None) -> Path:
    """Prepare a raw nnU-Net data set with default options beside the run; returns its folder."""
    from segcal.data import SOURCES, prepare

    if out is None:
        raise ValueError("--nnunet-raw needs --out: the data set is prepared beside it")
    prepared = out.resolve().parent / f"{raw.resolve().name}_prepared"
    try:
        with show_progress() as progress:
            source = SOURCES.get("folder")(raw)
            report = prepare(source, prepared, workers=0, progress=progress)
    except PathError as error:
        command = f"segcal prepare folder --source {quote(str(raw))} --out DATA"
        by_hand = f"use `{command}` and --data DATA"
        raise PathError(error.path, error.problem, f"{by_hand}: {error.remedy}") from error
    for line in report.lines():
        typer.echo(line)
    return prepared
