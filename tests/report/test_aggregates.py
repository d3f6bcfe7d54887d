"""Means and tables against plain pandas on the same rows."""

import csv
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from segcal.report import Context
from segcal.report.aggregates import Aggregates
from segcal.report.sections.classes import class_table
from segcal.report.sections.groups import group_of, group_table
from segcal.report.sections.main import main_table
from segcal.report.sections.reliability import confidence_table
from segcal.report.sections.truth import truth_table
from segcal.study import read_study


@pytest.fixture(scope="module")
def rows(study: Path) -> pd.DataFrame:
    table = pd.read_csv(study / "cases.csv")
    return table[table["case"] != "pooled"]


def by_hand(rows: pd.DataFrame, dataset: str, method: str, metric: str, region: str) -> tuple:
    """Labels, then cases, then seeds; standard deviation over seeds with n − 1; NaN is counted."""
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


def test_undefined_distances_are_counted(context: Context) -> None:
    assert (
        context.aggregates.overall("acdc", "nacl", "hd95_mm").undefined == 2
    )  # one case, both seeds
    assert context.aggregates.overall("acdc", "ls", "hd95_mm").undefined == 1
    assert context.aggregates.overall("acdc", "nacl", "dsc").undefined == 0


def test_the_region_decides_the_calibration(context: Context, rows: pd.DataFrame) -> None:
    values = {}
    for region in ("foreground", "all", "union", "boundary"):
        values[region] = context.aggregates.overall("acdc", "nacl", "ece", region).mean
        assert values[region] == pytest.approx(by_hand(rows, "acdc", "nacl", "ece", region)[0])
    assert len({round(v, 6) for v in values.values()}) == 4
    dsc = {r: context.aggregates.overall("acdc", "nacl", "dsc", r).mean for r in values}
    assert len(set(dsc.values())) == 1


def test_a_class(context: Context, rows: pd.DataFrame) -> None:
    mean, spread, _ = by_hand(rows[rows.label == "MYO"], "acdc", "nacl", "dsc", "all")
    found = context.aggregates.overall("acdc", "nacl", "dsc", "all", "MYO")
    assert (found.mean, found.spread) == (pytest.approx(mean), pytest.approx(spread))
    table = class_table(context, context.study.datasets["acdc"], "foreground")
    assert table is not None
    assert [g[0] for g in table.groups] == ["RV", "MYO", "LV", "class ECE"]
    names = [c.title for c in table.columns if c.group == "class ECE"]
    assert names == ["background", "RV", "MYO", "LV"]


def test_best_is_bold_and_second_underlined(context: Context) -> None:
    table = main_table(context, "foreground")
    assert table is not None
    for j, column in enumerate(table.columns):
        shown = [round(row.cells[j].number.mean, column.digits) for row in table.rows]
        order = sorted(shown, reverse=column.better == "higher")
        for row, value in zip(table.rows, shown, strict=True):
            place = order.index(value)  # shared places count, as in a race
            expected = ("best", "second", "", "")[place] if value != order[-1] else ""
            assert row.cells[j].mark == expected


def test_groups_are_below_the_method_that_they_vary(context: Context) -> None:
    names = {
        group: [row.method for row in table.rows]
        for group in ("ablation", "prior", "posthoc")
        if (table := group_table(context, "foreground", group, group))
    }
    assert names == {
        "ablation": ["nacl", "nacl_l2"],
        "prior": ["nacl", "nacl_max"],
        "posthoc": ["ce_dice", "ce_dice+temperature"],
    }
    main = main_table(context, "foreground")
    assert main is not None
    assert [r.method for r in main.rows] == ["ce_dice", "ls", "nacl"]
    assert main.rows[1].note == "3 of 4 runs"
    assert group_of(context, "prior").title == "Priors of NACL"  # of the study
    assert context.title("nacl") in group_of(context, "ablation").note


def test_published_numbers_are_in_the_cells_that_they_belong_to(context: Context) -> None:
    table = main_table(context, "foreground")
    assert table is not None
    pairs = zip(table.columns, table.rows[2].cells, strict=True)
    nacl = {column.group + column.key: cell.published for column, cell in pairs}
    assert nacl["ACDCdsc"] == 0.854
    assert nacl["ACDChd95_mm"] == 2.55
    assert nacl["ACDCece"] == 0.048
    assert nacl["Phantomdsc"] is None
    assert any("MICCAI 2023" in note and "HD95 is in voxels" in note for note in table.notes)
    elsewhere = main_table(context, "union")
    assert elsewhere is not None
    assert elsewhere.rows[2].cells[0].published == 0.854
    assert (
        elsewhere.rows[2].cells[2].published is None
    )  # the published ECE is measured in the foreground


def test_confidence_and_truth_tables(context: Context, rows: pd.DataFrame) -> None:
    table = confidence_table(context)
    assert table is not None
    cell = table.rows[0].cells[0]
    assert cell.number.mean == pytest.approx(
        by_hand(rows, "acdc", "ce_dice", "signed_gap", "predicted")[0]
    )
    assert cell.tone == "over"
    truth = truth_table(context, context.study.datasets["phantom"])
    assert truth is not None
    assert truth.rows[2].cells[0].number.mean == pytest.approx(
        by_hand(rows, "phantom", "nacl", "truth_ece", "all")[0]
    )
    assert all(cell.after.startswith("[") for row in truth.rows for cell in row.cells)
    assert truth_table(context, context.study.datasets["acdc"]) is None


def test_the_interval_belongs_to_the_printed_mean(context: Context, study: Path) -> None:
    """Half of the cases are of one patient: the mean is over cases, and so is its interval."""
    values = context.aggregates.cases("acdc", "ece", "predicted")["nacl"]
    of = {case: "p" if i < len(values) / 2 else case for i, case in enumerate(values.index)}
    fresh = read_study(study)
    fresh.datasets["acdc"] = fresh.datasets["acdc"].model_copy(update={"patients": of})
    found = Aggregates(fresh).interval("acdc", "nacl", "ece", "predicted")
    mean = Aggregates(fresh).overall("acdc", "nacl", "ece", "predicted").mean
    assert found.mean == pytest.approx(mean)
    assert (found.low + found.high) / 2 == pytest.approx(mean)
    assert found.high - found.low > 0


@pytest.mark.parametrize("of", ["cases", "pairs", "one"])
def test_intervals_over_patients(context: Context, study: Path, of: str) -> None:
    values = context.aggregates.cases("acdc", "ece", "predicted")["nacl"]
    number = {"cases": np.arange(len(values)), "pairs": np.arange(len(values)) // 2,
              "one": np.zeros(len(values), int)}[of]  # fmt: skip
    fresh = read_study(study)
    fresh.datasets["acdc"] = fresh.datasets["acdc"].model_copy(
        update={"patients": dict(zip(values.index, map(str, number), strict=True))}
    )
    found = Aggregates(fresh).interval("acdc", "nacl", "ece", "predicted")
    each = [values[number == i].mean() for i in range(number.max() + 1)]
    if of == "one":
        assert np.isnan(found.low)
    else:
        wanted = stats.t.interval(0.95, len(each) - 1, np.mean(each), stats.sem(each))
        assert found == pytest.approx((np.mean(each), *wanted))
