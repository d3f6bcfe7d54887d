"""The tables of the pages about the evidence are those of the published rows."""

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "scripts" / "evidence_tables.py"))


def test_every_table_is_that_of_the_rows(script: dict[str, Any]) -> None:
    shown = []
    for name in script["PAGES"]:
        page = (ROOT / name).read_text(encoding="utf-8")
        assert script["update"](page) == page, f"{name}: run docs/scripts/evidence_tables.py"
        shown += [table for table in script["TABLES"] if f"<!-- table: {table} -->" in page]
    assert sorted(shown) == sorted(script["TABLES"])


def test_a_changed_digit_is_corrected(script: dict[str, Any]) -> None:
    page = (ROOT / "docs/results/README.md").read_text(encoding="utf-8")
    changed = page.replace("| .616\u00a0±\u00a0.009 |", "| .617\u00a0±\u00a0.009 |")
    assert changed != page
    assert script["update"](changed) == page
