"""Names that a package exports but loads on first use (PEP 562)."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, str], eager: list[str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package whose names are defined in other modules.

    Args:
        package: its `__name__`.
        names: exported name to the module that defines it; the name of a module itself maps to "".
        eager: further names for `__dir__`, which the package defines itself.

    Example:
        >>> getattr_, dir_ = lazy_exports("json", {"JSONDecoder": "json.decoder"})
        >>> getattr_("JSONDecoder").__name__, dir_()
        ('JSONDecoder', ['JSONDecoder'])
    """

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(names[name] or f"{package}.{name}")
        return getattr(module, name) if names[name] else module

    def listing() -> list[str]:
        return sorted({*names, *(eager or ())})

    return load, listing
