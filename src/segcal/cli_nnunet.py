"""`segcal nnunet`: trainers for nnU-Net, and calibration of what it predicts."""

from typing import Annotated

import typer

nnunet_app = typer.Typer(
    help="nnU-Net: trainers with calibrated losses, and calibration of its softmax.",
    no_args_is_help=True,
)


@nnunet_app.command()
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
