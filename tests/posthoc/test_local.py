"""Local temperature: it finds where the network is too sure, and stays in its bounds."""

from typing import Any

import numpy as np
import pytest
import torch

from helpers.posthoc_samples import calibrated, softmax
from segcal.posthoc import HeldOut, TemperatureScaling
from segcal.posthoc.local import LocalTemperature

QUICK: dict[str, Any] = {"steps": 80, "hidden": 4, "patch": 12, "learning_rate": 0.03}


def two_halves(seed: int, dims: int = 2) -> HeldOut:
    """Logits too sure by 4 where the image is bright, and right elsewhere."""
    rng = np.random.default_rng(seed)
    shape = (24, 24) if dims == 2 else (8, 12, 12)
    image = np.zeros(shape, np.float32)
    image[..., : shape[-1] // 2] = 1
    logits = rng.normal(size=(3, *shape)) * 2
    target = (rng.random(shape) > softmax(logits).cumsum(0)).sum(0).clip(max=2)
    logits = logits * np.where(image > 0, 4.0, 1.0)
    return HeldOut(logits.astype(np.float32), target, None, image)


@pytest.mark.parametrize("dims", [2, 3])
def test_it_finds_where_the_network_is_too_sure(dims: int) -> None:
    cases = [two_halves(seed, dims) for seed in range(6)]
    local = LocalTemperature(**QUICK).fit(cases)
    other = two_halves(99, dims)
    heat = local.temperature_map(other.logits, image=other.image)
    half = other.image > 0  # type: ignore[operator]
    assert np.median(heat[half]) > 1.8 * np.median(heat[~half])

    single = TemperatureScaling().fit([(c.logits, c.target) for c in cases])
    nll = []
    for probs in (local.transform(other.logits, image=other.image), single.transform(other.logits)):
        picked = np.take_along_axis(probs, other.target[None], 0)
        nll.append(-np.log(picked).mean())
    assert nll[0] < nll[1] - 0.01
    assert local.report is not None
    assert local.report.nll_after < local.report.nll_before


def test_the_labels_stay() -> None:
    case = two_halves(0)
    local = LocalTemperature(**{**QUICK, "steps": 20}).fit([case])
    probs = local.transform(case.logits, image=case.image)
    np.testing.assert_array_equal(probs.argmax(0), case.logits.argmax(0))
    np.testing.assert_allclose(probs.sum(0), 1, atol=1e-6)


def test_it_is_never_worse_than_one_temperature_on_its_patches() -> None:
    """Even with a rate that throws the network about."""
    case = two_halves(1)
    wild = LocalTemperature(**{**QUICK, "learning_rate": 1000.0}).fit([case])
    none = LocalTemperature(**{**QUICK, "steps": 0}).fit([case])
    whole = LocalTemperature(**{**QUICK, "steps": 0, "patch": 24}).fit([case])
    assert wild.report is not None
    assert none.report is not None
    assert wild.report.nll_after <= none.report.nll_after + 1e-9
    single = TemperatureScaling().fit([(case.logits, case.target)])
    heat = none.temperature_map(case.logits, image=case.image)
    assert np.ptp(heat) == 0
    assert float(heat.flat[0]) == pytest.approx(none.base_temperature)
    assert whole.base_temperature == pytest.approx(single.temperature, rel=1e-6)


def test_slabs_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    case = two_halves(2, dims=3)
    local = LocalTemperature(**{**QUICK, "steps": 10}).fit([case])
    whole = local.transform(case.logits, image=case.image)
    monkeypatch.setattr("segcal.posthoc.local._SLAB_VOXELS", 1)
    np.testing.assert_allclose(local.transform(case.logits, image=case.image), whole, atol=1e-6)


@pytest.mark.parametrize(
    "option",
    [
        {"hidden": 2}, {"steps": 5}, {"learning_rate": 0.001}, {"batch": 1}, {"patch": 6},
        {"per_case": 1}, {"max_ratio": 1.05}, {"bounds": (0.9, 1.1)}, {"seed": 1},
    ],
)  # fmt: skip
def test_every_option_changes_the_result(option: dict[str, Any]) -> None:
    cases = [two_halves(seed) for seed in range(2)]
    base = {**QUICK, "steps": 8}
    one = LocalTemperature(**base).fit(cases).transform(cases[0].logits, image=cases[0].image)
    two = LocalTemperature(**{**base, **option}).fit(cases)
    assert not np.array_equal(one, two.transform(cases[0].logits, image=cases[0].image))


def test_the_same_seed_gives_the_same_network() -> None:
    cases = [two_halves(seed) for seed in range(2)]
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two = (LocalTemperature(**{**QUICK, "steps": 5}).fit(cases) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state()), "the caller's random state is its own"
    for a, b in zip(one.tensors().values(), two.tensors().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["right", "wrong", "one class"])
def test_nothing_runs_away(kind: str) -> None:
    rng = np.random.default_rng(0)
    target = np.zeros((12, 12), int) if kind == "one class" else rng.integers(0, 3, (12, 12))
    logits = 2.0 * np.moveaxis(np.eye(3)[target], -1, 0)
    truth = (target + 1) % 3 if kind == "wrong" else target
    local = LocalTemperature(**{**QUICK, "steps": 20}, bounds=(0.1, 10)).fit([(logits, truth)])
    heat = local.temperature_map(logits)
    assert heat.min() >= 0.1 - 1e-6
    assert heat.max() <= 10 + 1e-4
    assert local.report is not None
    assert local.report.at_bound == ["the temperature reached its bound"]
    assert np.isfinite(local.transform(logits)).all()


def test_patches_weigh_all_voxels_and_are_bounded() -> None:
    gathered = LocalTemperature(**QUICK).gather(max_voxels=600)
    cases = [two_halves(seed) for seed in range(4)]
    for case in cases:
        gathered.add(case)
    data = gathered.of([0, 1, 2, 3])
    labels = np.concatenate([p.labels.ravel() for p in data.patches])
    assert len(labels) <= 600
    drawn = np.bincount(labels[labels >= 0], minlength=3)
    np.testing.assert_allclose(drawn * data.weights, data.counts)
    assert int(data.counts.sum()) == 4 * 576
    balanced = gathered.of(None, "class")
    np.testing.assert_allclose(drawn * balanced.weights, data.counts.sum() / 3)


def test_masks_and_ignored_voxels_do_not_count() -> None:
    case = two_halves(3)
    gathered = LocalTemperature(**QUICK).gather(ignore_index=9)
    target = case.target.copy()
    target[:6] = 9
    mask = np.ones(target.shape, bool)
    mask[-6:] = False
    gathered.add(HeldOut(case.logits, target, mask))
    assert int(gathered.of().counts.sum()) == 12 * 24
    empty = LocalTemperature(**QUICK).gather()
    empty.add(HeldOut(case.logits, case.target, np.zeros(target.shape, bool)))
    with pytest.raises(ValueError, match="region is empty in all 1 cases"):
        LocalTemperature(**QUICK).fit_gathered(empty.of())


def test_bad_input_is_one_clear_line() -> None:
    case = two_halves(0)
    local = LocalTemperature(**{**QUICK, "steps": 1}).fit([case])
    with pytest.raises(ValueError, match="fitted with images"):
        local.transform(case.logits)
    with pytest.raises(ValueError, match=r"\(1, \*S\) or \(\*S\)"):
        local.transform(case.logits, image=case.image[:5])  # type: ignore[index]
    with pytest.raises(ValueError, match="in 2-D"):
        local.transform(case.logits[:, None], image=case.image[None])  # type: ignore[index]
    with pytest.raises(ValueError, match="fitted with images"):
        LocalTemperature(**QUICK).fit([case, (case.logits, case.target)])
    with pytest.raises(ValueError, match="look like probabilities"):
        LocalTemperature(**QUICK).fit([(softmax(case.logits), case.target)])
    with pytest.raises(ValueError, match="labels 0 to 2"):
        LocalTemperature(**QUICK).fit([(case.logits, case.target + 2)])
    with pytest.raises(ValueError, match="max_voxels"):
        LocalTemperature(**QUICK).fit([case], max_voxels=None)
    without = LocalTemperature(**{**QUICK, "steps": 1}).fit([(case.logits, case.target)])
    assert without.transform(case.logits, image=case.image).shape == case.logits.shape


def test_what_the_patches_lost_is_told() -> None:
    cases = [calibrated((40, 40), seed=i) for i in range(6)]
    whole = LocalTemperature(steps=0, patch=16).fit(cases)
    assert whole.report is not None
    assert whole.report.notes == []
    assert whole.report.converged
    few = LocalTemperature(steps=0, patch=16).fit(cases, max_voxels=300)
    assert few.report is not None
    assert few.report.notes == ["5 of 6 cases have no patch: raise max_voxels"]
    rare = (calibrated((40, 40))[0], np.zeros((40, 40), np.int64))
    rare[1][0, 0] = 2
    lost = LocalTemperature(steps=0, patch=4, per_case=2, seed=0).fit([rare], max_voxels=16)
    assert lost.report is not None
    assert any("is in no patch that was kept" in note for note in lost.report.notes)


def test_a_search_that_still_gains_is_not_called_done() -> None:
    case = calibrated((24, 24))
    halves = case[0].copy()
    halves[:, :12] *= 6
    short = LocalTemperature(steps=4, learning_rate=0.003).fit([(halves, case[1])])
    assert short.report is not None
    assert not short.report.converged
