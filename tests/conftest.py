"""What all tests share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of the real volumes: $SEGCAL_DATA, or `shared/data` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("SEGCAL_DATA", beside))
    if not root.is_dir():
        pytest.skip(f"no real data: set SEGCAL_DATA to its folder (looked in {root})")
    return root
