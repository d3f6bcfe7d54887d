"""The command line: one module per command; each parses arguments and calls one function."""

import os
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from pydantic_core import PydanticSerializationError

from segcal import __version__
from segcal.cli import (
    apply,
    assure,
    audit,
    benchmark,
    calibrate,
    data,
    demo,
    evaluate,
    list,
    nnunet,
    predict,
    prepare,
    rank,
    report,
    train,
)
from segcal.core.errors import PathError, show_warnings_in_one_line
from segcal.core.processes import die_with_parent
from segcal.core.signals import sigterm_as_interrupt


class _Commands(typer.core.TyperGroup):
    """A command that does not handle an interrupt ends with one line and exit code 130."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _interrupted() from None


def _interrupted() -> typer.Exit:
    typer.echo("segcal: interrupted; run the same command again", err=True)
    return typer.Exit(130)


app = typer.Typer(
    name="segcal",
    cls=_Commands,
    help="Train, audit and calibrate networks, so that their confidence can be trusted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(prepare.app, name="prepare")
app.add_typer(data.app, name="data")
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("calibrate")(calibrate.calibrate)
app.command("apply")(apply.apply)
app.command("audit")(audit.audit)
app.add_typer(assure.app, name="assure")
app.command("benchmark")(benchmark.benchmark)
app.command("rank")(rank.rank)
app.command("report")(report.report)
app.command("demo")(demo.demo)
app.command("list")(list.list_names)
app.add_typer(nnunet.app, name="nnunet")


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"segcal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def run() -> None:
    """Run the command line; invalid input becomes one line on stderr and exit code 2.

    SEGCAL_DEBUG=1 shows the traceback instead.
    """
    # Children must not import modules from the working folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # A worker of torchrun would wait half an hour for a launcher that was killed.
        die_with_parent(os.getppid())
    show_warnings_in_one_line()
    try:
        with sigterm_as_interrupt():
            app()
    except (ValueError, TypeError, OSError, ImportError) as error:
        if os.environ.get("SEGCAL_DEBUG"):
            raise
        # pydantic turns an interrupt that arrives while it writes JSON into its own error.
        if isinstance(error, PydanticSerializationError) and "KeyboardInterrupt" in str(error):
            sys.exit(_interrupted().exit_code)
        reason = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            reason = str(PathError(error.filename, error.strerror))
        typer.echo(f"segcal: {' '.join(_name_options(reason).split())}", err=True)
        sys.exit(2)


def _name_options(message: str) -> str:
    """Functions name their arguments; on the command line these are options or arguments.

    Where a message says "use `x=1` (on the command line: --y)", only the latter remains.
    """
    kinds = dict(sorted(_parameters(typer.main.get_command(app))))

    def option(found: re.Match[str]) -> str:
        name = found[1]
        if kinds.get(name) == "option":
            return f"--{name.replace('_', '-')}"
        return f"argument {name.upper()}" if name in kinds else found[0]

    message = re.sub(r"`[^`]+` \(on the command line: ([^)]+)\)", r"\1", message)
    return re.sub(r"argument `(\w+)`", option, message)


def _parameters(command: Any) -> Iterator[tuple[str, str]]:
    """Names of parameters, and "option" or "argument"."""
    yield from ((str(each.name), each.param_type_name) for each in command.params)
    for inner in getattr(command, "commands", {}).values():
        yield from _parameters(inner)
