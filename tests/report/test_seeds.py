"""Differences between methods once seed variance is included."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from helpers.plain_studies import Values, write_plain
from segcal.report import Context, write_report
from segcal.report.findings.ranking import seed_variance
from segcal.report.formats import to_latex, to_markdown
from segcal.report.rankings import SeedComparisons
from segcal.report.sections.ranking import patients_note
from segcal.report.sections.seeds import draw_seed_forest, seeds_note, seeds_table
from segcal.stats import compare_with_random_effects
from segcal.study import read_study


def scores(seeds: int, cases: int = 12, spread: float = 0.05) -> Values:
    """`best` is better than `sure` with every seed, than `luck` only with some seeds."""
    rng = np.random.default_rng(0)
    edge = {"best": 0.0, "sure": -0.2, "luck": 0.0}
    turn = [spread * (s - (seeds - 1) / 2) + spread / 2 for s in range(seeds)]
    return {
        (m, s, f"patient{i // 2:03d}_frame{1 + i % 2:02d}"): {
            "dsc": 0.8 + edge[m] - (turn[s] if m == "luck" else 0) + rng.normal() / 200,
            "ece": 0.1 - edge[m] + (turn[s] if m == "luck" else 0) + rng.normal() / 200,
        }
        for m in edge for s in range(seeds) for i in range(cases)
    }  # fmt: skip


def compare(folder: Path, values: Values, **extra: object) -> tuple[Context, SeedComparisons]:
    context = Context(read_study(write_plain(folder, values, **extra)))
    assert context.rankings is not None
    assert context.rankings.best == "best"
    return context, context.seed_comparisons["all"]


def test_differences_that_depend_on_the_seed_are_not_significant(tmp_path: Path) -> None:
    context, comparisons = compare(tmp_path, scores(3))
    (text,) = seed_variance(context)
    assert text.startswith("best against the other methods over seeds and cases: 2 of 4 ")
    assert "0 significantly worse (3 seeds, calibration in region “all”, Holm over all 4," in text
    assert "Over cases alone 4 are significant, of which 2 are not" in text
    table = seeds_table(context, comparisons, "d")
    assert [row.method for row in table.rows] == ["sure", "luck"]
    sure, luck = (row.cells for row in table.rows)
    assert [cell.mark for cell in sure] == ["significant", "", "significant", ""]
    assert [cell.mark for cell in luck] == [""] * 4
    assert "†" in luck[0].after
    assert "†" not in sure[0].after
    assert luck[1].number.mean > 90 > sure[1].number.mean  # percent due to seeds
    assert "3 seeds, 12 cases" in table.caption
    assert r"**+0.2" in to_markdown(table)
    assert r"$\dagger$" in to_latex(table)


def test_calibrated_networks_are_compared_in_what_they_change(tmp_path: Path) -> None:
    values = dict(scores(3))
    for (method, seed, case), each in list(values.items()):
        if method != "best":
            values[f"{method}+t", seed, case] = {**each, "ece": 0.9 * each["ece"]}
    methods = [
        {"name": m, "group": "posthoc" if "+" in m else "main"}
        for m in ("best", "sure", "luck", "sure+t", "luck+t")
    ]
    context, comparisons = compare(tmp_path, values, methods=methods)
    assert comparisons.family == 4 + 2
    assert " of 6 differences " in seed_variance(context)[0]
    table = seeds_table(context, comparisons, "d")
    assert [row.method for row in table.rows] == ["sure", "luck", "sure+t", "luck+t"]
    shown = [[cell.mean(3) for cell in row.cells] for row in table.rows]
    assert all("–" not in row for row in shown[:2])
    assert [row[:2] for row in shown[2:]] == [["–", "–"]] * 2
    assert all("–" not in row[2:] for row in shown[2:])
    assert "masks unchanged" in table.caption
    marks = {
        axes.get_title(loc="left"): len(
            [x for x in axes.lines if x.get_marker() not in ("None", "")]
        )
        for axes in draw_seed_forest(context, comparisons, "d").figure.axes
    }
    assert marks == {"DSC ↑": 2, "ECE ↓": 4}


def test_without_seed_variance_all_differences_stay_significant(tmp_path: Path) -> None:
    context, _ = compare(tmp_path, scores(3, spread=0.0))
    assert "Over cases alone 2 are significant, of which 0 are not" in seed_variance(context)[0]


def test_equal_methods_have_no_significant_difference(tmp_path: Path) -> None:
    values = {k: v for k, v in scores(3, spread=0.0).items() if k[0] != "sure"}
    (text,) = seed_variance(Context(read_study(write_plain(tmp_path, values))))
    assert "0 of 2 differences significantly better, 0 significantly worse" in text
    assert "Over cases alone 0 are significant" in text


def test_few_cases_are_not_judged(tmp_path: Path) -> None:
    context, comparisons = compare(tmp_path, scores(3, cases=5))
    assert not comparisons
    assert "at least 6 cases" in seeds_note(context, comparisons)
    assert seed_variance(context) == []


def test_patients_count_once(tmp_path: Path) -> None:
    frames = scores(2)
    plain, by_case = compare(tmp_path / "a", frames)
    assert set(by_case.rows["cases"]) == {12}
    assert not by_case.by_patient
    named = {"d": {case: case[:10] for _, _, case in frames}}
    datasets = [{"name": "d", "title": "Set D", "patients": named["d"]}]
    context, by_patient = compare(tmp_path / "b", frames, datasets=datasets)
    assert set(by_patient.rows["cases"]) == {6}
    assert "2 seeds, 6 patients" in seeds_table(context, by_patient, "d").caption
    expected = compare_with_random_effects(
        context.aggregates.rows, reference="best", metrics=["dsc", "ece"], region="all",
        patients=named,
    )  # fmt: skip
    assert by_patient.rows.equals(expected)
    assert patients_note(plain) == ""
    assert patients_note(context).startswith("Set D: ")


def test_one_seed_cannot_be_compared(tmp_path: Path) -> None:
    context, comparisons = compare(tmp_path, scores(1))
    assert not comparisons
    page = write_report(tmp_path)
    html = page.read_text(encoding="utf-8")
    assert seeds_note(context, comparisons) in html
    assert "needs at least two seeds" in html
    assert seed_variance(context) == []
    assert not list(page.parent.glob("*/seeds*"))


def test_few_seeds_have_a_warning(tmp_path: Path) -> None:
    notes = {
        seeds: seeds_note(*compare(tmp_path / str(seeds), scores(seeds))) for seeds in (2, 3, 5)
    }
    assert "6 false positives in 100" in notes[2]
    assert "2 false positives in 100" in notes[3]
    assert "false positives" not in notes[5]


def test_a_method_with_one_seed_is_compared_over_cases(tmp_path: Path) -> None:
    values = {k: v for k, v in scores(2).items() if k[:2] != ("luck", 0)}
    context, comparisons = compare(tmp_path, values)
    assert " of 2 differences " in seed_variance(context)[0]
    table = seeds_table(context, comparisons, "d")
    assert [row.note for row in table.rows] == ["", "one seed: over cases alone"]
    assert table.rows[1].cells[0].mark == ""


def test_cases_that_are_left_out_are_counted(tmp_path: Path) -> None:
    values = {k: {**v, "hd95_mm": 2 + v["dsc"]} for k, v in scores(3).items()}
    values["luck", 1, "patient000_frame01"]["hd95_mm"] = float("nan")  # type: ignore[index]
    context, comparisons = compare(tmp_path, values, metrics=["dsc", "hd95_mm"])
    assert "HD95 against luck: 1." in seeds_table(context, comparisons, "d").notes[0]


def test_many_comparisons_with_cases_left_out_are_summarized(tmp_path: Path) -> None:
    names = [f"m{i}" for i in range(10)]
    values: Values = {
        (m, seed, f"c{case}"): {
            "dsc": 0.8 + 0.01 * i + 0.001 * case,
            "hd95_mm": float("nan") if case < i and seed else 2.0 + case,
        }
        for i, m in enumerate(names)
        for seed in range(2)
        for case in range(20)
    }
    study = write_plain(tmp_path, values, metrics=["dsc", "hd95_mm"], reference="m0")
    context = Context(read_study(study))
    (note,) = seeds_table(context, context.seed_comparisons[context.region], "d").notes
    assert "HD95: 1 to 9 against 9 methods" in note


def test_a_metric_without_a_complete_case(tmp_path: Path) -> None:
    values = {k: {**v, "hd95_mm": 2 + v["dsc"]} for k, v in scores(3).items()}
    for (method, seed, _), each in values.items():
        if (method, seed) in (("sure", 0), ("luck", 1)):
            each["hd95_mm"] = float("nan")
    write_plain(tmp_path, values, metrics=["dsc", "hd95_mm", "ece"])
    page = write_report(tmp_path)
    figure = (page.parent / "figures" / "seeds_d.svg").read_text(encoding="utf-8")
    assert figure.count("no complete case") == 1
    assert "| – | – |" in (page.parent / "tables" / "seeds_d.md").read_text(encoding="utf-8")
    assert " of 4 differences " in page.read_text(encoding="utf-8")


def test_the_page_and_its_files(tmp_path: Path) -> None:
    write_plain(tmp_path, scores(3))
    page = write_report(tmp_path)
    html = page.read_text(encoding="utf-8")
    assert 'href="#seeds"' in html
    assert html.count('id="table-seeds_d-all"') == 1
    assert "2 are not once seed variance is included" in html
    lines = list(csv.DictReader((page.parent / "tables" / "seeds.csv").open(encoding="utf-8")))
    assert [(x["metric"], x["other"]) for x in lines] == [
        ("dsc", "sure"), ("dsc", "luck"), ("ece", "sure"), ("ece", "luck"),
    ]  # fmt: skip
    assert float(lines[1]["low"]) < 0 < float(lines[1]["low_cases"])
    cells = list(csv.DictReader((page.parent / "tables" / "seeds_d.csv").open(encoding="utf-8")))
    assert cells[0]["mark"] == "significant"
    assert (page.parent / "figures" / "seeds_d.svg").is_file()


def test_every_region_is_compared_by_itself(tmp_path: Path) -> None:
    """At the boundary `sure` is better; the findings are of the study's region."""
    values = scores(3)
    turned: Values = {
        key: {**each, ("ece", "boundary"): 0.5 - each["ece"]} for key, each in values.items()
    }
    page = write_report(write_plain(tmp_path, turned))
    with (page.parent / "tables" / "seeds.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    ours, others = ([x for x in lines if x["family"] == f] for f in ("all", "boundary"))
    assert len(lines) == len(ours) + len(others) == 8
    assert [x["better"] for x in ours if x["other"] == "sure"] == ["best", "best"]
    assert [x["better"] for x in others if x["other"] == "sure"] == ["best", "sure"]
    assert [x["region"] for x in others] == ["all", "all", "boundary", "boundary"]
    assert (page.parent / "tables" / "seeds_d_boundary.md").is_file()
    html = page.read_text(encoding="utf-8")
    assert html.count('id="table-seeds_d-all"') == html.count('id="table-seeds_d-boundary"') == 1
    forest = html.index("<svg", html.index('<section id="seeds">'))
    assert html.rindex("data-region", 0, forest) == html.rindex('data-region="all"', 0, forest)
    assert "2 of 4 differences significantly better, 0 significantly worse" in html


def test_a_reference_without_values_in_another_region(tmp_path: Path) -> None:
    """That region has no comparisons, and the report is written."""
    values: Values = {
        key: {"ece": each["ece"]} | ({} if key[0] == "best" else {("ece", "boundary"): 0.1})
        for key, each in scores(3).items()
    }
    page = write_report(write_plain(tmp_path, values, metrics=["ece"]))
    with (page.parent / "tables" / "seeds.csv").open(encoding="utf-8") as file:
        assert {line["family"] for line in csv.DictReader(file)} == {"all"}
    assert not (page.parent / "tables" / "seeds_d_boundary.md").exists()


def test_a_method_without_values_in_another_region(tmp_path: Path) -> None:
    values: Values = {
        key: dict(each) | ({} if key[0] == "luck" else {("ece", "boundary"): each["ece"]})
        for key, each in scores(3).items()
    }
    page = write_report(write_plain(tmp_path, values))
    table = (page.parent / "tables" / "seeds_d_boundary.md").read_text(encoding="utf-8")
    assert "luck" in table
    assert "left out" not in table


def test_a_dataset_named_like_the_table_of_a_region(tmp_path: Path) -> None:
    values: Values = {
        key: {**each, ("ece", "boundary"): each["ece"]} for key, each in scores(3).items()
    }
    write_plain(tmp_path, values)
    rows = (tmp_path / "cases.csv").read_text().splitlines()
    twice = [*rows, *(row.replace("d/", "e/").replace(",d,", ",d_boundary,") for row in rows[1:])]
    (tmp_path / "cases.csv").write_text("\n".join(twice) + "\n")
    tables = write_report(tmp_path).parent / "tables"
    second = (tables / "seeds_d_boundary-2.md").read_text(encoding="utf-8")
    assert "region “all”" in (tables / "seeds_d_boundary.md").read_text(encoding="utf-8")
    assert "region “boundary”" in second


def test_patients_have_to_be_names(tmp_path: Path) -> None:
    write_plain(tmp_path, scores(2))
    study = json.loads((tmp_path / "study.json").read_text())
    study["datasets"][0]["patients"] = {"x": ["y"]}
    (tmp_path / "study.json").write_text(json.dumps(study))
    with pytest.raises(ValueError, match=r"study.json: .*`datasets.0.patients.x`"):
        read_study(tmp_path)
