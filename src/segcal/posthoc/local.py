"""Local temperature: a small network gives every voxel its own temperature."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from segcal.core.checks import check_int, check_number
from segcal.posthoc._blocks import Array, Floats, check_block, to_rows
from segcal.posthoc.calibrator import Calibrator, FitReport
from segcal.posthoc.patches import Patch, Patches, PatchSet, around, check_image
from segcal.posthoc.temperature import TemperatureScaling, check_bounds

_HALO = 2  # two 3×3(×3) convolutions
_SLAB_VOXELS = 1 << 18
# Log-probabilities below this say nothing more, and would dwarf the others.
_FLOOR = -15.0
# If the last quarter of the steps brought more than this part of the gain, more would help.
_STILL_FALLING = 0.1


class _Network(nn.Module):
    """(K + C, *P + 2·halo) features to a deviation in [−1, 1] for each of the *P voxels."""

    def __init__(self, inputs: int, hidden: int, dims: int) -> None:
        super().__init__()
        conv: Any = nn.Conv3d if dims == 3 else nn.Conv2d
        self.layers = nn.Sequential(
            conv(inputs, hidden, 3), nn.SiLU(), conv(hidden, hidden, 3), nn.SiLU(),
            conv(hidden, 1, 1), nn.Tanh(),
        )  # fmt: skip
        # It starts as plain temperature scaling.
        for parameter in self.layers[4].parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.layers(features)
        return out[:, 0]


class LocalTemperature(Calibrator):
    """softmax(l / T(x)), T(x) from a small network on logits and image (after Ding et al., 2021).

    log T(x) = log T₀ + log(max_ratio) · tanh(network): T₀ is the best single temperature, and no
    voxel leaves [T₀ / max_ratio, T₀ · max_ratio] or `bounds`. The network starts at T₀ and the
    state with the lowest NLL over the patches is kept, so it is never worse there than T₀. The
    labels stay as they are. Image and logits are 2-D or 3-D; a calibrator fitted on cases with
    images needs them in `transform` too.

    Args:
        hidden: channels of the network.
        steps: of the optimiser (Adam, rate falling to 0 along a cosine).
        learning_rate: at the start.
        batch: patches of a step.
        patch: side of a patch in voxels.
        per_case: patches of a case, at most.
        max_ratio: how far a voxel's temperature may be from T₀.
        bounds: of every temperature.
        seed: of weights and order.
    """

    method: ClassVar[str] = "local"
    changes_labels: ClassVar[bool] = False

    def __init__(
        self,
        hidden: int = 8,
        steps: int = 150,
        learning_rate: float = 1e-2,
        batch: int = 2,
        patch: int = 32,
        per_case: int = 8,
        max_ratio: float = 10.0,
        bounds: Sequence[float] = (0.01, 100.0),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.hidden = check_int("hidden", hidden, low=1, high=1024)
        self.steps = check_int("steps", steps, low=0)
        self.learning_rate = check_number("learning_rate", learning_rate, low=0, open_low=True)
        self.batch = check_int("batch", batch, low=1)
        self.patch = check_int("patch", patch, low=1)
        self.per_case = check_int("per_case", per_case, low=1)
        self.max_ratio = check_number("max_ratio", max_ratio, low=1)
        self.bounds = check_bounds("bounds", bounds, positive=True)
        self.seed = check_int("seed", seed, low=0)
        self.base_temperature, self.dims, self.channels = 1.0, 0, 0
        self._network: _Network | None = None

    def gather(
        self,
        *,
        from_probs: bool = False,
        max_voxels: int = 1_000_000,
        seed: int = 0,
        ignore_index: int = -100,
    ) -> Patches:
        """`Patches` of the sizes of this calibrator."""
        return Patches(
            size=self.patch, halo=_HALO, per_case=self.per_case, max_voxels=max_voxels,
            seed=seed, from_probs=from_probs, ignore_index=ignore_index,
        )  # fmt: skip

    def fit_gathered(self, data: PatchSet) -> Self:
        """Fit on what `gather(...).of(cases, balance)` gives."""
        if not data.patches:
            raise ValueError(
                f"Expected voxels to fit on, but the region is empty in all {data.cases} cases."
            )
        dims = data.patches[0].labels.ndim
        if dims not in (2, 3):
            raise ValueError(f"Expected argument `logits` to be (K, *S) in 2-D or 3-D, got {dims}.")
        base = _best_single(data, self.bounds)
        self._build(data.num_classes, dims, data.channels, base.temperature)
        plain, start = _mean_nll(self, data, identity=True), _mean_nll(self, data)
        best, settled = self._train(data, start)
        self.report = FitReport(
            cases=data.cases,
            voxels=int(data.counts.sum()),
            used=sum(int((p.labels >= 0).sum()) for p in data.patches),
            nll_before=plain,
            nll_after=best,
            iterations=self.steps,
            converged=settled,
            at_bound=base.report.at_bound if base.report else [],
            notes=_missing(data),
        )
        return self

    def _build(self, num_classes: int, dims: int, channels: int, base: float) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self._network = _Network(num_classes + channels, self.hidden, dims)
        self.num_classes, self.dims, self.channels = num_classes, dims, channels
        self.base_temperature = base

    def _train(self, data: PatchSet, start: float) -> tuple[float, bool]:
        """Adam on the weighted NLL of random patches; the best state seen is kept.

        Gives its NLL, and whether the last quarter of the steps still gained much.
        """
        network = self._net()
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(self.steps, 1))
        rng = np.random.default_rng(self.seed)
        best, state = start, copy.deepcopy(network.state_dict())
        looks = {round(self.steps * part) for part in (0.25, 0.5, 0.75, 1.0)}
        last = start
        for step in range(1, self.steps + 1):
            chosen = rng.choice(len(data.patches), min(self.batch, len(data.patches)), False)
            parts = [self._nll(data.patches[i], data.weights) for i in chosen]
            total = torch.stack([weight for _, weight in parts]).sum()
            loss = torch.stack([value for value, _ in parts]).sum() / total.clamp(min=1e-12)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            if step in looks:
                last, now = best, _mean_nll(self, data)
                if now < best:
                    best, state = now, copy.deepcopy(network.state_dict())
        network.load_state_dict(state)
        return best, last - best <= _STILL_FALLING * (start - best)

    def _net(self) -> _Network:
        self.check_fitted()
        assert self._network is not None
        return self._network

    def _inverse(self, rows: npt.NDArray[Any], image: npt.NDArray[Any] | None) -> Tensor:
        """1 / T, (*P) float64, of rows and image with their halo."""
        features = torch.from_numpy(np.maximum(rows, _FLOOR).astype(np.float32)) / 5
        if image is not None:
            features = torch.cat([features, torch.from_numpy(image)])
        deviation = self._net()(features[None])[0].double()
        log_t = math.log(self.base_temperature) + math.log(self.max_ratio) * deviation
        low, high = (math.log(b) for b in self.bounds)
        return torch.exp(-log_t.clamp(low, high))

    def _nll(self, patch: Patch, weights: Floats, identity: bool = False) -> tuple[Tensor, Tensor]:
        """Weighted NLL of a patch, in float64, and the sum of its weights."""
        core = tuple(slice(_HALO, -_HALO) for _ in range(patch.labels.ndim))
        logits = torch.from_numpy(patch.rows[(slice(None), *core)]).double()
        if not identity:
            logits = logits * self._inverse(patch.rows, patch.image)
        labels = torch.from_numpy(patch.labels.astype(np.int64))
        counts = labels >= 0
        each = torch.log_softmax(logits, 0).gather(0, labels.clamp(min=0)[None])[0]
        weight = torch.from_numpy(weights)[labels.clamp(min=0)] * counts
        return -(each * weight).sum(), weight.sum()

    def _scaled(self, rows: Floats) -> Floats:
        raise NotImplementedError  # `_blocks` does it: a voxel needs its neighbours

    def _blocks(
        self, source: npt.NDArray[Any], from_probs: bool, image: Array | None
    ) -> Iterator[tuple[tuple[int | slice, ...], Floats]]:
        if source.ndim != self.dims + 1:
            raise ValueError(
                f"Expected argument `logits` to have shape (K, *S) in {self.dims}-D, since local "
                f"temperature was fitted so, but got {source.shape}."
            )
        picture = check_image(image, source.shape[1:], self.channels)
        thick = max(_SLAB_VOXELS // max(math.prod(source.shape[2:]), 1), 1)
        with torch.no_grad():
            for low in range(0, source.shape[1], thick):
                high = min(low + thick, source.shape[1])
                yield (slice(low, high),), self._slab(source, picture, from_probs, low, high)

    def _slab(
        self, source: npt.NDArray[Any], image: Any, from_probs: bool, low: int, high: int
    ) -> Floats:
        start = (low, *(0 for _ in source.shape[2:]))
        stop = (high, *source.shape[2:])
        block = around(source, start, stop, _HALO)
        flat = block.reshape(len(block), -1)
        check_block(flat, from_probs=from_probs, space=self.space)
        rows = to_rows(flat, from_probs=from_probs, space=self.space).reshape(block.shape)
        picture = None if image is None else around(image, start, stop, _HALO)
        inverse = self._inverse(rows, picture).numpy()
        core = tuple(slice(_HALO, -_HALO) for _ in inverse.shape)
        return np.asarray((rows[(slice(None), *core)] * inverse).reshape(len(block), -1))

    def temperature_map(
        self, logits: Array, *, from_probs: bool = False, image: Array | None = None
    ) -> npt.NDArray[np.float32]:
        """T of every voxel, (*S): where the network was found too sure (above 1) or not."""
        from segcal.core.arrays import to_numpy

        source = to_numpy(logits, widen_half=False)
        picture = check_image(image, source.shape[1:], self.channels)
        start, stop = [0] * (source.ndim - 1), source.shape[1:]
        block = around(source, start, stop, _HALO)
        flat = to_rows(block.reshape(len(block), -1), from_probs=from_probs, space=self.space)
        near = None if picture is None else around(picture, start, stop, _HALO)
        with torch.no_grad():
            inverse = self._inverse(flat.reshape(block.shape), near)
        return np.asarray((1 / inverse).numpy(), dtype=np.float32)

    def options(self) -> dict[str, Any]:
        names = ("hidden", "steps", "learning_rate", "batch", "patch", "per_case", "max_ratio")
        plain = {name: getattr(self, name) for name in names}
        return {**plain, "bounds": list(self.bounds), "seed": self.seed}

    def params(self) -> dict[str, Any]:
        self.check_fitted()
        return {
            "base_temperature": self.base_temperature,
            "dims": self.dims,
            "channels": self.channels,
        }

    def set_params(self, num_classes: int, params: dict[str, Any]) -> None:
        base = check_number(
            "base_temperature", params.get("base_temperature"), low=0, open_low=True
        )
        dims = check_int("dims", params.get("dims"), low=2, high=3)
        channels = check_int("channels", params.get("channels"), low=0, high=10_000)
        self._build(num_classes, dims, channels, base)

    def tensors(self) -> dict[str, Tensor]:
        """The weights of the network, for the file."""
        return {name: value.contiguous() for name, value in self._net().state_dict().items()}

    def set_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take the weights of a file."""
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            raise ValueError("Expected the weights to be finite.")
        self._net().load_state_dict(tensors)


def _missing(data: PatchSet) -> list[str]:
    """What of the cases is in no patch, since memory is bounded; the fit knows nothing of it."""
    more = "raise max_voxels"
    lost = [k for k in range(data.num_classes) if data.counts[k] and not data.weights[k]]
    out = [f"class {k} is in no patch that was kept: {more}" for k in lost]
    seen = len({patch.case for patch in data.patches})
    if seen < data.filled:
        out.append(f"{data.filled - seen} of {data.filled} cases have no patch: {more}")
    return out


def _best_single(data: PatchSet, bounds: Sequence[float]) -> TemperatureScaling:
    """Temperature scaling on the voxels of the patches, weighted as they are."""
    return TemperatureScaling(bounds).fit_gathered(_PatchVoxels(data))


class _PatchVoxels:
    """The voxels of patches, as the linear calibrators read them."""

    def __init__(self, data: PatchSet) -> None:
        self.num_classes, self.counts, self.cases = data.num_classes, data.counts, data.cases
        self._data = data

    def blocks(self) -> Iterator[tuple[Floats, npt.NDArray[np.int64], Floats]]:
        """Rows, labels and weights."""
        for patch in self._data.patches:
            core = tuple(slice(_HALO, -_HALO) for _ in range(patch.labels.ndim))
            rows = patch.rows[(slice(None), *core)].reshape(self.num_classes, -1)
            labels = patch.labels.ravel().astype(np.int64)
            keep = labels >= 0
            kept = labels[keep]
            yield rows[:, keep].astype(np.float64), kept, self._data.weights[kept]


def _mean_nll(local: LocalTemperature, data: PatchSet, identity: bool = False) -> float:
    value, total = 0.0, 0.0
    with torch.no_grad():
        for patch in data.patches:
            nll, weight = local._nll(patch, data.weights, identity)
            value, total = value + float(nll), total + float(weight)
    return value / max(total, 1e-12)
