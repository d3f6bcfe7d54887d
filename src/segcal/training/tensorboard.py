"""Training curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segcal.core.checks import require


def open_tensorboard(folder: Path, epoch: int) -> Any:
    """A `SummaryWriter` (a context manager) in `folder`/tensorboard.

    Curves from `epoch` on are dropped: a resumed run trains these epochs again.
    """
    require("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=epoch)


def add_row(writer: Any, row: dict[str, Any]) -> None:
    """Add a row of the log to the curves."""
    curves = {"lr": row["lr"], "seconds": row["seconds"]}
    curves |= {f"train/{name}": value for name, value in row["losses"].items()}
    validation = row.get("val", {})
    curves |= {f"val/{k}": value for k, value in validation.items() if isinstance(value, float)}
    for name, value in validation.get("dsc_by_label", {}).items():
        if value is not None:
            curves[f"val_dsc/{name}"] = value
    for name, value in curves.items():
        writer.add_scalar(name, value, row["epoch"])
    writer.flush()
