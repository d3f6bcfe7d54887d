"""Objects by name: registered names, `package.module:Object` paths, and entry points.

Every kind of extension (loss, metric, network, data source, calibrator, report section) has one
`Registry`. A name in Python, in YAML or on the command line is looked up in this order:

1. names registered in this process (segcal's own, and those added with `register`),
2. entry points of installed packages in the registry's group,
3. if it contains a colon, an import path such as `my_package.losses:MyLoss`.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, overload

from segcal.core.checks import did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """The objects of one kind, by name.

    Args:
        kind: what it holds, in the singular, for messages: "loss".
        group: group of entry points through which installed packages add to it.
        accepts: whether an object is of this kind. It is called before the object is used, so a
            file that names an import path cannot make segcal call an arbitrary function.
        expected: what `accepts` accepts, for messages: "a subclass of torch.nn.Module".

    Example:
        >>> shapes = Registry("shape", "demo.shapes", callable, "a callable")
        >>> @shapes.register("square")
        ... def square(x: float) -> float:
        ...     return x * x
        >>> shapes.get("square")(3)
        9
        >>> shapes.get("math:sqrt")(9)
        3.0
        >>> shapes.get("sqare")
        Traceback (most recent call last):
        ValueError: no shape is named 'sqare'. Did you mean 'square'? Known: square; or an import path package.module:Object.
    """  # noqa: E501

    def __init__(
        self, kind: str, group: str, accepts: Callable[[Any], bool], expected: str
    ) -> None:
        self.kind, self.group, self.accepts, self.expected = kind, group, accepts, expected
        self._objects: dict[str, T | str] = {}  # an import path until it is first used
        self._abouts: dict[str, str] = {}

    @overload
    def register(self, name: str) -> Callable[[T], T]: ...
    @overload
    def register(self, name: str, thing: T | str, about: str = "") -> T | str: ...

    def register(self, name: str, thing: T | str | None = None, about: str = "") -> Any:
        """Add `thing` (or its import path, to load it on first use); without it, a decorator.

        `about` describes a thing without a title or a docstring that does.
        """
        if thing is None:
            return lambda decorated: self.register(name, decorated)
        known = self._objects.get(name)
        if known is not None and known is not thing and not _same(known, thing):
            raise ValueError(f"a {self.kind} named {name!r} is registered already")
        if ":" in name or not name:
            raise ValueError(f"the name of a {self.kind} must not be empty or contain ':'")
        self._objects[name] = thing
        if about:
            self._abouts[name] = about
        return thing

    def get(self, name: str) -> T:
        """The object with this name or import path; a ValueError names the nearest name."""
        if not isinstance(name, str):
            raise TypeError(f"expected the name of a {self.kind}, but got {name!r}")
        if name in self._objects:
            known = self._objects[name]
            if isinstance(known, str):
                known = self._objects[name] = self._import(known)
            return known
        if name in self._entry_points:
            return self._load(self._entry_points[name])
        if ":" in name:
            return self._import(name)
        raise ValueError(
            f"no {self.kind} is named {name!r}.{did_you_mean(name, self.names())} "
            f"Known: {', '.join(self.names())}; or an import path package.module:Object."
        )

    def names(self) -> list[str]:
        """Registered names in the order of registration, then those of installed packages."""
        return [*self._objects, *(n for n in self._entry_points if n not in self._objects)]

    def available(self) -> dict[str, T]:
        """All objects by name; a plugin that cannot be used is skipped with a warning."""
        found = {}
        for name, point in self._entry_points.items():
            if name in self._objects and point.load() is not self.get(name):
                package = point.dist.name if point.dist else point.value
                reason = f"the name is taken; rename the entry point of the package {package}"
                warnings.warn(f"{self.kind} {name!r} is skipped: {reason}", stacklevel=2)
        for name in self.names():
            try:
                found[name] = self.get(name)
            except ValueError as error:
                if name in self._objects:
                    raise
                warnings.warn(f"{error}; it is skipped", stacklevel=2)
        return found

    def name_of(self, thing: object) -> str:
        """The name of a registered object, or its import path: what a file stores."""
        names = (name for name, known in self.available().items() if known is thing)
        return next(names, None) or import_path(thing)

    def describe(self, name: str) -> str:
        """One line about an object.

        What `register` was given, else its `about` or `title`, else the first paragraph of its
        docstring.
        """
        thing = self.get(name)
        own = getattr(thing, "about", None) or getattr(thing, "title", None)
        first = inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0]
        return self._abouts.get(name) or str(own or " ".join(first.split()))

    def __contains__(self, name: object) -> bool:
        return name in self._objects or name in self._entry_points

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _load(self, point: EntryPoint) -> T:
        try:
            return self._checked(point.name, point.load())
        except Exception as error:  # the code of a plugin may raise anything
            package = point.dist.name if point.dist else point.value
            raise ValueError(
                f"{self.kind} {point.name!r} of the package {package} cannot be loaded ({error})"
            ) from error

    def _import(self, path: str) -> T:
        module, _, attribute = path.partition(":")
        try:
            thing: Any = importlib.import_module(module)
            for part in attribute.split("."):
                thing = getattr(thing, part)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{self.kind} {path!r} cannot be imported ({error})") from error
        return self._checked(path, thing)

    def _checked(self, name: str, thing: Any) -> T:
        if not self.accepts(thing):
            raise ValueError(f"{self.kind} {name!r} must be {self.expected}, but is {thing!r}")
        found: T = thing
        return found


def import_path(thing: object) -> str:
    """`package.module:Object` of a class or function that can be imported again."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if not module or module == "__main__" or "<locals>" in name or not name:
        raise ValueError(
            f"{thing!r} cannot be imported by name, so a run could not be opened again; "
            "define it at the top level of an importable module"
        )
    return f"{module}:{name}"


def _same(known: object, thing: object) -> bool:
    """Whether both are the same definition: a module that was imported again replaces its own."""
    if isinstance(known, str) or isinstance(thing, str):
        return known == thing
    try:
        return import_path(known) == import_path(thing)
    except ValueError:
        return False
