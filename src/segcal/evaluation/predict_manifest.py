"""`predict.json`: which maps in a folder were made how, so that a second start goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from segcal.core.errors import PathError, write_errors
from segcal.core.files import write_json

NAME = "predict.json"


class Made:
    """The record of a folder of maps.

    Args:
        folder: where the maps are.
        how: everything that decides what is in a map, but for the scan.
    """

    def __init__(self, folder: Path, how: Mapping[str, Any]) -> None:
        self.folder, self.how = folder, dict(how)
        text = json.dumps(self.how, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.settings, self.maps = _read(folder / NAME)

    def finished(self, scan: Sequence[Path], maps: Sequence[Path]) -> bool:
        """Whether all these maps are there, made in this way of the scan as it is now.

        A map that was made in another way, or by nobody knows whom, is refused by name.
        """
        there = [path for path in maps if path.exists()]
        for path in there:
            if self.maps.get(path.name, {}).get("settings") != self.key:
                how = ", made with other settings" if path.name in self.maps else ""
                raise PathError(
                    path, f"is there already{how}", "say --overwrite, or choose another --out"
                )
        now = _stamps(scan)
        same = all(self.maps[path.name].get("scan") == now for path in there)
        return same and len(there) == len(maps)

    def begin(self, scan: Sequence[Path], maps: Sequence[Path]) -> None:
        """Note that these maps are written next. Old ones go first: what is there is as noted.

        Before, not after: whatever interrupts the writing, the next start knows them as its own.
        """
        with write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in maps:
                path.unlink(missing_ok=True)
        entry = {"settings": self.key, "scan": _stamps(scan)}
        self.maps |= {path.name: entry for path in maps}
        self.settings[self.key] = self.how
        used = {entry["settings"] for entry in self.maps.values()}
        kept = {key: how for key, how in self.settings.items() if key in used}
        write_json(self.folder / NAME, {"settings": kept, "maps": dict(sorted(self.maps.items()))})


def _stamps(scan: Sequence[Path]) -> list[list[Any]]:
    """Name, size and time of the scan's files: enough to see that one has changed."""
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in scan]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A record that is missing or damaged knows no map; maps that are there are refused then."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        settings, maps = dict(content["settings"]), dict(content["maps"])
        whole = all(isinstance(entry, dict) and "settings" in entry for entry in maps.values())
    except (OSError, ValueError, KeyError, TypeError):
        return {}, {}
    return (settings, maps) if whole else ({}, {})
