"""Numbers, lists and names as text."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from segcal.core.text import count as count


def join(words: Sequence[str]) -> str:
    """A list in a sentence.

    Example:
        >>> join(["a", "b", "c"])
        'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def join_few(words: Sequence[str], most: int = 5) -> str:
    """The same, with the number of those after the first ones.

    Example:
        >>> join_few(["a", "b", "c", "d"], 2)
        'a, b and 2 more'
    """
    return join([*words[:most], f"{len(words) - most} more"]) if len(words) > most else join(words)


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign.

    Example:
        >>> signed(-0.25), signed(-0.0001)
        ('−0.250', '+0.000')
    """
    return f"{value:+z.{digits}f}".replace("-", "−")


def options(content: Any) -> str:
    """Options of a method, or an environment.

    Example:
        >>> options({"penalty": "l1", "versions": {"numpy": "2"}, "runs": [{"device": "cpu"}]})
        'penalty = l1, versions (numpy = 2), runs (device = cpu)'
    """
    if isinstance(content, list):
        return "; ".join(map(options, content))
    if not isinstance(content, Mapping):
        return str(content)
    return ", ".join(
        f"{key} ({options(value)})" if value and isinstance(value, Mapping | list)
        else f"{key} = {value}"
        for key, value in content.items()
    )  # fmt: skip


def shorten(text: str, length: int = 24) -> str:
    """The text, cut in the middle if it is longer than `length`.

    Example:
        >>> shorten("a very long name of a case", 11)
        'a ver… case'
    """
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[len(text) - half :]}"


def fold(text: str, length: int = 20) -> str:
    """The text in two lines if it is longer than `length` and has a plus sign to break at.

    Example:
        >>> fold("MbLS (m=5) + temperature")
        'MbLS (m=5)\\n+ temperature'
    """
    first, plus, second = text.partition(" + ")
    if len(text) <= length or not plus:
        return shorten(text, length)
    return f"{shorten(first, length)}\n+ {shorten(second, length - 2)}"


def safe_name(text: str) -> str:
    """A name for a file or an element of the page; users name datasets and methods.

    Example:
        >>> safe_name("my data/2024")
        'my-data-2024'
    """
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).lstrip(".") or "unnamed"
