"""`segcal nnunet`: trainers for nnU-Net, and calibration of its predictions."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from segcal.cli import _options as opt
from segcal.cli.calibrate import print_fit
from segcal.core.progress import show_progress

if TYPE_CHECKING:
    from segcal.evaluation import Fitted

app = typer.Typer(
    help="nnU-Net: trainers with calibrated losses, and calibration of its softmax.",
    no_args_is_help=True,
)

_PREDICTIONS = typer.Option(
    help="Folder written with --save_probabilities; repeat for one folder per fold."
)
_OUT = typer.Option(help="Folder for the calibrated predictions.")
Average = Annotated[
    Literal["probs", "logits"],
    typer.Option(help="For several folders: calibrate, then average probs; or average logits."),
]


@app.command()
def trainers(
    names: Annotated[bool, typer.Option("--list", help="List the trainers instead.")] = False,
) -> None:
    """Print the folder of segcal's trainers: export nnUNet_extTrainer=$(segcal nnunet trainers)"""
    from segcal.integrations import nnunet

    if names:
        for trainer, loss in nnunet.TRAINERS.items():
            typer.echo(f"{trainer}  {loss}")
        return
    typer.echo(str(nnunet.trainer_folder()))


@app.command()
def calibrate(
    results: Annotated[
        Path, typer.Argument(help="A trainer's folder below nnUNet_results, with its folds.")
    ],
    predictions: Annotated[list[Path] | None, _PREDICTIONS] = None,
    out: Annotated[Path | None, _OUT] = None,
    average: Average = "probs",
    method: opt.Method = "temperature",
    labels: Annotated[
        Path | None, typer.Option(help="Label maps; by default those that nnU-Net keeps.")
    ] = None,
    fold: Annotated[
        list[int] | None, typer.Option(help="Fold to fit on; repeat for several. Default: all.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="File of the calibrator. Default: RESULTS/segcal_METHOD.json."),
    ] = None,
    region: opt.Region = "all",
    folds: opt.Folds = 5,
    patient: opt.Patient = None,
    seed: opt.Seed = 0,
    overwrite: opt.Overwrite = False,
) -> None:
    """Fit on the cross-validation softmax (--npz), report if it helps, calibrate predictions."""
    from segcal.integrations import nnunet
    from segcal.posthoc import short_name

    target = file or results / f"segcal_{short_name(method)}.json"

    def print_fitted(fitted: "Fitted") -> None:
        opt.warn_patients(fitted.calibrator.about["cases"], patient)
        print_fit(fitted, target)

    opt.warn_calibrated(predictions or ())
    with show_progress() as progress:
        done = nnunet.calibrate_results(
            results, target,
            method=method, labels=labels, use_folds=fold, region=region, folds=folds,
            patient=patient, seed=seed, predictions=predictions or (), out=out,
            average=average, overwrite=overwrite, warn=partial(typer.echo, err=True),
            on_fit=print_fitted, progress=progress,
        )  # fmt: skip
    if done is not None:
        typer.echo(f"{out}: {done}{_averaged(predictions or [], average)}")


@app.command()
def apply(
    calibrator: Annotated[
        Path, typer.Argument(help="A file that `segcal nnunet calibrate` wrote.")
    ],
    predictions: Annotated[list[Path], _PREDICTIONS],
    out: Annotated[Path, _OUT],
    average: Average = "probs",
    overwrite: opt.Overwrite = False,
) -> None:
    """Calibrate predictions with an existing calibrator."""
    from segcal.integrations import nnunet
    from segcal.posthoc import load_calibrator

    opt.warn_calibrated(predictions)
    with show_progress() as progress:
        done = nnunet.apply_to_predictions(
            load_calibrator(calibrator), predictions, out,
            average=average, overwrite=overwrite, warn=partial(typer.echo, err=True),
            progress=progress,
        )  # fmt: skip
    typer.echo(f"{out}: {done}{_averaged(predictions, average)}")


def _averaged(predictions: list[Path], average: str) -> str:
    if len(predictions) < 2:
        return ""
    return f" compared with the uncalibrated average of {len(predictions)} folders ({average})"
