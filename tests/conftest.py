"""Fixtures shared by the tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with real volumes: $SEGCAL_DATA, or shared/data beside the checkout."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("SEGCAL_DATA", beside))
    if not root.is_dir():
        pytest.skip("no real volumes: set SEGCAL_DATA to the folder that holds them")
    return root
