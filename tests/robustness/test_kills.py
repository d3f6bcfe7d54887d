"""A sample of kills; kills.py tries every change of the file system."""

from collections.abc import Callable

import pytest


def test_a_sample(trials: Callable[..., None]) -> None:
    trials("kills.py", "--every", 8, "--offset", 1, "--only", "train", "calibrate_run",
           "assure_fit")  # fmt: skip


@pytest.mark.slow
def test_every_change(trials: Callable[..., None]) -> None:
    trials("kills.py")
