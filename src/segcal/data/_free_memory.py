"""How much memory a process can still allocate."""

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
# Where the system does not say (Windows).
_ASSUMED = 4 * 2**30


def free_ram() -> int:
    """Free bytes of RAM on this machine, or in its container if that has less."""
    return min([_free_on_machine(), *_free_in_container(_CGROUP)])


def _free_on_machine() -> int:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        values = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        return values["MemAvailable"] * 1024
    except (OSError, KeyError):
        pass
    if hasattr(os, "sysconf"):  # macOS: half of what is installed
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return _ASSUMED


def _free_in_container(root: Path) -> list[int]:
    """What the control group (version 2, version 1) leaves; empty if there is no limit."""
    found = []
    for folder, limit, used in (
        (root, "memory.max", "memory.current"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            # Cached files count as used, but the system releases them on demand.
            pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cached = {name: int(value) for name, value in pairs}.get("inactive_file", 0)
            free = int((folder / limit).read_text()) - int((folder / used).read_text()) + cached
            found.append(max(free, 0))
        except (OSError, ValueError):
            continue
    return found
