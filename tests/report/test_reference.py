"""The method that a study is about: named before results are seen, or when the report is made."""

import csv
import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.plain_studies import Values, write_plain
from segcal.report import write_report
from segcal.report.numbers import Numbers
from segcal.report.rank_tables import test_table as make_test_table
from segcal.report.ranks import rank_methods
from segcal.report.reference import place_words, why_this
from segcal.report.seeds import count_seeds, seed_words, seeds_note, seeds_table
from segcal.report.words import findings
from segcal.study import read_study

CHOSEN = "good was chosen as the best on the same cases, which favours it."
IN_PLAN = "fair was named in the plan before any run was evaluated, not chosen by its results."
AT_REPORT = (
    "fair was named when the report was made; it may have been chosen after the results were seen."
)


def scores() -> Values:
    """`good` before `fair` before `poor`, with every seed."""
    rng = np.random.default_rng(0)
    level = {"good": 0.9, "fair": 0.8, "poor": 0.6}
    return {
        (m, s, f"{i:02d}"): {k: v + rng.normal() / 200 for k, v in (("dsc", x), ("ece", 1 - x))}
        for m, x in level.items() for s in range(3) for i in range(12)
    }  # fmt: skip


def words_of(folder: Path, asked: str | None = None, **told: Any) -> tuple[str, list[str], str]:
    """What is compared, the findings, and the end of the note on seeds."""
    numbers = Numbers(read_study(write_plain(folder, scores(), **told), reference=asked))
    ranks = rank_methods(numbers, "all")
    assert ranks is not None
    counted = count_seeds(numbers, ranks, "all")
    assert counted.reference == ranks.reference
    note = seeds_note(numbers, counted)
    assert note.endswith(why_this(numbers.study, ranks.reference))
    return ranks.reference, findings(numbers, ranks, "all", counted), note


def test_without_a_name_the_best_is_compared(tmp_path: Path) -> None:
    method, said, note = words_of(tmp_path)
    assert method == "good"
    assert note.endswith(CHOSEN)
    assert not [sentence for sentence in said if "named" in sentence]


@pytest.mark.parametrize(
    ("told", "how", "worth"),
    [({"reference_late": False}, "named in the plan before any run was evaluated",
      ", not chosen by its results."),
     ({"reference_late": True}, "named in the plan when runs had been evaluated already",
      "; it may have been chosen after their results were seen."),
     ({}, "named in study.json",
      "; whether that was before results were seen is not written there.")],
)  # fmt: skip
def test_a_study_names_what_it_is_about(
    told: dict[str, Any], how: str, worth: str, tmp_path: Path
) -> None:
    method, said, note = words_of(tmp_path, reference="fair", **told)
    assert method == "fair"
    assert said[0].startswith("good ranks first by sum-rank")  # whatever was named
    assert f"fair, {how}, is number 2 of 3 by sum-rank (4) and number 2 by mean-case-rank (2.00)." \
        in said  # fmt: skip
    (tested,) = [x for x in said if "paired comparisons" in x]
    assert "Of the 4 paired comparisons of fair with the other methods" in tested
    assert "2 remain significant in its favour and 2 against it" in tested
    (remains,) = [x for x in said if "when seeds count" in x]
    assert remains.startswith("Of the 4 differences between fair and the other methods (")
    assert "), 4 remain when seeds count" in remains
    assert "(2 in its favour, 2 against it" in remains
    assert note.endswith(f"fair was {how}{worth}")
    assert "which favours it" not in note


def test_the_command_line_goes_over_the_study(tmp_path: Path) -> None:
    told: dict[str, Any] = {"reference": "poor", "reference_late": False}
    method, said, note = words_of(tmp_path / "a", "fair", **told)
    assert method == "fair"
    assert note.endswith(AT_REPORT)
    assert any(x.startswith("fair, named when the report was made, is number 2 of 3") for x in said)
    # Who says what the plan says has chosen nothing.
    told = {"reference": "fair", "reference_late": False}
    assert words_of(tmp_path / "b", "fair", **told)[2].endswith(IN_PLAN)


def test_the_best_may_be_the_one_that_was_named(tmp_path: Path) -> None:
    method, said, note = words_of(tmp_path, reference="good", reference_late=False)
    assert method == "good"
    words = "good was named in the plan before any run was evaluated, not chosen by its results."
    assert note.endswith(words)
    assert words in said


def test_places_may_be_shared(tmp_path: Path) -> None:
    values = {k: v for k, v in scores().items() if k[0] != "poor"}
    values |= {("twin", s, c): v for (m, s, c), v in values.items() if m == "fair"}
    numbers = Numbers(read_study(write_plain(tmp_path, values), reference="twin"))
    assert "is number 2 (shared) of 3 by sum-rank (5) and number 2 (shared) by" in place_words(
        numbers.study, rank_methods(numbers, "all")
    )


def test_tables_are_of_the_reference(tmp_path: Path) -> None:
    numbers = Numbers(read_study(write_plain(tmp_path, scores()), reference="fair"))
    ranks = rank_methods(numbers, "all")
    assert ranks is not None
    table = make_test_table(numbers, ranks)
    assert table.title == "Tests of fair"
    assert {row.method for row in table.rows} == {"good", "poor"}
    differences = {row.method: row.cells[2].number.mean for row in table.rows[:2]}  # of DSC
    assert differences["good"] == pytest.approx(-0.1, abs=0.01)
    assert differences["poor"] == pytest.approx(0.2, abs=0.01)
    assert len(ranks.tests) == 6  # Wilcoxon's family stays all pairs
    seeds = seeds_table(numbers, count_seeds(numbers, ranks, "all"), "d")
    assert [row.method for row in seeds.rows] == ["good", "poor"]
    assert seeds.caption.startswith("fair minus the method")


def without_a_dataset(folder: Path, **told: Any) -> Path:
    """A study of two datasets in which `fair` has rows of one."""
    write_plain(folder, scores(), **told)
    lines = (folder / "cases.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    again = [x.replace(",d,", ",e,", 1).replace("d/", "e/", 1) for x in lines[1:]]
    with (folder / "cases.csv").open("a", encoding="utf-8") as out:
        out.writelines(x for x in again if ",fair," not in x)
    return folder


def test_a_reference_that_is_not_ranked_gives_way_to_the_best(tmp_path: Path) -> None:
    folder = without_a_dataset(tmp_path, reference="fair", reference_late=False)
    numbers = Numbers(read_study(folder))
    ranks = rank_methods(numbers, "all")
    assert ranks is not None
    assert ranks.left_out == ("fair",)
    assert ranks.reference == ranks.best == "good"
    counted = count_seeds(numbers, ranks, "all")
    said = findings(numbers, ranks, "all", counted)
    assert (
        "fair, named in the plan before any run was evaluated, could not be ranked, because a "
        "dataset has no finished run of it; good, the first by sum-rank, is compared with the "
        "others instead."
    ) in said
    assert "between good and the other methods" in seed_words(numbers, counted)
    assert seeds_note(numbers, counted).endswith(
        f"fair was named in the plan before any run was evaluated, but could not be ranked. "
        f"{CHOSEN}"
    )


def test_nothing_to_compare_with(tmp_path: Path) -> None:
    values = {k: v for k, v in scores().items() if k[0] == "fair"}
    numbers = Numbers(read_study(write_plain(tmp_path, values), reference="fair"))
    assert findings(numbers, rank_methods(numbers, "all"), "all") == [
        "Set D: fair has DSC 0.800; ECE 0.201 in region “all”.",
        "fair, named when the report was made, cannot be compared: no two methods can be ranked.",
    ]


def test_wrong_names(tmp_path: Path) -> None:
    groups = {"good": "main", "fair": "main", "poor": "ablation"}
    methods = [{"name": name, "group": group} for name, group in groups.items()]
    folder = write_plain(tmp_path, scores(), methods=methods, reference="god")
    with pytest.raises(
        ValueError, match=r"Expected `reference` of .*study.json to be one of"
    ) as no:
        read_study(folder)
    assert str(no.value).endswith(
        "'good', 'fair', but got 'god'. Did you mean 'good'? Correct it, or say --reference."
    )
    assert read_study(folder, reference="good").named is not None
    with pytest.raises(ValueError, match="'poor', which is of group ablation and so not ranked"):
        write_report(folder, reference="poor")
    assert not (folder / "report").exists()


def test_the_page(tmp_path: Path) -> None:
    folder = write_plain(tmp_path, scores(), reference="fair", reference_late=False)
    page = write_report(folder)
    html = re.sub(r"<svg.*?</svg>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert "<summary>p-values of fair against the others</summary>" in html
    assert unescape(html).count(IN_PLAN) == 2  # below the p-values, above the seeds
    assert "Chosen as the best" not in html
    figure = (page.parent / "figures" / "seeds_d.svg").read_text(encoding="utf-8")
    assert "fair minus the method" in figure
    lines = csv.DictReader((page.parent / "tables" / "seeds.csv").open(encoding="utf-8"))
    assert {x["other"] for x in lines} == {"good", "poor"}


def test_the_command(tmp_path: Path) -> None:
    folder = write_plain(tmp_path, scores())
    command = [sys.executable, "-m", "segcal", "report", str(folder), "--reference"]
    wrong = subprocess.run([*command, "fare"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2
    assert wrong.stderr == (
        "segcal: Expected argument `reference` to be one of 'good', 'fair', 'poor', but got "
        "'fare'. Did you mean 'fair'?\n"
    )
    assert not (folder / "report").exists()
    done = subprocess.run([*command, "fair"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert AT_REPORT in (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "reference" not in json.loads((folder / "study.json").read_text())
