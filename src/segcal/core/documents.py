"""JSON and YAML, read with limits: no file can exhaust the memory or the stack.

All problems of the content are ValueErrors with a reason of one line.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from segcal.core.errors import PathError, read_errors

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")

_MAX_BYTES = 256 * 2**20
_MAX_YAML_BYTES = 16 * 2**20
_MAX_DEPTH = 100
# A value that is referred to several times counts each time.
_MAX_VALUES = 2_000_000
_TOO_DEEP = "it is nested too deeply"


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from error


def read_model(path: Path, kind: type[M], what: str, remedy: str = "") -> M:
    """The content of a JSON file as a pydantic model; a PathError says that it is not `what`."""
    try:
        with read_errors(path, remedy):
            return kind.model_validate(read_json(path))
    except PathError:
        raise
    except ValueError as error:  # pydantic's is one
        raise PathError(path, f"is not {what} ({first_reason(error)})", remedy) from error


def first_reason(error: ValueError) -> str:
    """One line; of pydantic's errors the first."""
    if hasattr(error, "errors"):
        return invalid_key(error.errors()[0])
    return " ".join(str(error).split())


def invalid_key(error: Any) -> str:
    """One of pydantic's errors in one line: the key, what is wrong, and what was given."""
    where = ".".join(map(str, error["loc"]))
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"`{where}` {message}" if where else message
    if error["type"] == "missing":  # its input is the whole content
        return f"`{where}` is missing"
    given = textwrap.shorten(repr(error["input"]), 80)
    return f"`{where}`: {message[:1].lower() + message[1:]}, but got {given}"


def parse_yaml(text: str) -> Any:
    """The content of a YAML text; a key that occurs twice in a mapping is an error.

    1e-3 is a number, as in YAML 1.2.
    """
    import yaml

    if len(text) > _MAX_YAML_BYTES:
        raise ValueError(f"it is larger than {_MAX_YAML_BYTES >> 20} MiB")
    try:
        content = yaml.load(text, Loader=_yaml_loader())
    except (yaml.YAMLError, RecursionError) as error:
        reason = _TOO_DEEP if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ValueError(reason) from error
    check_plain(content)
    return content


def check_plain(value: Any) -> None:
    """Raise a ValueError if nested containers are too deep, too many, or contain themselves.

    YAML aliases and pickles can refer to a value many times: a few hundred bytes then stand for
    more values than fit into memory once they are copied.
    """
    _count(value, 0, {})


def _count(value: Any, depth: int, known: dict[int, int]) -> int:
    """The number of values below `value`; `known` has that of containers by id."""
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if depth > _MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    if id(value) not in known:
        known[id(value)] = _MAX_VALUES  # until it is counted: a container that contains itself
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(part, depth + 1, known) for part in parts)
    if known[id(value)] >= _MAX_VALUES:
        raise ValueError(f"it represents more than {_MAX_VALUES:,} values")
    return known[id(value)]


def _yaml_loader() -> Any:
    """A safe loader that refuses duplicate keys; made when needed, since yaml is optional."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            seen = set[str]()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in seen:
                    problem = f"the key {key.value!r} occurs twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )
    return Loader
