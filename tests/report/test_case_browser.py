"""The case browser in a real browser: slider, keys, links, and what it draws."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.chromium import Browser

STATUS = "document.getElementById('browse-status').textContent"
SLIDER = "document.getElementById('browse-slice')"


@pytest.fixture
def view(browser: Browser, single: Path) -> Browser:
    browser.open(single / "report" / "index.html")
    browser.wait(f"{STATUS} !== ''")
    return browser


def slices(study: Path) -> dict[str, Any]:
    with np.load(study / "runs" / "acdc" / "ce_dice" / "seed0" / "slices.npz") as file:
        return dict(file)


def case_names(view: Browser) -> list[str]:
    texts = view.run("[...document.querySelectorAll('#browse-case option')].map(o => o.text)")
    return [text.split(", DSC")[0] for text in texts]


def shown_at(number: int) -> str:
    return f"{STATUS}.endsWith(' {number} of 12 stored')"


def test_slider_and_keys_change_slice_and_case(view: Browser) -> None:
    names = case_names(view)
    assert len(names) == 7
    view.run(f"{SLIDER}.value = 2; {SLIDER}.dispatchEvent(new Event('input'))")
    view.wait(shown_at(3))
    view.run("document.getElementById('browse-stage').focus()")
    view.press("ArrowRight")
    view.wait(shown_at(4))
    assert view.run(f"{SLIDER}.value") == "3"
    for _ in range(6):
        view.press("ArrowLeft")
    view.wait(shown_at(1))  # the first slice is the last one that the key reaches
    assert names[0] in view.run(STATUS)
    view.press("ArrowDown")
    view.wait(f"{STATUS}.includes({names[1]!r})")
    view.press("ArrowUp")
    view.press("ArrowUp")  # there is none before the worst
    view.wait(f"{STATUS}.includes({names[0]!r})")
    assert view.errors == []


def test_tables_and_points_open_a_case(view: Browser) -> None:
    links = "[...document.querySelectorAll('#table-worst_acdc a[data-case]')]"
    names = view.run(f"{links}.map(a => a.dataset.case)")
    assert len(names) == view.run(
        "document.querySelector('#table-worst_acdc').tBodies[0].rows.length"
    )
    view.run(f"{links}[2].click()")
    view.wait(f"{STATUS}.includes({names[2]!r})")
    assert view.run("document.activeElement.id") == "browse-stage"
    top = view.run("document.getElementById('pictures').getBoundingClientRect().top")
    assert 0 <= top < 300
    point = f"document.querySelector('.point[aria-label*=\"{names[0]}\"]')"
    view.run(f"{point}.focus()")
    view.press("Enter")
    view.wait(f"{STATUS}.includes({names[0]!r})")
    assert view.run("document.querySelector('#live-reliability h3').textContent").endswith(names[0])
    assert view.errors == []


def test_errors_are_drawn_where_they_are(view: Browser, single: Path) -> None:
    """The color at the center of each voxel, against the stored masks."""
    name = case_names(view)[0]
    stored = slices(single)
    i = list(stored["cases"]).index(name)
    k = int(view.run(f"{SLIDER}.value"))
    truth, labels = (stored[f"{layer}_{i}"][k].astype(int) for layer in ("truth", "labels"))
    high, wide = truth.shape
    found = view.run(
        f"(() => {{ const c = document.querySelectorAll('#browse-stage canvas')[2], out = [];"
        f"const p = c.getContext('2d'); for (let y = 0; y < {high}; y++)"
        f"for (let x = 0; x < {wide}; x++) {{ const d = p.getImageData("
        f"(x + 0.5) * c.width / {wide}, (y + 0.5) * c.height / {high}, 1, 1).data;"
        "out.push([d[0], d[1], d[2]]); } return out; })()"
    )
    red, green, blue = np.array(found, int).reshape(high, wide, 3).transpose(2, 0, 1)
    missed = (truth > 0) & (labels == 0)
    extra = (truth == 0) & (labels > 0)
    assert missed.any()
    assert extra.any()
    np.testing.assert_array_equal(red - blue > 40, missed)
    np.testing.assert_array_equal((blue - red > 40) & (blue - green > 15), extra)


def test_controls_have_names_and_views_can_be_hidden(view: Browser) -> None:
    unnamed = (
        "[...document.querySelectorAll('#live-browser :is(input, select, canvas, .stage)')]"
        ".filter(n => !n.labels?.[0]?.textContent.trim() && !n.getAttribute('aria-label')).length"
    )
    assert view.run(unnamed) == 0
    assert view.run("document.querySelectorAll('#browse-stage canvas').length") == 3
    view.run("document.querySelector('input[name=view][value=confidence]').click()")
    view.wait("document.querySelectorAll('#browse-stage canvas').length === 2")


@pytest.mark.parametrize("width", [420, 1400])
def test_a_single_network_fits_and_uses_the_width(
    browser: Browser, single: Path, width: int
) -> None:
    browser.open(single / "report" / "index.html", width=width)
    browser.wait(f"{STATUS} !== ''")
    assert browser.run("document.documentElement.scrollWidth") <= width
    right = browser.run(
        "Math.max(...[...document.querySelectorAll('#live-reliability svg')]"
        ".map(s => s.getBoundingClientRect().right))"
    )
    assert right > 0.8 * width
    wide = browser.run("document.querySelector('#live-reliability svg').clientWidth")
    assert wide > 300
    assert browser.errors == []
