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
    images: opt.Images = None,
    axes: opt.Axes = "auto",
    overwrite: opt.Overwrite = False,
) -> None:
    """Calibrate a folder of predictions; files keep their form and their names."""
    from segcal.evaluation.posthoc_apply import apply_folder
    from segcal.posthoc import load_calibrator
    from segcal.predictions.softmax_files import find_softmax

    folder, from_probs = opt.one_folder(logits, probs)
    loaded = load_calibrator(calibrator)
    if images is not None and not getattr(loaded, "channels", 0):
        raise ValueError(f"Expected no --images: {calibrator} was fitted without images.")
    done, total = [], len(find_softmax(folder))
    with show_progress() as step:
        for one in apply_folder(
            loaded, folder, out,
            from_probs=from_probs, images=images, axes=axes, overwrite=overwrite,
        ):  # fmt: skip
            done.append(one)
            step("calibrating", len(done), total)
    voxels, changed = sum(one.voxels for one in done), sum(one.changed for one in done)
    typer.echo(f"{out}: {len(done)} cases, {opt.changed_labels(changed, voxels)}")
