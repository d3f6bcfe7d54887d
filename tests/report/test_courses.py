"""The course of trainings: what study.json may say of it, and what is drawn."""

from pathlib import Path
from typing import Any

import pytest

from plain_studies import Values, write_plain
from segcal.report import write_report
from segcal.report.courses import draw_courses
from segcal.report.numbers import Numbers
from segcal.report.study import read_study

DSC = [0.1, 0.5, 0.8, 0.7]
ECE = [0.4, None, 0.1, 0.2]


def training(**course: list[Any]) -> dict[str, Any]:
    known: dict[str, list[Any]] = {"epochs": [1, 2, 3, 4], "dsc": DSC, "ece": ECE}
    return {
        "epochs": 4, "best_epoch": 3, "best_dsc": 0.8, "last_dsc": 0.7,
        "course": {**known, **course},
    }  # fmt: skip


def write(folder: Path, methods: str, seeds: int = 1, **course: list[Any]) -> Path:
    values: Values = {
        (m, s, f"c{i}"): {"dsc": 0.8, "ece": 0.1}
        for m in methods for s in range(seeds) for i in range(3)
    }  # fmt: skip
    runs = [
        {
            "run": f"d/{m}/seed{s}", "method": m, "dataset": "d", "seed": s,
            "training": training(**course) if m != "x" else None,
        }
        for m in methods for s in range(seeds)
    ]  # fmt: skip
    return write_plain(folder, values, runs=runs)


def test_a_panel_of_each_metric_for_each_method_that_was_trained(tmp_path: Path) -> None:
    numbers = Numbers(read_study(write(tmp_path, "abxcdef", seeds=3)))
    drawing = draw_courses(numbers, numbers.study.datasets["d"])
    assert drawing is not None
    assert drawing.name == "training_d"
    assert "6 methods" in drawing.alt
    axes = drawing.figure.axes
    assert len(axes) == 20  # two rows for five methods, two for the sixth
    shown = [a for a in axes if a.get_visible()]
    assert [a.get_title(loc="left") for a in shown if a.get_title(loc="left")] == list("abcdef")
    dsc, ece = shown[0], shown[5]
    assert len(dsc.lines) == 3 + 1 + 3  # seeds, their median, the tested checkpoints
    assert list(dsc.lines[3].get_ydata()) == DSC
    assert [list(line.get_xydata()[0]) for line in dsc.lines[4:]] == 3 * [[3.0, 0.8]]
    assert dsc.get_ylim() == (0, 1)
    assert ece.get_ylim() == (0, pytest.approx(0.2))  # twice what a tested checkpoint has
    assert shown[6].xaxis.get_tick_params()["labelbottom"]  # nothing is below it


def test_one_seed_has_no_median_and_other_epochs_neither(tmp_path: Path) -> None:
    numbers = Numbers(read_study(write(tmp_path, "a")))
    drawing = draw_courses(numbers, numbers.study.datasets["d"])
    assert drawing is not None
    assert len(drawing.figure.axes[0].lines) == 2


@pytest.mark.parametrize("course", [{"epochs": [], "dsc": [], "ece": []}, None])
def test_nothing_is_drawn_of_nothing(tmp_path: Path, course: dict[str, list[Any]] | None) -> None:
    folder = write(tmp_path, "a", **course) if course else write(tmp_path, "x")
    numbers = Numbers(read_study(folder))
    assert draw_courses(numbers, numbers.study.datasets["d"]) is None
    assert 'id="training"' not in write_report(folder).read_text(encoding="utf-8")


def test_the_page_and_its_files(tmp_path: Path) -> None:
    page = write_report(write(tmp_path, "ab", seeds=2))
    html = page.read_text(encoding="utf-8")
    assert html.count('<section id="training">') == html.count('href="#training"') == 1
    assert (page.parent / "figures" / "training_d.png").is_file()


def test_a_course_has_as_many_values_as_epochs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"study.json: .*`runs.0.training.course`.* as many"):
        read_study(write(tmp_path, "a", ece=[0.1]))
