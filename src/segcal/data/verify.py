"""Whether stored voxels are those that `segcal prepare` wrote."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from segcal.core.documents import read_json
from segcal.core.errors import PathError
from segcal.core.files import make_parent, write_text
from segcal.data.dataset import PreparedCase
from segcal.data.store import REBUILD, array_sha256

_CACHE = ".verified.json"


def verify_cases(cases: Sequence[PreparedCase]) -> int:
    """Compare the voxels of cases of one set with their hashes; a PathError names a difference.

    A file is read once: its size and time are kept in the hidden file .verified.json of the set,
    and it is read again when they change. Returns the number of files that were read.
    """
    if not cases:
        return 0
    cache = cases[0].folder.parents[1] / _CACHE
    known = _read_cache(cache)
    stamps = {}
    for case in cases:
        for name in case.properties.sha256:
            path = case.folder / f"{name}.b2nd"
            key, stamp = f"{case.name}/{name}", _stamp(path)
            if known.get(key) != stamp:
                stamps[key] = (case, name, stamp)
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda entry: verify_array(*entry[:2]), stamps.values()):
            pass
    if stamps:
        known |= {key: stamp for key, (_, _, stamp) in stamps.items()}
        with suppress(PathError):  # a set that cannot be written is verified every time
            make_parent(cache)
            write_text(cache, json.dumps(known))
    return len(stamps)


def verify_array(case: PreparedCase, name: str) -> None:
    """Compare the voxels of an array with their hash; a PathError names a difference."""
    if array_sha256(case.read(name)) != case.properties.sha256[name]:
        path = case.folder / f"{name}.b2nd"
        raise PathError(path, "holds other voxels than `segcal prepare` wrote", REBUILD)


def _stamp(path: Path) -> list[int]:
    try:
        found = path.stat()
    except OSError:
        return []  # reading it gives the error
    return [found.st_size, found.st_mtime_ns]


def _read_cache(path: Path) -> dict[str, list[int]]:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
