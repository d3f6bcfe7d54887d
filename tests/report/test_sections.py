"""Sections that users add: registered, or named by an import path."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.example_section import build
from helpers.plain_studies import write_plain
from segcal.report import SECTIONS, Context, write_report
from segcal.report.sections import stated_confidence
from segcal.study import read_study

VALUES = {(m, 0, c): {"dsc": 0.5, "ece": 0.25} for m in ("a", "b") for c in "xyz"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_plain(tmp_path / "study", VALUES)


def check(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert html.count('<section id="own">') == html.count('href="#own"') == 1
    assert "Own &lt;section&gt;" in html
    for text in ("A paragraph.", "<li>Two.</li>", "Own caption.", "<summary>More</summary>"):
        assert text in html
    assert 'aria-label="a line"' in html
    tables, figures = page.parent / "tables", page.parent / "figures"
    assert {p.suffix for p in tables.glob("own.*")} == {".md", ".tex", ".csv"}
    assert {p.suffix for p in figures.glob("own_figure.*")} == {".svg", ".png"}
    with (tables / "own.csv").open(encoding="utf-8") as file:
        assert [float(row["mean"]) for row in csv.DictReader(file)] == [0.5, 0.5]
    assert (tables / "own_rows.csv").is_file()


def test_a_section_by_its_import_path(folder: Path) -> None:
    path = "helpers.example_section"
    check(write_report(folder, sections=[f"{path}:build", f"{path}:nothing"]))
    with pytest.raises(ValueError, match="two sections are named 'own'"):
        write_report(folder, sections=[f"{path}:build", f"{path}:again"])


def test_a_registered_section(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SECTIONS, "_objects", dict(SECTIONS._objects))
    SECTIONS.register("own", build)
    check(write_report(folder))


def test_the_command(folder: Path) -> None:
    command = [sys.executable, "-m", "segcal", "report", str(folder), "--section"]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [*command, "helpers.example_section:build"],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(folder / "report" / "index.html")
    wrong = subprocess.run([*command, "reliabilty"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2
    assert "'reliability'" in wrong.stderr  # the nearest name


def test_sections_come_in_the_order_of_the_page() -> None:
    some = ["findings", "stated_confidence", "main", "ranking", "run"]
    assert [name for name in SECTIONS.names() if name in some] == some
    assert len(set(SECTIONS.names())) == len(SECTIONS)


def test_tables_name_their_dataset_if_there_are_several(context: Context, single: Path) -> None:
    several = stated_confidence.build(context)
    assert several is not None
    assert [each.heading for each in several.blocks] == [d.title for d in context.datasets]  # type: ignore[union-attr]
    one = stated_confidence.build(Context(read_study(single)))
    assert one is not None
    assert [each.heading for each in one.blocks] == [""]  # type: ignore[union-attr]
