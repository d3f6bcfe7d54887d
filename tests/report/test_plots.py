"""Figures with many methods, long names and logits of very different sizes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from segcal.report.context import Context
from segcal.report.curves import Curve
from segcal.report.pictures import CaseSlices, MethodSlices
from segcal.report.plots.qualitative_panel import draw_panel
from segcal.report.plots.reliability import _ece_label
from segcal.report.plots.style import inline_svg
from segcal.report.sections.logits import draw_logits
from segcal.report.text import fold
from segcal.study import read_study


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("CE + temperature", "CE + temperature"),
        ("NACL (λ=0.1) + temperature", "NACL (λ=0.1)\n+ temperature"),
        ("a name of a method without it", "a name of…ithout it"),
        ("a name of a method that is long + b", "a name of…t is long\n+ b"),
    ],
)
def test_long_names_are_folded_at_the_plus(text: str, folded: str) -> None:
    assert fold(text) == folded


def picture(methods: list[str]) -> CaseSlices:
    tile, none = np.full((1, 90, 130), 8, np.uint8), np.zeros((1, 90, 130), np.uint8)
    pictures = [MethodSlices(method, none, 255 + none, 0.9, 0.1, None) for method in methods]
    return CaseSlices("acdc", "case", "best", 0.9, tile, none, (0,), (130, 90), 4, pictures)


def test_a_panel_of_many_methods_has_several_rows(study: Path) -> None:
    context = Context(read_study(study))
    names = list(context.study.methods)
    few, nine, many = (
        draw_panel(context, picture((3 * names)[:count])).figure for count in (4, 9, 18)
    )
    assert few.get_figwidth() < nine.get_figwidth() == many.get_figwidth()
    assert few.get_figheight() == nine.get_figheight()
    assert many.get_figheight() > 1.7 * nine.get_figheight()
    shown = many.axes[0].get_images()[0].get_array()
    assert shown is not None
    across, down = 130 + 8, 2 * (90 + 8) + 31  # a tile and a block, with what is between
    for column in range(1, 10):
        assert (shown[31 : 31 + 90, column * across : column * across + 130] == 6).all()
        assert (shown[down + 31 : down + 121, column * across : column * across + 130] == 6).all()
    assert (shown[down:, :130] == 255).all()  # the image is not repeated


@pytest.mark.parametrize(("factor", "scale"), [(1.0, "linear"), (1e4, "log")])
def test_logits_of_very_different_sizes_are_on_a_logarithmic_axis(
    study: Path, factor: float, scale: str
) -> None:
    loaded = read_study(study)
    table = loaded.table.copy()
    logits = (table["metric"] == "mean_abs_logit") & (table["method"] == "nacl")
    assert logits.any()
    table.loc[logits, "value"] *= factor
    context = Context(replace(loaded, table=table))
    drawing = draw_logits(context, context.study.datasets["acdc"])
    assert drawing is not None
    assert drawing.figure.axes[0].get_xscale() == scale
    drawing.figure.canvas.draw()
    texts = [label.get_text() for label in drawing.figure.axes[0].get_xticklabels()]
    assert all("$" not in text for text in texts)


def test_inlined_figures_follow_the_page() -> None:
    svg = (
        '<?xml version="1.0"?><svg width="72pt" height="10pt"><g id="a" style="fill: #1b1f24">'
        '<use href="#a"/><path d="M 1.23456 2" clip-path="url(#a)"/></g></svg>'
    )
    text = inline_svg(svg, "fig", 'say "hi" <b>')
    assert 'id="fig-a"' in text
    assert 'href="#fig-a"' in text
    assert "url(#fig-a)" in text
    assert "var(--ink)" in text
    assert "1.23 2" in text
    assert "&lt;b&gt;" in text
    assert "max-width:96px" in text
    assert inline_svg(svg, "other", "").count("other-a") == 3


def test_an_organ_that_is_never_predicted_has_no_numbers() -> None:
    nothing = np.full(3, np.nan)
    curve = Curve(np.zeros(3), nothing, nothing, nothing, nothing)
    assert _ece_label(curve) == "no voxels"
    some = Curve(np.ones(3), np.full(3, 0.9), np.full(3, 0.8), np.zeros(3), np.ones(3))
    assert _ece_label(some) == "pooled ECE 0.100\ngap +0.100"
