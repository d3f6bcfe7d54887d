"""`segcal train`: a thin command over `segcal.training`."""

from pathlib import Path
from typing import Annotated, Any

import typer


def train(
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    data: Annotated[Path | None, typer.Option(help="Prepared data set.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="nacl, ce, ce_dice, focal, …, or package.module:Class.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="strong (default) or paper; fills in what you do not set."),
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
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as YAML; do not train.")
    ] = False,
) -> None:
    """Train a network by a recipe that adapts to the data, or with your settings."""
    from segcal.config import make_config, to_yaml
    from segcal.losses import LOSSES
    from segcal.training import Interrupted, TrainingError, close_process_group, complete_config
    from segcal.training import train as run

    if out is None and not print_config:
        raise ValueError("--out is required: the folder of the run")
    given: dict[str, Any] = {
        "recipe": recipe, "data.path": str(data) if data is not None else None, "loss.name": loss,
        "precision": precision, "epochs": epochs, "seed": seed,
    }  # fmt: skip
    flags = {key: value for key, value in given.items() if value is not None}
    resumed = out / "config.yaml" if resume and out is not None else None
    if resumed is not None and config is None and resumed.is_file():
        config = resumed
    settings = make_config(config, flags=flags, overrides=override or ())
    if "recipe" not in settings.model_fields_set and (config is None or config != resumed):
        settings = settings.model_copy(update={"recipe": "strong"})
    if not settings.data.path:
        raise ValueError("--data is required: the folder of a prepared data set")
    if loss is not None:
        try:
            LOSSES.get(loss)
        except ValueError as error:
            raise ValueError(f"--loss {loss}: {error}") from error
    if out is None or print_config:
        complete, _ = complete_config(
            settings, out if resume else None, lambda line: typer.echo(f"# {line}")
        )
        typer.echo(to_yaml(complete), nl=False)
        return
    try:
        run(settings, out, resume=resume)
    except TrainingError as error:
        typer.echo(f"segcal: {error}", err=True)
        raise typer.Exit(128 + error.number if isinstance(error, Interrupted) else 1) from error
    close_process_group()
