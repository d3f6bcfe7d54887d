"""`segcal prepare`: one command per data source, generated from the registered sources."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from segcal.core.progress import show_progress
from segcal.core.signals import sigterm_as_interrupt

if TYPE_CHECKING:
    from segcal.data import Source

_RECIPES = {
    "paper": "the sizes of the NACL paper",
    "padded": "original voxels, slices padded to one size (a multiple of 32)",
    "native": "keep the original grid",
}
_FOLDER = Annotated[Path, typer.Option("--source", help="Folder of the downloaded data set.")]
# Options of every source: name, type and help, default.
_COMMON: dict[str, tuple[Any, Any]] = {
    "out": (
        Annotated[Path, typer.Option(help="Folder to write; run again to continue.")],
        inspect.Parameter.empty,
    ),
    "dtype": (
        Annotated[str, typer.Option(help="How images are stored: float16 or uint8.")],
        "float16",
    ),
    "workers": (
        Annotated[int, typer.Option(help="Processes; 0: by cores and memory, at most 8.")],
        0,
    ),
    "keep_going": (
        Annotated[bool, typer.Option("--keep-going", help="Skip invalid cases and list them.")],
        False,
    ),
    "seed": (Annotated[int, typer.Option(help="Seed of the splits.")], 0),
    "folds": (Annotated[int, typer.Option(help="Folds for cross-validation.")], 5),
}


class SourceCommands(TyperGroup):
    """The sources as commands. They are imported when `segcal prepare` is used, not before."""

    def list_commands(self, ctx: Any) -> list[str]:
        from segcal.data import SOURCES

        names = []
        for name in SOURCES:
            try:
                SOURCES.get(name)
                names.append(name)
            except Exception as error:  # a broken plugin must not hide the other sources
                typer.echo(f"segcal: source {name!r} cannot be loaded ({error})", err=True)
        return names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from segcal.data import SOURCES

        return make_command(cmd_name, SOURCES.get(cmd_name))


app = typer.Typer(
    cls=SourceCommands,
    no_args_is_help=True,
    help="Turn a downloaded data set into verified cases with splits, stored for fast reading. "
    "NAME is one of the commands below, or package.module:Class of your own source.",
)


@app.callback()
def _group() -> None:
    """Makes typer build a group, although the commands are added later."""


def make_command(command: str, source: "type[Source]") -> Any:
    """The command of a source: the options that all share, and those of its constructor."""
    own = inspect.signature(source).parameters
    hints = get_type_hints(source.__init__, include_extras=True)
    options = dict(_COMMON)
    if len(source.recipes()) > 1:
        texts = "; ".join(f"{name}: {_RECIPES[name]}" for name in source.recipes())
        options["recipe"] = Annotated[str, typer.Option(help=f"{texts}.")], source.recipes()[0]
    for name, parameter in own.items():
        kind = _FOLDER if name == "folder" else _with_help(hints[name])
        options[name] = kind, parameter.default

    def run(**given: Any) -> None:
        shared = {name: given[name] for name in given if name in _COMMON or name == "recipe"}
        _prepare(source, {name: given[name] for name in own}, **shared)

    run.__doc__ = source.summary
    run.__annotations__ = {name: kind for name, (kind, _) in options.items()}
    ordered = sorted(options.items(), key=lambda item: item[0] != "folder")
    run.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in ordered
    ])  # fmt: skip
    single = typer.Typer(add_completion=False)
    single.command(command)(run)
    return typer.main.get_command(single)


def _with_help(hint: Any) -> Any:
    """`Annotated[type, "help"]` as typer needs it. The source itself checks a Literal."""
    kind, text = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
    if get_origin(kind) is Literal:
        kind = str
    elif any(get_origin(part) is Literal for part in get_args(kind)):
        kind = str | None
    return Annotated[kind, typer.Option(help=text)]


def _prepare(source: "type[Source]", own: dict[str, Any], *, out: Path, **options: Any) -> None:
    from segcal.data import prepare

    try:
        with sigterm_as_interrupt(), show_progress() as progress:
            report = prepare(source(**own), out, progress=progress, **options)
    except KeyboardInterrupt:
        typer.echo("segcal: interrupted; run the same command again to continue", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"{out}: {report.summary(source.knows_patients)}")
    if report.kept:
        typer.echo(f"{report.kept} unchanged cases were kept, {report.written} written")
    for group in report.dataset.splits.duplicates:
        typer.echo(f"identical scans: {' = '.join(group)} (kept in one split)")
    for problem in report.skipped:
        typer.echo(f"skipped: {problem}", err=True)
    typer.echo(f"Next: segcal data check {out}; segcal train --data {out} --out runs/{out.name}")
