"""The tables of the results and loss pages are those of the published rows."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "scripts" / "evidence_tables.py"))


def rows(page: str) -> list[list[str]]:
    """The cells of all rows of all tables, without emphasis."""
    lines = (DOCS / page).read_text(encoding="utf-8").replace("*", "").splitlines()
    return [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if line.startswith("|")]


def test_losses_on_test_cases(script: dict[str, Any]) -> None:
    written = [row[1:] for row in rows("results/README.md")]
    # DSC, NLL and ECE of ACDC, DSC and NLL of LIDC, DSC, NLL and ECE of Hippocampus
    expected = [[*cells[:5], *cells[6:9]] for _, *cells in list(script["losses"]())[1:]]
    assert len(expected) == 13
    assert [cells for cells in expected if cells not in written] == []


def test_losses_on_validation_cases(script: dict[str, Any]) -> None:
    written = [row[1:] for row in rows("reference/losses.md")]
    expected = [cells for title, *cells in list(script["validation"]())[1:] if "paper" not in title]
    assert len(expected) == 12
    assert [cells for cells in expected if cells not in written] == []


def test_a_pathology_left_out(script: dict[str, Any]) -> None:
    written = [row[1:] for row in rows("results/README.md")]
    expected = [row[2:] for row in list(script["shift"]())[1:] if row[1] != "temperature"]
    assert len(expected) == 6
    assert [cells for cells in expected if cells not in written] == []
