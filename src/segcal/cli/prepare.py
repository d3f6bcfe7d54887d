"""`segcal prepare`: one command per data source."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from segcal.core.progress import show_progress

app = typer.Typer(
    no_args_is_help=True, help="Turn a downloaded set into verified, split, fast cases."
)

Source = Annotated[Path, typer.Option(help="Folder of the downloaded set.")]
Out = Annotated[Path, typer.Option(help="Folder to write; run again to continue.")]
Recipe = Annotated[str, typer.Option(help="paper (its sizes) or native (keep the grid).")]
Dtype = Annotated[str, typer.Option(help="How images are stored: float16 or uint8.")]
Workers = Annotated[int, typer.Option(help="Processes; 0: by cores and memory, at most 8.")]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Leave out bad cases, list them.")]
Seed = Annotated[int, typer.Option(help="Seed of the splits.")]
Folds = Annotated[int, typer.Option(help="Folds for cross-validation.")]
Modality = Annotated[str | None, typer.Option(help="mr or ct, where dataset.json does not say.")]
Window = Annotated[
    tuple[float, float] | None, typer.Option(help="CT window, lower and upper value.")
]
Classes = Annotated[str | None, typer.Option(help="Names of labels 1, 2, … separated by commas.")]


@app.command()
def acdc(
    source: Source,
    out: Out,
    recipe: Recipe = "paper",
    dtype: Dtype = "float16",
    workers: Workers = 0,
    keep_going: KeepGoing = False,
    seed: Seed = 0,
    folds: Folds = 5,
) -> None:
    """ACDC: cardiac cine MR, ED and ES frames."""
    _from_source("acdc", source, out, recipe, dtype, workers, keep_going, seed, folds)


@app.command()
def flare(
    source: Source,
    out: Out,
    recipe: Recipe = "paper",
    dtype: Dtype = "float16",
    workers: Workers = 0,
    keep_going: KeepGoing = False,
    seed: Seed = 0,
    folds: Folds = 5,
) -> None:
    """FLARE-21: abdominal CT."""
    _from_source("flare", source, out, recipe, dtype, workers, keep_going, seed, folds)


@app.command()
def brats(
    source: Source,
    out: Out,
    recipe: Recipe = "paper",
    dtype: Dtype = "float16",
    workers: Workers = 0,
    keep_going: KeepGoing = False,
    seed: Seed = 0,
    folds: Folds = 5,
) -> None:
    """BraTS-19: brain MR, four modalities."""
    _from_source("brats", source, out, recipe, dtype, workers, keep_going, seed, folds)


@app.command()
def msd(
    source: Source,
    out: Out,
    recipe: Recipe = "paper",
    dtype: Dtype = "float16",
    workers: Workers = 0,
    keep_going: KeepGoing = False,
    seed: Seed = 0,
    folds: Folds = 5,
    modality: Modality = None,
    window: Window = None,
    classes: Classes = None,
) -> None:
    """A task of the Medical Segmentation Decathlon."""
    told: dict[str, Any] = {"modality": modality, "window": window, "classes": classes}
    _from_source("msd", source, out, recipe, dtype, workers, keep_going, seed, folds, **told)


@app.command()
def folder(
    source: Source,
    out: Out,
    recipe: Recipe = "paper",
    dtype: Dtype = "float16",
    workers: Workers = 0,
    keep_going: KeepGoing = False,
    seed: Seed = 0,
    folds: Folds = 5,
    modality: Modality = None,
    window: Window = None,
    classes: Classes = None,
) -> None:
    """Images and labels paired by name, or nnU-Net's raw layout."""
    told: dict[str, Any] = {"modality": modality, "window": window, "classes": classes}
    _from_source("folder", source, out, recipe, dtype, workers, keep_going, seed, folds, **told)


@app.command()
def phantom(
    out: Out,
    dims: Annotated[int, typer.Option(help="2 (single slices) or 3 (volumes).")] = 3,
    cases: Annotated[int, typer.Option(help="How many patients.")] = 40,
    size: Annotated[int, typer.Option(help="Side of the slices in voxels.")] = 96,
    slices: Annotated[int | None, typer.Option(help="Slices of a volume; 16.")] = None,
    dtype: Dtype = "float16",
    workers: Workers = 0,
    seed: Annotated[int, typer.Option(help="Seed of the phantoms and the splits.")] = 0,
    folds: Folds = 5,
) -> None:
    """Generated abdomens whose true class probabilities are known."""
    from segcal.data import PhantomSpec, plan_phantom

    if dims == 2 and slices is not None:
        raise ValueError("Expected argument `slices` only with --dims 3, but got --dims 2.")
    spec = PhantomSpec(dims=dims, cases=cases, size=size, slices=slices or 16, seed=seed)
    _run(plan_phantom(spec, dtype=dtype), out, workers, False, seed, folds)


def _from_source(
    kind: str,
    source: Path,
    out: Path,
    recipe: str,
    dtype: str,
    workers: int,
    keep_going: bool,
    seed: int,
    folds: int,
    classes: str | None = None,
    **told: Any,
) -> None:
    from segcal.data import SourceOptions, plan_source

    names = None if classes is None else tuple(name.strip() for name in classes.split(","))
    options = SourceOptions(classes=names, **told)
    plan = plan_source(kind, source, recipe=recipe, dtype=dtype, options=options)
    _run(plan, out, workers, keep_going, seed, folds)


def _run(plan: Any, out: Path, workers: int, keep_going: bool, seed: int, folds: int) -> None:
    from segcal.data import prepare
    from segcal.data._free_memory import free_ram

    if workers == 0:
        # As many cases at once as cores and memory allow.
        room = int(0.8 * free_ram()) // plan.case_bytes if plan.case_bytes else 8
        workers = max(1, min(os.cpu_count() or 1, 8, room))
    with _interruptible(), show_progress() as step:
        report = prepare(
            plan,
            out,
            workers=workers,
            keep_going=keep_going,
            seed=seed,
            folds=folds,
            progress=step,
        )
    typer.echo(f"{out}: {len(report.dataset)} cases ({report.written} new, {report.kept} kept)")
    for group in report.dataset.splits.duplicates:
        typer.echo(f"identical scans: {' = '.join(group)} (kept in one split)")
    for problem in report.skipped:
        typer.echo(f"left out: {problem}", err=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and a polite kill end the run with one line; what is there stays and is kept."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("segcal: interrupted; run the same command again to continue", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
