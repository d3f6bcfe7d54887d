"""What several test files share."""

import os

import pytest
import torch

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
