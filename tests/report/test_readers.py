"""The section of several readers: only for studies that have some, with the readers' own values."""

from pathlib import Path

import numpy as np
import pytest

from helpers.plain_studies import write_plain
from segcal.report import Context, write_report
from segcal.report.sections.readers import build, reader_table
from segcal.study import read_study

READERS = ("1", "2")


def case(dsc: float, brier: float) -> dict[str | tuple[str, ...], float]:
    each = {("reader_dsc", "all", f"nodule/{r}"): dsc + int(r) / 100 for r in READERS}
    human = {("human_dsc", "all", f"nodule/{r}"): 0.5 + int(r) / 10 for r in READERS}
    return {
        ("dsc", "all", "nodule"): dsc, "ece": 0.1, "reader_ece": 0.02, "reader_brier": brier,
        ("reader_brier", "union"): 0.3, ("ece", "union"): 0.2, "reader_nll": 0.04,
        ("reader_volume_ml", "all", "nodule/1"): 0.5, ("reader_ged", "all", "nodule"): 0.7,
        ("human_volume_ml", "all", "nodule/1"): 0.25, "human_brier": 0.01, **each, **human,
    }  # fmt: skip


def test_numbers_of_methods_and_readers(tmp_path: Path) -> None:
    values = {(m, 0, c): case(d, b) for m, d, b in (("a", 0.6, 0.1), ("b", 0.7, 0.2)) for c in "xy"}
    context = Context(read_study(write_plain(tmp_path / "study", values)))
    table = reader_table(context, context.datasets[0], "all")
    assert table is not None
    titles = [column.title for column in table.columns]
    assert titles[:4] == ["ECE", "Brier", "NLL", "DSC"]
    assert [row.title for row in table.rows] == ["a", "b", "each reader"]
    shown = {
        row.title: dict(zip(titles, (cell.number.mean for cell in row.cells), strict=True))
        for row in table.rows
    }
    assert shown["b"]["2"] == pytest.approx(0.72)
    assert shown["b"]["mean"] == pytest.approx(0.715)
    human = shown["each reader"]
    assert human["DSC"] == pytest.approx(0.65)
    assert (human["1"], human["2"]) == (0.6, 0.7)
    assert (human["Brier"], human["volume error"]) == (0.01, 0.25)
    assert [row.cells[1].mark for row in table.rows] == ["best", "", ""]
    assert all(cell.after.startswith("[") for row in table.rows for cell in row.cells[3:4])
    assert all(cell.after.startswith("[") for cell in table.rows[0].cells[:4])
    # Another region: the readers' Brier score is of all voxels and is not shown.
    other = reader_table(context, context.datasets[0], "union")
    assert other is not None
    assert [row.cells[1].number.mean for row in other.rows[:2]] == [0.3, 0.3]
    assert other.rows[2].cells[1].mean(3) == "–"
    page = write_report(tmp_path / "study").read_text(encoding="utf-8")
    assert page.count('<section id="readers">') == 1


def test_readers_have_no_spread_over_seeds(tmp_path: Path) -> None:
    values = {(m, s, c): case(0.6 + s / 10, 0.1) for m in "ab" for s in (0, 1) for c in "xy"}
    context = Context(read_study(write_plain(tmp_path / "study", values)))
    table = reader_table(context, context.datasets[0], "all")
    assert table is not None
    assert table.rows[0].cells[3].number.spread > 0
    assert np.isnan(table.rows[-1].cells[3].number.spread)


def test_no_section_without_readers(tmp_path: Path) -> None:
    values = {(m, 0, c): {"dsc": 0.5, "ece": 0.25} for m in "ab" for c in "xy"}
    assert build(Context(read_study(write_plain(tmp_path / "study", values)))) is None
