"""The arrows between rooms, and the laziness that keeps `segcal --help` instant."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "segcal"

# Room -> the rooms it may know. `_about`, `_checks` and the version are free for all.
ARROWS: dict[str, set[str]] = {
    "core": set(),
    "config": set(),
    "losses": set(),
    "metrics": set(),
    "stats": {"metrics"},
    "data": set(),
    "models": set(),
    "posthoc": {"registry"},
    "study": {"config", "data", "metrics", "stats", "posthoc", "evaluation", "benchmark", "report"},
    "predictions": {"data"},
    "training": {"config", "losses", "data", "models", "metrics", "study"},
    "evaluation": {"config", "metrics", "stats", "data", "models", "posthoc", "predictions"},
    "benchmark": {
        *("config", "data", "metrics", "stats", "posthoc", "training", "evaluation", "study"),
    },
    "report": {"config", "metrics", "stats", "study"},
    "integrations": {"losses", "metrics", "posthoc", "data", "evaluation", "predictions"},
}
FREE = {"core"}
HEAVY = {"torch", "monai", "pandas", "matplotlib", "scipy", "numpy", "nibabel", "pydantic"}
NOT_AT_IMPORT = {
    *("monai", "pandas", "matplotlib", "nnunetv2", "ray", "tensorboard", "torchmetrics", "triton"),
}


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def rooms() -> list[str]:
    names = {room_of(path) for path in SRC.rglob("*.py")} - {"__init__", "__main__"}
    return sorted(name for name in names if not name.startswith("cli"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module imported anywhere below `tree`, as a dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrows"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", rooms())
def test_rooms_know_only_whom_they_may(room: str) -> None:
    assert room in ARROWS, f"new room {room!r}: say in ARROWS whom it may know"
    allowed = ARROWS[room] | FREE | {room}
    for path in SRC.rglob("*.py"):
        if room_of(path) != room:
            continue
        for name in imports(ast.parse(path.read_text())):
            parts = name.split(".")
            if parts[0] == "segcal" and len(parts) > 1 and parts[1] != "__version__":
                assert parts[1] in allowed, f"{path.relative_to(SRC)} imports {name}"


def test_cli_imports_rooms_only_inside_commands() -> None:
    for path in SRC.glob("cli/*.py"):
        tree = ast.parse(path.read_text())
        top = ast.Module(body=[n for n in tree.body if not isinstance(n, ast.FunctionDef)])
        for name in imports(top):
            assert name.split(".")[0] not in HEAVY
            assert not any(name.startswith(f"segcal.{room}") for room in ARROWS)


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import segcal", "import segcal.cli"])
def test_light_imports_load_nothing_heavy(statement: str) -> None:
    assert not modules_after(statement) & HEAVY


@pytest.mark.parametrize("room", rooms())
def test_rooms_import_optional_packages_only_where_used(room: str) -> None:
    assert not modules_after(f"import segcal.{room}") & NOT_AT_IMPORT


def test_help_and_version_answer() -> None:
    for flag, expected in (("--help", "confidence can be trusted"), ("--version", "segcal 0.")):
        done = subprocess.run(
            [sys.executable, "-m", "segcal", flag], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0
        assert expected in done.stdout


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "segcal", "rank", "nothing.csv"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "segcal: nothing.csv: No such file or directory\n"
