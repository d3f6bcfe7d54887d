"""What the report says of studies whose answer is known."""

import csv
from pathlib import Path
from typing import Any

import pytest

from helpers.plain_studies import Values, write_plain
from segcal.report.confidence import confidence_words
from segcal.report.formats import to_csv, to_markdown
from segcal.report.numbers import Numbers
from segcal.report.page import chosen
from segcal.report.rank_tables import rank_table
from segcal.report.ranks import Ranks, rank_methods
from segcal.report.tables import confidence_table, main_table
from segcal.report.words import findings, ranking_note
from segcal.study import read_study


def read(folder: Path, values: Values, **extra: object) -> Numbers:
    return Numbers(read_study(write_plain(folder, values, **extra)))


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


def test_all_voxels_decide_and_not_the_foreground(tmp_path: Path) -> None:
    numbers = read(tmp_path, gaps((-0.041, 0.35)), region="foreground")
    ((_, text),) = confidence_words(numbers, numbers.study.region)
    assert text == (
        "a is under-confident: mean confidence stays below accuracy by 0.041 over all voxels. In "
        "region “foreground”: +0.350; the regions disagree, and this one is chosen by the truth."
    )
    table = confidence_table(numbers)
    assert table is not None
    assert [column.key for column in table.columns] == ["foreground", "all"]
    assert [cell.tone for cell in table.rows[0].cells] == ["over", "under"]


def test_seeds_of_opposite_sign_are_not_balanced(tmp_path: Path) -> None:
    numbers = read(tmp_path, gaps((0.3, 0.2), (-0.3, 0.1)), region="foreground")
    ((_, text),) = confidence_words(numbers, "all")
    assert "balanced" not in text
    assert "over-confident with 1 and under-confident with 1 of 2 seeds (−0.300 to +0.300)" in text
    assert "Its seeds disagree" in text
    table = confidence_table(numbers)
    assert table is not None
    assert [cell.tone for cell in table.rows[0].cells] == ["over", ""]


def test_one_seed_that_is_off_spoils_the_balance(tmp_path: Path) -> None:
    sure = read(tmp_path / "a", gaps((0.003, 0), (-0.005, 0)), region="foreground")
    assert "is balanced" in confidence_words(sure, "all")[0][1]
    unsure = read(tmp_path / "b", gaps((0.003, 0), (0.012, 0)), region="foreground")
    assert "balanced with 1 and over-confident with 1 of 2" in confidence_words(unsure, "all")[0][1]


def test_without_all_voxels_the_region_speaks_with_a_warning(tmp_path: Path) -> None:
    values = {("a", 0, "c"): {("signed_gap", "union"): 0.2, ("ece", "union"): 0.2}}
    numbers = read(tmp_path, values, region="union")
    text = confidence_words(numbers, "union")[0][1]
    assert "is over-confident: mean confidence exceeds accuracy by 0.200 in region “union”." in text
    assert "region “all” was not measured" in text


def test_datasets_are_named_beside_their_gaps(tmp_path: Path) -> None:
    write_plain(tmp_path, gaps((0.2, 0.1)), region="foreground")
    path = tmp_path / "cases.csv"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows, *(r.replace(",d,", ",e,") for r in rows[1:])]) + "\n")
    text = confidence_words(Numbers(read_study(tmp_path)), "foreground")[0][1]
    assert "In region “foreground”: +0.100 (Set D) and +0.100 (e)." in text


def best_of(numbers: Numbers) -> str:
    ranks = rank_methods(numbers, "all")
    return next(text for text in findings(numbers, ranks, "all") if text.startswith("Set D: "))


def test_ties_have_no_worst(tmp_path: Path) -> None:
    numbers = read(tmp_path, scores(a=(0.8, 0.1), b=(0.80001, 0.1), c=(0.7, 0.10001)))
    assert best_of(numbers) == (
        "Set D: a and b share the best DSC, 0.796 (worst: c, 0.696); all 3 methods have the same "
        "ECE in region “all”, 0.100."
    )


@pytest.mark.parametrize(("cases", "known"), [(2, False), (5, False), (6, True)])
def test_few_cases_have_no_interval(tmp_path: Path, cases: int, known: bool) -> None:
    values = {k: v for k, v in scores(a=(0.8, 0.1), b=(0.7, 0.2)).items() if int(k[2][1]) < cases}
    numbers = read(tmp_path, values)
    ranks = rank_methods(numbers, "all")
    assert ranks is not None
    assert ("95 % interval" in findings(numbers, ranks, "all")[0]) == known
    assert ("no intervals, because a dataset has fewer than 6" in ranking_note(ranks, numbers)) != (
        known
    )
    cells = rank_table(numbers, ranks).rows[0].cells
    assert (cells[1].text == "–") != known


def test_undefined_values_are_counted_in_every_format(tmp_path: Path) -> None:
    values = {k: {**v, "hd95_mm": 2.0} for k, v in scores(a=(0.8, 0.1), b=(0.7, 0.2)).items()}
    values["a", 0, "c0"] = {**values["a", 0, "c0"], "hd95_mm": float("nan")}
    numbers = read(tmp_path, values, metrics=["dsc", "hd95_mm"])
    ranks = rank_methods(numbers, "all")
    assert ranks is not None
    table = rank_table(numbers, ranks)
    assert "(1 undef.)" in to_markdown(table)
    lines = list(csv.DictReader(to_csv(table).splitlines()))
    assert {line["undefined"] for line in lines if line["method"] == "a"} == {"1"}
    assert {line["undefined"] for line in lines if line["method"] == "b"} == {"0"}
    main = main_table(numbers, "all")
    assert main is not None
    assert any("a missed structure as the worst, not one that nobody has" in n for n in main.notes)
    assert "nothing was there and nothing found" in ranking_note(ranks, numbers)


# Methods that were not tested on the same cases.


def apart(shared: int) -> Values:
    """Method `a` on eight cases, `b` on eight of which the last `shared` are of `a` too."""
    every = scores(a=(0.8, 0.1), b=(0.7, 0.2))
    start = 8 - shared
    return {
        (m, s, f"c{int(case[1:]) + (start if m == 'b' else 0)}"): each
        for (m, s, case), each in every.items()
    }


def ranked(numbers: Numbers) -> Ranks:
    ranks = rank_methods(numbers, "all")
    assert ranks is not None
    return ranks


def test_partly_shared_cases_are_said(tmp_path: Path) -> None:
    numbers = read(tmp_path, apart(6))
    assert numbers.shared_cases("d", ["a", "b"]) == (6, 10)
    said = findings(numbers, ranked(numbers), "all")
    assert any(s.startswith("Set D: 6 of 10 cases were tested by all 2 methods") for s in said)
    same = read(tmp_path / "same", apart(8))
    assert not any("tested by all" in s for s in findings(same, ranked(same), "all"))


def test_without_a_shared_case_nothing_is_tested(tmp_path: Path) -> None:
    numbers = read(tmp_path, apart(0))
    assert rank_methods(numbers, "all") is None
    said = findings(numbers, None, "all")
    assert any("Set D: none of 16 cases were tested by all 2 methods" in s for s in said)
    assert any("neither ranked nor tested on it" in s for s in said)


def test_a_dataset_without_a_shared_case_leaves_the_others(tmp_path: Path) -> None:
    write_plain(tmp_path, apart(0))
    write_plain(tmp_path / "other", scores(a=(0.8, 0.1), b=(0.7, 0.2)))
    more = (tmp_path / "other" / "cases.csv").read_text().splitlines(True)[1:]
    with (tmp_path / "cases.csv").open("a") as file:
        file.writelines(line.replace(",d,", ",e,") for line in more)
    numbers = Numbers(read_study(tmp_path))
    ranks = ranked(numbers)
    assert (ranks.datasets, ranks.unpaired) == (["e"], ("d",))
    assert set(ranks.tests["dataset"]) == {"e"}
    assert "no case was tested by all methods: Set D." in ranking_note(ranks, numbers)


def test_errors_against_the_truth_are_of_the_whole_image(tmp_path: Path) -> None:
    values = {
        k: {**v, ("ece", "foreground"): 0.3, "truth_ece": v["ece"]}
        for k, v in scores(a=(0.8, 0.1), b=(0.7, 0.2)).items()
    }
    numbers = read(tmp_path, values, metrics=["dsc", "truth_ece"], region="foreground")
    ranks = rank_methods(numbers, "foreground")
    assert ranks is not None
    assert ranks.scores.metrics == ["dsc", "truth_ece"]
    table = main_table(numbers, "foreground")
    assert table is not None
    assert table.rows[0].cells[1].number.mean == pytest.approx(0.1)


def course(method: str, best: float, last: float, **more: int) -> dict[str, object]:
    training = {"epochs": 9, "best_epoch": 4, "best_dsc": best, "last_dsc": last, **more}
    return {"run": f"d/{method}/seed0", "method": method, "dataset": "d", "training": training}


def test_trainings_that_broke_down_are_named(tmp_path: Path) -> None:
    values = scores(a=(0.9, 0.1), b=(0.8, 0.1), c=(0.7, 0.1))
    runs = [course("a", 0.8, 0.73), course("b", 0.8, 0.71), course("c", 0.8, 0.8)]
    text = findings(read(tmp_path, values, runs=runs), None, "all")[-1]
    assert text == (
        "1 of 3 trainings broke down: at the end validation DSC was more than a tenth below its "
        "best. Tested is the best checkpoint, from before: d/b/seed0 (0.800 in epoch 4, 0.710 in "
        "epoch 9)."
    )
    (tmp_path / "last").mkdir()
    last = read(tmp_path / "last", values, runs=[course("b", 0.8, 0.1, tested_epoch=9)])
    assert "Tested is the last checkpoint: d/b/seed0" in findings(last, None, "all")[-1]
    (tmp_path / "well").mkdir()
    well = read(tmp_path / "well", values, runs=[course(m, 0.8, 0.8) for m in "abc"])
    assert not any("broke down" in text for text in findings(well, None, "all"))


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
    numbers = read(tmp_path, scores(a=(0.9, 0.1), b=(0.8, 0.1)), methods=methods)
    assert findings(numbers, None, "all")[-1] == (
        "Options were chosen by 3 trainings, 2 of which broke down and were judged by what they "
        "had reached before: see “What was run”. The choice says less of these options."
    )
    assert chosen(numbers.study.info.methods[0].chosen_from) == (
        "gamma = 1.0: 0.800, 1 of 2 broke down; gamma = 2.0: 0.700 (ECE 0.050), broke down; "
        "gamma = 3.0: failed"
    )
    (tmp_path / "last").mkdir()
    methods[0]["chosen_from"] = [candidate(1.0, val_dsc=0.1, trainings=[late])]
    numbers = read(tmp_path / "last", scores(a=(0.9, 0.1), b=(0.8, 0.1)), methods=methods)
    assert "judged by what was left" in findings(numbers, None, "all")[-1]


def test_a_calibrators_masks_are_compared_once(tmp_path: Path) -> None:
    """Where they are ranked, because one method alone was trained; else they are not ranked."""
    values = dict(scores(a=(0.9, 0.1), b=(0.8, 0.2)))
    for (method, seed, case), each in list(values.items()):
        values[f"{method}+temperature", seed, case] = {**each, "ece": each["ece"] * 0.7}
    names = ("a", "b", "a+temperature", "b+temperature")
    methods = [{"name": m, "group": "posthoc" if "+" in m else "main"} for m in names]
    (tmp_path / "main").mkdir()
    ranks = rank_methods(read(tmp_path / "main", values, methods=methods), "all")
    assert ranks is not None
    assert list(ranks.sums["method"]) == ["a", "b"]
    methods[1]["group"] = "ablation"
    numbers = read(tmp_path, values, methods=methods)
    ranks = rank_methods(numbers, "all")
    assert ranks is not None
    assert len(ranks.tests) == 12
    assert ranks.family == 1 + 6  # one pair of masks, six pairs of confidences
    text = " ".join(findings(numbers, ranks, "all"))
    assert "Of the 4 paired comparisons of a+temperature with" in text
    assert "Holm over all 7 tests" in text
    assert (
        "Set D, region “all”: ECE is lower after a+temperature (from 0.100 to 0.070) and "
        "b+temperature (from 0.200 to 0.140)." in text
    )


def test_what_calibrators_changed_goes_by_the_digits_that_are_printed(tmp_path: Path) -> None:
    values = dict(scores(a=(0.9, 0.1), b=(0.8, 0.2), c=(0.7, 0.3)))
    times = {"a": 0.9999, "b": 1.1, "c": 0.5}
    for (method, seed, case), each in list(values.items()):
        values[f"{method}+t", seed, case] = {**each, "ece": each["ece"] * times[method]}
    names = [*times, *(f"{m}+t" for m in times)]
    methods = [{"name": m, "group": "posthoc" if "+" in m else "main"} for m in names]
    text = " ".join(findings(read(tmp_path, values, methods=methods), None, "all"))
    assert (
        "ECE is lower after c+t (from 0.300 to 0.150); ECE is the same after a+t (0.100); "
        "ECE is higher after b+t (from 0.200 to 0.220)." in text
    )


def test_many_calibrated_methods_that_are_balanced_are_one_sentence(tmp_path: Path) -> None:
    names = ["a", "b", "a+t", "b+t", "c+t"]
    values = {
        (m, 0, f"c{i}"): {"signed_gap": 0.001 if "+" in m else 0.2, "ece": 0.1}
        for m in names
        for i in range(3)
    }
    for count in (4, 5):
        folder = tmp_path / str(count)
        folder.mkdir()
        methods = [{"name": m, "group": "posthoc" if "+" in m else "main"} for m in names[:count]]
        kept = {key: each for key, each in values.items() if key[0] in names[:count]}
        found = confidence_words(read(folder, kept, methods=methods), "all")
        assert [m for m, _ in found] == (["a", "b", ""] if count == 5 else names[:4])
    assert found[-1][1] == (
        "a+t, b+t and c+t are balanced: mean confidence and accuracy differ by less than 0.01 over "
        "all voxels."
    )
