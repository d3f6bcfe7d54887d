"""Several readers: found in folders, stored as they are, and turned into targets."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.trees import save, scan
from segcal.core.errors import PathError
from segcal.data import (
    FolderSource,
    PatchDataset,
    PhantomSource,
    PreparedDataset,
    ResidentLoader,
    SliceDataset,
    StreamLoader,
    check_dataset,
    prepare,
)
from segcal.data.loaders import resident_bytes

SHAPE = (32, 32, 3)


def drawing(values: dict[int, int]) -> np.ndarray:
    """Label → number of rows of the first slice that it covers."""
    label = np.zeros(SHAPE, dtype=np.uint8)
    row = 0
    for value, rows in values.items():
        label[:, row : row + rows, 0] = value
        row += rows
    return label


def readers_tree(root: Path, suffix: bool = False) -> Path:
    """Two cases: readers 1, 2, 10 of "x"; of "y", reader 2 has no file and 10 saw nothing."""
    drawn = {
        ("x", "1"): {1: 4}, ("x", "2"): {1: 2, 2: 2}, ("x", "10"): {1: 2, 3: 2},
        ("y", "1"): {2: 5}, ("y", "10"): {},
    }  # fmt: skip
    for number, case in enumerate("xy"):
        save(root / "images" / f"{case}.nii.gz", scan(SHAPE, number))
    for (case, reader), rows in drawn.items():
        name = f"labels/{case}_rater{reader}" if suffix else f"raters/{reader}/{case}"
        save(root / f"{name}.nii.gz", drawing(rows))
    return root


@pytest.mark.parametrize("suffix", [False, True])
def test_both_layouts_are_stored_as_they_are(tmp_path: Path, suffix: bool) -> None:
    root = readers_tree(tmp_path / "source", suffix)
    dataset = prepare(FolderSource(root), tmp_path / "out").dataset
    assert check_dataset(tmp_path / "out").problems == ()
    assert dict(check_dataset(tmp_path / "out").summary)["readers"] == "1, 10, 2"
    # Label 3 was drawn by one reader only.
    assert dataset.classes == {0: "background", 1: "class 1", 2: "class 2", 3: "class 3"}
    x, y = dataset["x"], dataset["y"]
    assert x.readers == ("1", "10", "2")
    assert x.raters().shape == (3, 3, 32, 32)
    assert x.stored("raters").chunks == (3, 1, 32, 32)
    np.testing.assert_array_equal(x.raters()[0, 0, :, 0], [1] * 4 + [0] * 28)
    np.testing.assert_array_equal(x.raters()[2], drawing({1: 2, 2: 2}).T)
    # Rows 2 and 3 are a tie of 1, 2 and 3.
    np.testing.assert_array_equal(x.label()[0, :, 0], [1] * 4 + [0] * 28)
    box = (slice(0, 2), slice(1, 5), slice(0, 3))
    np.testing.assert_array_equal(x.raters(box), x.raters()[:, 0:2, 1:5, 0:3])
    third = pytest.approx(1 / 3)
    frequency = x.frequency(4)
    assert frequency.dtype == np.float32
    assert frequency[:, 0, 3, 0].tolist() == [0, third, third, third]
    # An empty mask counts, a missing one does not.
    assert y.properties.readers == {"1": {0: 3 * 1024 - 160, 2: 160}, "10": {0: 3 * 1024}, "2": {}}
    assert (y.raters()[2] == 255).all()
    assert y.frequency(4)[:, 0, 0, 0].tolist() == [0.5, 0, 0.5, 0]
    assert not y.label().any()  # a tie of one against one
    np.testing.assert_array_equal(y.frequency(4, box), y.frequency(4)[(slice(None), *box)])
    # A file that appears later is noticed.
    new = "labels/y_rater2.nii.gz" if suffix else "raters/2/y.nii.gz"
    save(root / new, drawing({2: 5}))
    again = prepare(FolderSource(root), tmp_path / "out")
    assert (again.kept, again.written) == (1, 1)
    assert again.dataset["y"].label().any()


def test_padding_is_ignored_in_every_map(tmp_path: Path) -> None:
    save(tmp_path / "s/images/x.nii.gz", scan((40, 20, 2), 0))
    for reader in "ab":
        label = np.zeros((40, 20, 2), dtype=np.uint8)
        label[:5] = 1
        save(tmp_path / f"s/raters/{reader}/x.nii.gz", label)
    case = prepare(FolderSource(tmp_path / "s"), tmp_path / "out").dataset["x"]
    slices = SliceDataset(prepare(FolderSource(tmp_path / "s"), tmp_path / "out").dataset, "all",
                          size=(128, 128), raters="mean")  # fmt: skip
    assert case.shape == (2, 32, 64)
    soft = slices[0].target
    assert soft.shape == (2, 128, 128)
    assert (soft[:, 0] == 0).all()
    assert soft[:, 64, 64].sum() == 1


@pytest.mark.parametrize(
    ("change", "name", "problem"),
    [
        (lambda root: (root / "raters/1/x.nii.gz").rename(root / "raters/1/z.nii.gz"),
         "z.nii.gz", "no image"),
        (lambda root: [p.unlink() for p in (root / "raters").glob("*/y.nii.gz")],
         "raters", "mask of y"),
        (lambda root: save(root / "raters/10/x.nii.gz", np.zeros((4, 4, 4), np.uint8)),
         "x.nii.gz", "shape"),
        (lambda root: save(root / "raters/10/x.nii.gz", np.full(SHAPE, 0.5, np.float32)),
         "x.nii.gz", "whole numbers"),
    ],
)  # fmt: skip
def test_invalid_readers(tmp_path: Path, change: object, name: str, problem: str) -> None:
    root = readers_tree(tmp_path / "source")
    change(root)  # type: ignore[operator]
    with pytest.raises(PathError, match=problem) as caught:
        prepare(FolderSource(root, classes="a,b,c"), tmp_path / "out")
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_check_finds_changed_readers(tmp_path: Path) -> None:
    prepare(FolderSource(readers_tree(tmp_path / "source")), tmp_path / "out")
    case = tmp_path / "out/cases/x"
    other = tmp_path / "out/cases/y"
    (case / "raters.b2nd").write_bytes((other / "raters.b2nd").read_bytes())
    (line,) = check_dataset(tmp_path / "out").problems
    assert "raters.b2nd" in line


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    out = tmp_path_factory.mktemp("phantoms") / "out"
    return prepare(PhantomSource(cases=6, size=32, slices=4, raters=3), out).dataset


def test_simulated_readers(phantoms: PreparedDataset, tmp_path: Path) -> None:
    case = phantoms["phantom_0002"]
    assert case.readers == ("1", "2", "3")
    assert len(np.unique(case.raters().reshape(3, -1), axis=0)) == 3
    counts = np.stack([(case.raters() == k).sum(0) for k in range(5)])
    np.testing.assert_array_equal(case.label(), counts.argmax(0))
    assert check_dataset(phantoms.root).problems == ()
    one = prepare(PhantomSource(cases=6, size=32, slices=4), tmp_path / "one").dataset
    assert one["phantom_0002"].readers == ()
    np.testing.assert_array_equal(one["phantom_0002"].label(), case.raters()[0])
    with pytest.raises(PathError, match="one label map"):
        one["phantom_0002"].raters()
    with pytest.raises(PathError, match=r"data\.raters"):
        SliceDataset(one, raters="mean")
    with pytest.raises(ValueError, match="`raters`"):
        SliceDataset(one, raters="median")  # type: ignore[arg-type]


def test_targets_of_slices(phantoms: PreparedDataset) -> None:
    case = phantoms[phantoms.splits.train[1]]
    mean = SliceDataset(phantoms, raters="mean")[6]
    np.testing.assert_array_equal(mean.target, case.frequency(5)[:, 2])
    assert torch.equal(SliceDataset(phantoms)[6].target, torch.from_numpy(case.label()[2]).long())
    items = SliceDataset(phantoms, raters="random", seed=3)
    picked = []
    for epoch in range(12):
        items.set_epoch(epoch)
        target = items[6].target
        assert torch.equal(target, items[6].target)
        assert target.dtype == torch.int64
        picked.append([np.array_equal(target, r) for r in case.raters()[:, 2]])
    assert (np.sum(picked, axis=1) >= 1).all()
    assert (np.sum(picked, axis=0) >= 1).all()  # every reader is drawn


def test_random_readers_are_drawn_evenly_and_only_if_they_judged(
    phantoms: PreparedDataset,
) -> None:
    items = SliceDataset(phantoms, raters="random")
    stored = torch.arange(4, dtype=torch.uint8).view(1, 4, 1, 1).repeat(4000, 1, 2, 2)
    stored[:, 1] = 255
    draws = torch.from_numpy(np.random.default_rng(0).random(4000, dtype=np.float32))
    counts = items.targets(stored, draws)[:, 0, 0].bincount(minlength=4)
    assert counts[1] == 0
    assert counts[[0, 2, 3]].min() > 1200
    edges = torch.tensor([0.0, 1 - 2**-24])
    assert items.targets(stored[:2], edges)[:, 0, 0].tolist() == [0, 3]
    nobody = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    assert (items.targets(nobody, draws[:1]) == -100).all()


@pytest.mark.parametrize("raters", ["random", "mean"])
def test_loaders_agree_and_resume(phantoms: PreparedDataset, raters: str) -> None:
    def slices() -> SliceDataset:
        return SliceDataset(phantoms, raters=raters, seed=1)  # type: ignore[arg-type]

    resident = ResidentLoader(slices(), 3, seed=1)
    expected = [[batch.target for batch in resident] for _ in range(2)]
    assert any(not torch.equal(a, b) for a, b in zip(*expected, strict=True))
    for workers in (0, 1):
        stream = StreamLoader(slices(), 3, workers=workers, seed=1)
        for epoch in expected:
            assert all(torch.equal(a, b.target) for a, b in zip(epoch, stream, strict=True))
    first = ResidentLoader(slices(), 3, seed=1)
    _ = list(first), next(iter(first))
    for kind in (ResidentLoader, StreamLoader):
        resumed = kind(slices(), 3, seed=1)
        resumed.load_state_dict(first.state_dict())
        rest = [batch.target for batch in resumed]
        assert all(torch.equal(a, b) for a, b in zip(expected[1][1:], rest, strict=True))
    shares = [StreamLoader(slices(), 2, seed=1, rank=r, world_size=2) for r in range(2)]
    whole = ResidentLoader(slices(), 4, seed=1)
    for batch, *parts in zip(whole, *shares, strict=True):
        assert torch.equal(batch.target, torch.cat([p.target for p in parts])[: len(batch.target)])
    assert resident_bytes(slices()) == len(slices()) * 32 * 32 * (2 + 3)


def test_targets_of_patches(phantoms: PreparedDataset) -> None:
    size = (6, 16, 16)  # taller than the case: padding is ignored
    mean = PatchDataset(phantoms, patch_size=size, raters="mean", seed=2)
    drawn = PatchDataset(phantoms, patch_size=size, raters="random", seed=2)
    label = PatchDataset(phantoms, patch_size=size, seed=2)
    for index in range(len(mean)):
        soft, one, majority = (items[index] for items in (mean, drawn, label))
        assert torch.equal(soft.image, one.image)
        assert soft.target.shape == (5, *size)
        assert (soft.target[:, 0] == 0).all()
        assert (one.target[0] == -100).all()
        total = soft.target[:, 1:5].sum(0)
        torch.testing.assert_close(total, torch.ones_like(total))
        assert torch.equal(soft.target[:, 1:5].argmax(0), majority.target[1:5])
        assert (soft.target[:, 1:5].gather(0, one.target[None, 1:5]) > 0).all()
    first = drawn[0].target
    assert any(not torch.equal(first, (drawn.set_epoch(e), drawn[0])[1].target) for e in (1, 2))


@pytest.mark.realdata
def test_some_lidc_nodules(data_root: Path, tmp_path: Path) -> None:
    lidc = data_root / "lidc"
    if not lidc.is_dir():
        pytest.skip(f"no LIDC below {data_root}")
    source = tmp_path / "lidc"
    names = [f"LIDC-IDRI-{n}.nii.gz" for n in ("0006_n0", "0012_n0", "0037_n0")]
    for folder in ("images", *(f"raters/{reader}" for reader in "1234")):
        (source / folder).mkdir(parents=True)
        for name in names:
            (source / folder / name).symlink_to(lidc / folder / name)
    dataset = prepare(FolderSource(source, classes="nodule"), tmp_path / "out").dataset
    assert check_dataset(tmp_path / "out").problems == ()
    # One of four readers saw the first nodule; three of four saw the second.
    counts = [dataset[name[:-7]].properties.readers for name in names[:2]]
    assert [sum(1 in each for each in one.values()) for one in counts] == [1, 3]
    assert counts[1]["2"] == {0: 65454, 1: 82}
    assert not dataset[names[0][:-7]].label().any()
