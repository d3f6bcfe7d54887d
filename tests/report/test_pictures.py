"""The cases that are pictured, the numbers below them, and the size of their layers."""

import base64
import shutil
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from segcal.report import Context
from segcal.report.pictures import browser_data, case_slices
from segcal.report.plots.style import CLASS_COLORS, COLORS, DOUBT_COLOR, ERROR_COLORS
from segcal.study import read_study


def test_the_worst_median_and_best_case_are_pictured(context: Context) -> None:
    pictures = case_slices(context, "acdc")
    roles = {p.role: p for p in pictures}
    scores = context.aggregates.cases("acdc", "dsc").mean(axis=1)
    assert roles["best"].case == scores.idxmax()
    assert roles["worst"].case == scores.idxmin() == pictures[0].case
    assert sorted(scores).index(roles["median"].dsc) in (2, 3)  # of six
    assert all(one.dsc <= other.dsc for one, other in pairwise(pictures))
    assert [m.method for m in pictures[0].methods] == list(context.study.methods)
    sharp, soft = (m.confidence.astype(int).sum() for m in pictures[0].methods[:2])
    assert sharp > soft  # over-confident


def test_all_worst_cases_of_a_table_are_pictured(single: Path) -> None:
    context = Context(read_study(single))
    pictured = {p.case for p in case_slices(context, "acdc")}
    assert pictured >= set(context.worst_cases("acdc", "ce_dice"))


def test_a_picture_and_its_numbers_are_of_one_run(study: Path) -> None:
    """Means over seeds would not describe the mask of one seed."""
    context = Context(read_study(study, "boundary"))
    rows, bins = context.aggregates.rows, context.bins
    for picture in case_slices(context, "acdc"):
        for shown in picture.methods:
            mine = rows[
                (rows["run"] == f"acdc/{shown.method}/seed0") & (rows["case"] == picture.case)
            ]
            dsc, ece = (mine[mine["metric"] == metric] for metric in ("dsc", "ece"))
            assert shown.dsc == pytest.approx(dsc["value"].mean())
            assert shown.ece == pytest.approx(ece.loc[ece["region"] == "boundary", "value"].item())
            assert shown.curve is not None
            assert shown.curve.ece == pytest.approx(shown.ece)
            of_all = bins["acdc", shown.method].of_case(picture.case, "boundary")
            assert of_all is not None
            two = shown.method != "ls"  # whose second run failed
            assert (of_all.count.sum() == 2 * shown.curve.count.sum()) == two


def test_layers_hold_the_masks_within_their_limit(
    single: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = case_slices(Context(read_study(single)), "acdc")
    layers = browser_data(cases)
    for case, data in zip(cases, layers, strict=True):
        assert data["count"] == len(case.truth) == 12
        raw = zlib.decompress(base64.b64decode(data["methods"]["ce_dice"]["layers"]))
        labels, levels = np.frombuffer(raw, np.uint8).reshape(2, *case.truth.shape)
        np.testing.assert_array_equal(labels, case.methods[0].labels)
        np.testing.assert_allclose(levels / 63, case.methods[0].confidence / 255, atol=0.5 / 63)
    full = sum(len(str(each)) for each in layers)
    for share in (0.6, 0.2):
        monkeypatch.setattr("segcal.report.pictures.MOST_CHARACTERS", share * full)
        fewer = browser_data(cases)
        assert sum(len(str(each)) for each in fewer) < share * full + 400 * len(cases)
        for case, data in zip(cases, fewer, strict=True):
            assert data["count"] < 12
            assert data["slices"][data["start"]] == case.numbers[case.start] + 1
    monkeypatch.setattr("segcal.report.pictures.MOST_CHARACTERS", 100)
    assert browser_data(cases) == []


def test_single_slices_of_older_versions(single: Path, tmp_path: Path) -> None:
    study = Path(shutil.copytree(single, tmp_path / "study"))
    path = study / "runs" / "acdc" / "ce_dice" / "seed0" / "slices.npz"
    with np.load(path) as file:
        arrays = dict(file)
    old = {
        key: array[len(array) // 2] if array.ndim == 3 else array
        for key, array in arrays.items()
        if not key.startswith(("slices", "outside"))
    }
    np.savez_compressed(path, **old)
    cases = case_slices(Context(read_study(study)), "acdc")
    assert {(len(case.truth), case.numbers) for case in cases} == {(1, ())}
    assert [each["count"] for each in browser_data(cases)] == [1] * len(cases)


def test_colors_differ() -> None:
    colors = [*COLORS, *CLASS_COLORS, DOUBT_COLOR, *ERROR_COLORS.values(), "#ffffff"]
    assert len(set(colors)) == len(colors)
