"""The patient of a case, from the name of the case."""

import re
from collections.abc import Iterable, Mapping

# PATIENT_SCAN, where PATIENT holds a digit: patient001_frame01, P03-ES, 0012_n2, sub-01_ses-2.
_SCAN_OF_PATIENT = re.compile(
    r"(.*\d.*?)([_.-])(?:[a-z]{0,8}-?\d{1,3}|ed|es|left|right|l|r|pre|post|baseline|follow-?up)",
    re.IGNORECASE,
)


def scans_of_patients(cases: Iterable[str]) -> list[tuple[str, str, str]]:
    """Of each patient who seems to have several cases: two of them, and a pattern of the name.

    Example:
        >>> scans_of_patients(["patient001_frame01", "patient001_frame12", "patient002_frame01"])
        [('patient001_frame01', 'patient001_frame12', '(.+)_')]
    """
    scans: dict[str, list[str]] = {}
    separator = {}
    for case in cases:
        # A numbered or named scan after something that holds a number itself.
        if match := _SCAN_OF_PATIENT.fullmatch(case):
            scans.setdefault(match[1], []).append(case)
            separator[case] = match[2]
    several = [names for names in scans.values() if len(names) > 1]
    return [(names[0], names[1], f"(.+){separator[names[0]]}") for names in several]


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
        raise ValueError(f"--patient '{pattern}' is not a regular expression ({error})") from error
    out = {}
    for case in cases:
        found = expression.search(case)
        if found is None:
            raise ValueError(f"--patient '{pattern}' does not match case {case!r}")
        patient = found[1] if found.groups() else found[0]
        if not patient:
            raise ValueError(f"--patient '{pattern}' matches an empty name in case {case!r}")
        out[case] = patient
    return out
