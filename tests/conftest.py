"""What several test files share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers.chromium import Browser, find_browser

# Without a GPU the kernels are tested in Triton's interpreter; it must know before it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of the real volumes: $SEGCAL_DATA, or `shared/data` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("SEGCAL_DATA") or beside)
    if not root.is_dir():
        pytest.skip(f"no real data: set SEGCAL_DATA to its folder (looked in {root})")
    return root


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium found: install one, or set SEGCAL_BROWSER to its program")
    browser = Browser(program)
    yield browser
    browser.close()
