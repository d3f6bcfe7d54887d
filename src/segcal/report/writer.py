"""Write a report: build the sections, then write the page, the tables and the figures."""

from collections.abc import Iterable, Sequence
from itertools import chain, count
from pathlib import Path

from markupsafe import Markup

from segcal.core.errors import PathError
from segcal.core.files import atomic_path
from segcal.report.blocks import DataFile, Figure, Section
from segcal.report.context import Context
from segcal.report.formats import FORMATS
from segcal.report.page import render
from segcal.report.plots.style import figure_style, inline_svg, save_figure
from segcal.report.sections import SECTIONS
from segcal.report.table_model import Table
from segcal.report.text import safe_name
from segcal.study import Study, read_study

INDEX = "index.html"
_OWN = {INDEX, "tables", "figures"}


def write(
    study: Path | Study,
    out: Path | None = None,
    region: str | None = None,
    reference: str | None = None,
    sections: Sequence[str] = (),
) -> Path:
    """Read the study, build all sections, and move the finished folder to its place."""
    folder = study.folder if isinstance(study, Study) else study
    target = out if out is not None else folder / "report"
    _check_target(target)
    _check_not_a_run(folder)
    build = [SECTIONS.get(name) for name in dict.fromkeys([*SECTIONS, *sections])]
    if not isinstance(study, Study):
        study = read_study(folder, region, reference)
    context = Context(study)
    with figure_style():
        built = [section for each in build if (section := each(context)) is not None]
        _check_names(built)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target) as draft:
            draft.mkdir()
            _save(context, built, draft)
    return target / INDEX


def _check_target(target: Path) -> None:
    """Only a new folder or an earlier report may be written to."""
    if not target.exists():
        return
    if not target.is_dir():
        raise PathError(target, "is a file", "choose another --out")
    others = sorted(p.name for p in target.iterdir() if p.name not in _OWN)
    if others:
        raise PathError(
            target, f"holds {others[0]}, which is not part of a report", "choose another --out"
        )


def _check_not_a_run(folder: Path) -> None:
    is_run = (folder / "config.yaml").is_file() and (folder / "run.json").is_file()
    if is_run and not (folder / "study.json").is_file():
        raise PathError(
            folder,
            "is a single run, not a study",
            f"`segcal evaluate {folder}` shows its numbers; for a page, write its predictions with "
            "`segcal predict` and report on them with `segcal audit`",
        )


def _check_names(sections: Iterable[Section]) -> None:
    names = [section.name for section in sections]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ValueError(f"two sections are named {repeated[0]!r}; give one another name")


def _save(context: Context, sections: Sequence[Section], folder: Path) -> None:
    blocks = [block for section in sections for block in section.walk()]
    (folder / "figures").mkdir()
    (folder / "tables").mkdir()
    drawn: dict[str, Markup] = {}
    for figure in (block for block in blocks if isinstance(block, Figure)):
        name = safe_name(figure.name)
        svg = save_figure(figure.figure, folder / "figures" / name)
        if figure.on_page:
            drawn[figure.name] = inline_svg(svg, name, figure.alt)
    _save_tables(
        context, [b for b in blocks if isinstance(b, Table) and b.saved], folder / "tables"
    )
    for data in (block for block in blocks if isinstance(block, DataFile)):
        data.frame.to_csv(folder / "tables" / f"{safe_name(data.name)}.csv", index=False)
    (folder / INDEX).write_text(render(context, sections, drawn), encoding="utf-8")


def _save_tables(context: Context, tables: Sequence[Table], folder: Path) -> None:
    """Write each table in all formats.

    The first table of a name keeps it; the same table of another region has the region behind the
    name, and a number if a dataset is named like that.
    """
    first: dict[str, Table] = {}
    for table in tables:
        first.setdefault(table.name, table)
    taken: set[str] = set()
    for table in sorted(tables, key=lambda table: first[table.name] is not table):
        name = safe_name(table.name)
        if first[table.name] is not table:
            name = f"{name}_{table.region}"
        numbered = (f"{name}-{i}" for i in count(2))
        name = next(each for each in chain([name], numbered) if each not in taken)
        taken.add(name)
        for ending, convert in FORMATS.items():
            (folder / f"{name}.{ending}").write_text(convert(table), encoding="utf-8")
