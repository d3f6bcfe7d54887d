"""`segcal nnunet`: trainers for nnU-Net, and calibration of what it predicts."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from segcal.cli import _options as opt
from segcal.core.progress import show_progress

app = typer.Typer(
    help="nnU-Net: trainers with calibrated losses, and calibration of its softmax.",
    no_args_is_help=True,
)

Predicted = Annotated[
    list[Path] | None,
    typer.Option(help="Folder made with --save_probabilities; repeat for one per fold."),
]
Average = Annotated[
    str, typer.Option(help="Of several folders: probs (calibrated, then averaged) or logits.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


@app.command()
def trainers(
    names: Annotated[bool, typer.Option("--list", help="The trainers instead.")] = False,
) -> None:
    """Print the folder of segcal's trainers: export nnUNet_extTrainer=$(segcal nnunet trainers)"""
    from segcal.integrations.nnunet import TRAINERS, trainer_folder

    if names:
        for trainer, loss in TRAINERS.items():
            typer.echo(f"{trainer}  {loss} + Dice")
        return
    typer.echo(str(trainer_folder()))


@app.command()
def calibrate(
    results: Annotated[
        Path, typer.Argument(help="A trainer's folder below nnUNet_results, with its folds.")
    ],
    predictions: Predicted = None,
    out: Annotated[Path | None, typer.Option(help="Folder for calibrated predictions.")] = None,
    average: Average = "probs",
    method: Annotated[str, typer.Option(help="temperature, vector or dirichlet.")] = "temperature",
    labels: Annotated[
        Path | None, typer.Option(help="Label maps; by default those that nnU-Net keeps.")
    ] = None,
    fold: Annotated[
        list[int] | None, typer.Option(help="Folds to fit on; repeat for several. All by default.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Of the calibrator; RESULTS/segcal_METHOD.json by default.")
    ] = None,
    region: Annotated[
        str, typer.Option(help="Voxels to fit on: all, foreground, union or boundary.")
    ] = "all",
    folds: Annotated[int, typer.Option(help="Of the verdict's cross-validation; 0: none.")] = 5,
    patient: Annotated[
        str | None, typer.Option(help="Regular expression for the patient in a case's name.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of sample and folds.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Fit on the cross-validation softmax (--npz), say if it helps, and calibrate predictions."""
    from segcal.cli import calibrate as posthoc
    from segcal.core.checks import check_choice
    from segcal.evaluation.posthoc_fit import fit_pairs
    from segcal.integrations.nnunet import calibrate as room
    from segcal.predictions.writer import check_free

    check_choice("method", method, room.METHODS)
    check_choice("average", average, room.AVERAGES)
    if (out is None) != (not predictions):
        raise ValueError("Expected --predictions FOLDER and --out FOLDER together.")
    target = file or results / f"segcal_{method}.json"
    check_free([target], overwrite)
    pairs = room.held_out(results, labels, fold, partial(typer.echo, err=True))
    found = None
    if predictions and out is not None:
        found = room.find_predictions(predictions, pairs.num_classes)
        room.check_out(found, out, overwrite)
    with show_progress() as step:
        fitted = fit_pairs(
            pairs, method,
            from_probs=True, region=region, folds=folds, patient=patient, seed=seed, progress=step,
        )  # fmt: skip
    fitted.calibrator.save(target)
    posthoc._say_fit(fitted, target)
    if found is not None and out is not None:
        _apply(fitted.calibrator, found, out, average)


@app.command()
def apply(
    calibrator: Annotated[Path, typer.Argument(help="What `segcal nnunet calibrate` wrote.")],
    predictions: Annotated[
        list[Path],
        typer.Option(help="Folder made with --save_probabilities; repeat for one per fold."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for calibrated predictions.")],
    average: Average = "probs",
    overwrite: Overwrite = False,
) -> None:
    """Calibrate predictions with a calibrator fitted before."""
    from segcal.core.checks import check_choice
    from segcal.integrations.nnunet import calibrate as room
    from segcal.posthoc import load_calibrator

    check_choice("average", average, room.AVERAGES)
    loaded = load_calibrator(calibrator)
    found = room.find_predictions(predictions, loaded.check_fitted())
    room.check_out(found, out, overwrite)
    _apply(loaded, found, out, average)


def _apply(calibrator: Any, found: Any, out: Path, average: str) -> None:
    from segcal.integrations.nnunet.calibrate import calibrate_predictions

    bare = found.without_labels
    if bare:
        typer.echo(
            f"no label map is written for {len(bare)} cases ({bare[0]}, …): none in NIfTI lies "
            "beside their softmax",
            err=True,
        )
    with show_progress() as step:
        done = list(calibrate_predictions(calibrator, found, out, average=average, progress=step))
    voxels, changed = sum(one.voxels for one in done), sum(one.changed for one in done)
    how = f", {len(found.folders)} folders averaged by {average}" if len(found.folders) > 1 else ""
    typer.echo(f"{out}: {len(done)} cases{how}, {opt.changed_labels(changed, voxels)}")
