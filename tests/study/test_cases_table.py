"""The reader and the writer of `cases.csv`."""

import lzma
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from segcal.core.errors import PathError
from segcal.metrics import COLUMNS, Row
from segcal.stats import REQUIRED_COLUMNS
from segcal.study.cases_table import (
    empty_cases_table,
    read_cases_table,
    read_cases_tables,
    write_cases_table,
)

ROWS = [
    Row("r", "NA", 0, "d", "001", "1", "all", "dsc", 0.1 + 0.2),
    Row("r", "NA", 0, "d", "002", "1", "all", "hd95_mm", float("nan")),
    Row("r", "b", 1, "d", "001", "1", "all", "hd95_mm", float("inf")),
]


def kinds(table: pd.DataFrame) -> list[str]:
    return [dtype.name for dtype in table.dtypes]


def test_names_and_numbers_survive(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    write_cases_table(path, ROWS)
    table = read_cases_table(path)
    assert tuple(table.columns) == COLUMNS
    assert table["method"].tolist() == ["NA", "NA", "b"]
    assert table["case"].tolist() == ["001", "002", "001"]
    assert table["seed"].tolist() == ["0", "0", "1"]
    assert table["value"][0] == 0.1 + 0.2
    assert np.isnan(table["value"][1:]).all()
    assert kinds(table) == kinds(empty_cases_table())


def test_a_compressed_table(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    write_cases_table(path, ROWS)
    packed = tmp_path / "cases.csv.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert read_cases_table(packed).equals(read_cases_table(path))
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(PathError, match=r"cases\.csv\.xz"):
        read_cases_table(packed)


def test_optional_columns(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    path.write_text("method,dataset,case,metric,value\na,d,1,dsc,0.5\n")
    assert len(read_cases_table(path, required=REQUIRED_COLUMNS)) == 1
    with pytest.raises(PathError, match="has no column `run`"):
        read_cases_table(path)


def test_several_tables_are_combined(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    write_cases_table(paths[0], ROWS[:2])
    write_cases_table(paths[1], ROWS[2:])
    table = read_cases_tables(paths)
    assert len(table) == 3
    assert kinds(table) == kinds(empty_cases_table())
    with pytest.raises(ValueError, match="several of these tables have dsc of method NA"):
        read_cases_tables([*paths, paths[0]])


def test_names_are_no_formulas_and_are_read_as_they_were(tmp_path: Path) -> None:
    names = ["=1+1", "-2", "+3", "@sum", "'quoted", "plain"]
    rows = [Row("run", "m", 0, "d", name, "1", "all", "dsc", 0.5) for name in names]
    write_cases_table(tmp_path / "cases.csv", rows)
    lines = (tmp_path / "cases.csv").read_text().splitlines()[1:]
    assert [line.split(",")[4][0] for line in lines] == ["'"] * 5 + ["p"]
    assert list(read_cases_table(tmp_path / "cases.csv")["case"]) == names


def test_the_folder_of_a_study_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(PathError, match=r"cases\.csv"):
        read_cases_table(tmp_path)
