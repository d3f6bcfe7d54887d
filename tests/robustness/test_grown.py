"""Readers of every format on files that hypothesis grows: an error that names the file, or success.

ITK's formats are tried in processes of their own by hostile.py, since ITK can crash.
"""

import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robustness.mutations import mutate
from segcal.assurance import load_assurance
from segcal.benchmark import load_plan
from segcal.config import read_yaml
from segcal.data import open_dataset, read_image
from segcal.evaluation.predict_manifest import PredictionManifest
from segcal.models import read_checkpoint
from segcal.posthoc import load_calibrator
from segcal.predictions import find_softmax
from segcal.stats import REQUIRED_COLUMNS
from segcal.study import read_cases_table, read_evaluation, read_run, read_study

# File → its reader; the reader gets the file, which lies in a copy of its folder.
READERS: dict[str, Callable[[Path], Any]] = {
    "set/dataset.yaml": lambda path: open_dataset(path.parent),
    "set/splits.json": lambda path: open_dataset(path.parent),
    "run/config.yaml": lambda path: read_run(path.parent),
    "run/run.json": lambda path: read_run(path.parent),
    "run/last.pt": read_checkpoint,
    "run/evaluation.json": lambda path: read_evaluation(path.parent),
    "run/cases.csv": lambda path: read_cases_table(path, required=REQUIRED_COLUMNS),
    "study/study.json": lambda path: read_study(path.parent),
    "cal.json": load_calibrator,
    "assurance.json": load_assurance,
    "plan.yaml": load_plan,
    "config.yaml": read_yaml,
    "predicted/predict.json": lambda path: PredictionManifest(path.parent, {}),
    "nnunet/case_000.npz": lambda path: [f.read() for f in find_softmax(path.parent).values()],
    "nnunet/case_000.pkl": lambda path: [f.header() for f in find_softmax(path.parent).values()],
    "npy/case_000.npy": lambda path: [f.read() for f in find_softmax(path.parent).values()],
    "scans/nii.gz/images/case0.nii.gz": read_image,
    "scans/npz/images/case0.npz": read_image,
    "scans/h5/images/case0.h5": read_image,
    "scans/tif/images/case0.tif": read_image,
    "scans/png_folder/images/case0/000.png": read_image,
}


def try_reader(world: Path, folder: Path, name: str, examples: int) -> None:
    source = world / name
    folder = folder / "copy"
    if len(Path(name).parts) > 1:
        shutil.copytree(source.parent, folder)
    else:
        folder.mkdir()
    path, data = folder / source.name, source.read_bytes()
    refused = set[str]()
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @settings(
        max_examples=examples,
        deadline=30_000,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def grow(rng: random.Random) -> None:
        path.write_bytes(mutate(path, data, rng))
        try:
            READERS[name](path)
        except (ValueError, TypeError, OSError) as error:
            refused.add(str(error))
        assert not Path("executed").exists()

    grow()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin
    assert grown < 2 * 2**20  # KiB
    assert all(refused)


@pytest.mark.parametrize("name", READERS)
def test_a_sample(world: Path, tmp_path: Path, name: str) -> None:
    try_reader(world, tmp_path, name, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many(world: Path, tmp_path: Path, name: str) -> None:
    try_reader(world, tmp_path, name, 100)
