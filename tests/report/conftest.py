"""One study for most tests of the report: two datasets, two seeds, a failure, unusual names."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.studies import ACDC, CE, L2, LS, MAX, NACL, TEMPERED, Recipe, make_study
from segcal.report import Context, write_report
from segcal.study import read_study

METHODS = (CE, LS, NACL, replace(L2, paper="nacl_l2"), MAX, TEMPERED)
# Keys of a plan that repeats the paper.
PAPER = {
    "published": "nacl_miccai2023",
    "groups": {"ablation": {"base": "nacl"}, "prior": {"title": "Priors of NACL", "base": "nacl"}},
}


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    recipe = Recipe(
        methods=METHODS, cases=6, shape=(4, 28, 28), fail=("acdc/ls/seed1",), extra=PAPER
    )
    return make_study(folder, recipe)


@pytest.fixture(scope="session")
def _tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(
        methods=(CE,), datasets=(ACDC,), seeds=(0,), cases=1, shape=(4, 24, 24), logits=False
    )
    return make_study(tmp_path_factory.mktemp("tiny"), recipe)


@pytest.fixture
def tiny(_tiny: Path, tmp_path: Path) -> Path:
    """A study of one run; each test has its own copy to damage."""
    return Path(shutil.copytree(_tiny, tmp_path / "study"))


@pytest.fixture(scope="session")
def page(study: Path) -> Path:
    return write_report(study)


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one network, whose cases have more slices than are stored."""
    recipe = Recipe(methods=(CE,), datasets=(ACDC,), seeds=(0,), cases=7, shape=(14, 24, 24))
    study = make_study(tmp_path_factory.mktemp("single"), recipe)
    write_report(study)
    return study


@pytest.fixture(scope="session")
def context(study: Path) -> Context:
    return Context(read_study(study))
