"""`segcal evaluate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from segcal.cli import _options as opt
from segcal.core.progress import show_progress


def evaluate(
    run: Annotated[Path, typer.Argument(help="A folder that `segcal train` wrote.")],
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    data: Annotated[Path | None, typer.Option(help="The prepared set, if it has moved.")] = None,
    checkpoint: opt.Checkpoint = "best",
    region: Annotated[
        list[str] | None, typer.Option(help="foreground, all, union, boundary; all by default.")
    ] = None,
    units: Annotated[str, typer.Option(help="Of surface distances: mm or voxel.")] = "mm",
    empty: Annotated[str, typer.Option(help="Empty masks: nan, diagonal or paper.")] = "nan",
    bins: Annotated[int, typer.Option(help="Bins of the calibration errors.")] = 15,
    flips: opt.Flips = "",
    average: opt.Average = "probs",
    device: opt.Device = "auto",
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
    with show_progress() as step:
        found = evaluate_run(
            run, split=split, config=config, data=data, device=device, overwrite=overwrite,
            progress=step, say=lambda text: typer.echo(text, err=True),
        )  # fmt: skip
    if found.reused:
        typer.echo(f"{found.path('evaluation.json')}: done before with these settings; kept")
    show(found)


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
