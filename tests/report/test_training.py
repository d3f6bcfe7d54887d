"""Training curves: what study.json may hold, and what is drawn."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from helpers.plain_studies import Values, write_plain
from segcal.report import write_report
from segcal.report.context import Context
from segcal.report.sections.training import draw_training_curves
from segcal.study import read_study

DSC = [0.1, 0.5, 0.8, 0.7]
ECE = [0.4, None, 0.1, 0.2]


def training(tested: int | None = None, **course: list[Any]) -> dict[str, Any]:
    known: dict[str, list[Any]] = {"epochs": [1, 2, 3, 4], "dsc": DSC, "ece": ECE}
    return {
        "epochs": 4, "best_epoch": 3, "best_dsc": 0.8, "last_dsc": 0.7, "tested_epoch": tested,
        "course": {**known, **course},
    }  # fmt: skip


def write(folder: Path, methods: str, seeds: int = 1, **course: Any) -> Path:
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
    context = Context(read_study(write(tmp_path, "abxcdef", seeds=3)))
    drawing = draw_training_curves(context, context.study.datasets["d"])
    assert drawing is not None
    assert drawing.name == "training_d"
    assert "6 methods" in drawing.alt
    axes = drawing.figure.axes
    assert len(axes) == 20  # two rows for five methods, two for the sixth
    shown = [a for a in axes if a.get_visible()]
    assert len(shown) == 12
    assert [a.get_title(loc="left") for a in shown if a.get_title(loc="left")] == list("abcdef")
    dsc, ece = shown[0], shown[5]
    assert len(dsc.lines) == 3 + 1 + 3  # seeds, their median, the tested checkpoints
    assert [math.isnan(value) for value in ece.lines[0].get_ydata()] == [False, True, False, False]
    assert list(dsc.lines[3].get_ydata()) == DSC
    assert [list(line.get_xydata()[0]) for line in dsc.lines[4:]] == 3 * [[3.0, 0.8]]
    assert dsc.get_ylim() == (0, 1)
    assert ece.get_ylim() == (0, pytest.approx(0.2))  # twice what a tested checkpoint has
    assert shown[6].xaxis.get_tick_params()["labelbottom"]  # nothing is below it


def panels(folder: Path) -> tuple[Any, Any]:
    """The axes of the first method, DSC and ECE."""
    context = Context(read_study(folder))
    drawing = draw_training_curves(context, context.study.datasets["d"])
    assert drawing is not None
    axes = drawing.figure.axes
    return axes[0], axes[len(axes) // 2]


def test_two_seeds_have_no_median_and_other_epochs_neither(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    dsc, _ = panels(write(tmp_path / "two", "a", seeds=2))
    assert len(dsc.lines) == 2 + 2
    content = json.loads((write(tmp_path, "a", seeds=3) / "study.json").read_text())
    longer = training(epochs=[1, 2, 3, 4, 5], dsc=[*DSC, 0.7], ece=[*ECE, 0.2])
    content["runs"][2]["training"] = longer
    content["datasets"].append({"name": "e"})
    content["runs"].append({**content["runs"][0], "run": "e/a", "dataset": "e", "state": "failed"})
    (tmp_path / "study.json").write_text(json.dumps(content))
    dsc, _ = panels(tmp_path)
    assert len(dsc.lines) == 3 + 3  # the run of the other dataset is not drawn


def test_the_checkpoint_that_was_tested_has_a_point(tmp_path: Path) -> None:
    dsc, ece = panels(write(tmp_path, "a", tested=4))
    assert list(dsc.lines[-1].get_xydata()[0]) == [4.0, 0.7]
    assert list(ece.lines[-1].get_xydata()[0]) == [4.0, 0.2]
    assert ece.get_ylim() == (0, pytest.approx(0.4))


@pytest.mark.parametrize(("ece", "top"), [([0.4, 0.3, None, 0.2], 1), ([0.9, 0.9, 0.8, 0.9], 1)])
def test_undefined_values_have_no_point_and_the_axis_ends_at_1(
    tmp_path: Path, ece: list[float | None], top: float
) -> None:
    _, axes = panels(write(tmp_path, "a", ece=ece))
    value = axes.lines[-1].get_ydata()[0]
    assert math.isnan(value) if ece[2] is None else value == ece[2]
    assert axes.get_ylim() == (0, top)


@pytest.mark.parametrize("course", [{"epochs": [], "dsc": [], "ece": []}, None])
def test_without_curves_nothing_is_drawn(
    tmp_path: Path, course: dict[str, list[Any]] | None
) -> None:
    folder = write(tmp_path, "a", **course) if course else write(tmp_path, "x")
    context = Context(read_study(folder))
    assert draw_training_curves(context, context.study.datasets["d"]) is None
    assert 'id="training"' not in write_report(folder).read_text(encoding="utf-8")


def test_the_page_and_its_files(tmp_path: Path) -> None:
    page = write_report(write(tmp_path, "ab", seeds=2))
    html = page.read_text(encoding="utf-8")
    assert html.count('<section id="training">') == html.count('href="#training"') == 1
    assert (page.parent / "figures" / "training_d.png").is_file()


def test_a_course_has_as_many_values_as_epochs(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"study.json: .*`runs.0.training.course`.* have 4, 4 and 1 values"
    ):
        read_study(write(tmp_path, "a", ece=[0.1]))
