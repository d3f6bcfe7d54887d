"""`segcal train`: a thin command over `segcal.training`."""

from pathlib import Path
from typing import Annotated, Any

import typer


def train(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    data: Annotated[Path | None, typer.Option(help="Prepared data set.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="nacl, ce, ce_dice, focal, …, or package.module:Class.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with settings; other options override it.")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value, such as optimizer.lr=3e-4; may be repeated."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, if there is one.")
    ] = False,
    precision: Annotated[str | None, typer.Option(help="auto, 32, tf32 or bf16-mixed.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs, 100 by default.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the weights and the order.")] = None,
) -> None:
    """Train a network with the protocol of the NACL paper, or with your settings."""
    from segcal.config import make_config
    from segcal.losses import LOSSES
    from segcal.training import Interrupted, TrainingError, close_process_group
    from segcal.training import train as run

    given: dict[str, Any] = {
        "data.path": str(data) if data is not None else None, "loss.name": loss,
        "precision": precision, "epochs": epochs, "seed": seed,
    }  # fmt: skip
    flags = {key: value for key, value in given.items() if value is not None}
    if resume and config is None and (out / "config.yaml").is_file():
        config = out / "config.yaml"
    settings = make_config(config, flags=flags, overrides=override or ())
    if not settings.data.path:
        raise ValueError("--data is required: the folder of a prepared data set")
    if loss is not None:
        try:
            LOSSES.get(loss)
        except ValueError as error:
            raise ValueError(f"--loss {loss}: {error}") from error
    try:
        run(settings, out, resume=resume)
    except TrainingError as error:
        typer.echo(f"segcal: {error}", err=True)
        raise typer.Exit(128 + error.number if isinstance(error, Interrupted) else 1) from error
    close_process_group()
