"""`segcal apply`."""

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli import _options as opt
from segcal.core.progress import show_progress


def apply(
    calibrator: Annotated[Path, typer.Argument(help="A file that `segcal calibrate` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the calibrated probabilities.")],
    logits: opt.Logits = None,
    probs: opt.Probs = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of images, for the voxel size of plain arrays.")
    ] = None,
    axes: opt.Axes = "auto",
    to: opt.To = None,
    jobs: opt.Jobs = 1,
    launcher: opt.Launcher = "local",
    address: opt.Address = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Calibrate a folder of predictions; without --to, files keep their format and names."""
    from segcal.evaluation import apply_folder
    from segcal.posthoc import load_calibrator

    folder, from_probs = opt.one_folder(logits, probs)
    opt.warn_calibrated([folder])
    with show_progress() as progress:
        done = apply_folder(
            load_calibrator(calibrator), folder, out,
            from_probs=from_probs, images=images, axes=axes, to=to,
            jobs=opt.workers(jobs, launcher, address), overwrite=overwrite, progress=progress,
        )  # fmt: skip
    typer.echo(f"{out}: {done}")
