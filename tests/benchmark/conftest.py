"""What tests of studies share: a small set, and the environment of their processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.runs import environment, phantom


@pytest.fixture(scope="module")
def as_in_processes() -> Iterator[None]:
    """Workers inherit it: one thread, so that sums keep their order, and these sources."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            patch.setenv(name, environment()[name])
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", dims=2, cases=14, size=32)


@pytest.fixture(scope="module")
def data(source: Path) -> Path:
    return source
