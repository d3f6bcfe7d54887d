"""What the report says of differences once seeds count."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from helpers.plain_studies import Values, write_plain
from segcal.report import write_report
from segcal.report.forest import draw_forest
from segcal.report.formats import to_latex, to_markdown
from segcal.report.numbers import Numbers
from segcal.report.ranks import rank_methods
from segcal.report.seeds import (
    Counted,
    count_seeds,
    patients_note,
    seed_words,
    seeds_note,
    seeds_table,
)
from segcal.report.words import findings
from segcal.stats import compare_with_random_effects
from segcal.study.reader import read_study


def scores(seeds: int, cases: int = 12, spread: float = 0.05) -> Values:
    """`best` beats `sure` with every seed, and `luck` only by its seeds; `spread` is of those."""
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


def count(folder: Path, values: Values, **extra: object) -> tuple[Numbers, Counted]:
    numbers = Numbers(read_study(write_plain(folder, values, **extra)))
    ranks = rank_methods(numbers, "all")
    assert ranks is not None
    assert ranks.best == "best"
    return numbers, count_seeds(numbers, ranks, "all")


def test_what_seeds_turn_around_does_not_remain(tmp_path: Path) -> None:
    numbers, counted = count(tmp_path, scores(3))
    text = seed_words(numbers, counted)
    assert text == (
        "Of the 4 differences between best and the other methods (calibration in region “all”), 2 "
        "remain when seeds count as well as cases (2 in its favour, 0 against it; 3 seeds, Holm "
        "over all 4, α = 0.05). A test over the same cases alone calls 4 significant; 2 of those "
        "do not remain."
    )
    ranks = rank_methods(numbers, "all")
    assert text in findings(numbers, ranks, "all", counted)
    assert text not in findings(numbers, ranks, "all")
    table = seeds_table(numbers, counted, "d")
    assert [row.method for row in table.rows] == ["sure", "luck"]
    sure, luck = (row.cells for row in table.rows)
    assert [cell.mark for cell in sure] == ["sure", "", "sure", ""]
    assert [cell.mark for cell in luck] == [""] * 4
    assert "†" in luck[0].after
    assert "†" not in sure[0].after
    assert luck[1].number.mean > 90 > sure[1].number.mean  # per cent due to seeds
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
    numbers, counted = count(tmp_path, values, methods=methods)
    assert counted.family == 4 + 2
    assert "Of the 6 differences" in seed_words(numbers, counted)
    table = seeds_table(numbers, counted, "d")
    assert [row.method for row in table.rows] == ["sure", "luck", "sure+t", "luck+t"]
    shown = [[cell.mean(3) for cell in row.cells] for row in table.rows]
    assert all("–" not in row for row in shown[:2])
    assert [row[:2] for row in shown[2:]] == [["–", "–"]] * 2
    assert all("–" not in row[2:] for row in shown[2:])
    assert "a calibrator left the masks as they were" in table.caption
    marks = {
        axes.get_title(loc="left"): len(
            [x for x in axes.lines if x.get_marker() not in ("None", "")]
        )
        for axes in draw_forest(numbers, counted, "d").figure.axes
    }
    assert marks == {"DSC ↑": 2, "ECE ↓": 4}


def test_without_spread_of_seeds_nothing_is_lost(tmp_path: Path) -> None:
    numbers, counted = count(tmp_path, scores(3, spread=0.0))
    text = seed_words(numbers, counted)
    assert "calls 2 significant; all remain." in text


def test_nothing_remains_where_nothing_was(tmp_path: Path) -> None:
    values = {k: v for k, v in scores(3, spread=0.0).items() if k[0] != "sure"}
    numbers = Numbers(read_study(write_plain(tmp_path, values)))
    ranks = rank_methods(numbers, "all")
    assert ranks is not None
    text = seed_words(numbers, count_seeds(numbers, ranks, "all"))
    assert "(calibration in region “all”), 0 remain when" in text
    assert text.endswith("alone calls none of them significant either.")


def test_few_cases_are_not_judged(tmp_path: Path) -> None:
    numbers, counted = count(tmp_path, scores(3, cases=5))
    assert not counted
    assert seeds_note(numbers, counted) == (
        "This needs at least 6 cases that all seeds of two methods have."
    )


def test_patients_count_once(tmp_path: Path) -> None:
    frames, plain = scores(2), count(tmp_path / "a", scores(2))[1]
    assert set(plain.rows["cases"]) == {12}
    assert not plain.by_patient
    named = {"d": {case: case[:10] for _, _, case in frames}}
    told = [{"name": "d", "title": "Set D", "patients": named["d"]}]
    numbers, by_name = count(tmp_path / "b", frames, datasets=told)
    assert set(by_name.rows["cases"]) == {6}
    assert "2 seeds, 6 patients (cases of a patient averaged)" in (
        seeds_table(numbers, by_name, "d").caption
    )
    # An older study of ACDC does not say whose its frames are; their names do.
    numbers, older = count(
        tmp_path / "c", frames, datasets=[{"name": "d", "title": "Set D", "source": "acdc"}]
    )
    assert older.rows.equals(by_name.rows)
    expected = compare_with_random_effects(
        numbers.rows, reference="best", metrics=["dsc", "ece"], region="all", patients=named
    )
    assert by_name.rows.equals(expected)
    assert patients_note(numbers, plain) == ""
    assert "Set D: cases of one patient count as if they were independent" in (
        patients_note(numbers, by_name)
    )


def test_one_seed_is_one_line(tmp_path: Path) -> None:
    numbers, counted = count(tmp_path, scores(1))
    assert not counted
    page = write_report(tmp_path)
    html = page.read_text(encoding="utf-8")
    assert "What remains once seeds are counted" in html
    assert seeds_note(numbers, counted) in html
    assert "needs at least two seeds" in html
    assert "differences between best" not in html
    assert not list(page.parent.glob("*/seeds*"))


def test_two_seeds_come_with_a_warning(tmp_path: Path) -> None:
    assert "take three or more" in seeds_note(*count(tmp_path / "two", scores(2)))
    assert "take three or more" not in seeds_note(*count(tmp_path / "three", scores(3)))


def test_a_failed_run_leaves_its_method_to_cases_alone(tmp_path: Path) -> None:
    values = {k: v for k, v in scores(2).items() if k[:2] != ("luck", 0)}
    numbers, counted = count(tmp_path, values)
    assert "Of the 2 differences" in seed_words(numbers, counted)
    table = seeds_table(numbers, counted, "d")
    assert [row.note for row in table.rows] == ["", "one seed: over cases alone"]
    assert table.rows[1].cells[0].mark == ""


def test_cases_that_are_left_out_are_told(tmp_path: Path) -> None:
    values = {k: {**v, "hd95_mm": 2 + v["dsc"]} for k, v in scores(3).items()}
    values["luck", 1, "patient000_frame01"]["hd95_mm"] = float("nan")  # type: ignore[index]
    numbers, counted = count(tmp_path, values, metrics=["dsc", "hd95_mm"])
    assert "which flatters it: HD95 against luck: 1." in seeds_table(numbers, counted, "d").notes[0]


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
    assert "Of the 4 differences between" in page.read_text(encoding="utf-8")


def test_the_page_and_its_files(tmp_path: Path) -> None:
    write_plain(tmp_path, scores(3))
    page = write_report(tmp_path)
    html = page.read_text(encoding="utf-8")
    assert 'href="#seeds"' in html
    assert html.count('id="table-seeds_d-all"') == 1
    assert "2 of those do not remain." in html
    lines = list(csv.DictReader((page.parent / "tables" / "seeds.csv").open(encoding="utf-8")))
    assert [(x["metric"], x["other"]) for x in lines] == [
        ("dsc", "sure"), ("dsc", "luck"), ("ece", "sure"), ("ece", "luck"),
    ]  # fmt: skip
    assert float(lines[1]["low"]) < 0 < float(lines[1]["low_cases"])
    cells = list(csv.DictReader((page.parent / "tables" / "seeds_d.csv").open(encoding="utf-8")))
    assert cells[0]["mark"] == "sure"
    assert (page.parent / "figures" / "seeds_d.svg").is_file()


def test_every_region_is_counted_by_itself(tmp_path: Path) -> None:
    """At the boundary `sure` is the better one; the findings go by the study's own region."""
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
    assert "2 remain when seeds count as well as cases (2 in its favour, 0 against it" in html


def test_a_reference_that_another_region_does_not_know(tmp_path: Path) -> None:
    """Nothing is said there, and the report is written all the same."""
    values: Values = {
        key: {"ece": each["ece"]} | ({} if key[0] == "best" else {("ece", "boundary"): 0.1})
        for key, each in scores(3).items()
    }
    page = write_report(write_plain(tmp_path, values, metrics=["ece"]))
    with (page.parent / "tables" / "seeds.csv").open(encoding="utf-8") as file:
        assert {line["family"] for line in csv.DictReader(file)} == {"all"}
    assert not (page.parent / "tables" / "seeds_d_boundary.md").exists()


def test_a_method_that_another_region_does_not_know_is_not_flattered(tmp_path: Path) -> None:
    values: Values = {
        key: dict(each) | ({} if key[0] == "luck" else {("ece", "boundary"): each["ece"]})
        for key, each in scores(3).items()
    }
    page = write_report(write_plain(tmp_path, values))
    table = (page.parent / "tables" / "seeds_d_boundary.md").read_text(encoding="utf-8")
    assert "luck" in table
    assert "flatters" not in table


def test_a_dataset_may_be_called_like_the_table_of_a_region(tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match=r"study.json: Expected `datasets.0.patients.x`"):
        read_study(tmp_path)
