"""Mutated NIfTI headers: read in a process of their own, and through the whole command."""

import gzip
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.trees import blob, save, scan
from segcal.data import check_dataset, open_dataset

SHAPE = (7, 6, 5)


def mutate(plain: bytes, rng: np.random.Generator) -> bytes:
    """Change up to eight header bytes, often to extreme values; cut some files short."""
    data = bytearray(plain)
    for _ in range(rng.integers(1, 9)):
        extreme = rng.random() < 0.5
        value = rng.choice([0, 1, 0x7F, 0x80, 0xFF]) if extreme else rng.integers(256)
        data[int(rng.integers(0, 352))] = int(value)
    if rng.random() < 0.1:
        data = data[: int(rng.integers(1, len(data)))]
    return bytes(data) if rng.random() < 0.5 else gzip.compress(bytes(data), 1)


def digest(root: Path) -> dict[str, str]:
    files = sorted(p for p in root.rglob("*") if p.is_file())
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


READ_ALL = """
import sys, time
from pathlib import Path
from segcal.core.errors import PathError
from segcal.data.formats import read_image, read_labels
refused = 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    begin = time.perf_counter()
    for read in (read_image, read_labels):
        try:
            read(path)
        except PathError as error:
            assert error.path == path, error
            refused += 1
    assert time.perf_counter() - begin < 10, path
print(refused)
"""


def test_mutated_headers_are_read_or_refused(tmp_path: Path) -> None:
    """Never another exception, a crash, a hang, or a file written."""
    rng = np.random.default_rng(1)
    plain = save(tmp_path / "a.nii", blob(SHAPE, (1, 2), np.int16)).read_bytes()
    (tmp_path / "in").mkdir()
    for number in range(1000):
        (tmp_path / "in" / f"{number:04d}.nii.gz").write_bytes(mutate(plain, rng))
    before = digest(tmp_path)
    command = [sys.executable, "-c", READ_ALL, str(tmp_path / "in")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 200 < int(done.stdout) < 2000
    assert digest(tmp_path) == before


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_prepare_skips_mutated_headers(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    source, out = tmp_path / "source", tmp_path / "out"
    image = save(tmp_path / "a.nii", scan(SHAPE, 0, np.int16)).read_bytes()
    label = save(tmp_path / "b.nii", blob(SHAPE, (1, 2), np.int16)).read_bytes()
    for folder in ("images", "labels"):
        (source / folder).mkdir(parents=True)
    for number in range(count):
        # Every fourth time the mask is damaged instead of the image.
        mask_damaged = number % 4 == 0
        name = f"case{number:04d}x.nii.gz"
        (source / "images" / name).write_bytes(image if mask_damaged else mutate(image, rng))
        (source / "labels" / name).write_bytes(mutate(label, rng) if mask_damaged else label)
    before = digest(tmp_path)
    command = [sys.executable, "-m", "segcal", "prepare", "folder", "--source", str(source)]
    command += ["--out", str(out), "--recipe", "native", "--keep-going", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    after = {
        path: hashed for path, hashed in digest(tmp_path).items() if not path.startswith(f"{out}/")
    }
    assert after == before
    dataset = open_dataset(out)
    assert len(dataset) + len(dataset.info.skipped) == count
    assert 0.1 * count < len(dataset) < 0.9 * count
    skipped = [line for line in done.stderr.splitlines() if line.startswith("skipped: ")]
    assert len(skipped) == len(dataset.info.skipped)
    assert all(str(source) in line for line in skipped)
    assert check_dataset(out).problems == ()
