"""Damaged and hostile versions of files, by format. `rng` may be hypothesis's or a seeded one."""

import csv
import gzip
import io
import json
import os
import pickle
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

CANARY = "executed"  # a file of this name appears if a payload is executed
COMMAND = f"touch {CANARY}"
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
# A dict whose key is a tuple of two equal tuples of two equal tuples …
TUPLES = (
    b"\x80\x02}("
    + b")"
    + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(1, 60))
    + b"K\x01u."
)


class Payload:
    """Unpickling it runs a command."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (COMMAND,)


CODE = f"!!python/object/apply:os.system ['{COMMAND}']\n"
CONTENTS = [
    b"", b"\0" * 64, b"[" * 100_000, b'{"a":' * 50_000, b"null", b"[]", b"{}", b"0", b'"text"',
    ALIASES.encode(), TUPLES, b"a: 1\na: 2\n", b"PK\x03\x04" + b"\xff" * 60, b"\xff\xfe\x00",
    b"&a [*a]", b"1e999", b"- " * 20_000, gzip.compress(b"\0" * 400), CODE.encode(),
    pickle.dumps(Payload()), pickle.dumps({"sitk_stuff": Payload()}), b"\x80\x05\x95" + b"\xff" * 8,
    b"9" * 5000, b"NRRD0005\n" + b"a" * 5000, b"ObjectType = Image\n" * 2000,
]  # fmt: skip
# In place of a value of a document.
VALUES: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, -(10**30), 10**400, 1e300, -1e300, 1e-320,
    float("nan"), float("inf"), "", " ", "a" * 300, "\0", "../../outside/x", "/outside/x", ".",
    "<script>", "=1+1", "nan", "os:system", "segcal.core.files:remove", "{}", "é\u202e", [], {},
    [[]], {"": {}}, [None] * 50, "x\ny", "%s%n", "${HOME}", "CON", "\ud800",
    {"a": [1, {"b": None}]},
]  # fmt: skip


def mutate(path: Path, data: bytes, rng: random.Random) -> bytes:
    """Other content for a file: damage of its bytes, or of its structure by the ending."""
    change = next((c for ending, c in STRUCTURES.items() if path.name.endswith(ending)), None)
    if change is not None and data and rng.random() < 0.6:
        try:
            return change(data, rng)
        except (ValueError, KeyError, IndexError, TypeError, OverflowError, struct.error):
            pass  # the structure has no place for that value: damage bytes instead
    return mutate_bytes(data, rng)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Hostile content, flipped bits, extreme bytes, a cut, or a doubled or removed part."""
    kind = rng.randrange(6)
    if kind == 0 or not data:
        return rng.choice(CONTENTS)
    changed = bytearray(data)
    if kind == 1:
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if kind == 2:
        start = rng.randrange(min(len(changed), 400))  # headers come first
        changed[start : start + rng.choice([1, 2, 4, 8])] = (
            rng.choice([b"\0", b"\x7f", b"\xff"]) * 4
        )
        return bytes(changed)
    if kind == 3:
        return data[: rng.randrange(len(data))]
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:last] + data[first:] if kind == 4 else data[:first] + data[last:]


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    inner = parts if isinstance(value, dict | list) else ()
    return [place, *(p for key, part in inner for p in _places(part, (*place, key)))]


def mutate_document(content: Any, rng: random.Random) -> Any:
    """Replace, remove or repeat one value; or rename a key."""
    place = rng.choice(_places(content)[:5000])
    new = rng.choice(VALUES)
    if not place:
        return new
    parent = content
    for key in place[:-1]:
        parent = parent[key]
    kind = rng.randrange(4)
    if kind == 0:
        del parent[place[-1]]
    elif kind == 1 and isinstance(parent, dict):
        parent[rng.choice(["", "../x", "a" * 300, "__class__"])] = parent.pop(place[-1])
    elif kind == 2 and isinstance(parent, list):
        parent += [parent[place[-1]]] * 3
    else:
        parent[place[-1]] = new
    return content


def _json(data: bytes, rng: random.Random) -> bytes:
    return json.dumps(mutate_document(json.loads(data), rng)).encode()


def _json_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines()
    number = rng.randrange(len(lines))
    lines[number] = _json(lines[number], rng)
    return b"\n".join(lines) + b"\n"


def _yaml(data: bytes, rng: random.Random) -> bytes:
    import yaml

    if rng.random() < 0.1:
        return data + rng.choice([b"x: ", b"loss: ", b"- "]) + CODE.encode()
    return yaml.safe_dump(mutate_document(yaml.safe_load(data), rng)).encode("utf-8", "replace")


def _csv(data: bytes, rng: random.Random) -> bytes:
    rows = list(csv.reader(io.StringIO(data.decode())))
    row = rng.choice(rows[:50])
    row[rng.randrange(len(row))] = str(rng.choice(VALUES)).replace("\ud800", "?")
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _nifti(data: bytes, rng: random.Random) -> bytes:
    packed = data[:2] == b"\x1f\x8b"
    plain = gzip.decompress(data) if packed else data
    header = nib.Nifti1Header(plain[:348], check=False)
    field = rng.choice(["dim", "pixdim", "srow_x", "srow_z", "datatype", "bitpix", "vox_offset",
                        "scl_slope", "scl_inter", "sform_code", "qform_code", "magic", "sizeof_hdr",
                        "xyzt_units", "quatern_b", "dim", "pixdim"])  # fmt: skip
    raw = header._structarr  # type: ignore[attr-defined]
    kind = raw.dtype[field].base.kind
    if kind == "i" or kind == "u":
        new: Any = rng.choice([0, 1, -1, 2, 7, 255, 32767, -32768])
    elif kind == "f":
        new = rng.choice([0, -1, 1e30, -1e30, 1e-38, np.nan, np.inf, 352.5, 3e9])
    else:
        new = rng.choice([b"", b"ni1", b"n+2", b"\xff"])
    with np.errstate(all="ignore"):
        if raw[field].shape:
            raw[field][rng.randrange(raw[field].shape[0])] = np.array(new).astype(
                raw.dtype[field].base
            )
        else:
            raw[field] = np.array(new).astype(raw.dtype[field])
    changed = raw.tobytes() + plain[348:]
    return gzip.compress(changed) if packed else changed


def _text_header(data: bytes, rng: random.Random) -> bytes:
    """NRRD and MetaImage: another value in a line of the header."""
    end = data.find(b"\n\n") if data[:4] == b"NRRD" else data.find(b"ElementDataFile")
    end = len(data) if end < 0 else end + 40
    lines = data[:end].split(b"\n")
    number = rng.randrange(len(lines))
    name = re.split(rb"[:=]+", lines[number])[0]
    sign = b": " if data[:4] == b"NRRD" else b" = "
    new = rng.choice([b"", b"-1 -1 -1", b"0 0 0", b"100000 100000 100000", b"1e300 1e300 1e300",
                      b"nan nan nan", b"4294967297 1 1", b"double", b"MET_DOUBLE", b"block", b"3",
                      b"99", b"../../outside/x", b"/etc/hostname", b"LIST", b"gzip", b"raw",
                      b"(1,0,0) (0,0,0) (0,0,1)", b"a" * 5000, b"True", b"x"])  # fmt: skip
    lines[number] = name + sign + new
    return b"\n".join(lines) + data[end:]


def npy(header: dict[str, Any] | str, body: bytes = b"") -> bytes:
    """An .npy file with any header."""
    text = (header if isinstance(header, str) else repr(header)).encode("latin1", "replace")
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def _npy(data: bytes, rng: random.Random) -> bytes:
    array = np.load(io.BytesIO(data))
    usual = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    changes: list[dict[str, Any] | str] = [
        {"shape": (10**6, 10**6)}, {"shape": (-1, 4)}, {"shape": ()}, {"shape": (0, *array.shape)},
        {"shape": (2**62, 4)}, {"descr": "|O"}, {"descr": "<f2"}, {"descr": "<c16"},
        {"descr": "|S9"}, {"shape": (1500, 1500, 1000)},
        {"descr": "<M8[ns]"}, {"descr": [("a", "<f4")]}, {"descr": "x" * 100}, {"fortran_order": 3},
        {"shape": (2.5, 1)}, {"extra": 1}, "(" * 200, "__import__('os').system('" + COMMAND + "')",
        "{" * 1000, {"shape": array.shape[::-1]}, {"shape": (array.size,)}, {"descr": "<U1000000"},
    ]  # fmt: skip
    change = rng.choice(changes)
    body = pickle.dumps(Payload()) if change == {"descr": "|O"} else array.tobytes()
    return npy(change if isinstance(change, str) else usual | change, body)


def _npz(data: bytes, rng: random.Random) -> bytes:
    """Another array in a member, another name of a member, or another size than is there."""
    out, kind = io.BytesIO(), rng.randrange(4)
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        victim = rng.choice(names)
        for name in names:
            content = old.read(name)
            if name == victim and kind == 0:
                content = _npy(content, rng)
            elif name == victim and kind == 1:
                name = rng.choice(["../../outside/x.npy", "/outside/x.npy", "a" * 300, "", "x.txt"])
            elif name == victim and kind == 2:
                content = np.random.default_rng(0).choice([np.nan, 1e30, -1.0], 50).tobytes()
            new.writestr(name, content, rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    if kind == 3:  # flags and methods of the central directory
        changed = bytearray(out.getvalue())
        start = changed.rfind(b"PK\x01\x02")
        changed[start + rng.choice([8, 10, 20, 24, 28, 42])] = rng.choice([1, 9, 99, 255])
        return bytes(changed)
    return out.getvalue()


def _checkpoint(data: bytes, rng: random.Random) -> bytes:
    """Another value in the dictionary of a checkpoint."""
    import torch

    content = torch.load(io.BytesIO(data), weights_only=True)
    key = rng.choice([key for key in content if isinstance(key, str)])
    new = rng.choice([
        Payload(), None, [], {}, {1: 2}, "x", -1, 10**30, float("nan"), torch.zeros(1),
        torch.zeros(1).expand(10**6, 10**6), torch.zeros(0), {"x": torch.full((3,), float("nan"))},
    ])  # fmt: skip
    if isinstance(content[key], dict) and content[key] and rng.random() < 0.6:
        content[key][rng.choice(list(content[key]))] = new
    elif rng.random() < 0.2:
        del content[key]
    else:
        content[key] = new
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def _h5(data: bytes, rng: random.Random) -> bytes:
    """Data sets that are huge but empty, links to other files, other types and shapes."""
    import h5py

    stream = io.BytesIO(data)
    with h5py.File(stream, "a") as file:
        keys = [key for key in file if isinstance(file[key], h5py.Dataset)]
        key, kind = rng.choice(keys), rng.randrange(7)
        old = file[key][()]
        del file[key]
        if kind == 0:
            file.create_dataset(key, shape=(10**5, 10**5, 10**5), dtype="f4", chunks=(1, 64, 64))
        elif kind == 6:
            file.create_dataset(key, shape=(1500, 1500, 1000), dtype="f4", chunks=(1, 64, 64))
        elif kind == 1:
            file[key] = h5py.ExternalLink("/etc/hostname", "/x")
        elif kind == 2:
            file[key] = h5py.SoftLink(f"/{key}")
        elif kind == 3:
            file.create_dataset(key, data=np.array(["text"] * 3, dtype=h5py.string_dtype()))
        elif kind == 4:
            file.create_group(key)
        else:
            file.create_dataset(key, data=old.ravel())
    return stream.getvalue()


def _png(data: bytes, rng: random.Random) -> bytes:
    """Another size or type in the header, with a right checksum."""
    size = rng.choice([0, 1, 65535, 2**31 - 1, 20000])
    values = list(struct.unpack(">IIBBBBB", data[16:29]))
    values[rng.randrange(7)] = size if rng.random() < 0.7 else 3
    values = [v if i < 2 else v % 256 for i, v in enumerate(values)]
    header = b"IHDR" + struct.pack(">IIBBBBB", *values)
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


STRUCTURES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".json": _json, ".jsonl": _json_lines, ".yaml": _yaml, ".csv": _csv, ".nii.gz": _nifti,
    ".nii": _nifti, ".nrrd": _text_header, ".mha": _text_header, ".mhd": _text_header,
    ".npy": _npy, ".npz": _npz, ".pt": _checkpoint, ".h5": _h5, ".png": _png,
}  # fmt: skip
