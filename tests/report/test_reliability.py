"""Curves and their intervals against loops; words and choices of the report."""

import math
from pathlib import Path

import numpy as np
import pytest

from segcal.metrics import CalibrationBins
from segcal.report.confidence import confidence_words, gap_sentence
from segcal.report.live import page_data, script_json
from segcal.report.numbers import Numbers
from segcal.report.pictures import case_pictures
from segcal.report.ranks import rank_methods, verdicts
from segcal.report.reliability import curve, read_bins
from segcal.report.style import inline
from segcal.study import read_study


@pytest.fixture(scope="module")
def numbers(study: Path) -> Numbers:
    return Numbers(read_study(study))


def test_the_interval_is_the_bootstrap_over_cases() -> None:
    rng = np.random.default_rng(1)
    count = rng.integers(5, 50, (6, 3)).astype(float)
    sums = np.stack([count, count * rng.uniform(0.5, 1, (6, 3)), count * rng.uniform(0, 1, (6, 3))])
    found = curve(sums, resamples=400, seed=3)
    times = np.random.default_rng(3).multinomial(6, np.full(6, 1 / 6), 400)
    for b in range(3):
        drawn = [
            sum(t * a for t, a in zip(row, sums[2, :, b], strict=True))
            / sum(t * n for t, n in zip(row, count[:, b], strict=True))
            for row in times
        ]
        low, high = np.quantile(drawn, [0.025, 0.975])
        assert (found.low[b], found.high[b]) == (pytest.approx(low), pytest.approx(high))
    assert curve(sums, resamples=400, seed=4).low[0] != found.low[0]
    assert curve(sums, resamples=40, seed=3).low[0] != found.low[0]
    assert np.isnan(curve(sums, resamples=0).low).all()
    assert np.isnan(curve(sums[:, :1]).low).all()  # one case says nothing of the spread


def test_bins_that_one_case_has_have_no_interval() -> None:
    sums = np.zeros((3, 4, 2))
    sums[:, 0, 0] = 10, 6, 5
    sums[:, :, 1] = np.array([[10.0], [9.0], [8.0]])
    found = curve(sums)
    assert math.isnan(found.low[0])
    assert found.low[1] == pytest.approx(0.8)
    assert found.accuracy[0] == pytest.approx(0.5)


def test_pooled_curves_agree_with_the_metrics(study: Path, numbers: Numbers) -> None:
    bins = read_bins(numbers.study)["acdc", "nacl"]
    found = bins.pooled("boundary")
    assert found is not None
    total = CalibrationBins(4)
    for seed in (0, 1):
        with np.load(study / f"runs/acdc/nacl/seed{seed}/bins.npz") as file:
            at = list(file["regions"]).index("boundary")
            for i in range(len(file["cases"])):
                total.merge(CalibrationBins.from_state({k: file[k][i, at] for k in total.state()}))
    assert found.ece == pytest.approx(total.ece())
    assert found.gap == pytest.approx(total.signed_gap())
    one = bins.of_case("acdc_000", "boundary")
    assert one is not None
    assert one.count.sum() < found.count.sum()
    assert bins.of_case("nobody", "boundary") is None


def test_truth_bins(numbers: Numbers) -> None:
    found = read_bins(numbers.study, "truth_")
    assert {dataset for dataset, _ in found} == {"phantom"}
    nacl, ce = (found["phantom", m].pooled("all") for m in ("nacl", "ce_dice"))
    assert nacl is not None
    assert ce is not None
    assert nacl.ece < ce.ece


def test_the_best_median_and_worst_case_are_pictured(numbers: Numbers) -> None:
    pictures = case_pictures(numbers, "acdc", "foreground")
    assert [p.role for p in pictures] == ["best", "median", "worst"]
    scores = numbers.cases("acdc", "dsc").mean(axis=1)
    assert pictures[0].case == scores.idxmax()
    assert pictures[2].case == scores.idxmin()
    assert sorted(scores).index(pictures[1].dsc) in (2, 3)  # of six
    assert [m.method for m in pictures[0].methods] == list(numbers.study.methods)
    sharp, soft = (m.confidence.astype(int).sum() for m in pictures[0].methods[:2])
    assert sharp > soft  # over-confident is bright


def test_a_picture_and_its_numbers_are_of_one_run(numbers: Numbers) -> None:
    """Means over seeds below the mask of one of them would not be what is seen."""
    rows, bins = numbers.rows, read_bins(numbers.study)
    for picture in case_pictures(numbers, "acdc", "boundary"):
        for made in picture.methods:
            mine = rows[
                (rows["run"] == f"acdc/{made.method}/seed0") & (rows["case"] == picture.case)
            ]
            dsc, ece = (mine[mine["metric"] == metric] for metric in ("dsc", "ece"))
            assert made.dsc == pytest.approx(dsc["value"].mean())
            assert made.ece == pytest.approx(ece.loc[ece["region"] == "boundary", "value"].item())
            assert made.curve is not None
            assert made.curve.ece == pytest.approx(made.ece)
            of_all = bins["acdc", made.method].of_case(picture.case, "boundary")
            assert of_all is not None
            two = made.method != "ls"  # whose second run failed
            assert (of_all.count.sum() == 2 * made.curve.count.sum()) == two


def test_ranks(numbers: Numbers) -> None:
    ranks = rank_methods(numbers, "foreground")
    assert ranks is not None
    assert ranks.scores.missing == "worst"
    assert set(ranks.sums["method"]) == {"ce_dice", "ls", "nacl"}
    assert len(ranks.tests) == 2 * 4 * 3  # datasets, metrics, pairs
    forced = ranks.tests.assign(p_holm=0.01)
    won, lost = verdicts(forced, "nacl", "ce_dice")
    assert (lost, won) == verdicts(forced, "ce_dice", "nacl")
    assert won > lost
    assert verdicts(forced.assign(p_holm=0.5), "nacl", "ce_dice") == (0, 0)
    other = rank_methods(numbers, "all")
    assert other is not None
    assert list(other.sums["sum_rank"]) != list(ranks.sums["sum_rank"])


@pytest.mark.parametrize(
    ("gaps", "words"),
    [({"A": [0.09]}, "is over-confident: mean confidence exceeds accuracy by 0.090 over all "
      "voxels."),
     ({"A": [-0.3, -0.1], "B": [-0.1]}, "is under-confident: mean confidence stays below accuracy "
      "by 0.200 (A) and 0.100 (B) over all voxels."),
     ({"A": [0.004, -0.009]}, "is balanced: mean confidence and accuracy differ by less than 0.01 "
      "over all voxels. Errors may still cancel; see its ECE."),
     ({"A": [0.2], "B": [-0.1]}, "is over-confident on A (+0.200) and under-confident on B "
      "(−0.100): mean confidence minus accuracy over all voxels."),
     ({"A": [0.308, -0.308]}, "is over-confident with 1 and under-confident with 1 of 2 seeds "
      "(−0.308 to +0.308): mean confidence minus accuracy over all voxels. Its seeds disagree: no "
      "verdict."),
     ({"A": [0.02, 0.0], "B": [0.2]}, "is over-confident with 1 and balanced with 1 of 2 seeds on "
      "A (+0.000 to +0.020) and over-confident on B (+0.200): mean confidence minus accuracy over "
      "all voxels.")],
)  # fmt: skip
def test_over_and_under_confidence_in_words(gaps: dict[str, list[float]], words: str) -> None:
    assert gap_sentence(gaps, "all") == words


def test_every_method_is_spoken_of(numbers: Numbers) -> None:
    found = confidence_words(numbers, "foreground")
    assert [name for name, _ in found] == list(numbers.study.methods)
    assert all("over all voxels" in text for _, text in found)
    assert all("In region “foreground”: " in text for _, text in found)
    assert not any("In region" in text for _, text in confidence_words(numbers, "all"))


def test_page_data_is_thinned_when_there_are_many(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    bins = read_bins(numbers.study)
    data = page_data(numbers, bins)
    assert not data["thinned"]
    assert set(data["datasets"][0]["single"]) == {"foreground", "all", "union", "boundary"}
    one = bins["acdc", "nacl"].of_case("acdc_000", "all")
    flat = data["datasets"][0]["single"]["all"]["nacl"][0]
    assert one is not None
    assert sum(flat[1::4]) == one.count.sum()
    monkeypatch.setattr("segcal.report.live.MOST_NUMBERS", 2000)
    thin = page_data(numbers, bins)
    assert thin["thinned"]
    assert set(thin["datasets"][0]["single"]) == {"foreground"}
    kept = [x != 0 for x in thin["datasets"][0]["single"]["foreground"]["nacl"]]
    assert 0 < sum(kept) < len(kept)


def test_json_cannot_end_its_script() -> None:
    text = str(script_json({"a": "</script><!-- & \u2028"}))
    assert not set(text) & set("<>&\u2028")


def test_inlined_figures_follow_the_page() -> None:
    svg = (
        '<?xml version="1.0"?><svg width="72pt" height="10pt"><g id="a" style="fill: #1b1f24">'
        '<use href="#a"/><path d="M 1.23456 2" clip-path="url(#a)"/></g></svg>'
    )
    text = inline(svg, "fig", 'say "hi" <b>')
    assert 'id="fig-a"' in text
    assert 'href="#fig-a"' in text
    assert "url(#fig-a)" in text
    assert "var(--ink)" in text
    assert "1.23 2" in text
    assert "&lt;b&gt;" in text
    assert "max-width:96px" in text
    assert inline(svg, "other", "").count("other-a") == 3
