"""The page of one network: verdict, volumes, worst cases, and its look in a browser."""

import json
import shlex
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers.chromium import Browser
from helpers.studies import ACDC, CE, LS, Recipe, distort, make_case, make_study, softmax
from segcal.metrics import POOR_DSC
from segcal.report import Context, volume_findings, write_report
from segcal.report.blocks import Figure, Group
from segcal.report.curves import FEW_VOXELS
from segcal.report.findings.stated_confidence import level_table
from segcal.report.findings.verdict import (
    MIN_PATIENTS,
    describe,
    judge,
    next_step,
    next_steps,
    verdict_table,
    verdicts,
)
from segcal.report.plots.reliability import draw_organs
from segcal.report.sections import volumes
from segcal.report.sections.cases import worst_cases
from segcal.report.sections.classes import organ_table
from segcal.report.sections.external import group_table, organ_group_table
from segcal.report.sections.findings import network_verdicts
from segcal.report.sections.volumes import agreements, compare_volumes, far_volumes
from segcal.report.table_model import Table
from segcal.report.text import signed
from segcal.stats import Estimate
from segcal.study import read_study

CASES, SHAPE = 12, (4, 28, 28)


def patients(n: int, gap: float = 0.0, spread: float = 0.0) -> Any:
    """Sums (3, n, bins) of patients who are wrong by `gap` more than they say, ± `spread`."""
    rng = np.random.default_rng(0)
    sums = np.zeros((3, n, 15))
    confidence = np.linspace(0.55, 0.95, 15)
    for i in range(n):
        accuracy = np.clip(confidence - gap - rng.normal(0, spread), 0, 1)
        sums[0, i] = 4000
        sums[1, i] = 4000 * confidence
        sums[2, i] = rng.binomial(4000, accuracy)
    return sums


@pytest.mark.parametrize(
    ("sums", "answer"),
    [
        (patients(20), "trust"),
        (patients(20, gap=-0.03, spread=0.02), "trust"),
        (patients(20, gap=0.2, spread=0.02), "repair"),
        (patients(20, gap=-0.2, spread=0.02), "repair"),
        (patients(20, gap=0.05, spread=0.03), "cannot tell"),
        (patients(40, spread=0.25), "do not use"),
        (patients(MIN_PATIENTS - 1, gap=0.3), "cannot tell"),
        (np.zeros((3, 12, 15)), "cannot tell"),
    ],
)
def test_the_rule(sums: Any, answer: str) -> None:
    assert judge(sums).answer == answer


def test_the_numbers_by_loops() -> None:
    sums = patients(11, gap=0.1, spread=0.1)
    found = judge(sums)
    count, confidence, right = sums.sum(axis=1)
    assert found.gap.mean == pytest.approx((confidence - right).sum() / count.sum())
    assert found.error.mean == pytest.approx(np.abs(confidence - right).sum() / count.sum())
    assert found.gap.low < found.gap.mean < found.gap.high
    left = []
    for i in range(11):
        others = np.delete(sums, i, axis=1).sum(axis=1)
        repaired = sums[0, i] * others[2] / others[0]
        left.append(abs((repaired - sums[2, i]).sum()) / sums[0, i].sum())
    assert found.remaining.mean == pytest.approx(np.mean(left))


def test_a_patient_without_a_voxel_is_left_out() -> None:
    sums = patients(12, gap=0.2)
    more = np.concatenate([sums, np.zeros((3, 5, 15))], axis=1)
    assert judge(more) == replace(judge(sums), audited=17)
    assert "12 of 17 patients" in describe(judge(more))
    assert "12 patients" in describe(judge(sums))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(
        methods=(CE,), datasets=(ACDC,), seeds=(0,), cases=CASES, shape=SHAPE, kind="audit",
        logits=False, evil=False,
    )  # fmt: skip
    folder = make_study(tmp_path_factory.mktemp("one"), recipe)
    path = folder / "study.json"
    study = json.loads(path.read_text())
    study["region"] = "predicted"
    names = [f"acdc_{i:03d}" for i in range(CASES)]
    study["datasets"][0]["case_groups"] = {n: "AB"[i % 2] for i, n in enumerate(names)}
    study["methods"][0]["options"] = {"predictions": "my/probs", "kind": "probs"}
    path.write_text(json.dumps(study))
    return folder


@pytest.fixture(scope="module")
def one(folder: Path) -> Context:
    return Context(read_study(folder))


def test_the_page_begins_with_the_verdict(folder: Path, one: Context) -> None:
    html = write_report(folder).read_text()
    found = verdicts(one, one.datasets[0])["ce_dice"]
    assert found.answer == "repair"
    assert html.index('class="verdict"') < html.index("<h2>Stated confidence")
    assert "<strong>CE+Dice: repair.</strong>" in html
    assert f"{100 * found.error.mean:.1f} [" in html
    apply = "segcal apply ce_dice_calibrator.json --probs my/probs --out ce_dice_calibrated"
    assert apply in html
    table = verdict_table(one, one.datasets[0])
    assert table is not None
    assert [row.title for row in table.rows] == [
        f"CE+Dice, {name}" for name in ("all organs", "RV", "MYO", "LV")
    ]
    assert all(row.cells[1].after.startswith("[") for row in table.rows)
    for gap, word in ((0.0, "assure fit"), (0.2, "calibrate"), (0.05, "calibrate")):
        verdict = judge(patients(20, gap=gap, spread=0.03))
        assert word in next_step(one, "ce_dice", verdict)[1][0]
    assert next_step(one, "ce_dice", judge(patients(MIN_PATIENTS - 1, gap=0.3)))[1] == []


def test_next_steps_of_several_networks(tmp_path: Path) -> None:
    """Equal advice is given once; no file or folder is named twice, or is an input."""
    fakes = tuple(replace(CE, name=name, title=name.upper()) for name in ("a", "b", "c"))
    recipe = Recipe(
        methods=fakes, datasets=(ACDC,), seeds=(0,), cases=CASES, shape=SHAPE, kind="audit",
        logits=False, evil=False, slices=False,
    )  # fmt: skip
    path = make_study(tmp_path / "study", recipe) / "study.json"
    study = json.loads(path.read_text())
    given = ({"predictions": "my nets/a"}, {"predictions": "a_calibrated"}, {"calibrated": True})
    for method, options in zip(study["methods"], given, strict=True):
        method["options"] = options
    path.write_text(json.dumps(study))
    context = Context(read_study(path.parent))
    (dataset,) = context.datasets
    assert {each.answer for each in verdicts(context, dataset).values()} == {"repair"}
    (first, commands), (second, none) = next_steps(context, dataset)
    assert "A and B:" in first
    assert "C:" in second
    assert none == []
    words = [word for line in commands for word in shlex.split(line)]
    outs = [words[i + 1] for i, word in enumerate(words) if word == "--out"]
    assert len(outs) == len(set(outs)) == 6
    assert {"my nets/a", "a_calibrated"} & {*words} == {"my nets/a", "a_calibrated"}
    assert not {*outs} & {"my nets/a", "a_calibrated"}


class Cancelling(Context):
    """Errors of the organs have opposite signs, so that all organs together look calibrated."""

    gaps: tuple[float, ...] = (0.2, -0.2, 0.0)

    def patient_sums(self, *_: Any) -> Any:
        return patients(20)

    def level_sums(self, *_: Any) -> Any:
        return {str(k): patients(20, gap=gap) for k, gap in enumerate(self.gaps, start=1)}


def test_organs_whose_errors_cancel_are_exceptions(one: Context) -> None:
    context = Cancelling(one.study)
    dataset = context.datasets[0]
    found = verdicts(context, dataset)["ce_dice"]
    assert found.answer == "trust"
    assert found.title == "trust, except RV and MYO (repair)"
    assert found.needs_repair
    assert "not shown for every organ" in describe(found)
    assert "calibrate" in next_step(context, "ce_dice", found)[1][0]
    table = verdict_table(context, dataset)
    assert table is not None
    assert [row.cells[0].text for row in table.rows] == ["trust", "repair", "repair", "trust"]
    mixed = replace(found, exceptions=(("RV", "cannot tell"),))
    assert mixed.title == "trust, except RV (cannot tell)"
    assert not mixed.needs_repair
    assert "assure fit" in next_step(context, "ce_dice", mixed)[1][0]
    # An organ that no calibrator repairs.
    unusable = replace(found, exceptions=(("RV", "do not use"),))
    assert not unusable.needs_repair
    text, commands = next_step(context, "ce_dice", unusable)
    assert ("RV" in text, commands) == (True, [])
    both = replace(found, exceptions=(("RV", "do not use"), ("MYO", "repair")))
    assert "calibrate" in next_step(context, "ce_dice", both)[1][0]
    # If every organ is an exception, the answer holds for none.
    none = replace(found, exceptions=tuple((name, "repair") for name in ("RV", "MYO", "LV")))
    assert (found.organs, "except" in none.title, "none alone" in none.title) == (3, False, True)
    context.gaps = (0.0, 0.0, 0.0)
    assert verdicts(context, dataset)["ce_dice"].title == "trust"


def test_no_direction_is_stated_where_none_is_shown() -> None:
    """Patients differ so much that the interval of the gap includes 0."""
    sums = patients(20, gap=0.02)
    sums[2] += sums[0] * np.linspace(-0.2, 0.2, 20)[:, None]
    verdict = judge(sums)
    assert verdict.gap.low < 0 < verdict.gap.high
    text = describe(verdict)
    assert "over-confident" not in text
    assert f"{signed(100 * verdict.gap.mean, 1)} [{signed(100 * verdict.gap.low, 1)}, +" in text


def test_poor_masks_come_before_confidence(one: Context) -> None:
    """Calibration cannot repair them, whatever the verdict on the confidence."""
    for sums in (patients(20), patients(20, gap=0.2), patients(MIN_PATIENTS - 1)):
        for dsc, poor in ((POOR_DSC - 0.01, True), (POOR_DSC, False), (np.nan, False)):
            verdict = replace(judge(sums), dsc=Estimate(dsc, dsc, dsc))
            assert describe(verdict).startswith("poor masks") == poor
            assert verdict.answer in describe(verdict).split(".")[0]
            assert (f"{dsc:.3f}" in describe(verdict)) == poor
            text, commands = next_step(one, "ce_dice", verdict)
            assert ("train again" in text) == poor == ("order of their classes" in text)
            assert not (poor and commands)


def test_organs_with_poor_masks_are_named(folder: Path, tmp_path: Path) -> None:
    context = Context(read_study(folder))
    (dataset,) = context.datasets
    assert {each.poor_organs for each in verdicts(context, dataset).values()} == {()}
    changed = Path(shutil.copytree(folder, tmp_path / "study"))
    table = pd.read_csv(changed / "cases.csv", dtype=str)
    table.loc[(table["metric"] == "dsc") & (table["label"] == "MYO"), "value"] = "0.49"
    table.to_csv(changed / "cases.csv", index=False)
    context = Context(read_study(changed))
    for verdict in verdicts(context, dataset).values():
        assert verdict.poor_organs == ("MYO",)
        assert "MYO is below 0.5" in describe(verdict)


def test_masks_stored_as_probabilities_are_recognized(one: Context) -> None:
    sums = patients(20)
    assert not judge(sums).hard
    sums[1] = sums[0]
    verdict = judge(sums)
    assert verdict.hard
    assert "masks" in describe(verdict)
    text, commands = next_step(one, "ce_dice", verdict)
    assert ("softmax" in text, commands) == (True, [])


@pytest.mark.filterwarnings("ignore:All .* voxels have probabilities")
@pytest.mark.parametrize("kind", ["audit", "benchmark"])
def test_undertrained_runs_of_segcal_have_no_second_softmax(tmp_path: Path, kind: str) -> None:
    flat = replace(CE, sharp=0.01)
    recipe = Recipe((flat,), (ACDC,), (0,), 2, SHAPE, kind=kind, logits=False, slices=False)
    context = Context(read_study(make_study(tmp_path / "study", recipe)))
    (found,) = verdicts(context, context.datasets[0]).values()
    assert found.flat == (kind == "audit")


def test_the_lowest_level_is_shown_where_it_has_voxels(folder: Path) -> None:
    """With three classes or more an organ may be predicted with less than 50 %."""
    for voxels, first in ((FEW_VOXELS - 1, 1), (FEW_VOXELS, 0)):
        context = Context(read_study(folder))
        (found,) = context.bins.values()
        assert found.levels is not None
        found.levels[:, :, 1, 0] = 0
        found.levels[:, 0, 1, 0] = voxels
        table = level_table(context, context.datasets[0])
        assert table is not None
        assert [column.key for column in table.columns] == [f"level_{i}" for i in range(first, 7)]


def test_nothing_predicted_has_no_confidence() -> None:
    for dsc, poor in ((1.0, False), (0.1, True)):
        text = describe(replace(judge(np.zeros((3, 12, 15))), dsc=Estimate(dsc, dsc, dsc)))
        assert text.startswith("poor masks") == poor
        assert "nan" not in text
        assert "percentage points" not in text


def test_the_table_has_the_mean_dsc_of_all_organs(one: Context) -> None:
    table = verdict_table(one, one.datasets[0])
    assert table is not None
    column = [column.key for column in table.columns].index("dsc")
    every, *organs = (row.cells[column].number.mean for row in table.rows)
    assert every == pytest.approx(np.mean(organs))
    assert every == pytest.approx(one.aggregates.cases("acdc", "dsc")["ce_dice"].mean())


def test_one_patient_has_no_interval() -> None:
    found = judge(patients(1, gap=0.2))
    assert np.isnan(found.error.low)
    assert "[" not in describe(found)


def test_volumes_are_those_of_the_arrays(one: Context) -> None:
    found = {(a.organ, a.kind): a for a in agreements(one, one.datasets[0], "ce_dice")}
    volume = make_case(ACDC, 0, SHAPE)
    probs = softmax(distort(volume.field, CE, 0, 0))
    ml = np.prod(volume.spacing_mm) / 1000
    true = ml * (volume.target == 2).sum()
    for kind, predicted in (("mask", (probs.argmax(0) == 2).sum()), ("Σp", probs[2].sum())):
        error = found["MYO", kind].error["acdc_000"]
        assert error == pytest.approx(ml * predicted - true, rel=1e-5)


def test_volumes_far_from_the_truth_are_a_finding(
    one: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = pd.Series(np.linspace(10.0, 30.0, 20))
    noise = np.random.default_rng(0).normal(0, 0.5, 20)
    names = list(map(str, range(20)))
    found = [
        compare_volumes("LV", "Σp", true + 5, true, names),
        compare_volumes("RV", "Σp", true - 3 + noise - noise.mean(), true, names),
        compare_volumes("mask", "mask", true + 5, true, names),  # its volume is no sum
        compare_volumes("near", "Σp", true + 1, true, names),  # 5 %
        compare_volumes("unsure", "Σp", true + 5 + 100 * noise, true, names),
        compare_volumes("absent", "Σp", 0 * true + 2, 0 * true, names),
        compare_volumes("rounding", "Σp", 0 * true + 1e-6, 0 * true, names),
    ]
    assert far_volumes(found) == ["LV +5 ml (+25 %)", "RV −3 ml (−15 %)", "absent +2 ml"]
    assert volume_findings(one) == []  # differences of this study are within their intervals
    monkeypatch.setattr(volumes, "agreements", lambda *_: found)
    (text,) = volume_findings(one)
    assert text.startswith("CE+Dice: ")
    assert "LV +5 ml (+25 %), RV −3 ml (−15 %) and absent +2 ml" in text


def test_limits_of_agreement_by_hand() -> None:
    from scipy import stats

    true = pd.Series(np.arange(1.0, 21.0))
    error = pd.Series(np.random.default_rng(0).normal(0.5, 2, 20))
    found = compare_volumes("liver", "mask", true + error, true, list(map(str, range(20))))
    spread, t = error.std(), stats.t.ppf(0.975, 19)
    assert found.upper.mean - found.lower.mean == pytest.approx(2 * 1.96 * spread)
    assert found.bias.high - found.bias.mean == pytest.approx(t * spread / np.sqrt(20))
    half = t * spread * np.sqrt(1 / 20 + 1.96**2 / (2 * 19))
    assert found.upper.high - found.upper.mean == pytest.approx(half)
    pairs = compare_volumes("liver", "mask", true + error, true, [str(i // 2) for i in range(20)])
    assert pairs.upper.high > found.upper.high  # ten patients know less than twenty
    unequal = compare_volumes("liver", "mask", true + error, true, ["a"] * 8 + list("bcdefghijklm"))
    assert unequal.bias.mean == pytest.approx(error.mean())  # the mean of the points of the plot
    assert unequal.bias.high - unequal.bias.mean > found.bias.high - found.bias.mean


def test_worst_cases_and_classes(one: Context) -> None:
    dataset = one.datasets[0]
    worst = worst_cases(one, dataset)
    dsc = one.aggregates.cases("acdc", "dsc")["ce_dice"]
    ece = one.aggregates.cases("acdc", "ece")["ce_dice"]
    assert worst is not None
    assert worst.rows[0].title == dsc.idxmin()
    lowest, largest = {*dsc.nsmallest(5).index}, {*ece.nlargest(5).index}
    assert lowest | largest == {row.title for row in worst.rows}
    for row in worst.rows:
        assert row.note == ("lowest DSC" if row.title in lowest else "largest ECE")
    later = [row.title in largest - lowest for row in worst.rows]
    assert later == sorted(later)
    assert any(later)
    assert [row.rule for row in worst.rows].index(True) == later.index(True)
    assert sum(row.rule for row in worst.rows) == 1
    classes = organ_table(one, dataset, "predicted")
    assert classes is not None
    assert [row.title for row in classes.rows][1:] == ["CE+Dice, RV", "CE+Dice, MYO", "CE+Dice, LV"]
    assert all(cell.after for cell in classes.rows[1].cells)


def test_an_audit_has_no_split_and_no_seeds(folder: Path, tmp_path: Path) -> None:
    assert "split" not in write_report(folder).read_text().partition("<script")[0].lower()
    for kind in ("audit", "benchmark"):
        recipe = Recipe(
            methods=(CE, LS), datasets=(ACDC,), seeds=(0,), cases=6, shape=SHAPE, kind=kind,
            logits=False, evil=False, slices=False,
        )  # fmt: skip
        html = write_report(make_study(tmp_path / kind, recipe)).read_text()
        assert ('id="seeds"' in html) == (kind == "benchmark")
        assert ("split “test”" in html) == (kind == "benchmark")


def test_of_many_organs_the_worst_are_shown(folder: Path) -> None:
    many = Context(read_study(folder))
    dataset = many.datasets[0]
    many.most_organs = 2
    curves = many.levels(dataset, "ce_dice")
    worst = sorted(curves, key=lambda label: -curves[label].ece)[:2]
    names = [dataset.class_name(label) for label in worst]
    assert list(many.worst_levels(dataset, "ce_dice")) == worst
    short, collapsed = (
        block for block in network_verdicts(many) if isinstance(block, Table | Group)
    )
    assert isinstance(short, Table)
    assert [row.title for row in short.rows] == [
        f"CE+Dice, {name}" for name in ("all organs", *names)
    ]
    assert isinstance(collapsed, Group)
    assert collapsed.summary == "All 3 organs"
    (full,) = collapsed.blocks
    assert isinstance(full, Table)
    assert len(full.rows) == 4
    figure = draw_organs(many, dataset, "ce_dice")
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.figure.axes[:2]] == names
    section = volumes.build(many)
    assert section is not None
    (drawn,) = (block for block in section.walk() if isinstance(block, Figure))
    shown = [axes.get_title(loc="left") for axes in drawn.figure.axes]
    bias = {
        each.organ: abs(each.bias.mean / (each.center - each.error / 2).mean())
        for each in sorted(
            agreements(many, dataset, "ce_dice"),
            key=lambda each: abs(each.bias.mean / (each.center - each.error / 2).mean()),
        )
    }
    farthest = max(bias, key=lambda organ: bias[organ])
    assert shown == [f"{farthest}: mask", f"{farthest}: Σp"]


def test_axis_labels_of_neighboring_organs_are_apart(one: Context) -> None:
    figure = draw_organs(one, one.datasets[0], "ce_dice")
    assert figure is not None
    drawn = figure.figure
    drawn.canvas.draw()
    ends = [
        (boxes[0].x0, boxes[-1].x1, boxes[-1].width)
        for axes in drawn.axes
        if (boxes := [label.get_window_extent() for label in axes.get_xticklabels()])
    ]
    assert len(ends) == 3
    for (_, end, width), (start, _, _) in pairwise(ends):
        assert start - end > 2 * width


def test_the_interval_of_a_group_belongs_to_its_mean(one: Context) -> None:
    """Most cases of a group are of one patient."""
    (dataset,) = one.datasets
    groups = dataset.case_groups
    of = {case: "p" if i < len(groups) / 2 else case for i, case in enumerate(groups)}
    dataset = dataset.model_copy(update={"patients": of})
    table = group_table(one, dataset, dataset, "predicted")
    assert table is not None
    for cell in table.rows[0].cells:
        low, high = map(float, cell.after.strip("[]").replace("−", "-").split(", "))
        assert (low + high) / 2 == pytest.approx(cell.number.mean, abs=0.001)


def test_organs_by_group(one: Context) -> None:
    table = organ_group_table(one, one.datasets[0])
    assert table is not None
    assert [row.title for row in table.rows] == ["CE+Dice, A", "CE+Dice, B"]
    right = said = count = 0.0
    for i in range(0, CASES, 2):  # group A
        volume = make_case(ACDC, i, SHAPE)
        probs = softmax(distort(volume.field, CE, 0, i))
        called = probs.argmax(0) == 1
        right += (volume.target[called] == 1).sum()
        said += probs.max(0)[called].sum()
        count += called.sum()
    assert table.rows[0].cells[0].number.mean == pytest.approx((said - right) / count, abs=1e-6)


def test_one_network_uses_the_width(browser: Browser, folder: Path) -> None:
    page = write_report(folder)
    browser.open(page, width=1400)
    width = "document.querySelector('{}').getBoundingClientRect().width"
    assert browser.run(width.format("#live-reliability svg")) > 300
    browser.wait("document.querySelector('#browse-stage canvas') !== null")
    assert browser.run(width.format("#browse-stage canvas")) > 200
    assert browser.run("document.documentElement.scrollWidth") <= 1400
    browser.open(page, width=420)
    assert browser.run("document.documentElement.scrollWidth") <= 420
    assert browser.errors == []


def test_colors_of_classes_and_methods_differ() -> None:
    from segcal.report.plots.style import CLASS_COLORS, COLORS

    assert not {*CLASS_COLORS} & {*COLORS, "#ffffff"}
