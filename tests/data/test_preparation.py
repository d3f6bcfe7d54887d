"""Preparation: restart, interruption, a full disk, two at once, worker processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import yaml
from pydantic import PlainSerializer, TypeAdapter

import segcal.cli
from helpers.trees import acdc_tree, folder_tree, msd_tree, run_cli, save, scan
from segcal.core.errors import PathError
from segcal.core.jobs import run_jobs
from segcal.data import (
    AcdcSource,
    FolderSource,
    MsdSource,
    PhantomSource,
    check_dataset,
    open_dataset,
    prepare,
)
from segcal.data._free_memory import _free_in_container, free_ram
from segcal.data.survey import auto_workers, describe, find_cases

CASE_FILES = {"image.b2nd", "label.b2nd", "case.json"}


def snapshot(out: Path) -> dict[str, bytes]:
    """The text files, which hold the hashes of all arrays."""
    return {
        p.relative_to(out).as_posix(): p.read_bytes()
        for p in sorted(out.rglob("*"))
        if p.suffix in (".json", ".yaml")
    }


def test_the_number_of_workers_does_not_change_the_files(tmp_path: Path) -> None:
    source = AcdcSource(acdc_tree(tmp_path / "source"))
    steps: list[tuple[str, int, int | None]] = []
    one = prepare(source, tmp_path / "one", progress=lambda *step: steps.append(step))
    two = prepare(source, tmp_path / "two", workers=2)
    assert (one.written, one.kept, len(one.cases), one.skipped) == (6, 0, 6, ())
    assert steps == [("preparing", i, 6) for i in range(1, 7)]
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    assert one.dataset.fingerprint == two.dataset.fingerprint


def test_errors_of_workers_keep_their_path(tmp_path: Path) -> None:
    source = acdc_tree(tmp_path / "source")
    bad = source / "patient003" / "patient003_frame12.nii.gz"
    bad.write_bytes(b"nothing")
    with pytest.raises(PathError, match="patient003_frame12") as caught:
        prepare(AcdcSource(source), tmp_path / "out", workers=2)
    assert caught.value.path == bad


def test_restart_keeps_unchanged_cases_and_prepares_changed_ones(tmp_path: Path) -> None:
    source, out = acdc_tree(tmp_path / "source"), tmp_path / "out"
    first = prepare(AcdcSource(source), out)
    written = (out / "cases" / "patient001_frame01" / "case.json").stat().st_mtime_ns
    again = prepare(AcdcSource(source), out)
    assert (again.written, again.kept) == (0, 6)
    assert (out / "cases" / "patient001_frame01" / "case.json").stat().st_mtime_ns == written
    path = source / "patient002" / "patient002_frame01.nii.gz"
    save(path, scan((40, 48, 3), 99), np.diag([1.5, 1.5, 10.0, 1.0]))
    changed = prepare(AcdcSource(source), out)
    assert (changed.written, changed.kept) == (1, 5)
    assert changed.dataset.fingerprint != first.dataset.fingerprint
    assert check_dataset(out).problems == ()


def test_other_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = acdc_tree(tmp_path / "source", patients=1), tmp_path / "out"
    prepare(AcdcSource(source), out)
    phantoms = PhantomSource(dims=2, cases=2)
    for other, options, reason in (
        (AcdcSource(source), {"dtype": "uint8"}, r"another dtype \(float16, now uint8\)"),
        (AcdcSource(source), {"recipe": "native"}, "another grid"),
        (phantoms, {}, "a case that the source does not have"),
    ):
        with pytest.raises(PathError, match=reason):
            prepare(other, out, **options)
        assert check_dataset(out).problems == ()
    monkeypatch.setattr("segcal.data.preparation.FORMAT", 999)
    with pytest.raises(PathError, match="another format"):
        prepare(AcdcSource(source), out)


def test_a_failed_second_run_leaves_the_set_complete(tmp_path: Path) -> None:
    source, out = folder_tree(tmp_path / "source"), tmp_path / "out"
    prepare(FolderSource(source), out)
    before = snapshot(out)
    path = source / "images" / "fall 1.nii.gz"
    good = path.read_bytes()
    path.write_bytes(good[:-40])
    with pytest.raises(PathError, match="fall 1"):
        prepare(FolderSource(source), out)
    assert snapshot(out) == before
    assert check_dataset(out).problems == ()
    # A case that has lost a file is prepared again, although its source is unchanged.
    path.write_bytes(good)
    prepare(FolderSource(source), out)
    (out / "cases" / "fall 0" / "label.b2nd").write_bytes(b"")
    (out / "cases" / "fall 2" / "image.b2nd").unlink()
    report = prepare(FolderSource(source), out)
    assert (report.written, report.kept) == (2, 1)
    assert check_dataset(out).problems == ()


def test_folders_with_other_content_are_refused(tmp_path: Path) -> None:
    source = FolderSource(folder_tree(tmp_path / "source"))
    mine = tmp_path / "mine"
    (mine / "cases" / "2021").mkdir(parents=True)
    (mine / "cases" / "2021" / "notes.txt").write_text("x")
    with pytest.raises(PathError, match=r"holds other files \(cases/2021\); choose an empty"):
        prepare(source, mine)
    assert sorted(p.name for p in mine.rglob("*")) == ["2021", "cases", "notes.txt"]
    (tmp_path / "half" / "cases").mkdir(parents=True)
    (tmp_path / "half" / "thesis.txt").write_text("x")
    with pytest.raises(PathError, match="thesis"):
        prepare(source, tmp_path / "half")
    # Hidden files, and a picture beside a prepared set, are allowed.
    out = tmp_path / "out"
    (out / "cases").mkdir(parents=True)
    for hidden in (out / ".DS_Store", out / "cases" / ".DS_Store"):
        hidden.write_text("x")
    prepare(source, out)
    (out / "sheet.png").write_text("x")
    assert prepare(source, out).kept == 3


def test_out_must_not_overlap_the_source(tmp_path: Path) -> None:
    source = folder_tree(tmp_path / "a" / "source")
    for out, how in (
        (source, "lies inside"),
        (source / "prepared", "lies inside"),
        (tmp_path / "a", "contains"),
    ):
        with pytest.raises(PathError, match=f"{how} the source folder"):
            prepare(FolderSource(source), out)
    assert sorted(p.name for p in source.iterdir()) == ["images", "labels"]


def test_arguments_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    source = PhantomSource(dims=2, cases=2, size=32)
    for name, value in (
        ("seed", -1),
        ("folds", 1),
        ("workers", -1),
        ("dtype", "float32"),
        ("recipe", "paper"),
    ):
        with pytest.raises(ValueError, match=f"`{name}`"):
            prepare(source, tmp_path / "out", **{name: value})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_prints_one_line(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "segcal", "prepare", "phantom", "--out", str(out)]
    command += ["--cases", "400", "--size", "32", "--workers", "1"]
    # What is started in the background of a shell ignores SIGINT, and so would its children.
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    limit = time.monotonic() + 60
    while not list(out.glob("cases/phantom_*")) and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; run the same command again" in errors
    assert "Traceback" not in errors
    assert not list(out.glob("**/.partial*"))


def test_every_command_names_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("segcal.data.open_dataset", interrupt)
    monkeypatch.setattr("segcal.data.check_dataset", interrupt)
    assert run_cli(monkeypatch, "data", "check", "any") == 130
    assert capsys.readouterr().err == "segcal: interrupted; run the same command again\n"


def test_an_interrupt_while_json_is_written_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: int) -> int:
        raise KeyboardInterrupt

    value = TypeAdapter(Annotated[int, PlainSerializer(interrupt)])
    monkeypatch.setattr("segcal.cli.app", lambda: value.dump_json(1))
    with pytest.raises(SystemExit) as stop:
        segcal.cli.run()
    assert stop.value.code == 130
    assert "interrupted; run the same command again" in capsys.readouterr().err


def test_workers_are_limited_by_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MsdSource(msd_tree(tmp_path / "source", channels=2))
    cases = find_cases(source)[0].values()
    native = describe(source, cases, "native", "float16")
    padded = describe(source, cases, None, "float16")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    # Four float32 copies of two channels, before and after; the padded slices are 64 × 32.
    needed = 16 * 2 * (2 * 30 * 36 * 12)
    for free, workers in ((10, 1), (3 * needed, 2), (4 * needed, 3), (100 * needed, 4)):
        monkeypatch.setattr("segcal.data.survey.free_ram", lambda free=free: free)
        assert auto_workers(cases, native) == workers
    monkeypatch.setattr("segcal.data.survey.free_ram", lambda: 4 * needed)
    assert auto_workers(cases, padded) == 2


def test_free_memory_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has only sysconf, Windows neither."""
    monkeypatch.setattr("segcal.data._free_memory._MEMINFO", tmp_path / "none")
    monkeypatch.setattr("segcal.data._free_memory._CGROUP", tmp_path)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.get)
    assert free_ram() == 4096 * 500
    monkeypatch.delattr(os, "sysconf")
    assert free_ram() == 4 * 2**30


def test_free_memory_respects_the_container(tmp_path: Path) -> None:
    assert 0 < free_ram() < 2**50
    assert _free_in_container(tmp_path) == []
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert _free_in_container(tmp_path) == [450]
    (tmp_path / "memory.max").write_text("max\n")
    assert _free_in_container(tmp_path) == []


def test_a_killed_run_leaves_complete_cases_and_the_next_one_continues(tmp_path: Path) -> None:
    """SIGKILL at several moments, workers included; every stored case must be complete."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "segcal", "prepare", "phantom", "--out", str(out)]
    command += ["--cases", "24", "--size", "32", "--slices", "8", "--workers", "2"]
    counts = []
    for least in (1, 4):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        limit = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < limit:
            if len(list(out.glob("cases/phantom_*"))) >= least:
                break
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        _wait_until_alone(process.pid)
        stored = [p for p in out.glob("cases/*") if not p.name.startswith(".")]
        counts.append(len(stored))
        for folder in stored:
            assert {p.name for p in folder.iterdir()} == CASE_FILES | {"truth.b2nd"}
        with pytest.raises(PathError, match="not finished"):
            open_dataset(out)
    assert 0 < counts[0] < counts[1] < 24
    report = prepare(PhantomSource(cases=24, size=32, slices=8), out)
    assert report.kept == counts[1]
    assert check_dataset(out).problems == ()
    assert not [p for p in out.rglob("*") if p.name.startswith(".partial")]


def _wait_until_alone(session: int) -> None:
    """Workers must end within seconds after their parent."""
    limit = time.monotonic() + 20
    while _members(session):
        assert time.monotonic() < limit, "workers outlived the killed parent"
        time.sleep(0.05)


def _members(session: int) -> list[str]:
    """Processes of a session, from /proc: the fields after the name are state, parent, group, …"""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == session and state != "Z":
            found.append(stat.parent.name)
    return found


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Path:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True)
    except OSError:
        pytest.skip("a tiny disk needs the mount command")
    if done.returncode:
        pytest.skip("mounting a tiny disk needs root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("keep_going", [False, True])
def test_full_disk(
    tiny_disk: Path,
    tmp_path: Path,
    keep_going: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = acdc_tree(tmp_path / "source"), tiny_disk / "out"
    command = ["prepare", "acdc", "--source", source, "--out", out, "--workers", 1]
    command += ["--keep-going"] if keep_going else []
    assert run_cli(monkeypatch, *command) == 2
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("segcal: ")]
    assert len(lines) == 1
    assert str(out) in lines[0]
    assert "the disk is full" in lines[0]
    assert not (out / "dataset.yaml").exists()
    assert not [p for p in out.rglob("*") if p.name.startswith(".partial")]
    for folder in (out / "cases").iterdir():
        assert {p.name for p in folder.iterdir()} == CASE_FILES
    # With enough space the same command continues.
    subprocess.run(["mount", "-o", "remount,size=16m", str(tiny_disk)], check=True)
    assert run_cli(monkeypatch, *command) == 0
    assert check_dataset(out).problems == ()


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    source = FolderSource(folder_tree(tmp_path / "source"))
    refused = []

    def meanwhile(what: str, done: int, total: int | None) -> None:
        with pytest.raises(PathError, match=f"in use by process {os.getpid()}"):
            prepare(source, tmp_path / "out")
        refused.append(done)

    prepare(source, tmp_path / "out", progress=meanwhile)
    assert refused == [1, 2, 3]


def test_dataset_yaml_describes_the_preparation(tmp_path: Path) -> None:
    prepare(FolderSource(folder_tree(tmp_path / "source")), tmp_path / "out", seed=3)
    content = yaml.safe_load((tmp_path / "out" / "dataset.yaml").read_text())
    assert content["recipe"] == "padded"
    assert content["grid"]["crop"] == [None, 32, 32]
    assert content["intensity"]["kind"] == "zscore"
    assert set(content["versions"]) == {"segcal", "numpy", "scipy", "nibabel", "blosc2"}
    assert open_dataset(tmp_path / "out").splits.seed == 3
    (tmp_path / "out" / "dataset.yaml").write_text("version: 1\nname: x\n")
    with pytest.raises(PathError, match=r"dataset\.yaml: is not the description"):
        open_dataset(tmp_path / "out")
    with pytest.raises(PathError, match="is not a prepared set"):
        open_dataset(tmp_path)


def _die() -> int:
    os._exit(9)


def test_a_dead_worker_is_an_error_not_a_hang() -> None:
    with pytest.raises(OSError, match="worker process died"):
        list(run_jobs({"a": _die, "b": _die}, workers=2))
