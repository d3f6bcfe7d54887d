"""Inventories for intersphinx, written from a short list of names, so that no network is needed."""

import tempfile
import zlib
from pathlib import Path


def mapping(names: Path) -> dict[str, tuple[str, str]]:
    """The value of `intersphinx_mapping` for the projects and names in a file."""
    folder = Path(tempfile.mkdtemp(prefix="segcal-inventories-"))
    projects: dict[str, tuple[str, list[str]]] = {}
    for line in names.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            first, *rest = line.split()
            if len(rest) == 1:
                entries: list[str] = []
                projects[first] = (rest[0], entries)
            else:
                role, page = rest
                entries.append(f"{first} py:{role} 1 {page} -\n")
    out = {}
    for project, (address, entries) in projects.items():
        head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        head += "# The remainder of this file is compressed using zlib.\n"
        file = folder / f"{project}.inv"
        file.write_bytes(head.encode() + zlib.compress("".join(entries).encode()))
        out[project] = (address, str(file))
    return out
