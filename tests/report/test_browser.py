"""The page in a real browser: sorting, selecting, no errors, no requests, no injected code."""

from pathlib import Path

import pytest

from helpers.chromium import Browser

METHOD_COLUMN = "[...document.querySelectorAll('#table-main-foreground tbody tr')]"
VALUES = METHOD_COLUMN + ".map(r => r.cells[{}].dataset.sort)"
HEAD = "document.querySelectorAll('#table-main-foreground thead tr:last-child th')[{}]"


@pytest.fixture
def view(browser: Browser, page: Path) -> Browser:
    browser.open(page)
    return browser


def visible(browser: Browser, query: str) -> int:
    return int(
        browser.run(
            f"[...document.querySelectorAll({query!r})].filter(n => n.getClientRects().length)"
            ".length"
        )
    )


def choose(browser: Browser, name: str, value: str) -> None:
    browser.run(
        f"(() => {{ const s = document.getElementById('pick-{name}'); s.value = {value!r};"
        " s.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_no_error_and_no_request(view: Browser, page: Path) -> None:
    view.run("1")
    assert view.errors == []
    requested = {url for url in view.requests if not url.startswith("data:")}
    assert requested == {page.resolve().as_uri()}


def test_sorting_by_click(view: Browser) -> None:
    before = view.run(VALUES.format(1))
    view.run(HEAD.format(1) + ".querySelector('button').click()")
    up = [float(v) for v in view.run(VALUES.format(1))]
    assert up == sorted(map(float, before))
    assert view.run(HEAD.format(1) + ".getAttribute('aria-sort')") == "ascending"
    view.run(HEAD.format(1) + ".querySelector('button').click()")
    assert [float(v) for v in view.run(VALUES.format(1))] == up[::-1]
    assert view.run(HEAD.format(1) + ".getAttribute('aria-sort')") == "descending"
    view.run(HEAD.format(0) + ".querySelector('button').click()")
    names = view.run(VALUES.format(0))
    assert names == sorted(names, key=str.lower)
    assert view.run(HEAD.format(1) + ".getAttribute('aria-sort')") is None
    assert view.errors == []


def test_sorting_by_keyboard(view: Browser) -> None:
    view.run(HEAD.format(3) + ".querySelector('button').focus()")
    view.press("Enter")
    values = [float(v) for v in view.run(VALUES.format(3))]
    assert values == sorted(values)


def test_picking_methods(view: Browser) -> None:
    rows = "#table-main-foreground tbody tr"
    plots = "#live-reliability .plot"
    assert (visible(view, rows), visible(view, plots)) == (3, 12)
    view.run("document.querySelector('input[value=ls]').click()")
    assert (visible(view, rows), visible(view, plots)) == (2, 10)
    view.wait("document.querySelectorAll('#browse-stage canvas').length === 5")
    view.run("document.getElementById('pick-none').click()")
    assert (visible(view, rows), visible(view, plots)) == (0, 0)
    status = view.run("document.getElementById('live-reliability').innerText")
    assert "No method is selected" in status
    view.run("document.getElementById('pick-all').click()")
    assert (visible(view, rows), visible(view, plots)) == (3, 12)
    assert view.errors == []


def test_picking_a_dataset(view: Browser) -> None:
    columns = "#table-main-foreground thead tr:last-child th"
    assert visible(view, columns) == 9
    choose(view, "dataset", "phantom")
    assert visible(view, columns) == 5
    assert visible(view, "#live-reliability h3") == 1
    view.wait("document.getElementById('browse-status').textContent.startsWith('Phantom')")
    assert view.run("document.querySelectorAll('#browse-case option').length") == 6
    assert view.run("document.querySelectorAll('#pick-case optgroup').length") == 1


def test_picking_a_region(view: Browser) -> None:
    label = "document.querySelector('#live-reliability svg').getAttribute('aria-label')"
    before = view.run(label)
    choose(view, "region", "all")
    assert visible(view, "#table-main-foreground") == 0
    assert visible(view, "#table-main-all") == 1
    assert view.run(label) != before
    assert "region all" in view.run("document.getElementById('live-scatter').innerText")


def test_picking_a_case_by_select_and_by_point(view: Browser) -> None:
    choose(view, "case", "0:1")
    heading = "document.querySelector('#live-reliability h3').textContent"
    assert view.run(heading).endswith("case <script>alert(1)</script>")
    assert visible(view, "#live-reliability .plot") == 6
    choose(view, "case", "")
    view.run(
        "document.querySelector('#live-scatter .point')"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    assert view.run("document.getElementById('pick-case').value") != ""
    assert "case " in view.run(heading)
    assert view.errors == []


def test_a_case_named_script_is_harmless(view: Browser) -> None:
    view.run("1")
    assert not any("dialog" in error for error in view.errors)
    assert view.run("document.querySelectorAll('script').length") == 2
    names = view.run("[...document.querySelectorAll('#pick-case option')].map(o => o.textContent)")
    assert "<script>alert(1)</script>" in names


def test_without_scripts_the_figures_are_there(browser: Browser, page: Path) -> None:
    browser.open(page, scripts=False)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)  # to query the page
    assert visible(browser, ".static svg.drawn") == 4
    assert visible(browser, "#pictures .static img") == 6  # three cases of each dataset
    assert visible(browser, "#live-browser") == 0
    assert visible(browser, "#controls") == 0
    assert visible(browser, "#table-main-foreground") == 1
    assert visible(browser, "#table-main-all") == 0


@pytest.mark.parametrize("width", [400, 900, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_the_screen_in_both_themes(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    paper, ink = browser.run(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    light = [sum(map(int, c[4:-1].split(","))) for c in (paper, ink)]
    assert (light[0] < light[1]) == dark
    figure = browser.run("getComputedStyle(document.querySelector('svg.drawn text')).fill")
    shade = sum(map(int, figure[4:-1].split(",")))
    assert (shade > 380) == dark  # the figures follow
    assert browser.errors == []
