"""Make the report: compute, draw, and put the folder in its place in one go."""

import re
from collections.abc import Callable, Set
from functools import partial
from itertools import chain, count
from pathlib import Path

from markupsafe import Markup

from segcal.core.files import atomic_path
from segcal.report.confidence import FOREGROUND, confidence_words
from segcal.report.courses import draw_courses
from segcal.report.diagrams import draw_reliability
from segcal.report.figures import (
    Drawing,
    draw_logits,
    draw_rank_maps,
    draw_scatter,
    draw_significance,
)
from segcal.report.forest import draw_forest
from segcal.report.formats import FORMATS
from segcal.report.live import page_data
from segcal.report.numbers import Numbers
from segcal.report.page import Parts, render
from segcal.report.panel import draw_panel
from segcal.report.pictures import case_pictures
from segcal.report.rank_tables import rank_table, test_table
from segcal.report.ranks import Ranks, rank_methods
from segcal.report.reference import why_this
from segcal.report.reliability import read_bins
from segcal.report.seeds import Counted, count_seeds, patients_note, seeds_note, seeds_table
from segcal.report.style import figure_style, inline, save_figure
from segcal.report.table import Table
from segcal.report.tables import (
    class_table,
    confidence_table,
    group_table,
    main_table,
    truth_table,
)
from segcal.report.words import findings, ranking_note
from segcal.study import Study, read_study

INDEX = "index.html"
# Group of methods -> heading of its section, and what is said there.
_GROUPS = {
    "ablation": ("Ablation", "Each row changes one choice of NACL; the first row changes none."),
    "prior": ("Priors", "NACL with other priors of the neighbourhood; the first row is its own."),
    "posthoc": (
        "Calibration after training",
        "Calibrators fitted to validation cases, below the network that they repair. The same "
        "cases had chosen its checkpoint.",
    ),
}
_OWN = {INDEX, "tables", "figures"}


def write(study: Path | Study, out: Path | None, region: str | None, reference: str | None) -> Path:
    """Read the study, compute and draw everything, then move the finished folder into place."""
    folder = study.folder if isinstance(study, Study) else study
    target = out if out is not None else folder / "report"
    _check_target(target)
    if not isinstance(study, Study):
        study = read_study(folder, region, reference)
    report = _Report(Numbers(study))
    with figure_style():
        report.compute()
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target) as draft:
            draft.mkdir()
            report.save(draft)
    return target / INDEX


def _check_target(target: Path) -> None:
    if not target.exists():
        return
    strange = None if target.is_dir() else target.name
    if strange is None:
        others = sorted(p.name for p in target.iterdir() if p.name not in _OWN)
        strange = others[0] if others else None
    if strange is not None:
        raise ValueError(
            f"Expected argument `out` to be a new folder or one with an earlier report, but got "
            f"{target}, which holds {strange}."
        )


class _Report:
    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.study = numbers.study
        self.parts = Parts()
        self.tables: list[Table] = []
        self.elsewhere: list[Table] = []
        self.drawings: list[Drawing] = []
        self.ranks: Ranks | None = None
        self.counted: dict[str, Counted] = {}
        self.bins = read_bins(self.study)
        self.truth_bins = read_bins(self.study, "truth_")

    def compute(self) -> None:
        if self.study.table.empty:
            self.parts.headline = findings(self.numbers, None, self.study.region)
            return
        self._tables()
        self._rank()
        self._diagrams()
        self._pictures()
        region = self.study.region
        self.parts.headline = findings(self.numbers, self.ranks, region, self.counted.get(region))
        self.parts.confidence_words = confidence_words(self.numbers, region)
        self.parts.caveat = FOREGROUND

    def _add(self, table: Table | None) -> Table | None:
        if table is not None:
            self.tables.append(table)
        return table

    def _draw(self, drawing: Drawing | None) -> Drawing | None:
        if drawing is not None:
            self.drawings.append(drawing)
        return drawing

    @property
    def _regions(self) -> list[str]:
        """The study's, its own first."""
        return list(dict.fromkeys([self.study.region, *self.study.regions]))

    def _in_regions(self, make: Callable[[str], Table | None]) -> list[Table]:
        """A table for each region."""
        made = [table for table in map(make, self._regions) if table is not None]
        self.tables += made
        self.elsewhere += [table for table in made if table.region != self.study.region]
        return made

    def _tables(self) -> None:
        parts, numbers = self.parts, self.numbers
        if self._wanted("main"):
            parts.main = self._in_regions(partial(main_table, numbers))
        for group, (title, text) in _GROUPS.items():
            if not self._wanted("priors" if group == "prior" else group):
                continue
            made = self._in_regions(partial(group_table, numbers, group=group))
            if made:
                parts.groups.append((made[0].name, title, text, made))
        for dataset in self.study.datasets.values() if self._wanted("classes") else ():
            made = self._in_regions(partial(class_table, numbers, dataset))
            if made:
                parts.classes.append((dataset, made))
        parts.confidence = self._add(confidence_table(numbers))

    def _wanted(self, table: str) -> bool:
        """Whether the study asks for a table; calibration after training cannot be left out."""
        asked = self.study.info.tables
        return asked is None or table == "posthoc" or table in asked

    def _rank(self) -> None:
        ranks = self.ranks = rank_methods(self.numbers, self.study.region)
        if ranks is None:
            return
        parts = self.parts
        parts.rank_drawing = self._draw(draw_rank_maps(self.numbers, ranks))
        parts.significance = self._draw(draw_significance(self.numbers, ranks))
        parts.rank_table = self._add(rank_table(self.numbers, ranks))
        parts.tests = test_table(self.numbers, ranks)
        parts.test_count = ranks.family
        parts.tests_of = self.study.methods[ranks.reference].title
        parts.tests_note = why_this(self.study, ranks.reference)
        parts.rank_note = ranking_note(ranks, self.numbers)
        self._seeds(ranks)

    def _seeds(self, ranks: Ranks) -> None:
        """What remains of the reference's differences once seeds count."""
        own, *others = self._regions
        counted = count_seeds(self.numbers, ranks, own)
        elsewhere = {r: count_seeds(self.numbers, ranks, r) for r in others} if counted else {}
        self.counted = {own: counted, **elsewhere}
        self.parts.seeds_note = seeds_note(self.numbers, counted)
        self.parts.patients_note = patients_note(self.numbers, counted)
        for dataset in counted.datasets:
            tables = self._in_regions(partial(self._seeds_table, dataset))
            drawing = draw_forest(self.numbers, counted, dataset)
            self.drawings.append(drawing)
            self.parts.seeds.append((tables, drawing, self.study.datasets[dataset]))

    def _seeds_table(self, dataset: str, region: str) -> Table | None:
        counted = self.counted[region]
        if dataset not in counted.datasets:
            return None
        return seeds_table(self.numbers, counted, dataset)

    def _diagrams(self) -> None:
        region, parts = self.study.region, self.parts
        for dataset in self.study.datasets.values():
            name = dataset.name
            drawing = self._draw(
                draw_reliability(
                    self.numbers, dataset, self.bins, region, name=f"reliability_{name}"
                )
            )
            if drawing:
                parts.reliability.append((drawing, name))
            drawing = self._draw(draw_scatter(self.numbers, dataset, region))
            if drawing:
                parts.scatter.append((drawing, name))
            drawing = self._draw(draw_logits(self.numbers, dataset))
            if drawing:
                parts.logits.append((drawing, name))
            drawing = self._draw(draw_courses(self.numbers, dataset))
            if drawing:
                parts.courses.append((drawing, dataset))
            table = self._add(truth_table(self.numbers, dataset))
            drawing = self._draw(
                draw_reliability(
                    self.numbers, dataset, self.truth_bins, "all", name=f"truth_{name}",
                    outcome="true probability",
                )
            )  # fmt: skip
            if table or drawing:
                parts.truth.append((table, drawing, name))

    def _pictures(self) -> None:
        region = self.study.region
        for dataset in self.study.datasets:
            found = case_pictures(self.numbers, dataset, region)
            self.parts.pictures += found
            self.drawings += [draw_panel(self.numbers, picture, region) for picture in found]

    def save(self, folder: Path) -> None:
        drawn = self._save_figures(folder / "figures")
        self._save_tables(folder / "tables")
        data = page_data(self.numbers, self.bins)
        page = render(self.numbers, self.parts, drawn, data)
        (folder / INDEX).write_text(page, encoding="utf-8")

    def _save_figures(self, folder: Path) -> dict[str, Markup]:
        folder.mkdir()
        drawn = {}
        for drawing in self.drawings:
            name = _file_name(drawing.name)
            svg = save_figure(drawing.figure, folder / name)
            if not drawing.name.startswith("panel_"):  # the page has its pictures one by one
                drawn[drawing.name] = inline(svg, name, drawing.alt)
        return drawn

    def _save_tables(self, folder: Path) -> None:
        """Tables of another region than the study's have it in their name, and a number if that is
        what another dataset is called."""
        folder.mkdir()
        taken: set[str] = set()
        for table in sorted(self.tables, key=lambda table: table in self.elsewhere):
            name = _file_name(table.name)
            if table in self.elsewhere:
                name = f"{name}_{table.region}"
            name = _free(name, taken)
            taken.add(name)
            for ending, convert in FORMATS.items():
                (folder / f"{name}.{ending}").write_text(convert(table), encoding="utf-8")
        if self.ranks is not None:
            self.ranks.tests.to_csv(folder / "comparisons.csv", index=False)
        counted = {region: each.rows for region, each in self.counted.items() if each}
        if counted:
            import pandas as pd

            rows = pd.concat(counted, names=["family"]).reset_index("family")
            rows.to_csv(folder / "seeds.csv", index=False)


def _free(name: str, taken: Set[str]) -> str:
    """The name, with a number if it is taken."""
    numbered = (f"{name}-{i}" for i in count(2))
    return next(each for each in chain([name], numbered) if each not in taken)


def _file_name(text: str) -> str:
    """A name that is safe as a file's: datasets are named by their users."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).lstrip(".") or "unnamed"
