"""Small pieces of sentences."""

from collections.abc import Sequence


def join(words: Sequence[str]) -> str:
    """
    >>> join(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def signed(value: float) -> str:
    """
    >>> signed(-0.25)
    '−0.250'
    """
    return f"{value:+.3f}".replace("-", "−")
