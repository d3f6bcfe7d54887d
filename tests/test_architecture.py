"""The structure of the package: public interfaces, light imports, the base installation.

The layers themselves are checked by import-linter (`[tool.importlinter]` in pyproject.toml).
"""

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from helpers.trees import run_cli

SRC = Path(__file__).parents[1] / "src" / "segcal"
PACKAGES = sorted(path.parent.name for path in SRC.glob("*/__init__.py"))
HEAVY = {"torch", "monai", "pandas", "matplotlib", "scipy", "numpy", "nibabel", "pydantic"}
NOT_AT_IMPORT = {
    *("monai", "pandas", "matplotlib", "nnunetv2", "ray", "tensorboard", "torchmetrics", "triton"),
}
APP = (
    *("blosc2", "filelock", "jinja2", "lightning_fabric", "matplotlib", "monai", "nibabel"),
    *("pandas", "pydantic", "rich", "typer", "yaml"),
)


@cache
def imports(path: Path) -> list[tuple[str, str]]:
    """(module, name) of every import of segcal anywhere in a file."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
    return found


# Nobody imports the command line, and each integration is a public module of its own.
NO_INTERFACE = ("cli", "integrations")


@pytest.mark.parametrize("package", [p for p in PACKAGES if p not in ("core", *NO_INTERFACE)])
def test_packages_are_imported_through_their_public_interface(package: str) -> None:
    """`core` is the exception: its modules are its interface."""
    inside = f"segcal.{package}"
    public = importlib.import_module(inside).__all__
    for path in SRC.rglob("*.py"):
        if path.is_relative_to(SRC / package):
            continue
        for module, name in imports(path):
            deep = module.startswith(f"{inside}.")
            hidden = module == inside and name not in public
            assert not deep | hidden, f"{path.relative_to(SRC)} imports {module}.{name}"


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import segcal", "import segcal.cli"])
def test_light_imports_load_nothing_heavy(statement: str) -> None:
    assert not loaded_after(statement) & HEAVY


@pytest.mark.parametrize("package", PACKAGES)
def test_heavy_packages_are_imported_only_where_they_are_used(package: str) -> None:
    allowed = {"pandas", "matplotlib"} if package == "report" else set()
    assert not loaded_after(f"import segcal.{package}") & (NOT_AT_IMPORT - allowed)


WITHOUT_APP = f"import sys; sys.modules.update(dict.fromkeys({APP!r}))\n"


def without_app(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_APP + code], capture_output=True, text=True, timeout=120
    )


def test_losses_metrics_and_calibrators_work_in_the_base_installation(tmp_path: Path) -> None:
    done = without_app(f"""
import numpy as np, torch, segcal
logits = torch.randn(1, 3, 8, 8, requires_grad=True)
target = torch.randint(3, (1, 8, 8))
segcal.NACLLoss()(logits, target).backward()
probs = logits.detach().softmax(1)[0].numpy()
rows = segcal.evaluate_case(probs[:, None], target.numpy(), spacing_mm=(1, 1, 1), case="a").rows
calibrator = segcal.TemperatureScaling().fit([(logits.detach()[0], target[0])])
calibrator.save({str(tmp_path / "t.json")!r})
segcal.load_calibrator({str(tmp_path / "t.json")!r})
print(len(rows) > 10)
""")
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("package", ["training", "data", "stats", "report", "evaluation"])
def test_the_rest_names_the_pip_command(package: str) -> None:
    done = without_app(f"import segcal.{package}")
    assert done.returncode == 1
    assert "pip install 'segcal[app]'" in done.stderr.splitlines()[-1]


def run_segcal(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "segcal", *arguments],
        capture_output=True, text=True, timeout=120, cwd=cwd,
    )  # fmt: skip


def test_help_and_version_answer() -> None:
    for flag, expected in (("--help", "confidence can be trusted"), ("--version", "segcal 0.")):
        done = run_segcal(flag)
        assert done.returncode == 0
        assert expected in done.stdout


def test_the_command_line_without_its_packages_names_the_pip_command() -> None:
    done = without_app("from segcal.__main__ import main; main()")
    assert done.returncode == 1
    assert "pip install 'segcal[app]'" in done.stderr


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    done = run_segcal("rank", "nothing.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "segcal: nothing.csv: does not exist; check the path\n"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("losses", "nacl"),
        ("priors", "mean"),
        ("metrics", "ece"),
        ("networks", "unet"),
        ("sources", "acdc"),
        ("calibrators", "temperature"),
        ("calibrators", "auto"),
        ("sections", "ranking"),
    ],
)
def test_what_can_be_chosen_is_listed(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, "list", kind) == 0
    assert name in [line.split()[0] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("sections", "ablation", ["ablations"]),
        ("networks", "monai.BasicUNet", ["MONAI"]),
        ("networks", "monai.DynUNet", ["MONAI"]),
        ("metrics", "hd95", ["HD95", "mm;", "lower is better", "hd95_mm"]),
        ("metrics", "nsd", ["NSD", "higher is better", "nsd_2mm"]),
        ("metrics", "reader_volume_ml", ["ml;", "lower is better"]),
    ],
)
def test_lists_describe_what_they_name(
    kind: str,
    name: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_cli(monkeypatch, "list", kind) == 0
    described = dict(line.partition(" ")[::2] for line in capsys.readouterr().out.splitlines())
    for word in words:
        assert word in described[name]
    for text in described.values():
        assert text.strip()
        assert "partial" not in text


def test_an_unknown_list_is_about_the_argument(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, "list", "loss") == 2
    error = capsys.readouterr().err
    assert "argument KIND" in error
    assert "'losses'?" in error
    assert "--kind" not in error


def test_type_checkers_see_all_names_of_the_top_level() -> None:
    tree = ast.parse((SRC / "__init__.py").read_text(encoding="utf-8"))
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    found = {
        (each.module, alias.asname)
        for each in typed.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    exports = importlib.import_module("segcal")._EXPORTS
    assert found == {(module or "segcal", name) for name, module in exports.items()}


def test_all_packages_load_from_the_top_level() -> None:
    exports = importlib.import_module("segcal")._EXPORTS
    assert {*PACKAGES} - {"cli"} <= {name for name, module in exports.items() if not module}
