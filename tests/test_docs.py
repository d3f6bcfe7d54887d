"""The examples in docs and docstrings run as they are printed."""

import ast
import doctest
import importlib
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_origin

import pytest

import segcal
from segcal.metrics import METRICS
from segcal.stats import method_means
from segcal.study import read_study

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


# Docstrings: Google sections, names and code in single backticks (docs/conf.py).
OTHER_MARKUP = re.compile(
    r"``|\]\(|:(param|type|returns?|rtype|raises|class|func|meth|mod|attr)\b[^\n]*[:`]|"
    r"^( *(\w+, )*\w+:)? *[A-Za-z]\.( .*)?$|"  # "size: K." is a list with the number K
    r"^ *(-{3,}|={3,}|#+ .*|(Arguments|Parameters|Params|Return|Examples|Notes):?)$",
    re.MULTILINE,
)


def test_docstrings_have_one_markup() -> None:
    found = []
    for module in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                wrong = OTHER_MARKUP.search(text)
                name = f"{module.name}:{getattr(node, 'name', '')}"
                found += [f"{name}: {wrong.group()!r}"] if wrong else []
                found += [f"{name}: an odd backtick"] if text.count("`") % 2 else []
    assert not found


DOCS = ROOT / "docs"
GENERATED = tuple(DOCS / "reference" / name for name in ("api", "commands", "names.md"))
SOURCES = [
    page
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    if not any(page.is_relative_to(place) for place in GENERATED)
]


@pytest.mark.parametrize("page", ["concepts/regions.md", "reference/metrics.md"])
def test_printed_sessions(page: str) -> None:
    result = doctest.testfile(str(DOCS / page), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0


# data.md needs files and has a test in tests/data; sessions are tested above.
PAGES = [
    page
    for page in SOURCES
    if "```python\n" in (text := page.read_text(encoding="utf-8"))
    and "```python\n>>>" not in text
    and page.name != "data.md"
]


@pytest.mark.parametrize("page", PAGES)
def test_printed_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # pages may write files
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}  # the blocks of a page continue each other
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("*.md")), *SOURCES[1:]])
def test_links_and_pictures_are_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        target = (page.parent / link).resolve()
        generated = any(target.is_relative_to(place) for place in GENERATED)  # checked by Sphinx
        if not generated and not link.startswith(("http:", "https:", "mailto:")):
            assert target.exists(), f"{page.name}: {link}"


def test_the_reference_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "scripts")
    importlib.import_module("reference_pages").write(tmp_path)
    commands = (tmp_path / "commands" / "index.md").read_text(encoding="utf-8")
    for module in (ROOT / "src" / "segcal" / "cli").glob("[!_]*.py"):
        assert f"`segcal {module.stem}`" in commands
        page = (tmp_path / "commands" / f"{module.stem}.md").read_text(encoding="utf-8")
        assert "| argument or option | meaning | default |" in page
    names = (tmp_path / "names.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in names for name in METRICS.names() if name != "volume_error")
    assert all((tmp_path / "api" / f"{name}.rst").is_file() for name in EXPORTING)


def test_readme_and_results_are_small() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120
    sizes = (path.stat().st_size for path in (DOCS / "results").rglob("*") if path.is_file())
    assert sum(sizes) < 10_000_000


def test_published_studies_can_be_read() -> None:
    study = read_study(DOCS / "results" / "acdc_grid")
    table = (DOCS / "results" / "acdc_grid" / "tables" / "main.md").read_text(encoding="utf-8")
    means = method_means(study.table, metrics=["dsc"], region=study.region)
    for mean in means["mean"]:
        assert f"{mean:.3f}" in table
