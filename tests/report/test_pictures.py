"""The cases that are pictured, and the numbers below them."""

from pathlib import Path

import pytest

from segcal.report import Context
from segcal.report.pictures import case_pictures
from segcal.study import read_study


def test_the_best_median_and_worst_case_are_pictured(context: Context) -> None:
    pictures = case_pictures(context, "acdc")
    assert [p.role for p in pictures] == ["best", "median", "worst"]
    scores = context.aggregates.cases("acdc", "dsc").mean(axis=1)
    assert pictures[0].case == scores.idxmax()
    assert pictures[2].case == scores.idxmin()
    assert sorted(scores).index(pictures[1].dsc) in (2, 3)  # of six
    assert [m.method for m in pictures[0].methods] == list(context.study.methods)
    sharp, soft = (m.confidence.astype(int).sum() for m in pictures[0].methods[:2])
    assert sharp > soft  # over-confident is bright


def test_a_picture_and_its_numbers_are_of_one_run(study: Path) -> None:
    """Means over seeds would not describe the mask of one seed."""
    context = Context(read_study(study, "boundary"))
    rows, bins = context.aggregates.rows, context.bins
    for picture in case_pictures(context, "acdc"):
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
