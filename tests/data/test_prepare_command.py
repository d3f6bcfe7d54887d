"""`segcal prepare NAME`: commands are generated from the sources, also from a user's own."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.trees import acdc_tree, folder_tree, run_cli
from segcal.core.errors import PathError
from segcal.data import (
    SOURCES,
    Description,
    FileCase,
    FolderSource,
    Source,
    SourceCase,
    open_dataset,
    prepare,
)

MODULE = """
from pathlib import Path
from typing import Annotated, Literal

from segcal.data import Description, FileCase, Source


class KneeSource(Source):
    "Knee MR of our department."

    name = "knee"
    layout = "images/NAME.nii.gz"
    folder: Path

    def __init__(
        self,
        folder: Path | str,
        *,
        sequence: Annotated[Literal["t1", "t2"], "Sequence of the scans: t1 or t2."] = "t2",
    ) -> None:
        super().__init__(folder)
        names = {0: "background", 1: "cartilage"}
        self.description = Description(name="knees", channels=(sequence,), classes=names)

    def cases(self):
        for path in sorted((self.folder / "images").iterdir()):
            label = self.folder / "labels" / path.name
            yield FileCase(path.name[:6], "one patient", (path,), label)
"""


@pytest.fixture
def knee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The import path of a source in a module of a user."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "knee_sources.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    return "knee_sources:KneeSource"


def test_output_names_splits_and_next_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = acdc_tree(tmp_path / "acdc", patients=5), tmp_path / "out"
    command = ("prepare", "acdc", "--source", source, "--out", out, "--workers", 1)
    assert run_cli(monkeypatch, *command) == 0
    text = capsys.readouterr().out
    splits = open_dataset(out).splits
    counts = f"{len(splits.train)} train, {len(splits.val)} val, {len(splits.test)} test"
    for piece in ("10 cases of 5 patients", counts, "MR; z-score", f"segcal data check {out}"):
        assert piece in text
    assert f"segcal train --data {out}" in text
    assert run_cli(monkeypatch, *command) == 0
    assert re.search(r"10 .*kept", capsys.readouterr().out)
    folder = folder_tree(tmp_path / "folder")
    command = ("prepare", "folder", "--source", folder, "--out", tmp_path / "f", "--workers", 1)
    assert run_cli(monkeypatch, *command) == 0
    assert "3 patients (each case counts as one; see --patient)" in capsys.readouterr().out


def test_every_source_has_a_command_with_its_own_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run_cli(monkeypatch, "prepare", "--help") == 0
    listing = capsys.readouterr().out
    for name in SOURCES:
        assert SOURCES.describe(name) in listing
        assert run_cli(monkeypatch, "prepare", name, "--help") == 0
        text = capsys.readouterr().out
        assert ("--source" in text) == (name != "phantom")
        assert ("--recipe" in text) == (name != "phantom")
        assert ("--modality" in text) == ("--window" in text) == (name in ("msd", "folder"))
        assert ("--dims" in text) == (name == "phantom")
        default = "paper" if name in ("acdc", "flare", "brats") else "padded"
        assert (f"[default: {default}]" in text) == (name != "phantom")


def test_a_source_by_import_path(
    knee: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its options are options of the command, and worker processes can load its cases."""
    source, out = folder_tree(tmp_path / "folder"), tmp_path / "out"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"), prepend=":")
    command = ("prepare", knee, "--source", source, "--out", out, "--workers", 2)
    assert run_cli(monkeypatch, *command, "--sequence", "t1") == 0
    info = open_dataset(out).info
    assert (info.name, info.source, info.channels) == ("knees", "knee", ("t1",))
    assert info.classes == {0: "background", 1: "cartilage"}
    assert {case.patient for case in open_dataset(out)} == {"one patient"}
    assert run_cli(monkeypatch, "prepare", knee, "--help") == 0
    assert "t1 or t2" in capsys.readouterr().out
    for name, problem in (
        ("knee_sources:Missing", "cannot be imported"),
        ("pathlib:Path", "a subclass of segcal.data.Source"),
        ("foldr", "Did you mean 'folder'?"),
    ):
        assert run_cli(monkeypatch, "prepare", name, "--help") == 2
        assert problem in capsys.readouterr().err


def test_help_of_segcal_loads_no_source() -> None:
    code = (
        "import sys\n"
        "from segcal import cli\n"
        "sys.argv = ['segcal', '--help']\n"
        "try:\n    cli.run()\nexcept SystemExit:\n    pass\n"
        "loaded = {'numpy', 'nibabel', 'pydantic', 'segcal.data'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True)


class TwoOfOneName(FolderSource):
    """Yields every case twice, and a problem."""

    name = "two"

    def cases(self) -> Iterator[SourceCase | PathError]:
        yield from super().cases()
        yield from super().cases()
        yield PathError("elsewhere", "is broken", "repair it")


def test_repeated_names_and_problems_of_a_source(tmp_path: Path) -> None:
    source = TwoOfOneName(folder_tree(tmp_path / "source"))
    with pytest.raises(PathError, match="the same case name as fall 0"):
        prepare(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    report = prepare(source, tmp_path / "out", keep_going=True)
    assert (report.written, len(report.skipped)) == (3, 4)
    assert str(report.skipped[-1]) == "elsewhere: is broken; repair it"


def test_the_smallest_source(tmp_path: Path) -> None:
    """Only class attributes and `cases`, as in the documentation."""

    class Smallest(Source):
        name = "smallest"
        description = Description(name="few", channels=("T1",))

        def cases(self) -> Iterator[SourceCase | PathError]:
            assert self.folder is not None
            for path in sorted((self.folder / "images").iterdir()):
                label = self.folder / "labels" / path.name
                yield FileCase(path.name, path.name, (path,), label)

    report = prepare(Smallest(folder_tree(tmp_path / "source")), tmp_path / "out")
    assert report.dataset.classes == {0: "background", 1: "class 1"}
    assert report.dataset.info.recipe == "padded"
    empty = tmp_path / "empty"
    (empty / "images").mkdir(parents=True)
    with pytest.raises(PathError, match="holds no cases"):
        prepare(Smallest(empty), tmp_path / "none")


def test_the_next_commands_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my data"
    options = ["--cases", "6", "--size", "32", "--slices", "4", "--workers", "1"]
    assert run_cli(monkeypatch, "prepare", "phantom", "--out", out, *options) == 0
    following = capsys.readouterr().out.splitlines()[-1].removeprefix("Next: ")
    check, train = (shlex.split(command) for command in following.split(";"))
    assert check == ["segcal", "data", "check", str(out)]
    assert train == ["segcal", "train", "--data", str(out), "--out", "runs/my data"]
