"""A sample of kills; kills.py tries every change of the file system."""

from collections.abc import Callable

import pytest


def test_a_sample(trials: Callable[..., None]) -> None:
    trials("kills.py", "--every", 8, "--offset", 3, "--only", "train", "evaluate_external",
           "calibrate_run", "assure_fit")  # fmt: skip


@pytest.mark.slow
def test_every_change(trials: Callable[..., None]) -> None:
    trials("kills.py")
