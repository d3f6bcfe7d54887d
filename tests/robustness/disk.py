"""Run commands on a full disk, on a read-only disk and without permissions.

python tests/robustness/disk.py [--only train evaluate …]       (as root, on Linux)

Each trial copies a small working example to a small disk in memory, fills it, and runs one
command: it must end with exit code 2 and one line that names a path, and change nothing. With
space it must then give the result of an undisturbed run.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kills import COMMANDS, contents, drafts
from trials import check_commands, run_command

NOBODY = 65534
FULL = (0.0, 0.02, 0.3, 0.7, 0.97)  # share of the needed space that is free


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[str], None]]:
    """A file system in memory at `folder`; yields a function that changes its options."""
    folder.mkdir()

    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)

    mount(f"size={size}")
    try:
        yield lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def used(folder: Path) -> int:
    """Bytes of the file system that are used."""
    state = os.statvfs(folder)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


def snapshot(folder: Path) -> dict[str, bytes]:
    hidden = (".verified.json", ".lock")
    files = (p for p in folder.rglob("*") if p.is_file() and p.name not in hidden)
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def judge(code: int, text: str, expected: int = 2) -> list[str]:
    """Problems of the exit code and of what was printed."""
    lines = [line for line in text.splitlines() if line.startswith("segcal: ")]
    found = [] if code == expected else [f"exit code {code}: {text[-700:]}"]
    # Lines before the last one are warnings.
    named = bool(lines) and ": " in lines[-1][8:] and ".partial-" not in lines[-1]
    named |= "Invalid value for" in text
    if expected == 2 and (not named or "Traceback" in text):
        found.append(f"printed {text[-700:]!r}")
    return found


def check(world: Path, name: str) -> tuple[int, list[str]]:
    """(trials, problems) of one command."""
    command = COMMANDS[name]
    first, second = command.text.split(), f"{command.text} {command.again}".split()
    problems, trials = list[str](), 0
    with tempfile.TemporaryDirectory(prefix="segcal-disk-") as temporary:
        root = Path(temporary)
        with small_disk(root / "disk", 2**30):
            copy = Path(shutil.copytree(world, root / "disk" / "world"))
            before = used(copy)
            usual = run_command(copy, first, beside=root)[0].code
            needed, expected = used(copy) - before, contents(copy, command.files.split())
        (root / "disk").rmdir()
        if usual not in (0, 1):
            return 0, [f"{name}: exit code {usual} without a problem"]

        def note(kind: str, found: list[str]) -> None:
            nonlocal trials
            trials += 1
            problems.extend(f"{name}, {kind}: {each}" for each in found)

        for share in FULL:
            with small_disk(root / "disk", 2**30) as change:
                copy = Path(shutil.copytree(world, root / "disk" / "world"))
                old = snapshot(copy)
                change(f"size={used(copy) + int(needed * share)}")
                ended, text = run_command(copy, first, beside=root)
                found = []
                if ended.code != usual:  # old content makes room for new content
                    found = judge(ended.code, text)
                    now = snapshot(copy)
                    lost = [name for name, data in old.items() if now.get(name) != data]
                    found += [f"changed {lost[:3]}"] if lost else []
                change("size=1073741824")
                again = run_command(copy, second, beside=root)[0].code
                found += [f"with space: exit code {again}"] if again != usual else []
                same = contents(copy, command.files.split()) == expected
                found += [] if same else ["with space: other content"]
                found += [f"left {draft}" for draft in drafts(copy)]
                note(f"{share:.0%} of the space", found)
            (root / "disk").rmdir()
        with small_disk(root / "disk", 2**30) as change:
            copy = Path(shutil.copytree(world, root / "disk" / "world"))
            change("ro")
            ended, text = run_command(copy, first, beside=root)
            note("read-only", judge(ended.code, text))
        (root / "disk").rmdir()
        note("without permission to write", as_nobody(world, root, first))
        note("without permission to read", as_nobody(world, root, first, readable=False))
    return trials, problems


def as_nobody(world: Path, root: Path, command: list[str], readable: bool = True) -> list[str]:
    """Problems of a command whose user may not write, or may write but not read."""
    copy = Path(shutil.copytree(world, root / "copy"))
    # In this process: the other user may not be allowed to start the interpreter.
    pairs = zip(["", *command], command, strict=False)
    command = ["1" if before == "--workers" else word for before, word in pairs]
    root.chmod(0o755)
    for path in (copy, *copy.rglob("*")):
        if readable:
            path.chmod(0o755 if path.is_dir() else 0o644)
        else:
            os.chown(path, NOBODY, NOBODY)
            path.chmod(0o755 if path.is_dir() else 0o200)
    (root / "tmp").chmod(0o777)
    before = snapshot(copy)

    def begin() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    ended, text = run_command(copy, command, begin)
    generated = command[:2] in (["prepare", "phantom"], ["demo", "--quick"])
    found = [] if generated and not readable else judge(ended.code, text)
    if not generated and snapshot(copy) != before:
        found.append("changed files")
    shutil.rmtree(copy)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=Path, help="a folder that world.build made")
    parser.add_argument("--only", nargs="*", default=[n for n in COMMANDS if n != "demo"])
    options = parser.parse_args()
    check_commands(options.world, options.only, check)


if __name__ == "__main__":
    main()
