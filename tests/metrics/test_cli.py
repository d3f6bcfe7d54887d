"""`segcal rank`, run as its users run it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

FILES = {"ranks.csv", "sum_rank.csv", "mean_case_rank.csv", "means.csv", "comparisons.csv"}


def segcal(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "segcal", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def write_cases(path: Path, hole: bool = False) -> Path:
    rng = np.random.default_rng(0)
    rows = []
    for i, method in enumerate(("good", "bad")):
        for case in ("001", "002", "003", "004"):
            for metric, region in (
                ("dsc", "all"),
                ("hd95", "all"),
                ("ece", "foreground"),
                ("cece", "foreground"),
            ):
                value = rng.random() * 0.1 + (1 - i if metric == "dsc" else i)
                rows.append(("r", method, 0, "d", case, "1", region, metric, value))
    columns = ["run", "method", "seed", "dataset", "case", "label", "region", "metric", "value"]
    table = pd.DataFrame(rows, columns=columns)
    if hole:
        table.loc[1, "value"] = np.nan
    table.to_csv(path, index=False)
    return path


def test_rank_prints_and_writes(tmp_path: Path) -> None:
    cases = write_cases(tmp_path / "cases.csv")
    out = tmp_path / "new" / "out"
    done = segcal("rank", cases, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "sum rank" in done.stdout
    assert "region foreground" in done.stdout
    assert "0 values missing" in done.stdout
    assert {p.name for p in out.iterdir()} == FILES
    table = pd.read_csv(out / "ranks.csv")
    assert table["method"].tolist() == ["good", "bad"]
    assert table["sum_rank"].tolist() == [4, 8]
    beside = segcal("rank", cases, "--metric", "dsc", "--resamples", 10, "--seed", 3)
    assert beside.returncode == 0, beside.stderr
    assert {p.name for p in tmp_path.iterdir()} == FILES | {"cases.csv", "new"}
    assert pd.read_csv(tmp_path / "ranks.csv")["sum_rank"].tolist() == [1, 2]


def test_missing_values_need_a_policy(tmp_path: Path) -> None:
    cases = write_cases(tmp_path / "cases.csv", hole=True)
    out = tmp_path / "out"
    done = segcal("rank", cases, "--out", out)
    assert done.returncode == 2
    assert "'hd95' of label '1', case '001'" in done.stderr
    assert not out.exists()
    done = segcal("rank", cases, "--out", out, "--missing", "worst")
    assert done.returncode == 0, done.stderr
    assert "1 values missing or undefined (policy: worst)" in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method,dataset,case,value\na,d,1,0.5\n", ["cases.csv", "column `metric`"]),
        ("method,dataset,case,metric,value\na,d,1,dsc,high\n", ["cases.csv", "`value`", "'high'"]),
        ("method,dataset,case,metric,value\na,d,1,dice,1\n", ["cases.csv", "`metric`", "dice"]),
        ("method,dataset,case,metric,value\n", ["cases.csv", "rows"]),
        ("", ["cases.csv", "CSV"]),
        ('a,b\n"1,2\n3,4,5\n', ["cases.csv", "CSV"]),
    ],
)
def test_a_bad_csv_is_one_line_and_nothing_written(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    cases = tmp_path / "cases.csv"
    cases.write_text(text)
    done = segcal("rank", cases, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["cases.csv"]


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    done = segcal("rank", tmp_path / "nothing.csv")
    assert done.returncode == 2
    assert "nothing.csv" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
