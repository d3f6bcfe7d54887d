"""The examples in docs and docstrings run as they are printed."""

import doctest
import importlib
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_origin

import pytest

import segcal

ROOT = Path(__file__).parents[1]
MODULES = [
    module.name
    for module in pkgutil.walk_packages(segcal.__path__, "segcal.")
    if not module.name.endswith(("__main__", "_triton"))
    # nnU-Net has an environment of its own, where its trainers are tested (slow).
    and not (module.name.endswith("nnunet.trainers") and find_spec("nnunetv2") is None)
]
EXPORTING = [
    "segcal.assurance", "segcal.benchmark", "segcal.data", "segcal.evaluation",
    "segcal.integrations.monai", "segcal.integrations.nnunet", "segcal.integrations.torchmetrics",
    "segcal.losses", "segcal.metrics", "segcal.models", "segcal.posthoc", "segcal.predictions",
    "segcal.report", "segcal.training",
]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", EXPORTING)
def test_every_public_name_is_documented(name: str) -> None:
    room = importlib.import_module(name)
    for public in room.__all__:
        value = getattr(room, public)
        constant = isinstance(value, (tuple, dict)) or get_origin(value) is Literal
        assert constant or value.__doc__, f"{name}.{public}"


def test_the_page_on_calibration_metrics() -> None:
    page = ROOT / "docs" / "reference" / "metrics.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0


# data.md needs files, metrics.md is a doctest: they have tests of their own.
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```python\n" in page.read_text(encoding="utf-8")
    and page.name not in ("data.md", "metrics.md")
]


@pytest.mark.parametrize("page", PAGES)
def test_printed_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # pages may write files
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}  # the blocks of a page continue each other
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")))
def test_links_and_pictures_are_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not link.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
