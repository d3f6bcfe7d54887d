"""The examples in the docs and docstrings run and are right."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import segcal.metrics

DOCS = Path(__file__).parents[2] / "docs"
MODULES = [module.name for module in pkgutil.iter_modules(segcal.metrics.__path__)]


def test_the_page_on_calibration_metrics() -> None:
    result = doctest.testfile(str(DOCS / "calibration-metrics.md"), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0
    assert (DOCS / "images" / "region_effect.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"segcal.metrics.{name}")).failed == 0


def test_every_public_name_is_documented() -> None:
    for name in segcal.metrics.__all__:
        value = getattr(segcal.metrics, name)
        assert isinstance(value, (tuple, dict)) or value.__doc__, name
