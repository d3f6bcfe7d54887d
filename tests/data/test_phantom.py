"""Phantoms: the stored truth is exact, and raters disagree where the image is ambiguous."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from segcal.data import PhantomSource, check_dataset, prepare
from segcal.data.phantom import PhantomSpec, generate, make_case, smooth_field


def draws(index: int, raters: int, spec: PhantomSpec) -> tuple[np.ndarray, np.ndarray]:
    """(truth, how often each class was drawn), both (K, Z, Y, X)."""
    phantom = generate(spec, index)
    counts = np.zeros(phantom.truth.shape)
    for rater in range(raters):
        label = phantom.draw(np.random.default_rng([7, rater]))
        counts += label == np.arange(len(counts)).reshape(-1, 1, 1, 1)
    return phantom.truth, counts / raters


@pytest.mark.parametrize("dims", [2, 3])
def test_truth_is_what_many_raters_draw(dims: int) -> None:
    raters = 600
    truth, drawn = draws(0, raters, PhantomSpec(dims=dims, size=48, slices=6))
    np.testing.assert_allclose(truth.sum(axis=0), 1, atol=1e-5)
    spread = np.sqrt(np.maximum(truth * (1 - truth), 1e-3) / raters)
    z = (drawn - truth) / spread
    # As many voxels beyond 2 and 5 deviations as chance allows, and no bias.
    uncertain = (truth > 0.02) & (truth < 0.98)
    assert uncertain.sum() > 500
    assert np.mean(np.abs(z[uncertain]) > 2) < 0.12
    assert np.abs(z).max() < 6
    assert abs(np.mean((drawn - truth)[uncertain])) < 0.02


def test_fields_have_unit_variance() -> None:
    rng = np.random.default_rng(0)
    fields = np.stack([smooth_field(rng, (5, 24, 24), (4.0, 2.0, 2.0), 9.0) for _ in range(400)])
    assert abs(fields.mean()) < 0.08
    np.testing.assert_allclose(fields.std(axis=0), 1, atol=0.16)
    # Smooth: neighbors agree, distant voxels do not.
    assert np.corrcoef(fields[:, 2, 0, 0], fields[:, 2, 0, 1])[0, 1] > 0.9
    assert abs(np.corrcoef(fields[:, 2, 0, 0], fields[:, 2, 12, 12])[0, 1]) < 0.2


def test_disagreement_grows_where_the_image_is_ambiguous() -> None:
    """Measured on the image alone: weak edges go with wide disagreement."""
    edges, widths = [], []
    spec = PhantomSpec(dims=2, size=128)
    for index in range(30):
        phantom = generate(spec, index)
        image, spacing = phantom.image[0], phantom.spacing_mm[1]
        gradient = np.hypot(*np.gradient(image))
        for organ in (0, 1, 2):
            near = np.abs(phantom.distance_mm[organ, 0]) < 2 * spacing
            # Each organ's edge in quarters of the image, to see places and not only patients.
            for rows in (slice(0, 64), slice(64, 128)):
                for columns in (slice(0, 64), slice(64, 128)):
                    mask = near[rows, columns]
                    if mask.sum() > 60:
                        edges.append(gradient[rows, columns][mask].mean())
                        sigma = phantom.disagreement_mm[organ, 0, rows, columns]
                        widths.append(sigma[mask].mean())
    assert len(edges) > 60
    assert spearmanr(edges, widths).statistic < -0.4


@pytest.mark.parametrize("dims", [2, 3])
def test_the_best_possible_answer_is_not_perfect(dims: int) -> None:
    """Dice of the most probable labels against fresh raters: the limit for any network."""
    spec = PhantomSpec(dims=dims, size=96 if dims == 3 else 128)
    scores: dict[int, list[float]] = {1: [], 2: [], 3: [], 4: []}
    for index in range(6):
        phantom = generate(spec, index)
        best = phantom.truth.argmax(axis=0)
        for rater in range(4):
            label = phantom.draw(np.random.default_rng([11, rater]))
            for value, found in scores.items():
                if (label == value).any():
                    both = ((best == value) & (label == value)).sum()
                    found.append(2 * both / ((best == value).sum() + (label == value).sum()))
    means = {value: np.mean(found) for value, found in scores.items()}
    assert all(0.5 < mean < 0.97 for mean in means.values()), means
    assert means[4] < means[1]


def test_seeds_and_indices_matter_and_repeat() -> None:
    spec = PhantomSpec(dims=2, size=64)
    one, again = make_case(spec, 3), make_case(spec, 3)
    np.testing.assert_array_equal(one.image, again.image)
    np.testing.assert_array_equal(one.label, again.label)
    assert one.voxels_sha256 == again.voxels_sha256
    assert make_case(spec, 4).voxels_sha256 != one.voxels_sha256
    other = make_case(PhantomSpec(dims=2, size=64, seed=1), 3)
    assert other.voxels_sha256 != one.voxels_sha256


def test_prepared_phantoms_store_their_truth(tmp_path: Path) -> None:
    source = PhantomSource(dims=3, cases=5, size=48, slices=6)
    spec = source.spec
    dataset = prepare(source, tmp_path / "out").dataset
    assert dataset.info.has_truth
    for index, case in enumerate(dataset):
        truth = case.truth()
        assert truth is not None
        assert truth.shape == (5, 6, 48, 48)
        np.testing.assert_allclose(truth, generate(spec, index).truth, atol=1e-3)
        assert case.stored("truth").chunks == (5, 1, 48, 48)
        np.testing.assert_array_equal(case.label(), make_case(spec, index).label)
        assert case.spacing_mm == (4.0, 4.0, 4.0)
    assert check_dataset(tmp_path / "out").problems == ()
    # A larger set keeps the existing cases.
    more = prepare(PhantomSource(cases=7, size=48, slices=6), tmp_path / "out")
    assert (more.kept, more.written) == (5, 2)


@pytest.mark.parametrize(
    ("name", "value"), [("dims", 4), ("cases", 0), ("size", 8), ("slices", 1), ("seed", -1)]
)
def test_arguments_are_checked(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        PhantomSource(**{name: value})
