"""How much memory a process may still take."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def free_ram() -> int:
    """Bytes of RAM that can be had: what the machine has left, or a container's limit if less."""
    return min([_machine(), *_containers(_CGROUP)])


def _machine() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        return found["MemAvailable"] * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _containers(root: Path) -> list[int]:
    """What the control group (version 2, then 1) leaves; nothing where there is no limit."""
    v1 = root / "memory"
    found = []
    for limit, used, stat in (
        (root / "memory.max", root / "memory.current", root / "memory.stat"),
        (v1 / "memory.limit_in_bytes", v1 / "memory.usage_in_bytes", v1 / "memory.stat"),
    ):
        try:
            # Files read before count as used, but the system gives them up at once.
            pairs = (line.split() for line in stat.read_text().splitlines())
            cached = {name: int(value) for name, value in pairs}.get("inactive_file", 0)
            found.append(max(int(limit.read_text()) - int(used.read_text()) + cached, 0))
        except (OSError, ValueError):
            continue
    return found
