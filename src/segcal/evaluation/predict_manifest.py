"""predict.json: how each map in a folder was predicted and calibrated.

A second start of `segcal predict` continues with what is missing, and other commands know which
scans a network was trained on and which maps are calibrated already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from segcal.core.documents import read_json
from segcal.core.errors import PathError, write_errors
from segcal.core.files import remove_drafts, write_json
from segcal.data import files_of
from segcal.evaluation.posthoc_choice import chose_none
from segcal.posthoc import BaseCalibrator
from segcal.predictions import Pairs

NAME = "predict.json"


class PredictionManifest:
    """The manifest of a folder of maps; `settings` and the scan determine the content of a map."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self.settings = folder, dict(settings)
        self.key = _key(self.settings)
        self.known_settings, self.maps = _read(folder / NAME)
        remove_drafts(folder)

    def is_finished(self, scan: Sequence[Path], maps: Collection[Path]) -> bool:
        """Whether all maps exist, predicted with these settings from the scan as it is now.

        A map that was predicted with other settings, or is not in the manifest, raises.
        """
        existing = [path for path in maps if path.exists()]
        for path in existing:
            if self.maps.get(path.name, {}).get("settings") != self.key:
                how = ", predicted with other settings" if path.name in self.maps else ""
                remedy = "pass --overwrite, or choose another --out"
                raise PathError(path, f"exists already{how}", remedy)
        now = _stamps(scan)
        entries = [self.maps[path.name] for path in existing]
        same = all(entry.get("scan") == now and "seen" in entry for entry in entries)
        return same and len(existing) == len(maps)

    def begin(
        self, scans: Mapping[str, Sequence[Path]], maps: Mapping[str, Collection[Path]]
    ) -> None:
        """Remove old maps of the cases in `maps`, and record the new ones as unfinished."""
        with write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in (path for paths in maps.values() for path in paths):
                path.unlink(missing_ok=True)
        for case, paths in maps.items():
            entry = {"settings": self.key, "scan": _stamps(scans[case])}
            self.maps |= {path.name: entry for path in paths}
        self.known_settings[self.key] = self.settings
        self._write()

    def finish(self, maps: Collection[Path], *, seen: str | None) -> None:
        """Record that the maps of a case are complete.

        `seen`: "train" or "val" if a network was trained or validated on this scan.
        """
        self.maps |= {path.name: {**self.maps[path.name], "seen": seen} for path in maps}
        self._write()

    def forget(self, maps: Collection[Path]) -> None:
        """Remove the maps of a scan that cannot be read; the first one leaves no empty folder."""
        self.maps = {k: v for k, v in self.maps.items() if k not in {path.name for path in maps}}
        self._write()
        if not self.maps:
            (self.folder / NAME).unlink()
            with suppress(OSError):  # it is not empty
                self.folder.rmdir()

    def _write(self) -> None:
        used = {entry["settings"] for entry in self.maps.values()}
        settings = {key: value for key, value in self.known_settings.items() if key in used}
        content = {"settings": settings, "maps": dict(sorted(self.maps.items()))}
        write_json(self.folder / NAME, content)


def write_applied(
    source: Path,
    out: Path,
    draft: Path,
    maps: Mapping[str, tuple[Path, Sequence[Path]]],
    calibrator: BaseCalibrator,
) -> None:
    """Write the manifest of calibrated maps: case → the map of `source`, and those made of it.

    They keep what is known of the scan; a scan that the calibrator was fitted on counts as one of
    validation. The file in `draft` is for `out` and keeps what is known of the maps there.
    """
    settings, known = _read(source / NAME)
    done, entries = _read(out / NAME)
    how = None
    if not chose_none(calibrator):
        how = {"method": calibrator.method, **calibrator.params()}
    fitted_on = calibrator.about.get("cases", ())
    for case, (path, written) in maps.items():
        entry = known.get(path.name, {})
        own = {"calibrator": how, "source": settings.get(entry.get("settings"))}
        key = _key(own)
        done[key] = own
        seen = entry.get("seen") or ("val" if case in fitted_on else None)
        new = {"settings": key, "scan": entry.get("scan", []), "seen": seen}
        entries |= {each.name: new for each in written}
    write_json(draft / NAME, {"settings": done, "maps": dict(sorted(entries.items()))})


def calibration_of(folder: Path) -> str:
    """How the maps in a folder were calibrated, to compare folders; empty if they were not."""
    settings, maps = _read(folder / NAME)
    found = {_describe(settings.get(entry["settings"])) for entry in maps.values()}
    return "" if found == {""} else ", ".join(sorted(name or "none" for name in found))


def _describe(settings: Mapping[str, Any] | None) -> str:
    if not settings:
        return ""
    own, before = settings.get("calibrator"), _describe(settings.get("source"))
    name = f"{own['method']} {_key(own)[:6]}" if own else ""
    return f"{name} after {before}" if name and before else name or before


def _key(settings: Mapping[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def seen_maps(folder: Path, parts: Sequence[str] = ("train", "val")) -> set[str]:
    """The maps in a folder of `segcal predict` whose scan was in these parts of a training."""
    return {name for name, entry in _read(folder / NAME)[1].items() if entry.get("seen") in parts}


def seen_cases(pairs: Pairs, parts: Sequence[str] = ("train", "val")) -> list[str]:
    """The cases whose prediction `segcal predict` made of a scan in these parts of a training."""
    maps = seen_maps(pairs.folder, parts)
    return [pair.name for pair in pairs if pair.softmax.path.name in maps]


def _stamps(scan: Sequence[Path]) -> list[list[Any]]:
    """Name, size and time of the scan's files, to detect a change."""
    files = [file for path in scan for file in files_of(path)]
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and maps; a missing or damaged manifest is empty."""
    try:
        content = read_json(path)
        settings, maps = dict(content["settings"]), dict(content["maps"])
        for entry in maps.values():
            _ = entry.get("seen"), _describe(settings.get(entry["settings"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, {}
    return settings, maps
