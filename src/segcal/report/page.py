"""The page: one template that shows the blocks of all sections and escapes all text."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from segcal import __version__
from segcal.report.blocks import Section
from segcal.report.context import Context
from segcal.report.embedded_data import page_data, script_json
from segcal.report.text import count

TEMPLATES = Path(__file__).parent / "templates"


def render(context: Context, sections: Sequence[Section], figures: Mapping[str, Markup]) -> str:
    """The page as one text; `figures` has the SVG element of each figure by name."""
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    css, script = ((TEMPLATES / f"report.{e}").read_text(encoding="utf-8") for e in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return environment.get_template("report.html").render(
        context=context, sections=sections, figures=figures, facts=_facts(context),
        version=__version__, data=script_json(page_data(context)), css=Markup(css),
        js=Markup(script), script_hash=f"sha256-{digest}",
    )  # fmt: skip


def _facts(context: Context) -> str:
    """Methods, datasets, seeds and region in one line."""
    study, aggregates = context.study, context.aggregates
    sets = [f"{d.title} ({count(aggregates.case_count(d.name), 'case')})" for d in context.datasets]
    out = [count(len(study.methods), "method"), ", ".join(sets)]
    if aggregates.seeds > 1:
        out.append(f"{aggregates.seeds} seeds")
    out.append(f"split {study.info.split}")
    if study.regions:
        out.append(f"calibration in region {context.region} unless stated otherwise")
    return " · ".join(out)
