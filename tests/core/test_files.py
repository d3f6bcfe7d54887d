"""Files and folders that are complete or absent, whatever happens while they are written."""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from segcal.core.errors import DiskFullError, PathError
from segcal.core.files import (
    PARTIAL,
    atomic_path,
    file_sha256,
    staged_files,
    write_folder,
    write_json,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with suppress(RuntimeError), atomic_path(path) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    write_text(path, "ß new")
    assert path.read_text(encoding="utf-8") == "ß new"
    assert names(tmp_path) == ["a.txt"]


def test_the_replaced_file_can_be_kept(tmp_path: Path) -> None:
    path, keep = tmp_path / "last", tmp_path / "previous"
    for text in ("one", "two", "three"):
        with atomic_path(path, keep=keep) as partial:
            partial.write_text(text)
    assert (path.read_text(), keep.read_text()) == ("three", "two")
    assert names(tmp_path) == ["last", "previous"]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    write_folder(folder, {"a": b"1", "b": b"2"})
    write_folder(folder, {"a": b"3"})
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {"a": b"3"}
    with suppress(RuntimeError), atomic_path(folder) as partial:
        partial.mkdir()
        raise RuntimeError
    assert names(folder) == ["a"]
    assert names(tmp_path) == ["case"]


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    before = file_sha256(path)
    code = (
        "import os, sys; from pathlib import Path; from segcal.core.files import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as partial:\n"
        "    partial.write_text('half'); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=60)
    assert file_sha256(path) == before
    assert [n for n in names(tmp_path) if not n.startswith(PARTIAL)] == ["a.json"]


def test_staged_files_appear_together_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with suppress(RuntimeError), staged_files(out) as draft:
        (draft / "a").write_text("1")
        raise RuntimeError
    assert not out.exists()
    with staged_files(out) as draft:
        (draft / "a").write_text("1")
        (draft / "b").write_text("2")
    assert names(out) == ["a", "b"]


def test_errors_name_the_file_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(PathError) as found:
        write_text(tmp_path / "no" / "folder.txt", "x")
    assert found.value.path == tmp_path / "no" / "folder.txt"
    with pytest.raises(DiskFullError, match="free some space"), atomic_path(tmp_path / "x"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_path_errors_survive_a_process_boundary() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(DiskFullError("a/b", "is full", "free space")))
    assert isinstance(error, DiskFullError)
    assert str(error) == f"{Path('a/b')}: is full; free space"
