"""Pages of every command, with hostile names everywhere, in a real browser."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.assurance_phantoms import write_phantoms
from helpers.chromium import Browser
from helpers.posthoc_samples import blobs, softmax
from helpers.softmax_files import write_nifti, write_prediction
from helpers.studies import ACDC, CE, LS, Recipe, make_study
from segcal.cli import app

# Each runs `alert` or requests an address if it is not escaped at its place.
IMAGE = "<img src=x onerror=alert(1)>"  # has no slash, so that files can be named so
SCRIPT = "</script></title></td><script>alert(2)</script>"
QUOTE = "\"'><svg onload=alert(3)><img src='http://127.0.0.1:9/a.png'>"
ADDRESS = "javascript:alert(4)//<iframe src=http://127.0.0.1:9/>"
NAMES = (IMAGE, SCRIPT, QUOTE, ADDRESS)


def command(*arguments: object) -> None:
    done = CliRunner().invoke(app, [str(part) for part in arguments])
    assert done.exit_code == 0, done.output


def audit_page(folder: Path) -> Path:
    """An audit of cases, classes and folders with hostile names."""
    probs, labels = folder / f"probs {IMAGE}", folder / f"labels {IMAGE}"
    probs.mkdir(parents=True)
    for number in range(3):
        name = f"{number} {IMAGE}"
        logits, target = blobs(number)
        write_prediction(probs, name, "nnunet", softmax(logits))
        write_nifti(labels / f"{name}.nii.gz", target)
    classes = len(softmax(blobs(0)[0]))
    content = {"labels": {"background": 0, **{NAMES[k]: k for k in range(1, classes)}}}
    (probs / "dataset.json").write_text(json.dumps(content))
    out = folder / f"out {IMAGE}"
    command("audit", "--probs", probs, "--labels", labels, "--out", out)
    return next(out.rglob("index.html"))


def report_page(folder: Path) -> Path:
    """A report of a study whose title, data, methods, classes, cases and errors are hostile."""
    first, second = replace(CE, title=QUOTE), replace(LS, title=SCRIPT)
    data = replace(ACDC, title=ADDRESS, labels=("background", IMAGE, SCRIPT, QUOTE))
    recipe = Recipe(
        methods=(first, second), datasets=(data,), cases=3, shape=(3, 24, 24), title=SCRIPT,
        fail=("acdc/ls/seed1",),
    )  # fmt: skip
    study = make_study(folder / "study", recipe)
    path = study / "study.json"
    content = json.loads(path.read_text())
    content["note"] = IMAGE + SCRIPT + QUOTE
    for run in content["runs"]:
        run["error"] = run.get("error") and SCRIPT + IMAGE
    content["environment"] = {"device": QUOTE, "versions": {SCRIPT: IMAGE}, "commit": SCRIPT}
    path.write_text(json.dumps(content))
    out = folder / f"out {IMAGE}"
    command("report", study, "--out", out)
    return out / "index.html"


def assure_pages(folder: Path) -> list[Path]:
    """`assure apply` and `assure check` with hostile classes, cases and folders."""
    fit, new = (write_phantoms(folder / f"{IMAGE} {n}", range(n, n + 12)) for n in (0, 12))
    for file in [p for p in new.rglob("*") if p.is_file()]:
        file.rename(file.with_name(f"{IMAGE}{file.name}"))
    file, names = folder / f"{IMAGE}.json", f"background,{SCRIPT},{QUOTE}".replace("=,", "=")
    command("assure", "fit", "--probs", fit / "probs", "--labels", fit / "labels", "--out", file,
            "--classes", names)  # fmt: skip
    probs = ("--probs", new / "probs")
    command("assure", "apply", file, *probs, "--images", new / "images", "--out", folder / "apply")
    command("assure", "check", file, *probs, "--labels", new / "labels", "--out", folder / "check")
    return [folder / kind / "index.html" for kind in ("apply", "check")]


def demo_page(folder: Path) -> Path:
    """The report of the demo in a folder with a hostile name."""
    out = folder / IMAGE
    command("demo", "--quick", "--out", out, "--jobs", 2)
    return next(out.rglob("index.html"))


def check_harmless(browser: Browser, page: Path) -> None:
    """Nothing of the names becomes an element; nothing is executed or requested."""
    for scripts in (True, False):
        browser.open(page, scripts=scripts)
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
        browser.run("new Promise(done => setTimeout(done, 200))")
        assert browser.errors == []
        requested = {url for url in browser.requests if not url.startswith("data:")}
        assert requested == {page.resolve().as_uri()}
        foreign = "iframe, svg[onload], img[onerror], img[src^='http'], [href^='javascript']"
        assert browser.run(f'document.querySelectorAll("{foreign}").length') == 0
    # Every choice of the page draws with the names again.
    browser.open(page)
    browser.run(
        "document.querySelectorAll('select').forEach(s => [...s.options].forEach(o => {"
        "s.value = o.value; s.dispatchEvent(new Event('change', {bubbles: true})); }))"
    )
    clicked = "th button, .point, a[data-case], input[name=view]"
    browser.run(f"document.querySelectorAll('{clicked}').forEach(b => b.dispatchEvent("
                "new MouseEvent('click', {bubbles: true})))")  # fmt: skip
    browser.run("new Promise(done => setTimeout(done, 200))")
    assert browser.errors == []
    assert browser.run("document.querySelectorAll('iframe, img[onerror]').length") == 0
    assert {u for u in browser.requests if not u.startswith("data:")} == {page.resolve().as_uri()}


def has_names(page: Path) -> bool:
    """Whether hostile names are on the page."""
    text = page.read_text(encoding="utf-8")
    return "onerror" in text or "alert" in text


def test_the_check_notices_code(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<title>{SCRIPT}{QUOTE}</title>")
    with pytest.raises((AssertionError, TimeoutError)):
        check_harmless(browser, page)


def test_assure(browser: Browser, tmp_path: Path) -> None:
    for page in assure_pages(tmp_path):
        assert has_names(page)
        check_harmless(browser, page)


@pytest.mark.slow
@pytest.mark.parametrize("make", [audit_page, report_page])
def test_reports(browser: Browser, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    page = make(tmp_path)
    assert has_names(page)
    check_harmless(browser, page)


@pytest.mark.slow
def test_demo(browser: Browser, tmp_path: Path) -> None:
    check_harmless(browser, demo_page(tmp_path))
