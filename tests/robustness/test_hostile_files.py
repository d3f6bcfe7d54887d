"""A sample of hostile and damaged files; hostile.py runs thousands."""

from collections.abc import Callable

import pytest


def test_a_sample(trials: Callable[..., None]) -> None:
    trials("hostile.py", "--trials", 25)


@pytest.mark.slow
def test_many(trials: Callable[..., None]) -> None:
    trials("hostile.py", "--trials", 2058, "--first", 10000)
