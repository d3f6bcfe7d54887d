"""The reference of a study: named before results exist, or for a report."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.plain_studies import Values, write_plain
from segcal.report import Context, write_report
from segcal.report.findings.ranking import (
    first_place,
    reference_note,
    reference_place,
    seed_variance,
    significance,
)
from segcal.report.sections.ranking import reference_tests
from segcal.report.sections.seeds import seeds_note, seeds_table
from segcal.study import read_study


def scores() -> Values:
    """`good` before `fair` before `poor`, with every seed."""
    rng = np.random.default_rng(0)
    level = {"good": 0.9, "fair": 0.8, "poor": 0.6}
    return {
        (m, s, f"{i:02d}"): {k: v + rng.normal() / 200 for k, v in (("dsc", x), ("ece", 1 - x))}
        for m, x in level.items() for s in range(3) for i in range(12)
    }  # fmt: skip


def read(folder: Path, requested: str | None = None, **study: Any) -> Context:
    return Context(read_study(write_plain(folder, scores(), **study), reference=requested))


def reference(context: Context) -> str:
    """The method that is compared, in the tests over cases and over seeds alike."""
    assert context.rankings is not None
    comparisons = context.seed_comparisons["all"]
    assert comparisons.reference == context.rankings.reference
    assert seeds_note(context, comparisons).endswith(reference_note(context))
    return comparisons.reference


def test_without_a_name_the_best_is_compared(tmp_path: Path) -> None:
    context = read(tmp_path)
    assert reference(context) == "good"
    assert "good was selected because it ranks first" in reference_note(context)
    assert reference_place(context) == []


@pytest.mark.parametrize(
    ("study", "words"),
    [({"reference_late": False}, "in the plan before any run was evaluated"),
     ({"reference_late": True}, "in the plan after runs had been evaluated"),
     ({}, "in study.json")],
)  # fmt: skip
def test_a_study_names_its_reference(study: dict[str, Any], words: str, tmp_path: Path) -> None:
    context = read(tmp_path, reference="fair", **study)
    assert reference(context) == "fair"
    assert first_place(context)[0].startswith("First by sum-rank: good (2;")
    (place,) = reference_place(context)
    assert place.startswith(f"fair was named {words}")
    assert place.endswith(
        "Place 2 (4) by sum-rank, place 2 (2.00) by mean-case-rank, of 3 methods."
    )
    (tested,) = significance(context)
    assert "2 of 4 tests significantly better, 2 significantly worse" in tested
    (seeds,) = seed_variance(context)
    assert "2 of 4 differences significantly better, 2 significantly worse" in seeds


def test_the_command_line_overrides_the_study(tmp_path: Path) -> None:
    context = read(tmp_path / "a", "fair", reference="poor", reference_late=False)
    assert reference(context) == "fair"
    assert "named for this report" in reference_note(context)
    # The same name as in the plan selects nothing.
    context = read(tmp_path / "b", "fair", reference="fair", reference_late=False)
    assert "named in the plan before" in reference_note(context)


def test_the_best_may_be_the_named_one(tmp_path: Path) -> None:
    context = read(tmp_path, reference="good", reference_late=False)
    assert reference(context) == "good"
    assert "good was named in the plan before" in reference_note(context)


def test_places_may_be_shared(tmp_path: Path) -> None:
    values = {k: v for k, v in scores().items() if k[0] != "poor"}
    values |= {("twin", s, c): v for (m, s, c), v in values.items() if m == "fair"}
    context = Context(read_study(write_plain(tmp_path, values), reference="twin"))
    (place,) = reference_place(context)
    assert "Place 2 (shared, 5) by sum-rank, place 2 (shared, " in place


def test_tables_are_of_the_reference(tmp_path: Path) -> None:
    context = read(tmp_path, "fair")
    ranks = context.rankings
    assert ranks is not None
    table = reference_tests(context, ranks)
    assert "fair" in table.title
    assert {row.method for row in table.rows} == {"good", "poor"}
    differences = {row.method: row.cells[2].number.mean for row in table.rows[:2]}  # of DSC
    assert differences["good"] == pytest.approx(-0.1, abs=0.01)
    assert differences["poor"] == pytest.approx(0.2, abs=0.01)
    assert len(ranks.tests) == 6  # Holm's correction is over all pairs
    seeds = seeds_table(context, context.seed_comparisons["all"], "d")
    assert [row.method for row in seeds.rows] == ["good", "poor"]
    assert seeds.caption.startswith("fair minus the method")


def without_a_dataset(folder: Path, **study: Any) -> Path:
    """A study of two datasets; `fair` has rows of one."""
    write_plain(folder, scores(), **study)
    lines = (folder / "cases.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    again = [x.replace(",d,", ",e,", 1).replace("d/", "e/", 1) for x in lines[1:]]
    with (folder / "cases.csv").open("a", encoding="utf-8") as out:
        out.writelines(x for x in again if ",fair," not in x)
    return folder


def test_a_reference_that_is_not_ranked_is_replaced_by_the_best(tmp_path: Path) -> None:
    folder = without_a_dataset(tmp_path, reference="fair", reference_late=False)
    context = Context(read_study(folder))
    ranks = context.rankings
    assert ranks is not None
    assert ranks.left_out == ("fair",)
    assert reference(context) == ranks.best == "good"
    (place,) = reference_place(context)
    assert "fair was named in the plan before" in place
    assert "is not ranked" in place
    assert seed_variance(context)[0].startswith("good against")


def test_nothing_to_compare_with(tmp_path: Path) -> None:
    values = {k: v for k, v in scores().items() if k[0] == "fair"}
    context = Context(read_study(write_plain(tmp_path, values), reference="fair"))
    assert context.rankings is None
    (place,) = reference_place(context)
    assert place.startswith("fair cannot be compared")
    html = write_report(tmp_path).read_text(encoding="utf-8")
    assert "DSC 0.800 (fair); ECE in region “all” 0.201 (fair)." in html


def test_wrong_names(tmp_path: Path) -> None:
    groups = {"good": "main", "fair": "main", "poor": "ablation"}
    methods = [{"name": name, "group": group} for name, group in groups.items()]
    folder = write_plain(tmp_path, scores(), methods=methods, reference="god")
    with pytest.raises(ValueError, match=r"study.json: 'god' .*'good'") as raised:
        read_study(folder)
    assert str(raised.value).endswith("good, fair")
    assert read_study(folder, reference="good").named is not None
    with pytest.raises(ValueError, match="--reference: 'poor' is in group ablation"):
        write_report(folder, reference="poor")
    assert not (folder / "report").exists()


def test_the_page(tmp_path: Path) -> None:
    folder = write_plain(tmp_path, scores(), reference="fair", reference_late=False)
    page = write_report(folder)
    html = page.read_text(encoding="utf-8")
    assert "p-values of fair against" in html
    figure = (page.parent / "figures" / "seeds_d.svg").read_text(encoding="utf-8")
    assert "fair minus the method" in figure
    with (page.parent / "tables" / "seeds.csv").open(encoding="utf-8") as file:
        assert {row["other"] for row in csv.DictReader(file)} == {"good", "poor"}


def test_the_command(tmp_path: Path) -> None:
    folder = write_plain(tmp_path, scores())
    command = [sys.executable, "-m", "segcal", "report", str(folder), "--reference"]
    wrong = subprocess.run([*command, "fare"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2
    assert "--reference: 'fare'" in wrong.stderr
    assert "'fair'" in wrong.stderr
    assert wrong.stderr.count("\n") == 1
    assert not (folder / "report").exists()
    done = subprocess.run([*command, "fair"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "fair was named for this report" in (folder / "report" / "index.html").read_text("utf-8")
    assert json.loads((folder / "study.json").read_text()).get("reference") is None
