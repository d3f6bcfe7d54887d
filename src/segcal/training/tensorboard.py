"""TensorBoard, when asked for."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from segcal.core.checks import require


class Board:
    """Writes each epoch's row as curves below `folder`/tensorboard, or nothing at all."""

    def __init__(self, folder: Path, wanted: bool, epoch: int) -> None:
        self._writer: Any = None
        if wanted:
            require("tensorboard")
            from torch.utils.tensorboard import SummaryWriter

            # Curves of epochs that a resumed run trains again are dropped.
            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=epoch)

    def add(self, row: dict[str, Any]) -> None:
        if self._writer is None:
            return
        step = row["epoch"]
        curves = {"lr": row["lr"], "seconds": row["seconds"]}
        curves |= {f"train/{name}": value for name, value in row["losses"].items()}
        for name, value in row.get("val", {}).items():
            if isinstance(value, float):
                curves[f"val/{name}"] = value
        for name, value in row.get("val", {}).get("dsc_by_label", {}).items():
            curves[f"val_dsc/{name}"] = value
        for name, value in curves.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()
