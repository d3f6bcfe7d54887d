"""Write a report: build the sections, then write the page, the tables and the figures."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import numpy as np
from markupsafe import Markup
from PIL import Image

from segcal.core.errors import PathError
from segcal.core.files import atomic_path, remove_drafts
from segcal.report.blocks import DataFile, Figure, Section
from segcal.report.context import Context
from segcal.report.formats import FORMATS
from segcal.report.page import render
from segcal.report.pictures import data_uri
from segcal.report.plots.style import figure_style, inline_svg, save_figure
from segcal.report.sections import SECTIONS
from segcal.report.table_model import Table
from segcal.report.text import safe_name
from segcal.study import Study, read_study, write_frame

INDEX = "index.html"
_WIDTH = 1280  # most pixels of a picture on the page


def write_report(
    study: Path | str | Study,
    *,
    out: Path | str | None = None,
    region: str | None = None,
    reference: str | None = None,
    sections: Sequence[str] = (),
) -> Path:
    """Report a study: `index.html`, `tables/` and `figures/`; returns the path of index.html.

    The folder is written completely or not at all. An earlier report in it is replaced; any other
    existing folder is refused.

    Args:
        study: a folder that `segcal benchmark`, `segcal demo` or `segcal audit` wrote, or the
            `Study` that `read_study` returned for it, with its region and reference.
        out: folder of the report; by default `report` in the study.
        region: where calibration is measured; by default the study's region.
        reference: the method that is compared with all others; by default the one that the study
            names, else the one that ranks first.
        sections: further sections, as names or import paths `package.module:build`.
    """
    folder = study.folder if isinstance(study, Study) else Path(study)
    target = Path(out) if out is not None else folder / "report"
    _check_folders(folder, target)
    build = (SECTIONS.available() | {name: SECTIONS.get(name) for name in sections}).values()
    context = Context(study if isinstance(study, Study) else read_study(folder, region, reference))
    with figure_style():
        built = [section for each in build if (section := each(context)) is not None]
        for name, times in Counter(section.name for section in built).items():
            if times > 1:
                raise ValueError(f"two sections are named {name!r}; give one another name")
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_drafts(target.parent)
        with atomic_path(target) as draft:
            _save(context, built, draft)
    return target / INDEX


def _check_folders(study: Path, target: Path) -> None:
    """Only a study can be reported, and only a new folder or an earlier report written to."""
    if target.exists():
        if not target.is_dir():
            raise PathError(target, "is a file", "choose another --out")
        own = (INDEX, "tables", "figures")
        for name in sorted(p.name for p in target.iterdir() if p.name not in own):
            problem = f"holds {name}, which is not part of a report"
            raise PathError(target, problem, "choose another --out")
    is_run = (study / "config.yaml").is_file() and (study / "run.json").is_file()
    if is_run and not (study / "study.json").is_file():
        raise PathError(
            study, "is a single run, not a study",
            f"`segcal evaluate {quote(str(study))}` shows its numbers; for a page, write its "
            "predictions with `segcal predict` and report on them with `segcal audit`",
        )  # fmt: skip


def _save(context: Context, sections: Sequence[Section], folder: Path) -> None:
    tables, figures = folder / "tables", folder / "figures"
    tables.mkdir(parents=True)
    figures.mkdir()
    drawn: dict[str, Markup] = {}
    saved = []
    for block in (block for section in sections for block in section.walk()):
        if isinstance(block, Figure):
            name = safe_name(block.name)
            svg = save_figure(block.figure, figures / name)
            if block.pixels:
                picture = Image.open(figures / f"{name}.png")
                picture.thumbnail((_WIDTH, 10 * _WIDTH))
                source = data_uri(np.asarray(picture))
                drawn[block.name] = Markup('<img alt="{}" src="{}">').format(block.alt, source)
            else:
                drawn[block.name] = inline_svg(svg, name, block.alt)
        elif isinstance(block, DataFile):
            write_frame(tables / f"{safe_name(block.name)}.csv", block.frame)
        elif isinstance(block, Table) and block.saved:
            saved.append(block)
    _save_tables(saved, tables)
    (folder / INDEX).write_text(render(context, sections, drawn), encoding="utf-8")


def _save_tables(tables: Sequence[Table], folder: Path) -> None:
    """Write each table in all formats.

    The first table of a name keeps it; the same table of another region has the region behind the
    name, and "-2" if a dataset is named like that.
    """
    first: dict[str, Table] = {}
    for table in tables:
        first.setdefault(table.name, table)
    for table in sorted(tables, key=lambda table: first[table.name] is not table):
        name = safe_name(table.name)
        if first[table.name] is not table:
            name = f"{name}_{table.region}"
        while (folder / f"{name}.csv").exists():
            name += "-2"
        for ending, convert in FORMATS.items():
            (folder / f"{name}.{ending}").write_text(convert(table), encoding="utf-8")
