"""Phantoms: generated abdomens whose true class probabilities are known.

A rater draws organ o wherever d_o(x) + σ_o(x) · ε(x) > 0: d_o is the signed distance to the
edge of the organ in millimeters, ε a smooth Gaussian field of unit variance drawn for every
rater, and σ_o the disagreement. σ_o grows where the image is ambiguous: where the edge is blurred
and where the organ's contrast fades. Hence each rater includes x with probability
Φ(d_o(x) / σ_o(x)), exactly; later organs lie over earlier ones, so the probability of a class is

    P(o) = Φ_o · Π_{later p} (1 − Φ_p).

The training label is one rater's drawing, or the majority of several, which are then stored too.
The probabilities are stored as `truth`.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfftn, rfftn
from scipy.special import ndtr

from segcal.core.checks import check_int
from segcal.data.case import Case, majority
from segcal.data.grid import GridRecipe, plan_grid
from segcal.data.intensity import Intensity, normalize

CLASSES = {0: "background", 1: "liver", 2: "spleen", 3: "kidneys", 4: "lesion"}
FIELD_OF_VIEW_MM = 192.0
SLICE_MM = 4.0
INTENSITY = Intensity(kind="zscore")

Field = NDArray[np.float32]

# Center and radii (z, y, x) in mm, brightness. Kidneys are a pair; the lesion sits in the liver.
_LIVER = ((0.0, -8.0, -34.0), (34.0, 34.0, 38.0), 0.66)
_SPLEEN = ((2.0, -4.0, 52.0), (22.0, 24.0, 15.0), 0.58)
_KIDNEYS = (((0.0, 34.0, -36.0), (0.0, 34.0, 36.0)), (26.0, 17.0, 13.0), 0.78)
_LESION_BRIGHTNESS = 0.46
# How much of a rater's deviation is a habit (drawing everything large or small).
_HABIT = 0.3
_DRAWING_MM = 9.0
_LONG_MM = 1e6


@dataclass(frozen=True)
class PhantomSpec:
    """`dims` 2: single slices, 3: volumes of `slices` slices; `size`: height and width.

    `raters` is the number of drawings of each case.
    """

    dims: int = 3
    size: int = 96
    slices: int = 16
    seed: int = 0
    raters: int = 1

    def __post_init__(self) -> None:
        check_int("dims", self.dims, low=2, high=3)
        check_int("size", self.size, low=32, high=1024)
        check_int("slices", self.slices, low=4, high=512)
        check_int("seed", self.seed, low=0)
        check_int("raters", self.raters, low=1, high=255)

    @property
    def shape(self) -> tuple[int, int, int]:
        return (1 if self.dims == 2 else self.slices), self.size, self.size

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        in_plane = FIELD_OF_VIEW_MM / self.size
        return SLICE_MM, in_plane, in_plane


@dataclass(frozen=True)
class Phantom:
    """One generated patient: the image (Z, Y, X), and the rater model behind its labels."""

    image: NDArray[np.float32]
    distance_mm: Field
    disagreement_mm: Field
    spacing_mm: tuple[float, float, float]

    @property
    def truth(self) -> NDArray[np.float32]:
        """True probability of each class, background first, (K, Z, Y, X)."""
        inside = ndtr(self.distance_mm / self.disagreement_mm)
        left = np.ones_like(inside[0])
        probs = []
        for probability in inside[::-1]:
            probs.append(probability * left)
            left = left * (1.0 - probability)
        return np.stack([left, *probs[::-1]]).astype(np.float32)

    def draw(self, rng: np.random.Generator) -> NDArray[np.uint8]:
        """One rater's label map (Z, Y, X)."""
        label = np.zeros(self.image.shape, dtype=np.uint8)
        organs = zip(self.distance_mm, self.disagreement_mm, strict=True)
        for index, (distance, sigma) in enumerate(organs, start=1):
            field = smooth_field(rng, self.image.shape, self.spacing_mm, _DRAWING_MM)
            habit = rng.standard_normal()
            wobble = math.sqrt(1 - _HABIT) * field + math.sqrt(_HABIT) * float(habit)
            label[distance + sigma * wobble > 0] = index
        return label


def smooth_field(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    spacing_mm: tuple[float, ...],
    length_mm: float,
) -> Field:
    """A periodic Gaussian random field with zero mean, unit variance and the given smoothness."""
    field = rfftn(rng.standard_normal(shape, dtype=np.float32))
    variance = 1.0
    for axis, (size, spacing) in enumerate(zip(shape, spacing_mm, strict=True)):
        # A Gaussian's transfer function, axis by axis; the last one is stored in half.
        wave = 2 * np.pi * np.fft.fftfreq(size, d=spacing) * length_mm
        transfer = np.exp(-(wave**2) / 2)
        variance *= float((transfer**2).mean())
        stored = transfer[: field.shape[axis]].astype(np.float32)
        field *= stored.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.asarray(irfftn(field, s=shape) / np.float32(np.sqrt(variance)))


def generate(spec: PhantomSpec, index: int) -> Phantom:
    """Patient number `index`; the same spec and index give the same patient."""
    rng = np.random.default_rng([spec.seed, index])
    shape, spacing = spec.shape, spec.spacing_mm
    axes = [(np.arange(n) - (n - 1) / 2) * s for n, s in zip(shape, spacing, strict=True)]
    where = np.stack(np.meshgrid(*axes, indexing="ij")).astype(np.float32)
    skin = _blob(rng, where, (0.0, 4.0, 0.0), (_LONG_MM, 70.0, 86.0), vary=0.25)
    distance, brightness = _organs(rng, where, skin)

    # Both fields are even over [0, 1]: somewhere each organ is sharp, somewhere it is lost.
    blur_mm = 0.8 + 4.2 * ndtr(smooth_field(rng, shape, spacing, 28.0)) ** 2
    contrast = 0.25 + 0.75 * ndtr(smooth_field(rng, shape, spacing, 24.0))
    disagreement = 0.4 + 0.55 * blur_mm + 2.4 * (1.0 - contrast)

    image = _body(rng, where, skin)
    for edge_mm, level in zip(distance, brightness, strict=True):
        image = image + ndtr(edge_mm / blur_mm) * contrast * (level - image)
    image = image + 0.02 * smooth_field(rng, shape, spacing, 3.0) * (image > 0.1)
    image = image * np.exp(0.18 * smooth_field(rng, shape, spacing, 60.0))
    noise = 0.035 * rng.standard_normal((2, *shape), dtype=np.float32)
    magnitude = np.hypot(image + noise[0], noise[1])
    return Phantom(
        image=magnitude.astype(np.float32),
        distance_mm=distance,
        disagreement_mm=np.broadcast_to(disagreement, distance.shape).copy(),
        spacing_mm=spacing,
    )


def make_case(spec: PhantomSpec, index: int) -> Case:
    """The phantom as a case: the label of one rater or of several, and the truth beside it."""
    phantom = generate(spec, index)
    raters = {
        str(number): phantom.draw(np.random.default_rng([spec.seed, index, number]))
        for number in range(1, spec.raters + 1)
    }
    image, record = normalize(phantom.image, INTENSITY)
    z, y, x = spec.spacing_mm
    name = f"phantom_{index:04d}"
    return Case(
        name=name,
        patient=name,
        image=image[None],
        label=raters["1"] if len(raters) == 1 else majority(raters.values()),
        grid=plan_grid(spec.shape, spec.spacing_mm, np.diag([x, y, z, 1.0]), GridRecipe()),
        intensity=(record,),
        voxels_sha256=hashlib.sha256(phantom.image.tobytes()).hexdigest(),
        truth=phantom.truth,
        raters=raters if len(raters) > 1 else {},
    )


def _organs(rng: np.random.Generator, where: Field, skin: Field) -> tuple[Field, tuple[float, ...]]:
    """Signed distances (O, Z, Y, X), positive inside, and the organs' brightness."""
    liver = _blob(rng, where, _LIVER[0], _LIVER[1])
    spleen = _blob(rng, where, _SPLEEN[0], _SPLEEN[1])
    pair = [_blob(rng, where, center, _KIDNEYS[1]) for center in _KIDNEYS[0]]
    radius = rng.uniform(6.0, 12.0)
    offset = rng.uniform(-1.0, 1.0, size=3) * (12.0 if where.shape[1] > 1 else 0.0, 14.0, 14.0)
    center = tuple(np.array(_LIVER[0]) + offset)
    # Organs stay inside the body wall, the lesion inside the liver.
    inside_wall = skin - 10.0
    liver, spleen = np.minimum(liver, inside_wall), np.minimum(spleen, inside_wall)
    kidneys = np.minimum(np.maximum(*pair), inside_wall)
    lesion = np.minimum(_blob(rng, where, center, (radius,) * 3), liver)
    if rng.uniform() < 0.25:
        # A quarter of the patients have none: absent classes are part of the task.
        lesion = np.full_like(lesion, -100.0)
    distances = np.stack([liver, spleen, kidneys, lesion])
    return distances, (_LIVER[2], _SPLEEN[2], _KIDNEYS[2], _LESION_BRIGHTNESS)


def _blob(
    rng: np.random.Generator,
    where: Field,
    center: tuple[float, ...],
    radii: tuple[float, ...],
    vary: float = 1.0,
) -> Field:
    """Signed distance (approximate, mm) to a rotated ellipsoid with a wavy outline."""
    size = [r * math.exp(0.12 * vary * rng.standard_normal()) for r in radii]
    middle = [c + vary * rng.uniform(-5.0, 5.0) for c in center]
    if where.shape[1] == 1:
        middle[0] = 0.0
    z, y, x = (w - m for w, m in zip(where, middle, strict=True))
    turn = float(0.3 * vary * rng.standard_normal())
    sine, cosine = math.sin(turn), math.cos(turn)
    y, x = cosine * y - sine * x, sine * y + cosine * x
    rho = np.sqrt((z / size[0]) ** 2 + (y / size[1]) ** 2 + (x / size[2]) ** 2)
    angle = np.arctan2(y, x)
    wave = np.zeros_like(rho)
    for order in range(2, 6):
        height = float(0.15 * vary / order * rng.standard_normal())
        phase = float(rng.uniform(0, 2 * np.pi)) + float(rng.normal(0, 0.03)) * z
        wave += height * np.cos(order * angle + phase)
    scale = math.sqrt(size[1] * size[2])
    return np.asarray((1.0 + wave - rho) * scale)


def _body(rng: np.random.Generator, where: Field, skin: Field) -> Field:
    """Air, skin fat, soft tissue, a spine and an aorta: what the organs lie in."""
    spine = _blob(rng, where, (0.0, 46.0, 0.0), (_LONG_MM, 12.0, 13.0), vary=0.25)
    aorta = _blob(rng, where, (0.0, 24.0, 6.0), (_LONG_MM, 7.0, 7.0), vary=0.25)
    image = 0.03 + 0.82 * ndtr(skin / 1.5)
    image = image + ndtr((skin - 7.0) / 2.0) * (0.36 - image)
    image = image + ndtr(spine / 1.5) * (0.2 - image)
    return np.asarray(image + ndtr(aorta / 1.5) * (0.9 - image))
