"""Torch datasets and loaders over a prepared set."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from helpers.trees import folder_tree, msd_tree
from segcal.data import (
    Batch,
    FolderSource,
    MsdSource,
    PatchDataset,
    PhantomSource,
    PreparedDataset,
    ResidentLoader,
    SliceDataset,
    StreamLoader,
    make_loader,
    open_dataset,
    prepare,
)
from segcal.data import loaders as loader_module
from segcal.data.loaders import Loader, resident_bytes


@pytest.fixture(scope="module", params=["float16", "uint8"])
def phantoms(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> PreparedDataset:
    out = tmp_path_factory.mktemp("phantoms") / "out"
    source = PhantomSource(cases=8, size=32, slices=5)
    return prepare(source, out, dtype=request.param).dataset


def equal(one: Batch, other: Batch) -> bool:
    return (
        torch.equal(one.image, other.image)
        and torch.equal(one.target, other.target)
        and tuple(one.case) == tuple(other.case)
    )


def test_items_are_the_slices_of_the_cases(phantoms: PreparedDataset) -> None:
    slices = SliceDataset(phantoms, "train")
    assert len(slices) == 5 * len(phantoms.splits.train)
    item = slices[7]
    case = phantoms[phantoms.splits.train[1]]
    assert item.case == case.name
    assert (item.image.dtype, item.target.dtype) == (torch.float32, torch.int64)
    np.testing.assert_array_equal(item.image, case.image()[:, 2])
    np.testing.assert_array_equal(item.target, case.label()[2])
    assert len(SliceDataset(phantoms, "all")) == 40
    fold = SliceDataset(phantoms, "val", fold=1)
    assert [c.name for c in fold.cases] == list(phantoms.splits.folds[1].val)


def test_dataloader_of_torch_with_workers_keeps_the_type(phantoms: PreparedDataset) -> None:
    slices = SliceDataset(phantoms, "val")
    batches = list(DataLoader(slices, batch_size=4, num_workers=1))
    assert all(isinstance(batch, Batch) for batch in batches)
    assert batches[0].image.shape == (4, 1, 32, 32)
    assert batches[0].target.shape == (4, 32, 32)
    expected = torch.stack([slices[i].image for i in range(4)])
    assert torch.equal(batches[0].image, expected)


def test_resident_and_streamed_batches_are_identical(phantoms: PreparedDataset) -> None:
    slices = SliceDataset(phantoms, "train")
    for options in ({}, {"shuffle": False}, {"seed": 5}):
        resident = ResidentLoader(slices, 4, **options)
        stream = StreamLoader(slices, 4, **options)
        assert len(resident) == len(stream)
        for _ in range(2):
            pairs = list(zip(resident, stream, strict=True))
            assert len(pairs) == len(resident)
            assert all(equal(one, other) for one, other in pairs)


def test_an_epoch_has_every_slice_once_and_epochs_differ(phantoms: PreparedDataset) -> None:
    slices = SliceDataset(phantoms, "train")
    loader = Loader(len(slices), 4, seed=1)
    first, second = loader.order(0), loader.order(1)
    assert sorted(torch.cat(first).tolist()) == list(range(len(slices)))
    assert torch.cat(first).tolist() != torch.cat(second).tolist()
    other = Loader(len(slices), 4, seed=2).order(0)
    assert torch.cat(first).tolist() != torch.cat(other).tolist()


@pytest.mark.parametrize("kind", ["resident", "stream"])
@pytest.mark.parametrize("stop", [0, 3, 7, 8])
def test_resuming_continues_with_the_next_batch(
    phantoms: PreparedDataset, kind: str, stop: int
) -> None:
    slices = SliceDataset(phantoms, "train")
    whole = make_loader(slices, 4, kind=kind, seed=3)
    expected = [batch for _ in range(3) for batch in whole]
    broken = make_loader(slices, 4, kind=kind, seed=3)
    seen: list[Batch] = []
    while len(seen) < stop:
        for batch in broken:
            seen.append(batch)
            if len(seen) == stop:
                break
    resumed = make_loader(slices, 4, kind=kind, seed=3)
    resumed.load_state_dict(broken.state_dict())
    while len(seen) < len(expected):
        seen.extend(resumed)
    assert all(equal(one, other) for one, other in zip(seen, expected, strict=False))


def test_processes_share_each_global_batch(phantoms: PreparedDataset) -> None:
    slices = SliceDataset(phantoms, "train")
    alone = Loader(len(slices), 6, seed=1).order(0)
    shares = [Loader(len(slices), 3, seed=1, rank=r, world_size=2).order(0) for r in range(2)]
    for whole, first, second in zip(alone, *shares, strict=True):
        assert len(first) == len(second)
        joined = torch.cat([first, second])
        assert torch.equal(joined[: len(whole)], whole)


def test_more_processes_than_items_all_get_one() -> None:
    shares = [Loader(3, 2, rank=r, world_size=8).order(0) for r in range(8)]
    assert [[len(batch) for batch in share] for share in shares] == [[1]] * 8
    assert {int(share[0]) for share in shares} == {0, 1, 2}


@pytest.mark.parametrize("kind", ["resident", "stream"])
def test_an_epoch_left_early_does_not_shorten_the_next(
    phantoms: PreparedDataset, kind: str
) -> None:
    loader = make_loader(SliceDataset(phantoms, "train"), 4, kind=kind)
    next(iter(loader))
    assert sum(1 for _ in loader) == len(loader)
    assert loader.epoch == 2


@pytest.mark.parametrize(
    "other",
    [{"batch_size": 5}, {"world_size": 2}, {"shuffle": False}, {"length": 41}],
)
def test_a_state_of_another_order_is_refused(other: dict[str, int]) -> None:
    options = {"length": 40, "batch_size": 4} | other
    with pytest.raises(ValueError, match=next(iter(other))):
        Loader(**options).load_state_dict(Loader(40, 4).state_dict())


def test_foreground_voxels_are_found_once_with_workers(phantoms: PreparedDataset) -> None:
    patches = PatchDataset(phantoms, patch_size=(3, 16, 16), per_case=1)
    batches = list(StreamLoader(patches, 4, workers=1))
    assert sorted(patches._voxels) == list(range(len(patches.cases)))
    alone = PatchDataset(phantoms, patch_size=(3, 16, 16), per_case=1)
    assert all(
        equal(one, other) for one, other in zip(batches, StreamLoader(alone, 4), strict=True)
    )


def test_the_kind_of_loader_follows_the_memory(
    phantoms: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = SliceDataset(phantoms, "train")
    per_voxel = 2 if phantoms.info.dtype == "uint8" else 3
    assert resident_bytes(slices) == len(slices) * 32 * 32 * per_voxel
    assert isinstance(make_loader(slices, 4), ResidentLoader)
    needed = resident_bytes(slices) or 0
    monkeypatch.setattr(loader_module, "free_bytes", lambda device: 4 * needed)
    assert isinstance(make_loader(slices, 4), ResidentLoader)
    # Two processes share the memory.
    assert isinstance(make_loader(slices, 4, rank=0, world_size=2), StreamLoader)
    monkeypatch.setattr(loader_module, "free_bytes", lambda device: 1000)
    assert isinstance(make_loader(slices, 4), StreamLoader)
    assert isinstance(make_loader(slices, 4, kind="resident"), ResidentLoader)
    patches = PatchDataset(phantoms, patch_size=(4, 16, 16))
    assert isinstance(make_loader(patches, 4), StreamLoader)
    with pytest.raises(ValueError, match="SliceDataset"):
        make_loader(patches, 4, kind="resident")
    with pytest.raises(ValueError, match="`kind`"):
        make_loader(slices, 4, kind="ram")


def test_a_resident_epoch_reads_no_file(phantoms: PreparedDataset, tmp_path: Path) -> None:
    """The files are moved away after loading."""
    source = phantoms.root
    loader = ResidentLoader(SliceDataset(phantoms, "train"), 4)
    moved = source.rename(source.with_name("moved"))
    try:
        assert sum(len(batch.case) for batch in loader) == loader.length
    finally:
        moved.rename(source)


@pytest.mark.parametrize("dtype", ["float16", "uint8"])
def test_slices_of_unequal_cases_need_a_size(tmp_path: Path, dtype: str) -> None:
    source = MsdSource(msd_tree(tmp_path / "source"))
    dataset = prepare(source, tmp_path / "out", recipe="native", dtype=dtype).dataset
    loose = SliceDataset(dataset, "all")
    assert loose.shape() is None
    with pytest.raises(ValueError, match="`size`"):
        ResidentLoader(loose, 2)
    slices = SliceDataset(dataset, "all", size=(40, 24))
    item = slices[0]
    assert item.image.shape == (2, 40, 24)
    # Padded above and below with 0 (as near as 8 bits allow), and ignored.
    tolerance = 0 if dtype == "float16" else max(loose.cases[0].properties.scale)
    assert item.image[:, 0].abs().max() <= tolerance
    assert (item.target[0] == -100).all()
    for one, other in zip(ResidentLoader(slices, 5), StreamLoader(slices, 5), strict=True):
        assert equal(one, other)


def test_patches(phantoms: PreparedDataset) -> None:
    patches = PatchDataset(phantoms, patch_size=(3, 16, 20), per_case=3, seed=4)
    assert len(patches) == 3 * len(phantoms.splits.train)
    item = patches[1]
    assert item.image.shape == (1, 3, 16, 20)
    assert item.target.shape == (3, 16, 20)
    assert equal(item, patches[1])
    patches.set_epoch(1)
    assert not equal(item, patches[1])
    other = PatchDataset(phantoms, patch_size=(3, 16, 20), per_case=3, seed=5)
    assert not equal(item, other[1])
    # The patch is a piece of its case.
    case = phantoms[str(item.case)]
    windows = np.lib.stride_tricks.sliding_window_view(case.image()[0], (3, 16, 20))
    assert (windows == item.image[0].numpy()).all(axis=(3, 4, 5)).any()
    for index in (len(patches), -len(patches) - 1):
        with pytest.raises(IndexError):
            patches[index]
    assert equal(patches[-1], patches[len(patches) - 1])


def test_patches_are_balanced_and_may_exceed_the_volume(phantoms: PreparedDataset) -> None:
    def share(foreground: float) -> float:
        patches = PatchDataset(phantoms, patch_size=(1, 3, 3), per_case=40, foreground=foreground)
        centers = [int(patches[i].target[0, 1, 1]) for i in range(len(patches))]
        return float(np.mean(np.array(centers) > 0))

    assert share(1.0) > 0.9
    assert share(0.0) < 0.3
    assert share(0.0) < share(0.5) < share(1.0)
    large = PatchDataset(phantoms, patch_size=(9, 40, 40))[0]
    case = phantoms[str(large.case)]
    assert large.image.shape == (1, 9, 40, 40)
    np.testing.assert_array_equal(large.target[2:7, 4:36, 4:36], case.label())
    assert large.image[0, 0].abs().max() == 0


def test_arguments_are_checked(phantoms: PreparedDataset) -> None:
    slices = SliceDataset(phantoms, "train")
    for options, name in (
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2, "rank": 2, "world_size": 2}, "rank"),
        ({"batch_size": 2, "seed": -1}, "seed"),
    ):
        with pytest.raises(ValueError, match=f"`{name}`"):
            StreamLoader(slices, **options)
    with pytest.raises(ValueError, match="`state`"):
        StreamLoader(slices, 4).load_state_dict({"seed": 9, "epoch": 0, "step": 0})
    with pytest.raises(ValueError, match="`workers`"):
        make_loader(slices, 4, workers=-1)
    with pytest.raises(ValueError, match="`part`"):
        SliceDataset(phantoms, "training")
    with pytest.raises(ValueError, match="`fold`"):
        SliceDataset(phantoms, "train", fold=9)
    with pytest.raises(ValueError, match="`foreground`"):
        PatchDataset(phantoms, patch_size=(1, 2, 2), foreground=2)
    with pytest.raises(ValueError, match="`patch_size`"):
        PatchDataset(phantoms, patch_size=(0, 2, 2))
    with pytest.raises(KeyError, match="no case"):
        phantoms["unknown"]


def test_a_set_prepared_again_is_read_again(tmp_path: Path) -> None:
    """Open arrays are cached; a new set in the same folder must not be read from the cache."""
    out = tmp_path / "out"
    prepare(PhantomSource(dims=2, cases=3, size=32), out)
    before = open_dataset(out)["phantom_0000"].image()
    out.rename(tmp_path / "old")
    prepare(PhantomSource(dims=2, cases=3, size=32, seed=9), out)
    assert not np.array_equal(before, open_dataset(out)["phantom_0000"].image())


def test_folder_set_runs_through_a_loader(tmp_path: Path) -> None:
    source = FolderSource(folder_tree(tmp_path / "source"))
    slices = SliceDataset(prepare(source, tmp_path / "out").dataset, "train")
    batch = next(iter(make_loader(slices, 2)))
    assert batch.image.shape == (2, 1, 32, 32)
    assert set(batch.target.unique().tolist()) <= {-100, 0, 1}
