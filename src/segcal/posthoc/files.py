"""Calibrators on disk: readable JSON, or safetensors for the network of local temperature."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segcal import __version__
from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import write_bytes

if TYPE_CHECKING:
    from segcal.posthoc.calibrator import Calibrator

FORMAT = "segcal-calibrator"
VERSION = 1
_MAX_BYTES = 64 * 2**20
_WITH_TENSORS = ("local",)


def check_ending(method: str, path: Path) -> None:
    """Refuse a name that promises another kind of file than `method` writes."""
    wrong, right = (
        (".json", ".safetensors") if method in _WITH_TENSORS else (".safetensors", ".json")
    )
    if path.suffix.lower() == wrong:
        raise PathError(path, f"{method} is not kept as {wrong[1:]}; call it {right}")


def _plain(value: Any) -> Any:
    """The same for JSON, which has neither NaN nor infinity: they become null."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_calibrator(calibrator: Calibrator, path: Path) -> None:
    """Write `calibrator`: safetensors if it has tensors, else JSON. Whole or not at all."""
    num_classes = calibrator.check_fitted()
    check_ending(calibrator.method, path)
    report = calibrator.report
    head = {
        "format": FORMAT,
        "version": VERSION,
        "method": calibrator.method,
        "num_classes": num_classes,
        "changes_labels": calibrator.changes_labels,
        "params": calibrator.params(),
        "options": calibrator.options(),
        "fit": _plain(report.as_dict() if report is not None else {}),
        "about": _plain(calibrator.about),
        "segcal": __version__,
    }
    tensors = getattr(calibrator, "tensors", None)
    if tensors is None:
        data = (json.dumps(head, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    else:
        from safetensors.torch import save

        text = {"segcal": json.dumps(head, ensure_ascii=False, allow_nan=False)}
        data = save(tensors(), metadata=text)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)


def load_calibrator(path: Path | str) -> Calibrator:
    """The calibrator of a file that `save` wrote, or a PathError that names the file."""
    from segcal.posthoc import CALIBRATORS

    path = Path(path)
    head, tensors = _read(path)
    if head.get("format") != FORMAT:
        raise PathError(path, "is not a calibrator of segcal")
    if head.get("version") != VERSION:
        raise PathError(
            path, f"has format version {head.get('version')!r}, but this segcal reads {VERSION}"
        )
    try:
        check_choice("method", head.get("method"), CALIBRATORS)
        num_classes = head["num_classes"]
        if not isinstance(num_classes, int) or not 2 <= num_classes <= 10_000:
            raise ValueError(f"Expected `num_classes` to be an integer, but got {num_classes!r}.")
        calibrator = CALIBRATORS[str(head["method"])](**head["options"])
        calibrator.set_params(num_classes, dict(head["params"]))
        if tensors is not None:
            calibrator.set_tensors(tensors)  # type: ignore[attr-defined]
        calibrator.report = _report(head.get("fit"))
        calibrator.about = dict(head.get("about") or {})
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PathError(path, f"is damaged ({reason})") from error
    return calibrator


def _report(found: Any) -> Any:
    from segcal.posthoc.calibrator import FitReport

    return FitReport(**found) if found else None


def _read(path: Path) -> tuple[dict[str, Any], Any]:
    """The head of the file and, of a safetensors file, its tensors."""
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise PathError(path, f"is not a calibrator of segcal ({size:,} bytes)")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise PathError(path, "does not exist") from error
    except OSError as error:
        raise PathError(path, f"cannot be read ({error.strerror})") from error
    try:
        if data[:1] == b"{":
            head, tensors = json.loads(data.decode()), None
        else:
            head, tensors = _read_safetensors(data)
    except (ValueError, KeyError, OverflowError, RecursionError) as error:
        raise PathError(path, "is damaged or not a calibrator of segcal") from error
    if not isinstance(head, dict):
        raise PathError(path, "is not a calibrator of segcal")
    return head, tensors


def _read_safetensors(data: bytes) -> tuple[Any, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    length = int.from_bytes(data[:8], "little")
    text = json.loads(data[8 : 8 + length].decode())["__metadata__"]["segcal"]
    try:
        return json.loads(text), load(data)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
