"""The pages of `segcal assure` in a real browser: they fit the screen and request nothing."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.assurance_phantoms import write_phantoms
from helpers.chromium import Browser
from segcal.cli import app


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    fit, new = (write_phantoms(folder / n, s) for n, s in (("a", range(12)), ("b", range(12, 18))))
    file, name = str(folder / "a.json"), "<script>alert(1)</script>"
    calls = {
        "fit": ["--labels", str(fit / "labels"), "--out", file, "--classes", f"0,{name},right"],
        "apply": [file, "--images", str(new / "images"), "--out", str(folder / "apply")],
        "check": [file, "--labels", str(new / "labels"), "--out", str(folder / "check")],
    }
    for command, more in calls.items():
        probs = str((fit if command == "fit" else new) / "probs")
        done = CliRunner().invoke(app, ["assure", command, "--probs", probs, *more])
        assert done.exit_code == 0, done.output
    return {kind: folder / kind / "index.html" for kind in ("apply", "check")}


@pytest.mark.parametrize("kind", ["apply", "check"])
@pytest.mark.parametrize("width", [420, 1400])
def test_it_fits_the_screen(
    browser: Browser, pages: dict[str, Path], kind: str, width: int
) -> None:
    page = pages[kind]
    browser.open(page, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.errors == []
    assert {u for u in browser.requests if not u.startswith("data:")} == {page.resolve().as_uri()}
    assert browser.run("document.querySelectorAll('script').length") == 0
    if kind == "apply":
        cards = "[...document.querySelectorAll('.card img')].map(i => i.naturalWidth)"
        assert min(browser.run(cards)) > 30
        assert browser.run("document.querySelectorAll('.track').length") == 12
