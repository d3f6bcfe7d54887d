"""Calibrators on disk, as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from segcal import __version__
from segcal.core.errors import PathError, version_error
from segcal.core.files import make_parent, write_text
from segcal.posthoc.calibrator import CALIBRATORS, BaseCalibrator, FitReport
from segcal.posthoc.heads import HeadCalibrator

FORMAT = "segcal-calibrator"
VERSION = 1
_MAX_BYTES = 64 * 2**20
_REMEDY = "give a file that `segcal calibrate` wrote"


def calibrator_content(calibrator: BaseCalibrator) -> dict[str, Any]:
    """What the file of a calibrator contains, as JSON values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "method": calibrator.method,
        "num_classes": calibrator.check_fitted(),
        **({"heads": calibrator.heads} if isinstance(calibrator, HeadCalibrator) else {}),
        "keeps_argmax": calibrator.keeps_argmax,
        "params": calibrator.params(),
        "options": calibrator.options(),
        "fit": _without_nan(asdict(calibrator.report) if calibrator.report else {}),
        "about": _without_nan(calibrator.about),
        "segcal": __version__,
    }


def save_calibrator(calibrator: BaseCalibrator, path: Path) -> None:
    """Write `calibrator`, completely or not at all."""
    content = calibrator_content(calibrator)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    make_parent(path)
    write_text(path, text + "\n")


def load_calibrator(path: Path | str) -> BaseCalibrator:
    """The calibrator of a file that `save` wrote, or a PathError that names the file.

    The file can name a class, which is checked to be a `Calibrator` before it is called.
    """
    return calibrator_from(_read(Path(path)), Path(path))


def calibrator_from(content: Any, path: Path) -> BaseCalibrator:
    """The calibrator with this content; a PathError names `path`, the file that contains it."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PathError(path, "is not a calibrator of segcal", _REMEDY)
    if content.get("version") != VERSION:
        raise version_error(path, content.get("version"), VERSION, "fit the calibrator again")
    try:
        num_classes = content["num_classes"]
        if not isinstance(num_classes, int) or not 1 <= num_classes <= 10_000:
            raise ValueError(f"Expected `num_classes` to be an integer, but got {num_classes!r}.")
        make = partial(CALIBRATORS.get(content["method"]), **content["options"])
        calibrator: BaseCalibrator = make()
        if content.get("heads"):
            heads = {name: tuple(map(int, each)) for name, each in content["heads"].items()}
            calibrator = HeadCalibrator(heads, [make() for _ in heads])
        calibrator.num_classes = num_classes
        calibrator.set_params(dict(content["params"]))
        calibrator.report = FitReport(**content["fit"]) if content.get("fit") else None
        calibrator.about = dict(content.get("about") or {})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PathError(path, f"is damaged ({reason})", "fit the calibrator again") from error
    return calibrator


def _without_nan(value: Any) -> Any:
    """The same with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read(path: Path) -> Any:
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise PathError(path, f"is not a calibrator of segcal ({size:,} bytes)", _REMEDY)
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise PathError(path, "does not exist", _REMEDY) from error
    except OSError as error:
        raise PathError(path, f"cannot be read ({error.strerror})", "check the file") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PathError(path, "is damaged or not a calibrator of segcal", _REMEDY) from error
