"""Markdown, LaTeX and CSV: special characters of each format are escaped."""

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from segcal.report.aggregates import Number
from segcal.report.formats import markdown, tex, to_csv, to_latex, to_markdown
from segcal.report.table_model import Cell, Column, Row, Table, mark_best, metric_column

NASTY = "50 % of a_b & {c} | $d$ #1 \\end{table} ~^ λ <b>"


@pytest.fixture
def table() -> Table:
    columns = (
        Column("dsc", "DSC", "", "higher", 3, NASTY, "a"),
        Column("hd95_mm", "HD95", "mm", "lower", 2, NASTY, "a"),
    )
    rows = (
        Row("a", NASTY, (Cell(Number(0.8, 0.01, 0, 2)), Cell(Number(3.0, undefined=2)))),
        Row("b", "b", (Cell(Number(0.9), published=0.85), Cell(Number(2.0))), rule=True),
        Row("c", "c", (Cell(Number(0.7)), Cell()), note="all runs failed"),
    )
    return mark_best(Table("t", NASTY, columns, rows, NASTY, (NASTY,)))


def balanced(text: str) -> bool:
    """Braces that are not escaped open and close."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text.replace("\\\\", "")):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def test_latex_is_balanced_and_escaped(table: Table) -> None:
    text = to_latex(table)
    assert balanced(text)
    begun = re.findall(r"(?<!\\textbackslash\{\})\\begin\{(\w+)\}", text)
    assert begun == ["table", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", text) == ["tabular", "table"]
    body = text.replace("% needs", "")
    assert not re.search(r"(?<!\\)[%#_]", body)
    for line in re.findall(r"^(.*) \\\\$", body, flags=re.MULTILINE):
        cells = len(re.findall(r"(?<!\\)&", line)) + 1
        wide = sum(int(n) - 1 for n in re.findall(r"multicolumn\{(\d+)\}", line))
        assert cells + wide == 3, line
    assert body.count("$") % 2 - body.count(r"\$") % 2 == 0
    assert r"\textbf{0.900}" in text
    assert r"\underline{0.800 $\pm$ 0.010}" in text
    assert r"& 3.00\,(2 undef.)" in text
    assert r"\quad published & 0.850 &" in text


def test_every_latex_table_of_a_report(page: Path) -> None:
    paths = sorted((page.parent / "tables").glob("*.tex"))
    assert len(paths) > 10
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert balanced(text), path
        assert not re.search(r"(?<!\\)[%#_]", text.replace("% needs", "")), path
        assert not set(text) - set(map(chr, range(128))) - set("äöüéç"), path


def test_latex_compiles(page: Path, table: Table, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex found: the tables' LaTeX is only checked by its text")
    (tmp_path / "nasty.tex").write_text(to_latex(table), encoding="utf-8")
    tables = [*sorted((page.parent / "tables").glob("*.tex")), tmp_path / "nasty.tex"]
    body = "\n".join(rf"\input{{{path}}}\clearpage" for path in tables)
    (tmp_path / "all.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\n\\begin{document}\n"
        f"{body}\n\\end{{document}}\n"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:]
    assert (tmp_path / "all.pdf").is_file()


def test_markdown_escapes_pipes_and_tags(table: Table) -> None:
    lines = to_markdown(table).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 6  # head, rule, three methods, one published
    for line in rows:
        assert len(re.findall(r"(?<!\\)\|", line)) == 4, line
    assert not any("<b>" in line for line in lines)
    assert "**0.900**" in rows[3]
    assert "<u>0.800 ± 0.010</u>" in rows[2]
    assert rows[4].startswith("| b (published) | 0.850 |")
    assert "c (all runs failed) | 0.700 | – |" in rows[5]


def test_csv_round_trips(table: Table) -> None:
    rows = list(csv.DictReader(to_csv(table).splitlines()))
    assert rows[0]["title"] == NASTY
    assert float(rows[0]["mean"]) == 0.8
    assert rows[1]["undefined"] == "2"
    assert rows[5]["mean"] == ""


def test_escapes_alone() -> None:
    assert tex("a_b & 50 %") == r"a\_b \& 50 \%"
    assert markdown("a|b") == r"a\|b"


def test_marks_need_two_methods_and_are_shared_by_ties() -> None:
    column = metric_column("ece")
    one = mark_best(Table("t", "t", (column,), (Row("a", "a", (Cell(Number(0.1)),)),)))
    assert one.rows[0].cells[0].mark == ""
    values = (0.1001, 0.1004, 0.2, 0.3, float("nan"))
    rows = tuple(Row(str(i), "", (Cell(Number(v)),)) for i, v in enumerate(values))
    table = mark_best(Table("t", "t", (column,), rows))
    assert [r.cells[0].mark for r in table.rows] == ["best", "best", "", "", ""]
    gap = mark_best(Table("t", "t", (metric_column("signed_gap"),), (
        Row("a", "", (Cell(Number(-0.3)),)), Row("b", "", (Cell(Number(0.1)),)),
    )))  # fmt: skip
    assert [r.cells[0].mark for r in gap.rows] == ["", "best"]


@pytest.mark.parametrize(
    ("values", "marks"),
    [((0.9, 0.9, 0.1), ["best", "best", ""]), ((0.9, 0.8, 0.1), ["best", "second", ""]),
     ((0.9, 0.8, 0.8), ["best", "", ""]), ((0.9, 0.1), ["best", ""]), ((0.5, 0.5), ["", ""]),
     ((0.9, 0.8, 0.8, 0.1), ["best", "second", "second", ""])],
)  # fmt: skip
def test_the_last_is_never_mark_best(values: tuple[float, ...], marks: list[str]) -> None:
    rows = tuple(Row(str(i), "", (Cell(Number(v)),)) for i, v in enumerate(values))
    table = mark_best(Table("t", "t", (metric_column("dsc"),), rows))
    assert [row.cells[0].mark for row in table.rows] == marks


def test_a_p_value_is_never_printed_as_zero() -> None:
    shown = [Cell(Number(p), above_zero=True).mean(4) for p in (0.0, 3e-9, 0.00011, 0.5)]
    assert shown == ["0.0000", "<0.0001", "0.0001", "0.5000"]
    assert Cell(Number(3e-9)).mean(4) == "0.0000"
