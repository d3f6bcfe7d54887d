"""Objects by registered name, by import path, and through entry points."""

from collections import Counter, OrderedDict
from importlib.metadata import EntryPoint

import pytest

from segcal.registry import Registry, import_path


def is_mapping_class(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, dict)


@pytest.fixture
def registry() -> Registry[type[dict]]:
    return Registry("mapping", "segcal.tests.none", is_mapping_class, "a subclass of dict")


def test_names_come_in_the_order_of_registration(registry: Registry) -> None:
    registry.register("plain", dict)
    registry.register("ordered", "collections:OrderedDict")
    assert registry.names() == ["plain", "ordered"]
    assert registry.get("ordered") is OrderedDict
    assert registry.name_of(OrderedDict) == "ordered"
    assert registry.get("collections:Counter").__name__ == "Counter"


def test_a_decorator_registers_and_returns_the_object(registry: Registry) -> None:
    @registry.register("mine")
    class Mine(dict):
        pass

    assert registry.get("mine") is Mine
    with pytest.raises(ValueError, match="registered already"):
        registry.register("mine", dict)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plan", "Did you mean 'plain'"),
        ("os:system", "must be a subclass of dict"),
        ("no_such_module_x:Thing", "cannot be imported"),
        ("collections:Nothing", "cannot be imported"),
    ],
)
def test_wrong_names_are_refused(registry: Registry, name: str, words: str) -> None:
    registry.register("plain", dict)
    with pytest.raises(ValueError, match=words):
        registry.get(name)


def test_an_object_that_cannot_be_imported_again_has_no_path() -> None:
    class Local(dict):
        pass

    assert import_path(OrderedDict) == "collections:OrderedDict"
    with pytest.raises(ValueError, match="top level"):
        import_path(Local)


def test_a_plugin_with_a_taken_name_is_skipped(registry: Registry) -> None:
    registry.register("plain", dict)
    registry.register("ordered", OrderedDict)
    registry._entry_points = {
        "plain": EntryPoint("plain", "collections:Counter", "segcal.tests.none"),
        "ordered": EntryPoint("ordered", "collections:OrderedDict", "segcal.tests.none"),
    }
    with pytest.warns(UserWarning, match="'plain' is skipped: the name is taken") as caught:
        assert registry.available() == {"plain": dict, "ordered": OrderedDict}
    assert len(caught) == 1


def test_a_plugin_that_cannot_be_loaded_is_skipped(registry: Registry) -> None:
    registry.register("plain", dict)
    registry._entry_points = {
        name: EntryPoint(name, value, "segcal.tests.none")
        for name, value in {
            "counter": "collections:Counter",
            "missing": "no_such_module_x:Thing",
            "wrong": "os:system",
        }.items()
    }
    assert registry.names() == ["plain", "counter", "missing", "wrong"]
    with pytest.warns(UserWarning, match="cannot be loaded"):
        assert registry.available() == {"plain": dict, "counter": Counter}
    with pytest.raises(ValueError, match="no_such_module_x"):
        registry.get("missing")


def test_the_first_paragraph_describes_an_object(registry: Registry) -> None:
    class Wrapped(dict):
        """A description
        of two lines.

        More.
        """

    registry.register("wrapped", Wrapped)
    assert registry.describe("wrapped") == "A description of two lines."
    registry.register("named", Wrapped, "Something else.")
    assert registry.describe("named") == "Something else."
