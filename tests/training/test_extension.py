"""Losses and networks from outside segcal: by import path, as a class, as an object."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from monai.losses import DiceCELoss, DiceLoss
from torch import nn

from helpers.extensions import BrierLoss, PixelLoss, ThousandfoldLoss, TwoConvs
from helpers.runs import finish, phantom, same, settings, start, weights
from helpers.trees import run_cli
from segcal.evaluation import evaluate_run
from segcal.losses import CrossEntropyLoss
from segcal.models import load_model
from segcal.training import train
from segcal.training.build import check_loss

PATH = "helpers.extensions"
DICE_CE = "monai.losses:DiceCELoss"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", dims=2, cases=14, size=32)


def log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_a_loss_by_path_gets_its_options(data: Path, tmp_path: Path) -> None:
    first = []
    for weight in (1.0, 3.0):
        loss = {"name": f"{PATH}:BrierLoss", "options": {"weight": weight}}
        train(settings(data, loss=loss, batch_size=64, epochs=1), tmp_path / str(weight))
        first.append(log(tmp_path / str(weight))[0]["losses"]["loss"])
    assert first[1] == pytest.approx(3 * first[0])


def test_training_minimizes_what_forward_returns(data: Path, tmp_path: Path) -> None:
    """Under SGD a step is proportional to the loss."""
    moved = []
    for name in ("ce", f"{PATH}:ThousandfoldLoss"):
        out = tmp_path / str(len(moved))
        sgd = {"name": "sgd", "lr": 1e-6}
        config = settings(data, loss={"name": name}, optimizer=sgd, batch_size=64, epochs=1)
        train(config, out)
        before, after = (weights(out / file) for file in ("last.prev.pt", "last.pt"))
        moved.append(max(float((after[k] - before[k]).abs().max()) for k in after))
    assert moved[1] == pytest.approx(1000 * moved[0], rel=0.05)
    losses = [log(tmp_path / run)[0]["losses"]["loss"] for run in ("0", "1")]
    assert losses[1] == pytest.approx(1000 * losses[0], rel=1e-5)


def test_monai_losses_get_labels_with_a_channel(data: Path, tmp_path: Path) -> None:
    options = {"to_onehot_y": True, "softmax": True}
    config = settings(data, loss={"name": DICE_CE, "options": options}, epochs=12,
                      optimizer={"lr": 1e-2})  # fmt: skip
    train(config, tmp_path / "run")
    rows = log(tmp_path / "run")
    assert rows[-1]["losses"]["loss"] < 0.9 * rows[0]["losses"]["loss"]
    with pytest.raises(ValueError, match=r"DiceCELoss.*`to_onehot_y: true`"):
        train(settings(data, loss={"name": DICE_CE}), tmp_path / "without")
    with pytest.raises(ValueError, match=r"DiceLoss.*`to_onehot_y: true`"):
        train(settings(data, loss={"name": "monai.losses:DiceLoss"}), tmp_path / "without")
    assert not (tmp_path / "without").exists()


def test_one_hot_labels_are_proposed_only_where_they_are_missing() -> None:
    weighted = DiceLoss(to_onehot_y=True, softmax=True, weight=[1.0, 2.0])
    for loss, heads in ((DiceCELoss(to_onehot_y=True, softmax=True), True), (weighted, False)):
        with pytest.raises(ValueError, match="failed on logits") as error:
            check_loss(loss, 3, (8, 8), torch.device("cpu"), heads=heads)
        assert "to_onehot_y" not in str(error.value)


@pytest.mark.parametrize("dice_weight", [0.0, 1.0])
def test_a_loss_that_does_not_fit_the_data_leaves_no_run(
    data: Path, tmp_path: Path, dice_weight: float
) -> None:
    loss = {"name": "ce", "options": {"class_weights": [1.0] * 9}, "dice_weight": dice_weight}
    with pytest.raises(ValueError, match="`class_weights` to have"):
        train(settings(data, loss=loss), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_dice_can_be_added_to_any_loss(data: Path, tmp_path: Path) -> None:
    loss = {"name": f"{PATH}:BrierLoss", "dice_weight": 0.5}
    train(settings(data, loss=loss, epochs=1), tmp_path / "run")
    parts = log(tmp_path / "run")[0]["losses"]
    assert "dice" in parts
    assert parts["loss"] > parts["dice"]


def test_a_loss_object_is_required_again_to_resume(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(settings(data, epochs=1), out, loss=BrierLoss(weight=3.0))
    saved = yaml.safe_load((out / "config.yaml").read_text())["loss"]
    assert (saved["name"], saved["instance"]) == (f"{PATH}:BrierLoss", True)
    with pytest.raises(ValueError, match=rf"{PATH}:BrierLoss.*pass it again"):
        train(settings(data, epochs=2, loss=saved), out, resume=True)
    with pytest.raises(ValueError, match=r"another `loss\.name`"):
        train(settings(data, epochs=2), out, loss=nn.CrossEntropyLoss(), resume=True)
    assert train(settings(data, epochs=2), out, loss=BrierLoss(3.0), resume=True).epochs == 2
    # The import path gives the same weights.
    by_path = {"name": f"{PATH}:BrierLoss", "options": {"weight": 3.0}}
    train(settings(data, epochs=2, loss=by_path), tmp_path / "path")
    assert same(weights(out / "last.pt"), weights(tmp_path / "path" / "last.pt"))


def test_a_loss_object_of_a_local_class(data: Path, tmp_path: Path) -> None:
    class Local(BrierLoss):
        pass

    assert train(settings(data, epochs=1), tmp_path / "run", loss=Local()).epochs == 1


def test_keywords_change_the_config(data: Path, tmp_path: Path) -> None:
    small = {"filters": [4, 8], "pools": [2]}
    train(
        data=data, out=tmp_path / "run", loss=CrossEntropyLoss, network={"options": small},
        epochs=1, batch_size=4, optimizer={"lr": 2e-3}, precision="32", recipe="paper",
    )  # fmt: skip
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (saved["loss"]["name"], saved["optimizer"]["lr"], saved["epochs"]) == ("ce", 2e-3, 1)
    assert saved["optimizer"]["milestones"] == [50]
    with pytest.raises(ValueError, match=r"`epoch`.*Did you mean 'epochs'"):
        train(data=data, out=tmp_path / "x", epoch=1)
    with pytest.raises(TypeError, match="`out`"):
        train(data=data)


@pytest.mark.parametrize("network", [f"{PATH}:TwoConvs", TwoConvs])
def test_a_network_by_path_is_trained_loaded_and_evaluated(
    network: Any, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(settings(data, model={"options": {"width": 6}}, epochs=1), out, network=network)
    model = load_model(out / "best.pt")
    assert isinstance(model.net, TwoConvs)
    assert model(torch.zeros(1, 1, 20, 20)).shape == (1, 5, 20, 20)
    assert not evaluate_run(out, split="val").table().empty


def test_another_process_rebuilds_a_network_by_path(data: Path, tmp_path: Path) -> None:
    options = {"width": 6}
    config = settings(data, model={"name": f"{PATH}:TwoConvs", "options": options}, epochs=1)
    train(config, tmp_path / "run")
    process = start("evaluate", tmp_path / "run", "--split", "val")
    code, output = finish(process)
    assert code == 0, output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": f"{PATH}:not_a_network", "options": {}}}, "subclass of torch.nn.Mod"),
        ({"model": {"name": f"{PATH}:TwoConvs", "options": {"depth": 3}}}, "width.*depth"),
        ({"model": {"name": "nowhere:Net", "options": {}}}, "nowhere:Net.*cannot be imported"),
        ({"loss": {"name": f"{PATH}:not_a_network"}}, "subclass of torch.nn.Module"),
        ({"loss": {"name": f"{PATH}:BrierLoss", "options": {"wieght": 1}}}, "wieght.*weight"),
        ({"loss": {"name": f"{PATH}:PixelLoss"}}, "PixelLoss to return one number"),
        ({"loss": {"options": {"reduction": "none"}}}, "NACLLoss to return one number"),
    ],
)
def test_invalid_settings_are_named_before_anything_is_written(
    changes: dict[str, Any], message: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        train(settings(data, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_loss_is_named_as_the_user_typed_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_cli(
        monkeypatch, "train", "--data", data, "--loss", "nacll", "--out", tmp_path / "run"
    )
    assert code == 2
    message = capsys.readouterr().err
    assert message.startswith("segcal: --loss nacll: ")
    assert "Did you mean 'nacl'?" in message


def test_the_losses_of_this_test() -> None:
    logits, target = torch.randn(1, 3, 4, 4), torch.randint(0, 3, (1, 4, 4))
    thousandfold = ThousandfoldLoss()(logits, target)
    torch.testing.assert_close(thousandfold, 1000 * CrossEntropyLoss()(logits, target))
    assert PixelLoss()(logits, target).shape == (1, 4, 4)
