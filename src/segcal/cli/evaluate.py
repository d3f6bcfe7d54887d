"""`segcal evaluate` and `segcal predict`: thin commands over `segcal.evaluation`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

Run = Annotated[Path, typer.Argument(help="A folder that `segcal train` wrote.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")]
Checkpoint = Annotated[str, typer.Option(help="best (by validation DSC) or last.")]
Flips = Annotated[
    str, typer.Option(help="Average over mirror images along these axes, such as hw or dhw.")
]
Average = Annotated[str, typer.Option(help="Where to average: probs or logits.")]


def evaluate(
    run: Run,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    data: Annotated[Path | None, typer.Option(help="The prepared set, if it has moved.")] = None,
    checkpoint: Checkpoint = "best",
    region: Annotated[
        list[str] | None, typer.Option(help="foreground, all, union, boundary; all by default.")
    ] = None,
    units: Annotated[str, typer.Option(help="Of surface distances: mm or voxel.")] = "mm",
    empty: Annotated[str, typer.Option(help="Empty masks: nan, diagonal or paper.")] = "nan",
    bins: Annotated[int, typer.Option(help="Bins of the calibration errors.")] = 15,
    flips: Flips = "",
    average: Average = "probs",
    device: Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an evaluation that is there.")
    ] = False,
) -> None:
    """Evaluate a run on a split of its data: cases.csv, bins.npz, slices.npz, evaluation.json."""
    from segcal.config import EvaluationConfig, check_section
    from segcal.evaluation import evaluate_run

    asked: dict[str, Any] = {
        "checkpoint": checkpoint, "units": units, "empty": empty, "num_bins": bins,
        "flips": list(flips), "average": average, **({"regions": region} if region else {}),
    }  # fmt: skip
    config = check_section(EvaluationConfig, asked, "segcal evaluate")
    _check_split(split)
    with progress("evaluating") as step:
        found = evaluate_run(
            run, split=split, config=config, data=data, device=device, overwrite=overwrite,
            progress=step, say=lambda text: typer.echo(text, err=True),
        )  # fmt: skip
    if not step.called:
        typer.echo(f"{found.path('evaluation.json')}: done before with these settings; kept")
    show(found)


def predict(
    run: Annotated[list[Path], typer.Argument(help="A run, or several to average.")],
    source: Annotated[Path, typer.Option("--input", help="Folder of NIfTI images.")],
    out: Annotated[Path, typer.Option(help="Folder for the maps.")],
    output: Annotated[
        list[str] | None, typer.Option(help="labels, probs, confidence, entropy; all by default.")
    ] = None,
    checkpoint: Checkpoint = "best",
    flips: Flips = "",
    average: Average = "probs",
    device: Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Make all again, whatever is there.")
    ] = False,
) -> None:
    """Predict NIfTI images on their own grid: labels, probabilities, confidence, entropy."""
    from segcal.evaluation import OUTPUTS, predict_volumes

    with progress("predicting") as step:
        found = predict_volumes(
            run, source, out, outputs=output or OUTPUTS, checkpoint=checkpoint,
            flips=list(flips), average=average, device=device, overwrite=overwrite, progress=step,
            warn=lambda line: typer.echo(f"segcal: {line}", err=True),
        )  # fmt: skip
    before = f"; {len(found.kept)} scans done before, kept" if found.kept else ""
    typer.echo(f"{out}: {len(found.written)} files{before}")
    for problem in found.problems:
        typer.echo(f"left out: {problem}", err=True)
    if found.problems:
        raise typer.Exit(2)


def show(found: Any) -> None:
    """Means of the main metrics: per structure, and calibration per region."""
    from rich.console import Console
    from rich.table import Table

    from segcal.metrics import POOLED

    about, table = found.about, found.table()
    table = table[table["case"] != POOLED]
    console = Console()
    console = console if console.is_terminal else Console(width=200)

    def mean(metric: str, label: str, region: str) -> str:
        keys = (table["metric"] == metric) & (table["label"] == label)
        value = table[keys & (table["region"] == region)]["value"].mean()
        return "–" if value != value else f"{value:.4g}"

    what = f"{about['dataset']} {about['split']}, {about['cases']} cases, {about['method']}"
    distance = f"hd95_{about['options']['units']}"
    grid = Table(title=what, title_justify="left")
    for column in ("structure", "DSC", distance.replace("_", " ")):
        grid.add_column(column, justify="left" if column == "structure" else "right")
    for name in about["structures"]:
        grid.add_row(name, mean("dsc", name, "all"), mean(distance, name, "all"))
    console.print(grid)
    grid = Table("region", "ECE", "CECE", "signed gap", "Brier", "NLL")
    for region in about["regions"]:
        metrics = ("ece", "cece", "signed_gap", "brier", "nll")
        grid.add_row(region, *(mean(metric, "all", region) for metric in metrics))
    console.print(grid)
    missing = sum(about["undefined"].values())
    typer.echo(f"{found.path('cases.csv')}: mean over cases; {missing} undefined values left out")


def _check_split(split: str) -> None:
    from segcal.core.checks import check_choice

    check_choice("split", split, ("train", "val", "test"))


class Step:
    """Moves a bar; knows whether it was ever called."""

    def __init__(self, move: Callable[[int, int], None]) -> None:
        self.move, self.called = move, False

    def __call__(self, done: int, total: int) -> None:
        self.called = True
        self.move(done, total)


@contextmanager
def progress(word: str) -> Iterator[Step]:
    """A bar on stderr, gone when all is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        word,
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=None)
        yield Step(lambda done, total: bar.update(task, completed=done, total=total))
