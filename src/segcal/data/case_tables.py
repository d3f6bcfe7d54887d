"""Tables that a user gives about cases: parts, groups, annotated classes."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from segcal.core.errors import PathError


def read_case_table(
    path: Path, patient_of: Mapping[str, str], columns: Sequence[str] = ()
) -> dict[str, str]:
    """Case → value, from a CSV file with a column `case` or `patient` and one of `columns`.

    Without `columns`, the value is in the only other column. Rows of other patients are skipped;
    a case name that is unknown is returned, so that the caller can name it.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline()
            stream.seek(0)
            rows = list(csv.DictReader(stream, delimiter=";" if ";" in first else ","))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise PathError(path, f"cannot be read ({reason})", "give a CSV file") from error
    names = [name.strip() for name in next(iter(rows), {}) if name]
    key = next((name for name in names if name.lower() in ("case", "patient")), None)
    others = [n for n in names if n != key and (not columns or n.lower() in columns)]
    if key is None or len(others) != 1:
        wanted = f"a column {' or '.join(columns)}" if columns else "one other column"
        remedy = f"it needs a column case or patient, and {wanted}"
        raise PathError(path, f"has the columns {', '.join(names) or 'none'}", remedy)
    table = {
        (row[key] or "").strip(): (row[others[0]] or "").strip()
        for row in ({(k or "").strip(): v for k, v in row.items()} for row in rows)
    }
    if key.lower() == "case":
        return table
    return {name: table[p] for name, p in patient_of.items() if p in table}


def read_groups(given: str, patient_of: Mapping[str, str]) -> dict[str, str]:
    """Case → group, from FILE or FILE:COLUMN."""
    path, column = Path(given), ""
    if not path.is_file() and ":" in given:
        name, column = given.rsplit(":", 1)
        path = Path(name)
    table = read_case_table(path, patient_of, (column.lower(),) if column else ())
    missing = sorted(set(patient_of) - {name for name, group in table.items() if group})
    if missing:
        raise PathError(path, f"gives no group for case {missing[0]}", "complete the table")
    return {name: table[name] for name in patient_of}


def read_annotated(
    path: Path, patient_of: Mapping[str, str], classes: Mapping[int, str]
) -> dict[str, tuple[int, ...]]:
    """Case → annotated classes, from JSON {case: [classes]} or CSV with a column `classes`.

    Classes are names or numbers, in CSV separated by spaces or semicolons. Cases that are not in
    the file annotate every class.
    """
    found: dict[str, list[str]]
    if not classes:
        raise ValueError("--annotated needs the names of all classes; add --classes")
    if path.suffix.lower() == ".json":
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found = {name: [str(value) for value in values] for name, values in content.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            remedy = "give {case: [classes]} to --annotated"
            reason = getattr(error, "strerror", None) or error
            raise PathError(path, f"cannot be read ({reason})", remedy) from error
    else:
        table = read_case_table(path, patient_of, ("classes", "annotated"))
        found = {name: value.replace(";", " ").split() for name, value in table.items()}
    numbers = {name: value for value, name in classes.items()}
    annotated = {}
    for case, values in found.items():
        labels = [numbers.get(value, int(value) if value.isdigit() else -1) for value in values]
        unknown = [v for v, n in zip(values, labels, strict=True) if n < 1 or n not in classes]
        if case not in patient_of or unknown or not values:
            problem = f"names no known class ({', '.join(unknown) or 'none'}) for case {case}"
            if case not in patient_of:
                problem = f"lists the unknown case {case}"
            raise PathError(path, problem, "correct the file of --annotated")
        if set(labels) != set(classes) - {0}:
            annotated[case] = tuple(sorted(labels))
    return annotated
