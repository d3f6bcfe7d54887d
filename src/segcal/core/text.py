"""Numbers and lists as text."""

from collections.abc import Iterable


def count(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> count(1, "case"), count(2, "case")
        ('1 case', '2 cases')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def first_few(items: Iterable[object], most: int = 3) -> str:
    """The first items, with an ellipsis if there are more.

    Example:
        >>> first_few("abcd")
        'a, b, c, …'
    """
    texts = list(map(str, items))
    return ", ".join(texts[:most] + ["…"] * (len(texts) > most))
