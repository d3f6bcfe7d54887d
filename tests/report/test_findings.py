"""Findings of studies whose answer is known."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.plain_studies import Values, write_plain
from segcal.metrics import LEVELS
from segcal.report import Context, write_report
from segcal.report.curves import Curve
from segcal.report.findings import calibration, ranking, stated_confidence
from segcal.report.formats import to_csv, to_markdown
from segcal.report.rankings import Rankings
from segcal.report.sections import findings
from segcal.report.sections.main import main_table
from segcal.report.sections.ranking import rank_table, ranking_note
from segcal.report.sections.reliability import confidence_table
from segcal.report.sections.run import candidates
from segcal.study import read_study


def read(folder: Path, values: Values, **extra: object) -> Context:
    return Context(read_study(write_plain(folder, values, **extra)))


def scores(**methods: tuple[float, float]) -> Values:
    """Eight cases of each method with its DSC and ECE; the DSC falls a little with each."""
    return {
        (m, 0, f"c{i}"): {"dsc": dsc - i / 1000 - 0.0002, "ece": ece}
        for m, (dsc, ece) in methods.items()
        for i in range(8)
    }


def gaps(*seeds: tuple[float, float]) -> Values:
    """One case per seed with its gap over all voxels and in the foreground."""
    return {
        ("a", s, "c"): {
            "signed_gap": everywhere, "ece": abs(everywhere), ("signed_gap", "foreground"): inside,
            ("ece", "foreground"): abs(inside),
        }
        for s, (everywhere, inside) in enumerate(seeds)
    }  # fmt: skip


def test_percentages_of_the_stated_confidence_have_one_decimal() -> None:
    size = len(LEVELS) - 1
    every = np.full(size, 0.9)
    curve = Curve(np.full(size, 99.0), every, every, np.full(size, 0.000317), np.ones(size))
    assert stated_confidence._parts(curve).count("90.0 % [0.0, 100.0]") == 2


def test_all_voxels_decide_and_not_the_foreground(tmp_path: Path) -> None:
    context = read(tmp_path, gaps((-0.041, 0.35)), region="foreground")
    first, second = calibration.confidence_findings(context)
    assert "over all voxels: under-confident: a (−0.041)" in first
    assert "“foreground” gives another verdict for 1 of 1 method" in second
    table = confidence_table(context)
    assert table is not None
    assert [column.key for column in table.columns] == ["foreground", "all"]
    assert [cell.tone for cell in table.rows[0].cells] == ["over", "under"]


def test_seeds_of_opposite_sign_are_not_balanced(tmp_path: Path) -> None:
    context = read(tmp_path, gaps((0.3, 0.2), (-0.3, 0.1)))
    text = calibration.confidence_findings(context)[0]
    assert "seeds disagree: a (−0.300 to +0.300)" in text
    assert "balanced" not in text
    table = confidence_table(context)
    assert table is not None
    assert [cell.tone for cell in table.rows[0].cells] == ["over", ""]


@pytest.mark.parametrize(
    ("seeds", "verdict"),
    [((0.003, -0.005), "balanced (less than 0.01): a (−0.001)"),
     ((0.003, 0.012), "seeds disagree: a (+0.003 to +0.012)"),
     ((0.3, 0.1), "over-confident: a (+0.200)"), ((-0.3, -0.1), "under-confident: a (−0.200)")],
)  # fmt: skip
def test_all_seeds_share_a_verdict(
    tmp_path: Path, seeds: tuple[float, float], verdict: str
) -> None:
    values = gaps(*((gap, gap) for gap in seeds))
    context = read(tmp_path, values)
    assert calibration.confidence_findings(context) == [f"Set D, over all voxels: {verdict}."]


def test_without_all_voxels_the_region_is_named(tmp_path: Path) -> None:
    values = {("a", 0, "c"): {("signed_gap", "union"): 0.2, ("ece", "union"): 0.2}}
    (text,) = calibration.confidence_findings(read(tmp_path, values, region="union"))
    assert text == "Set D, in region “union”: over-confident: a (+0.200)."


def test_every_method_and_dataset_has_a_verdict(context: Context) -> None:
    found = calibration.confidence_findings(context)
    for dataset in context.datasets:
        start = f"{dataset.title}, in region “predicted”: "
        here = [text for text in found if text.startswith(start)]
        for method in context.study.methods:
            title = f"{context.title(method)} ("
            assert sum(text.count(title) for text in here) == 1
    assert any("over-confident: CE+Dice (+" in text for text in found)
    assert any("under-confident: LS (α = 0.1) (−" in text for text in found)


def test_equal_values_are_named_together(tmp_path: Path) -> None:
    context = read(tmp_path, scores(a=(0.8, 0.1), b=(0.80001, 0.1), c=(0.7, 0.10001)))
    assert ranking.best_of_datasets(context) == [
        "Set D: best DSC 0.796 (a and b), worst 0.696 (c); ECE in region “all” 0.100 (all 3 "
        "methods)."
    ]


def test_undefined_values_change_which_method_ranks_first(tmp_path: Path) -> None:
    values = scores(a=(0.8, 0.12), b=(0.7, 0.1), c=(0.6, 0.3))
    assert "ranks first" not in ranking.best_of_datasets(read(tmp_path / "all", values))[0]
    for case in range(6):
        values["b", 0, f"c{case}"]["ece"] = float("nan")
    text = ranking.best_of_datasets(read(tmp_path / "some", values))[0]
    assert "0.100 (b), worst 0.300 (c); " in text
    assert "a (0.120) ranks first" in text


def ranked(context: Context) -> Rankings:
    assert context.rankings is not None
    return context.rankings


@pytest.mark.parametrize(("cases", "known"), [(2, False), (5, False), (6, True)])
def test_few_cases_have_no_interval(tmp_path: Path, cases: int, known: bool) -> None:
    values = {k: v for k, v in scores(a=(0.8, 0.1), b=(0.7, 0.2)).items() if int(k[2][1]) < cases}
    context = read(tmp_path, values)
    assert ("95 % interval" in ranking.first_place(context)[0]) == known
    assert ("fewer than 6 cases" in ranking_note(context, ranked(context))) != known
    cells = rank_table(context, ranked(context)).rows[0].cells
    assert (cells[1].text == "–") != known


def test_undefined_values_are_counted_in_every_format(tmp_path: Path) -> None:
    values = {k: {**v, "hd95_mm": 2.0} for k, v in scores(a=(0.8, 0.1), b=(0.7, 0.2)).items()}
    values["a", 0, "c0"] = {**values["a", 0, "c0"], "hd95_mm": float("nan")}
    context = read(tmp_path, values, metrics=["dsc", "hd95_mm"])
    table = rank_table(context, ranked(context))
    assert "(1 undef.)" in to_markdown(table)
    lines = list(csv.DictReader(to_csv(table).splitlines()))
    assert {line["undefined"] for line in lines if line["method"] == "a"} == {"1"}
    assert {line["undefined"] for line in lines if line["method"] == "b"} == {"0"}
    main = main_table(context, "all")
    assert main is not None
    assert any("1 in this table" in note for note in main.notes)
    assert "1 undefined value:" in ranking_note(context, ranked(context))


# Methods that were evaluated on different cases.


def apart(shared: int) -> Values:
    """Method `a` on eight cases, `b` on eight of which the last `shared` are of `a` too."""
    every = scores(a=(0.8, 0.1), b=(0.7, 0.2))
    start = 8 - shared
    return {
        (m, s, f"c{int(case[1:]) + (start if m == 'b' else 0)}"): each
        for (m, s, case), each in every.items()
    }


def test_partly_shared_cases_are_counted(tmp_path: Path) -> None:
    context = read(tmp_path, apart(6))
    assert context.aggregates.shared_cases("d", ["a", "b"]) == (6, 10)
    (text,) = ranking.unshared_cases(context)
    assert text.startswith("Set D: 6 of 10 cases ")
    assert "2 methods" in text
    assert ranking.unshared_cases(read(tmp_path / "same", apart(8))) == []


def test_without_a_shared_case_nothing_is_ranked(tmp_path: Path) -> None:
    context = read(tmp_path, apart(0))
    assert context.rankings is None
    (text,) = ranking.unshared_cases(context)
    assert "0 of 16 cases" in text
    assert "no ranking" in text


def test_a_dataset_without_a_shared_case_leaves_the_others(tmp_path: Path) -> None:
    write_plain(tmp_path, apart(0))
    write_plain(tmp_path / "other", scores(a=(0.8, 0.1), b=(0.7, 0.2)))
    more = (tmp_path / "other" / "cases.csv").read_text().splitlines(True)[1:]
    with (tmp_path / "cases.csv").open("a") as file:
        file.writelines(line.replace(",d,", ",e,") for line in more)
    context = Context(read_study(tmp_path))
    ranks = ranked(context)
    assert (ranks.datasets, ranks.unpaired) == (["e"], ("d",))
    assert set(ranks.tests["dataset"]) == {"e"}
    assert ranking_note(context, ranks).endswith(": Set D.")


def test_errors_against_the_truth_are_of_the_whole_image(tmp_path: Path) -> None:
    values = {
        k: {**v, ("ece", "foreground"): 0.3, "truth_ece": v["ece"]}
        for k, v in scores(a=(0.8, 0.1), b=(0.7, 0.2)).items()
    }
    context = read(tmp_path, values, metrics=["dsc", "truth_ece"], region="foreground")
    assert ranked(context).scores.metrics == ["dsc", "truth_ece"]
    table = main_table(context, "foreground")
    assert table is not None
    assert table.rows[0].cells[1].number.mean == pytest.approx(0.1)
    (text,) = calibration.against_truth(context)
    assert "is a (ECE 0.100 over all voxels)" in text


def course(method: str, best: float, last: float, **more: int) -> dict[str, object]:
    training = {"epochs": 9, "best_epoch": 4, "best_dsc": best, "last_dsc": last, **more}
    return {"run": f"d/{method}/seed0", "method": method, "dataset": "d", "training": training}


def test_trainings_that_broke_down_are_named(tmp_path: Path) -> None:
    values = scores(a=(0.9, 0.1), b=(0.8, 0.1), c=(0.7, 0.1))
    runs = [course("a", 0.8, 0.41), course("b", 0.8, 0.39), course("c", 0.8, 0.8)]
    (text,) = findings.breakdowns(read(tmp_path, values, runs=runs))
    assert text.startswith("1 of 3 trainings broke down")
    assert "50%" in text
    assert "d/b/seed0 (0.800 in epoch 4, 0.390 in epoch 9)" in text
    assert "best checkpoint" in text
    (tmp_path / "last").mkdir()
    last = read(tmp_path / "last", values, runs=[course("b", 0.8, 0.1, tested_epoch=9)])
    assert "last checkpoint" in findings.breakdowns(last)[0]
    (tmp_path / "well").mkdir()
    well = read(tmp_path / "well", values, runs=[course(m, 0.8, 0.8) for m in "abc"])
    assert findings.breakdowns(well) == []


def test_candidates_that_broke_down_are_counted(tmp_path: Path) -> None:
    def candidate(gamma: float, **more: Any) -> dict[str, Any]:
        return {"options": {"gamma": gamma}, **more}

    well, fell, late = (
        course("a", 0.8, last, **more)["training"]
        for last, more in ((0.8, {}), (0.1, {}), (0.1, {"tested_epoch": 9}))
    )
    tried = [
        candidate(1.0, val_dsc=0.8, trainings=[well, fell]),
        candidate(2.0, val_dsc=0.7, val_ece=0.05, trainings=[fell]),
        candidate(3.0, val_dsc=None, error="it stopped"),
    ]
    methods = [{"name": "a", "chosen_from": tried}, {"name": "b"}]
    context = read(tmp_path, scores(a=(0.9, 0.1), b=(0.8, 0.1)), methods=methods)
    (text,) = findings.breakdowns(context)
    assert text.startswith("2 of 3 trainings ")
    assert "best checkpoint" in text
    assert candidates(context.study.info.methods[0].chosen_from) == (
        "gamma = 1.0: 0.800, 1 of 2 broke down; gamma = 2.0: 0.700 (ECE 0.050), broke down; "
        "gamma = 3.0: failed"
    )
    (tmp_path / "last").mkdir()
    methods[0]["chosen_from"] = [candidate(1.0, val_dsc=0.1, trainings=[late])]
    context = read(tmp_path / "last", scores(a=(0.9, 0.1), b=(0.8, 0.1)), methods=methods)
    assert "last checkpoint" in findings.breakdowns(context)[0]


def calibrated(values: Values, times: dict[str, float], name: str) -> Values:
    """The values, and for each method of `times` a calibrator that multiplies its ECE."""
    more = {
        (f"{m}+{name}", seed, case): {**each, "ece": each["ece"] * times[m]}
        for (m, seed, case), each in values.items()
        if m in times
    }
    return {**values, **more}


def groups(*names: str) -> list[dict[str, str]]:
    return [{"name": m, "group": "posthoc" if "+" in m else "main"} for m in names]


def test_unchanged_masks_are_tested_once(tmp_path: Path) -> None:
    """Calibrators are ranked only if a single method was trained."""
    values = calibrated(scores(a=(0.9, 0.1), b=(0.8, 0.2)), {"a": 0.7, "b": 0.7}, "temperature")
    methods = groups("a", "b", "a+temperature", "b+temperature")
    (tmp_path / "main").mkdir()
    context = read(tmp_path / "main", values, methods=methods)
    assert list(ranked(context).sums["method"]) == ["a", "b"]
    methods[1]["group"] = "ablation"
    context = read(tmp_path, values, methods=methods)
    ranks = ranked(context)
    assert len(ranks.tests) == 12
    assert ranks.family == 1 + 6  # one pair of masks, six pairs of confidences
    (text,) = ranking.significance(context)
    assert text.startswith("a+temperature against 3 other methods")
    assert "of 4 tests" in text
    assert "over all 7 tests" in text
    (text,) = calibration.after_training(context)
    assert "lower with a+temperature (0.100 → 0.070) and b+temperature (0.200 → 0.140)" in text


def test_a_test_that_the_mean_contradicts_is_neither_won_nor_lost(tmp_path: Path) -> None:
    """`a` has the lower ECE in most cases, but three bad cases make its mean worse."""
    values: Values = {
        (m, 0, f"c{i:02}"): {"ece": 0.2 + (m == "a") * (0.9 if i < 3 else -0.01 - i / 1000)}
        for m in ("a", "b")
        for i in range(40)
    }
    context = read(tmp_path, values, metrics=["ece"])
    (text,) = ranking.significance(context)
    assert text.startswith("b against a over cases: 0 of 1 test significantly better, 0 signif")
    assert "In 1 test with a significant result, mean and signed ranks favor different" in text
    assert ranked(context).wins_and_losses("a", "b") == (0, 0)


def test_two_networks_with_the_same_masks(tmp_path: Path) -> None:
    """Only the metrics that differ are counted as tests."""
    values: Values = {
        (m, 0, f"c{i}"): {"dsc": 0.8 + i / 100, "hd95_mm": 2.0, "ece": ece + i / 1000, "cece": ece}
        for m, ece in (("raw", 0.2), ("temp", 0.1))
        for i in range(8)
    }
    context = read(tmp_path, values, metrics=["dsc", "hd95_mm", "ece", "cece"])
    (text,) = ranking.significance(context)
    assert text.startswith("temp against raw over cases: 2 of 2 tests significantly better, 0 ")
    assert "(ECE, CECE; 1 dataset;" in text
    assert "over all 2 tests" in text
    assert text.endswith(" DSC and HD95: identical, no test.")


def test_changes_by_calibrators_follow_the_printed_digits(tmp_path: Path) -> None:
    times = {"a": 0.9999, "b": 1.1, "c": 0.5}
    values = calibrated(scores(a=(0.9, 0.1), b=(0.8, 0.2), c=(0.7, 0.3)), times, "t")
    context = read(tmp_path, values, methods=groups(*times, *(f"{m}+t" for m in times)))
    (text,) = calibration.after_training(context)
    for words in ("lower with c+t (0.300 → 0.150)", "unchanged with a+t (0.100 → 0.100)",
                  "higher with b+t (0.200 → 0.220)"):  # fmt: skip
        assert words in text


def test_many_calibrated_methods_are_summarized(tmp_path: Path) -> None:
    """Five networks with two calibrators each: 15 methods, of which only networks are named."""
    names, ece = "abcde", (0.1, 0.2, 0.3, 0.1, 0.05)
    raw = scores(**{m: (0.9, value) for m, value in zip(names, ece, strict=True)})
    raw = {k: {**v, ("signed_gap", "all"): v["ece"]} for k, v in raw.items()}
    values = calibrated(raw, dict(zip(names, (0.5, 0.4, 1.0, 1.5, 1.2), strict=True)), "t")
    some = calibrated(raw, dict(zip(names, (0.9, 0.9, 0.2, 0.9, 0.9), strict=True)), "u")
    values = {**values, **some}
    methods = groups(*names, *(f"{m}+{c}" for m in names for c in "tu"))
    context = read(tmp_path, values, methods=methods)
    assert context.listed == list(names)
    first, second = calibration.after_training(context)
    assert first == (
        "Set D: ECE in region “all” with t, 5 methods: lower for 2 (most for b, 0.200 → 0.080), "
        "unchanged for 1 and higher for 2 (most for d, 0.100 → 0.150)."
    )
    assert "with u, 5 methods: lower for 5 (most for c, 0.300 → 0.060)" in second
    assert "+" not in "".join(calibration.confidence_findings(context)).replace("(+", "(")
    html = write_report(tmp_path).read_text(encoding="utf-8")
    assert "5 methods and 10 calibrated versions" in html
    few = {key: value for key, value in values.items() if key[0][0] in "abcd"}
    (tmp_path / "few").mkdir()
    context = read(tmp_path / "few", few, methods=[m for m in methods if m["name"][0] != "e"])
    assert context.listed == list(context.study.methods)  # 12 methods
    assert "b+t (0.200 → 0.080)" in calibration.after_training(context)[0]
