"""Checkpoint files: written atomically, checked and read without executing code from the file."""

from __future__ import annotations

import pickle
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from segcal.core.errors import PathError, read_errors, version_error
from segcal.core.files import atomic_path
from segcal.models.network import NetworkSpec, SegmentationNetwork, make_model

FORMAT = "segcal-checkpoint"
VERSION = 1


# What torch raises for an archive that holds something else than a checkpoint.
_INVALID = (ValueError, TypeError, AttributeError)


def write_checkpoint(path: Path, content: dict[str, Any], keep: Path | None = None) -> None:
    """Write a checkpoint atomically; if `keep` is given, the replaced file moves there."""
    try:
        with atomic_path(path, keep=keep) as draft:
            # Pass the path: writing through a Python stream takes twice as long.
            torch.save({"format": FORMAT, "version": VERSION, **content}, draft)
    except RuntimeError as error:  # torch turns some failed writes into RuntimeError
        free = f"{shutil.disk_usage(path.parent).free / 2**20:,.0f} MiB are free on this disk"
        reason = str(error).splitlines()[0]
        raise PathError(path, f"cannot be written ({reason})", free) from error


def read_checkpoint(path: Path | str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The content of a checkpoint that segcal wrote, or a PathError that names the file."""
    path = Path(path)
    _check_archive(path)
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, LookupError, *_INVALID) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PathError(path, f"is damaged or not safe to load ({reason})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PathError(path, "is not a checkpoint of segcal")
    if content.get("version") != VERSION:
        raise version_error(path, content.get("version"), VERSION, "train again")
    return content


def _check_archive(path: Path) -> None:
    """Detect missing, truncated and altered files: torch.load does not verify every checksum."""
    try:
        with read_errors(path), zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except PathError:
        raise
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, zlib.error) as error:
        raise PathError(path, f"is damaged or not a checkpoint ({error})") from error
    if bad is not None:
        raise PathError(path, f"is damaged (wrong checksum of {bad})")


def load_model(path: Path | str, device: torch.device | str = "cpu") -> SegmentationNetwork:
    """The network of `best.pt` or `last.pt` with its weights, in evaluation mode.

    If the run averaged its weights (`ema`), the average is loaded.
    """
    content = read_checkpoint(path, device)
    try:
        model = make_model(NetworkSpec(**content["network"]))
        model.load_state_dict(content.get("ema") or content["model"])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise PathError(path, f"its network cannot be built ({reason})") from error
    return model.to(device).eval()
