"""`segcal predict`."""

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli import _options as opt
from segcal.core.progress import show_progress


def predict(
    run: opt.Runs,
    source: Annotated[Path, typer.Option("--input", help="Folder of images.")],
    out: Annotated[Path, typer.Option(help="Folder for the maps.")],
    output: Annotated[
        list[str] | None,
        typer.Option(
            help="labels, probs, confidence or entropy; repeat. Default: all four. Several runs: "
            "also variance or mutual_information, their disagreement."
        ),
    ] = None,
    to: opt.To = None,
    checkpoint: opt.Checkpoint = "best",
    flips: opt.Flips = "",
    average: opt.Average = "probs",
    calibrator: opt.Calibrator = None,
    raw: opt.Raw = False,
    device: opt.Device = "auto",
    jobs: opt.Jobs = 1,
    launcher: opt.Launcher = "local",
    address: opt.Address = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Predict images on their own grid: labels, probabilities, confidence, entropy."""
    from segcal.evaluation import OUTPUTS, predict_volumes

    with show_progress() as step:
        report = predict_volumes(
            run, source, out, outputs=output or OUTPUTS, to=to, checkpoint=checkpoint,
            flips=list(flips), average=average, calibrator=calibrator, raw=raw,
            device=device, jobs=opt.workers(jobs, launcher, address, device),
            overwrite=overwrite, progress=step, warn=opt.warn,
        )  # fmt: skip
    kept = f"; {len(report.kept)} scans were predicted before" if report.kept else ""
    state = f"calibrated by {report.calibrator}" if report.calibrator else "not calibrated"
    typer.echo(f"{out}: {len(report.written)} files written{kept}; {state}")
    for problem in report.problems:
        typer.echo(f"skipped: {problem}", err=True)
    if report.problems:
        raise typer.Exit(2)
