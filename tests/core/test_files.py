"""Files and folders that are complete or absent, whatever happens while they are written."""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from segcal.core.errors import DiskFullError, PathError
from segcal.core.files import (
    PARTIAL,
    atomic_path,
    file_sha256,
    remove_drafts,
    scratch_folder,
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
    keep.unlink()
    os.link(path, keep)  # as a kill leaves it that comes before the replacement
    with atomic_path(path, keep=keep) as partial:
        partial.write_text("four")
    assert (path.read_text(), keep.read_text()) == ("four", "three")
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


def test_drafts_of_dead_processes_are_removed(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom segcal.core.files import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as partial:\n"
        "    partial.write_text('half'); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.json")], check=False)
    with atomic_path(tmp_path / "mine") as partial:
        partial.write_text("")
        remove_drafts(tmp_path)
        assert names(tmp_path) == [partial.name]  # that of a running process stays
    assert names(tmp_path) == ["mine"]


def test_a_folder_moved_aside_gets_its_name_back(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom segcal.core.files import write_folder\n"
        "rename = os.rename\n"
        "def once(old, new):\n    rename(old, new)\n    os.kill(os.getpid(), 9)\n"
        "os.rename = once\n"
        "write_folder(Path(sys.argv[1]), {'new': b'new'})\n"
    )
    write_folder(tmp_path / "case", {"old": b"old"})
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "case")], check=False)
    assert "case" not in names(tmp_path)
    remove_drafts(tmp_path)
    assert names(tmp_path) == ["case"]
    assert (tmp_path / "case" / "old").read_bytes() == b"old"


def test_the_describing_file_moves_last(tmp_path: Path) -> None:
    for name in ("a.csv", "about.json", "z.csv"):
        (tmp_path / name).write_text("old")
    with suppress(RuntimeError), staged_files(tmp_path, last="about.json") as draft:
        (draft / "a.csv").write_text("new")
        raise RuntimeError
    assert {p.read_text() for p in tmp_path.iterdir()} == {"old"}
    moved = []
    replace = os.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", lambda a, b: (moved.append(Path(b).name), replace(a, b)))
        with staged_files(tmp_path, last="about.json") as draft:
            for name in ("about.json", "z.csv", "a.csv"):
                (draft / name).write_text("new")
    assert moved == ["a.csv", "z.csv", "about.json"]


def test_temporary_folders_of_dead_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os\nfrom segcal.core.files import scratch_folder\n"
        "with scratch_folder() as folder:\n"
        "    (folder / 'patient.nii').write_text(''); os.kill(os.getpid(), 9)\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=False, env=env)
    assert len(names(tmp_path)) == 1
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder() as first, scratch_folder() as second:
        assert names(tmp_path) == sorted(
            [first.name, second.name]
        )  # both run; the dead one is gone
        assert first.stat().st_mode & 0o077 == 0
    assert names(tmp_path) == []


def test_a_link_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom segcal.core.files import atomic_path\n"
        "link = os.link\n"
        "def once(old, new):\n    link(old, new)\n    os.kill(os.getpid(), 9)\n"
        "os.link = once\n"
        "with atomic_path(Path(sys.argv[1]), keep=Path(sys.argv[2])) as draft:\n"
        "    draft.write_text('new')\n"
    )
    (tmp_path / "last").write_text("old")
    arguments = [str(tmp_path / "last"), str(tmp_path / "previous")]
    subprocess.run([sys.executable, "-c", code, *arguments], check=False)
    assert len(names(tmp_path)) == 3
    remove_drafts(tmp_path)
    assert names(tmp_path) == ["last"]


def test_of_two_writers_without_replacement_the_first_wins(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()  # an empty folder may be replaced
    write_new = partial(atomic_path, out, replace=False)
    with write_new() as draft:
        draft.mkdir()
        (draft / "first").write_text("")
    with (
        pytest.raises(PathError, match=r"out: was written by another process"),
        write_new() as draft,
    ):
        draft.mkdir()
    assert names(out) == ["first"]
    assert names(tmp_path) == ["out"]


def test_an_error_of_cleaning_up_does_not_hide_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "draft")

    monkeypatch.setattr(Path, "write_bytes", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(PathError, match=r"a\.txt: cannot be written \(Read-only"):
        write_text(tmp_path / "a.txt", "x")


def test_errors_name_the_path_that_a_draft_becomes(tmp_path: Path) -> None:
    for draft_of, shown in (
        (atomic_path(tmp_path / "out"), "out/cases.csv"),
        (staged_files(tmp_path), "cases.csv"),
    ):
        with draft_of as draft:
            draft.mkdir(exist_ok=True)
            error = PathError(draft / "cases.csv", "is full")
            assert error.path == tmp_path / shown
            assert str(error) == f"{tmp_path / shown}: is full"
