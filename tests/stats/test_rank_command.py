"""`segcal rank`, in this process; once as a process with a pipe."""

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.trees import run_cli
from segcal.core.errors import PathError
from segcal.study.ranks import RANK_COLUMNS, check_ranking_folder

FILES = {
    "ranks.csv",
    "sum_rank.csv",
    "mean_case_rank.csv",
    "means.csv",
    "comparisons.csv",
    "rank.json",
}


def segcal(*arguments: object) -> subprocess.CompletedProcess[str]:
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        code = run_cli(patch, *arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def piped(*arguments: object) -> subprocess.CompletedProcess[str]:
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
                ("ece", "all"),
                ("cece", "all"),
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
    assert "region all" in done.stdout
    assert "0 values missing" in done.stdout
    assert {p.name for p in out.iterdir()} == FILES
    table = pd.read_csv(out / "ranks.csv")
    assert tuple(table.columns) == RANK_COLUMNS
    assert table["method"].tolist() == ["good", "bad"]
    assert table["sum_rank"].tolist() == [4, 8]
    beside = segcal("rank", cases, "--metric", "dsc", "--resamples", 10, "--seed", 3)
    assert beside.returncode == 0, beside.stderr
    assert {p.name for p in tmp_path.iterdir()} == FILES | {"cases.csv", "new"}
    assert pd.read_csv(tmp_path / "ranks.csv")["sum_rank"].tolist() == [1, 2]


def test_some_methods_are_ranked_alone(tmp_path: Path) -> None:
    table = pd.read_csv(write_cases(tmp_path / "two.csv"), dtype=str)
    between = table[table["method"] == "bad"].assign(method="between", value="0.5")
    cases = tmp_path / "cases.csv"
    pd.concat([table, between]).to_csv(cases, index=False)
    done = segcal("rank", cases, "--method", "bad", "--method", "good")
    assert done.returncode == 0, done.stderr
    assert "between" not in done.stdout
    assert pd.read_csv(tmp_path / "ranks.csv")["sum_rank"].tolist() == [4, 8]
    assert json.loads((tmp_path / "rank.json").read_text())["methods"] == ["good", "bad"]
    wrong = segcal("rank", cases, "--method", "god")
    assert wrong.returncode == 2
    assert "--method" in wrong.stderr
    assert "Did you mean 'good'" in wrong.stderr


def test_tables_of_several_runs_are_joined(tmp_path: Path) -> None:
    table = pd.read_csv(write_cases(tmp_path / "all.csv"), dtype=str)
    files = []
    for name, rows in table.groupby("method"):
        (tmp_path / str(name)).mkdir()
        files.append(tmp_path / str(name) / "cases.csv")
        rows.to_csv(files[-1], index=False)
    without = segcal("rank", *files)
    assert without.returncode == 2
    assert without.stderr == "segcal: --out is required when several tables are given\n"
    out = tmp_path / "ranks"
    for _ in range(2):  # again: they are of the same files
        done = segcal("rank", *files, "--out", out)
        assert done.returncode == 0, done.stderr
        assert pd.read_csv(out / "ranks.csv")["sum_rank"].tolist() == [4, 8]
    other = segcal("rank", files[0], "--out", out)
    assert other.returncode == 2
    assert "was computed from" in other.stderr
    assert "--overwrite" in other.stderr
    twice = segcal("rank", *files, files[0], "--out", out)
    assert twice.returncode == 2
    assert "dsc of method bad in case 001" in twice.stderr


def test_several_tables_must_have_the_same_columns(tmp_path: Path) -> None:
    first = write_cases(tmp_path / "first.csv")
    second = tmp_path / "second.csv"
    pd.read_csv(first, dtype=str).drop(columns="seed").to_csv(second, index=False)
    done = segcal("rank", first, second, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{second}: has no column `seed`" in done.stderr
    assert str(first) in done.stderr


def test_rows_of_an_unknown_metric_do_not_prevent_a_ranking(tmp_path: Path) -> None:
    table = pd.read_csv(write_cases(tmp_path / "known.csv"), dtype=str)
    cases = tmp_path / "cases.csv"
    pd.concat([table, table[:2].assign(metric="dice_of_mine")]).to_csv(cases, index=False)
    assert segcal("rank", cases, "--resamples", 10).returncode == 0
    requested = segcal("rank", cases, "--metric", "dice_of_mine")
    assert (requested.returncode, requested.stderr.count("\n")) == (2, 1)
    assert "'dice_of_mine' cannot be ranked" in requested.stderr


def test_a_file_that_is_missing_is_named_before_old_tables(tmp_path: Path) -> None:
    assert segcal("rank", write_cases(tmp_path / "cases.csv")).returncode == 0
    missing = segcal("rank", tmp_path / "nope.csv")
    assert missing.stderr.startswith(f"segcal: {tmp_path / 'nope.csv'}: does not exist")
    assert missing.returncode == 2


def test_patients_are_counted_where_they_are_named(tmp_path: Path) -> None:
    cases = write_cases(tmp_path / "cases.csv")
    done = segcal("rank", cases, "--patient", r"^00(1|2|\d)", "--metric", "dsc")
    assert done.returncode == 0, done.stderr
    assert "4 patients instead of cases" in done.stdout
    done = segcal("rank", cases, "--patient", "^0", "--metric", "dsc")
    assert done.returncode == 0, done.stderr
    assert set(pd.read_csv(tmp_path / "means.csv")["cases"]) == {1}
    assert json.loads((tmp_path / "rank.json").read_text())["patient"] == "^0"
    wrong = segcal("rank", cases, "--patient", "x")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "--patient 'x' does not match case '001'" in wrong.stderr


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for name in FILES:
        for folder in (tmp_path, tmp_path / "x" / ".."):
            with pytest.raises(PathError, match="is the input"):
                check_ranking_folder(folder, [tmp_path / name], overwrite=True)
    cases = write_cases(tmp_path / "ranks.csv")
    before = cases.read_text()
    done = segcal("rank", cases, "--overwrite")
    assert done.returncode == 2
    assert "is the input" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert cases.read_text() == before
    assert segcal("rank", cases, "--out", tmp_path / "out").returncode == 0


def test_tables_of_another_input_are_replaced_only_with_overwrite(tmp_path: Path) -> None:
    one, other = write_cases(tmp_path / "one.csv"), write_cases(tmp_path / "other.csv")
    assert segcal("rank", one, "--resamples", 10).returncode == 0
    assert segcal("rank", one, "--resamples", 10).returncode == 0
    done = segcal("rank", other, "--resamples", 10)
    assert done.returncode == 2
    assert "from one.csv" in done.stderr
    assert segcal("rank", other, "--resamples", 10, "--overwrite").returncode == 0
    assert json.loads((tmp_path / "rank.json").read_text())["cases"] == ["other.csv"]


def test_tables_are_complete_when_piped_and_name_their_source(tmp_path: Path) -> None:
    cases = write_cases(tmp_path / "a_name_that_is_long.csv", hole=True)
    done = piped("rank", cases, "--missing", "worst")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "…" not in done.stdout
    assert "4 [4, 4]" in done.stdout
    assert "missing: worst" in done.stdout
    assert "chosen as the best on the same cases" in done.stdout
    for name in FILES - {"rank.json"}:
        table = pd.read_csv(tmp_path / name)
        assert {"region", "missing", "undefined"} <= set(table.columns)
        assert table["undefined"].sum() >= 1


def test_a_method_alone_and_wrong_metrics(tmp_path: Path) -> None:
    cases = tmp_path / "cases.csv"
    cases.write_text("method,dataset,case,metric,value\na,d,1,dsc,0.5\na,d,2,dsc,0.6\n")
    assert segcal("rank", cases, "--metric", "dsc").returncode == 0
    assert pd.read_csv(tmp_path / "comparisons.csv").empty
    done = segcal("rank", cases, "--metric", "dsc", "--metric", "dsc")
    assert done.returncode == 2
    assert "'dsc' is given twice" in done.stderr


def test_missing_values_need_a_policy(tmp_path: Path) -> None:
    cases = write_cases(tmp_path / "cases.csv", hole=True)
    out = tmp_path / "out"
    done = segcal("rank", cases, "--out", out)
    assert done.returncode == 2
    assert "'hd95' of label '1', case '001'" in done.stderr
    assert not out.exists()
    done = segcal("rank", cases, "--out", out, "--missing", "worst")
    assert done.returncode == 0, done.stderr
    assert "1 values missing, undefined or infinite (policy: worst)" in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method,dataset,case,value\na,d,1,0.5\n", ["cases.csv", "column `metric`"]),
        ("method,dataset,case,metric,value\na,d,1,dsc,high\n", ["cases.csv", "`value`", "'high'"]),
        ("method,dataset,case,metric,value\n", ["cases.csv", "rows"]),
        ("method,dataset,case,metric,value\n,d,1,dsc,1\n", ["cases.csv", "`method`", "row 1"]),
        ("method,dataset,case,metric,value\na,d,1,dsc,1", ["cases.csv", "cut off"]),
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


def test_a_single_method_has_no_empty_table_of_comparisons(tmp_path):
    cases = write_cases(tmp_path / "cases.csv")
    both = segcal("rank", cases, "--out", tmp_path / "both", "--resamples", 10)
    alone = segcal("rank", cases, "--out", tmp_path / "one", "--method", "good", "--resamples", 10)
    assert both.returncode == alone.returncode == 0
    assert "comparisons (" in both.stdout
    assert "means (" in alone.stdout
    assert "comparisons (" not in alone.stdout
