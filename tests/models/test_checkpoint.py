"""Checkpoint files: weights are restored; damaged and foreign files are detected."""

from pathlib import Path
from typing import Any

import pytest
import torch

from segcal.core.errors import PathError
from segcal.models import NetworkSpec, load_model, make_model, write_checkpoint


def test_load_model_restores_the_weights(tmp_path: Path) -> None:
    spec = NetworkSpec("unet", 2, 1, 3, {"filters": [4, 8], "pools": [2]})
    model = make_model(spec).eval()
    path = tmp_path / "best.pt"
    write_checkpoint(path, {"network": spec.as_dict(), "model": model.state_dict()})
    image = torch.randn(1, 1, 16, 16)
    loaded = load_model(path)
    assert not loaded.training
    assert torch.equal(loaded(image), model(image))
    average = {key: value + 1 for key, value in model.state_dict().items()}
    content = {"network": spec.as_dict(), "model": model.state_dict(), "ema": average}
    write_checkpoint(path, content)
    assert torch.equal(next(load_model(path).parameters()), next(iter(average.values())))


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_invalid_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "best.pt"
    with pytest.raises(PathError, match=r"best\.pt: cannot be read"):
        load_model(path)
    torch.save({"format": "segcal-checkpoint", "version": 1, "x": Evil()}, path)
    with pytest.raises(PathError, match=r"best\.pt: is damaged or not safe"):
        load_model(path)
    assert "executed" not in capsys.readouterr().out
    torch.save({"state_dict": {}}, path)
    with pytest.raises(PathError, match="not a checkpoint of segcal"):
        load_model(path)
    for version, remedy in ((9, "update segcal"), (0, "train again"), (None, "train again")):
        torch.save({"format": "segcal-checkpoint", "version": version}, path)
        with pytest.raises(PathError, match=f"version {version}.*; .*{remedy}"):
            load_model(path)
    write_checkpoint(path, {"model": {}})
    with pytest.raises(PathError, match="its network cannot be built"):
        load_model(path)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_damaged_files_are_detected(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "last.pt"
    write_checkpoint(path, {"model": {"w": torch.randn(1000)}})
    data = bytearray(path.read_bytes())
    if damage == "flip":  # torch.load alone would return the altered numbers
        data[len(data) // 2] ^= 1
    changed = {"cut": data[: len(data) // 2], "flip": data, "empty": b"", "text": b"hello"}
    path.write_bytes(changed[damage])
    with pytest.raises(PathError, match=r"last\.pt: is damaged"):
        load_model(path)


@pytest.mark.parametrize("model", [{1: torch.zeros(2)}, [1], None, {"a": 3}])
def test_weights_of_another_kind_name_the_file(tmp_path: Path, model: object) -> None:
    path = tmp_path / "best.pt"
    network = {"name": "unet", "spatial_dims": 2, "in_channels": 1, "num_classes": 2}
    write_checkpoint(path, {"network": network, "model": model})
    with pytest.raises(PathError, match="network cannot be built"):
        load_model(path)
