"""The patient of a case, from the name of the case."""

import re
from collections.abc import Iterable, Mapping


def patients_of(cases: Iterable[str], pattern: str | Mapping[str, str]) -> dict[str, str]:
    r"""Case → patient: the match of a regular expression in the name, or its first group.

    A mapping, case → patient, is looked up instead.

    Example:
        >>> patients_of(["patient001_frame01", "patient001_frame12"], r"patient\d+")
        {'patient001_frame01': 'patient001', 'patient001_frame12': 'patient001'}
    """
    if not isinstance(pattern, str):
        return {case: pattern[case] for case in cases}
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"--patient {pattern!r} is not a regular expression ({error})") from error
    out = {}
    for case in cases:
        found = expression.search(case)
        if found is None:
            raise ValueError(f"--patient {pattern!r} does not match case {case!r}")
        patient = found[1] if found.groups() else found[0]
        if not patient:
            raise ValueError(f"--patient {pattern!r} matches an empty name in case {case!r}")
        out[case] = patient
    return out
