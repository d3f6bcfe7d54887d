"""`segcal prepare`: one command per data source, generated from the registered sources."""

import inspect
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from segcal.core.progress import show_progress

if TYPE_CHECKING:
    from segcal.data import Source

_RECIPES = {
    "paper": "the sizes of the NACL paper",
    "padded": "slices padded to one size (a multiple of 32)",
    "native": "keep the original grid",
}
_FOLDER = Annotated[Path, typer.Option("--source", help="Folder of the downloaded data set.")]
# Commands that were used in this process; error messages name their options.
_used: dict[str, Any] = {}


class SourceCommands(TyperGroup):
    """The sources as commands. They are imported when `segcal prepare` is used, not before."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands.update(_used)

    def list_commands(self, ctx: Any) -> list[str]:
        from segcal.data import SOURCES

        return list(SOURCES.available())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from segcal.data import SOURCES

        _used[cmd_name] = make_command(cmd_name, SOURCES.get(cmd_name))
        return _used[cmd_name]


app = typer.Typer(
    cls=SourceCommands,
    no_args_is_help=True,
    subcommand_metavar="NAME [OPTIONS]",
    help="Turn a downloaded data set into verified cases with splits, stored for fast reading. "
    "NAME is one of the commands below, or package.module:Class of your own source.",
)


def make_command(command: str, source: "type[Source]") -> Any:
    """The command of a source: the options of `prepare`, and those of its constructor."""
    own = inspect.signature(source).parameters
    hints = get_type_hints(source.__init__, include_extras=True)
    options = dict(inspect.signature(prepare).parameters)
    del options["source"], options["own"]
    shared = set(options)
    texts = "; ".join(f"{name}: {_RECIPES[name]}" for name in source.recipes())
    recipe = Annotated[str, typer.Option(help=f"{texts}.", hidden=len(source.recipes()) == 1)]
    options["recipe"] = options["recipe"].replace(annotation=recipe, default=source.recipes()[0])
    for name, parameter in own.items():
        kind = _FOLDER if name == "folder" else _with_help(name, hints.get(name, str))
        options[name] = parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)

    def run(**given: Any) -> None:
        prepare(
            source, {name: given[name] for name in own}, **{name: given[name] for name in shared}
        )

    run.__doc__ = inspect.cleandoc(source.__doc__ or "")
    run.__annotations__ = {name: option.annotation for name, option in options.items()}
    ordered = sorted(options.values(), key=lambda option: option.name != "folder")
    run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    single = typer.Typer(add_completion=False)
    single.command(command)(run)
    return typer.main.get_command(single)


def _with_help(name: str, hint: Any) -> Any:
    """`Annotated[type, "help"]` as typer needs it. The source itself checks a Literal."""
    kind, text = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
    if get_origin(kind) is Literal:
        kind = str
    elif any(get_origin(part) is Literal for part in get_args(kind)):
        kind = str | None
    flag = [f"--{name.replace('_', '-')}"] if kind is bool else []
    return Annotated[kind, typer.Option(*flag, help=text)]


def prepare(
    source: "type[Source]",
    own: dict[str, Any],
    *,
    out: Annotated[Path, typer.Option(help="Folder to write; run again to continue.")],
    recipe: str,
    dtype: Annotated[str, typer.Option(help="How images are stored: float16, uint8.")] = "float16",
    workers: Annotated[int, typer.Option(help="Processes; 0: by cores and memory, at most 8.")] = 0,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Skip invalid cases and list them.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the splits.")] = 0,
    folds: Annotated[int, typer.Option(help="Folds for cross-validation.")] = 5,
    splits: Annotated[
        Path | None,
        typer.Option(help="Parts: splits.json, nnU-Net's splits_final.json, or CSV (case, part)."),
    ] = None,
    all_test: Annotated[
        bool, typer.Option("--all-test", help="Put every case into the test part.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:COLUMN]",
            help="CSV with the group (site, scanner, …) of each case or patient.",
        ),
    ] = None,
    leave_out_group: Annotated[
        str | None, typer.Option(help="The group that becomes the test part.")
    ] = None,
) -> None:
    """Prepare a source with its `own` options, and print the result."""
    from segcal import data

    with show_progress() as progress:
        report = data.prepare(
            source(**own), out,
            recipe=recipe, dtype=dtype, workers=workers,  # type: ignore[arg-type]
            keep_going=keep_going, seed=seed, folds=folds, splits=splits, all_test=all_test,
            group=group, leave_out_group=leave_out_group, progress=progress,
        )  # fmt: skip
    for line in report.lines():
        typer.echo(line)
    for problem in report.skipped:
        typer.echo(f"skipped: {problem}", err=True)
    prepared = quote(str(out))
    following = f"segcal train --data {prepared} --out {quote(f'runs/{out.name}')}"
    if not report.dataset.splits.train:
        following = f"segcal evaluate RUN --data {prepared}"
    typer.echo(f"Next: segcal data check {prepared}; {following}")
