"""`segcal predict`."""

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli import _options as opt
from segcal.core.progress import show_progress


def predict(
    run: Annotated[list[Path], typer.Argument(help="A run, or several to average.")],
    source: Annotated[Path, typer.Option("--input", help="Folder of NIfTI images.")],
    out: Annotated[Path, typer.Option(help="Folder for the maps.")],
    output: Annotated[
        list[str] | None, typer.Option(help="labels, probs, confidence, entropy; all by default.")
    ] = None,
    checkpoint: opt.Checkpoint = "best",
    flips: opt.Flips = "",
    average: opt.Average = "probs",
    device: opt.Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Make all again, whatever is there.")
    ] = False,
) -> None:
    """Predict NIfTI images on their own grid: labels, probabilities, confidence, entropy."""
    from segcal.evaluation import OUTPUTS, predict_volumes

    with show_progress() as step:
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
