"""The printed numbers against plain pandas on the same rows."""

import csv
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from segcal.report.numbers import Numbers
from segcal.report.tables import class_table, confidence_table, group_table, main_table, truth_table
from segcal.study import read_study


@pytest.fixture(scope="module")
def rows(study: Path) -> pd.DataFrame:
    table = pd.read_csv(study / "cases.csv")
    return table[table["case"] != "pooled"]


@pytest.fixture(scope="module")
def numbers(study: Path) -> Numbers:
    return Numbers(read_study(study))


def by_hand(rows: pd.DataFrame, dataset: str, method: str, metric: str, region: str) -> tuple:
    """Labels, then cases, then seeds; deviation over seeds with n − 1; what is NaN is counted."""
    part = rows[
        (rows.dataset == dataset) & (rows.method == method) & (rows.metric == metric)
        & (rows.region == region)
    ]  # fmt: skip
    seeds = []
    for _, seed in part.groupby("seed"):
        cases = [case["value"].mean() for _, case in seed.groupby("case")]
        seeds.append(np.nanmean(cases))
    spread = float(np.std(seeds, ddof=1)) if len(seeds) > 1 else math.nan
    return float(np.mean(seeds)), spread, int(part["value"].isna().sum())


@pytest.mark.parametrize("dataset", ["acdc", "phantom"])
@pytest.mark.parametrize("method", ["ce_dice", "ls", "nacl"])
@pytest.mark.parametrize(
    ("metric", "region"), [("dsc", "all"), ("hd95_mm", "all"), ("ece", "foreground")]
)
def test_a_cell_of_the_main_table(
    page: Path, rows: pd.DataFrame, dataset: str, method: str, metric: str, region: str
) -> None:
    with (page.parent / "tables" / "main.csv").open(encoding="utf-8") as file:
        cells = [
            row for row in csv.DictReader(file)
            if (row["dataset"], row["method"], row["column"]) == (dataset, method, metric)
        ]  # fmt: skip
    mean, spread, undefined = by_hand(rows, dataset, method, metric, region)
    assert len(cells) == 1
    assert float(cells[0]["mean"]) == pytest.approx(mean, rel=1e-9)
    assert int(cells[0]["undefined"]) == undefined
    if math.isnan(spread):  # one seed of `ls` has failed on acdc
        assert cells[0]["sd"] == ""
        assert cells[0]["seeds"] == "1"
    else:
        assert float(cells[0]["sd"]) == pytest.approx(spread, rel=1e-9)


def test_undefined_distances_are_counted(numbers: Numbers) -> None:
    assert numbers.overall("acdc", "nacl", "hd95_mm").undefined == 2  # one case, both seeds
    assert numbers.overall("acdc", "ls", "hd95_mm").undefined == 1
    assert numbers.overall("acdc", "nacl", "dsc").undefined == 0


def test_the_region_decides_the_calibration(numbers: Numbers, rows: pd.DataFrame) -> None:
    values = {}
    for region in ("foreground", "all", "union", "boundary"):
        values[region] = numbers.overall("acdc", "nacl", "ece", region).mean
        assert values[region] == pytest.approx(by_hand(rows, "acdc", "nacl", "ece", region)[0])
    assert len({round(v, 6) for v in values.values()}) == 4
    dsc = {r: numbers.overall("acdc", "nacl", "dsc", r).mean for r in values}
    assert len(set(dsc.values())) == 1


def test_a_class(numbers: Numbers, rows: pd.DataFrame) -> None:
    mean, spread, _ = by_hand(rows[rows.label == "MYO"], "acdc", "nacl", "dsc", "all")
    found = numbers.of_label("acdc", "nacl", "dsc", "MYO")
    assert (found.mean, found.spread) == (pytest.approx(mean), pytest.approx(spread))
    table = class_table(numbers, numbers.study.datasets["acdc"], "foreground")
    assert table is not None
    assert [g[0] for g in table.groups] == ["RV", "MYO", "LV", "class ECE"]
    names = [c.title for c in table.columns if c.group == "class ECE"]
    assert names == ["background", "RV", "MYO", "LV"]


def test_best_is_bold_and_second_underlined(numbers: Numbers) -> None:
    table = main_table(numbers, "foreground")
    assert table is not None
    for j, column in enumerate(table.columns):
        shown = [round(row.cells[j].number.mean, column.digits) for row in table.rows]
        order = sorted(shown, reverse=column.better == "higher")
        for row, value in zip(table.rows, shown, strict=True):
            place = order.index(value)  # shared places count, as in a race
            expected = ("best", "second", "", "")[place] if value != order[-1] else ""
            assert row.cells[j].mark == expected


def test_groups_stand_below_what_they_vary(numbers: Numbers) -> None:
    names = {
        group: [row.method for row in table.rows]
        for group in ("ablation", "prior", "posthoc")
        if (table := group_table(numbers, "foreground", group))
    }
    assert names == {
        "ablation": ["nacl", "nacl_l2"],
        "prior": ["nacl", "nacl_max"],
        "posthoc": ["ce_dice", "ce_dice+temperature"],
    }
    main = main_table(numbers, "foreground")
    assert main is not None
    assert [r.method for r in main.rows] == ["ce_dice", "ls", "nacl"]
    assert main.rows[1].note == "3 of 4 runs"


def test_published_numbers_stand_beside_ours_only_where_they_belong(numbers: Numbers) -> None:
    table = main_table(numbers, "foreground")
    assert table is not None
    pairs = zip(table.columns, table.rows[2].cells, strict=True)
    nacl = {column.group + column.key: cell.published for column, cell in pairs}
    assert nacl["ACDCdsc"] == 0.854
    assert nacl["ACDChd95_mm"] == 2.55
    assert nacl["ACDCece"] == 0.048
    assert nacl["Phantomdsc"] is None
    assert any("do not compare" in note for note in table.notes)
    elsewhere = main_table(numbers, "union")
    assert elsewhere is not None
    assert elsewhere.rows[2].cells[0].published == 0.854
    assert elsewhere.rows[2].cells[2].published is None  # the paper's ECE is of the foreground


def test_confidence_and_truth_tables(numbers: Numbers, rows: pd.DataFrame) -> None:
    table = confidence_table(numbers)
    assert table is not None
    cell = table.rows[0].cells[0]
    assert cell.number.mean == pytest.approx(
        by_hand(rows, "acdc", "ce_dice", "signed_gap", "foreground")[0]
    )
    assert cell.tone == "over"
    truth = truth_table(numbers, numbers.study.datasets["phantom"])
    assert truth is not None
    assert truth.rows[2].cells[0].number.mean == pytest.approx(
        by_hand(rows, "phantom", "nacl", "truth_ece", "all")[0]
    )
    assert truth_table(numbers, numbers.study.datasets["acdc"]) is None
