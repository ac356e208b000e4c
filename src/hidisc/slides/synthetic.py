"""Pixels -> a pyramidal TIFF as scanners write them; for drawn slides, tests and benchmarks.

Draws haematoxylin-and-eosin-like slides, so that everything can be tried and tested without a patient's data.

What is drawn follows the hierarchy the method learns from. The *diagnosis* sets the nuclei (how many, how large,
how long, how coarse their chromatin); the *patient* has its own values around those; each *slide* is cut and
stained on its own; and each *field of view* has a strong variation of light, stain and focus, larger than any
between slides. So distinguishing one patch from another is easy by colour and teaches nothing of the diagnosis, while
what the patches of one patient share is its morphology.

Pictures are built in optical density (natural logarithm): concentration maps of the two stains times the stain
vectors, then Beer-Lambert. The shape of tissue is in micrometres; only the raster of fields is in pixels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, write_atomic
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.spreadsheet import format_csv
from hidisc.slides.slide import Pixels

SMALLEST_LEVEL_PX = 64


def write_pyramid(path: Path, pixels: NDArray[np.uint8], mpp: float, tile_px: int = 256, step: int = 2) -> None:
    """Write `pixels` (H, W, 3) as a tiled JPEG TIFF, each level `step` times coarser by box average, down to 64 px.

    OpenSlide reads it as `generic-tiff`, with `mpp` from the resolution tags. The file appears whole or not at all,
    and holds no date or version, so the same pixels give the same bytes.
    """
    beside = path.with_name(path.name + ".part")
    with tifffile.TiffWriter(beside, bigtiff=pixels.nbytes > 2**31) as tiff:
        level, level_mpp = pixels, mpp
        while True:
            tiff.write(
                level,
                photometric="rgb",
                tile=(tile_px, tile_px),
                compression="jpeg",
                compressionargs={"level": 93},
                subsampling=(1, 1),  # full-resolution chroma: the stain is in it
                subfiletype=int(level is not pixels),
                resolution=(1e4 / level_mpp, 1e4 / level_mpp),
                resolutionunit="CENTIMETER",
                software=False,
                metadata=None,
            )
            if min(level.shape[:2]) < step * SMALLEST_LEVEL_PX:
                break
            height, width = (side // step * step for side in level.shape[:2])
            level = np.asarray(Image.fromarray(level[:height, :width]).reduce(step))
            level_mpp *= step
    beside.replace(path)


Map = NDArray[np.float32]


@dataclass(frozen=True)
class Morphology:
    """The nuclei of a diagnosis, or of one patient: all that distinguishes a class."""

    nuclei_per_mm2: float
    radius_um: float
    """Geometric mean of the two half-axes, so elongation leaves the area alone."""
    axis_ratio: float
    """Short axis over long axis: 1 is a disc."""
    chromatin: float
    """Contrast of the chromatin: 0 is smooth, 1 is coarse clumps."""
    glands_um: tuple[float, float] | None = None
    """Length and width (standard deviations) of the hollows of glands; None: there are no glands."""


@dataclass(frozen=True)
class Staining:
    """What one slide's cutting, staining and scanning determine."""

    vectors: Map
    """(2, 3): unit optical density of haematoxylin and of eosin in R, G, B."""
    gains: Map
    """(2,): how much of each stain the slide took."""
    white: Map
    """(3,): what the scanner records of clear glass, 0 to 1."""


# Per 64 px square at 0.5 um/px these are 14, 26, 14 and 24 nuclei of radius 4.0, 3.4, 5.2 and 3.0 px.
DIAGNOSES = {
    "sparse-round": Morphology(13_700, 2.0, 0.85, 0.45),
    "dense-round": Morphology(25_400, 1.7, 0.85, 0.60),
    "large-oval": Morphology(13_700, 2.6, 0.60, 0.60),
    "dense-spindle": Morphology(23_400, 1.5, 0.55, 0.45),
}
SITES = {"north": (0.94, 0.93, 0.94), "river": (0.93, 0.93, 0.95), "harbour": (0.95, 0.93, 0.93)}
"""Each site's scanner, by what it records of clear glass; sites are spread evenly over the diagnoses."""

# Haematoxylin and eosin as in Macenko et al. 2009 (the reference of most normalisation code).
STAIN_VECTORS = np.array([[0.5626, 0.7201, 0.4062], [0.2159, 0.8012, 0.5581]], np.float32)

# Spreads are standard deviations of logarithms, except those of the stain vectors, the white and the light.
PATIENT_DENSITY_SD, PATIENT_SHAPE_SD = 0.12, 0.06
SLIDE_VECTOR_SD, SLIDE_GAIN_SD, SLIDE_WHITE_SD = 0.03, 0.08, 0.006
FIELD_GAIN_SD, FIELD_LIGHT_SD, FIELD_TILT_SD = 0.35, 0.08, 0.02
FIELD_DEFOCUS_UM = 1.0
"""Width of the blur that a field out of focus is blended with."""
CLUSTER_UM, CLUSTER_SD = 12, 0.25
MARGIN_FIELDS = 1


def draw_cohort(
    out: AnyPath,
    *,
    patients: int = 72,
    slides: int = 3,
    fields: int = 20,
    field_px: int = 48,
    mpp: float = 0.5,
    seed: int = 0,
    diagnoses: Mapping[str, Morphology] = DIAGNOSES,
) -> Path:
    """Writes `out/slides/*.tiff` and `out/cohort.csv`, and returns the path of the latter.

    Diagnoses take turns over the patients, so they are balanced. A slide depends on `seed` and its own number
    only, so a larger cohort begins with the smaller one. Drawing again gives the same bytes.
    """
    out = Path(out)
    for name, value in (("patients", patients), ("slides", slides), ("fields", fields)):
        if value < 1:
            raise UserError(f"{name} is {value}. At least 1 is needed to draw a cohort. Raise it.")
    (out / "slides").mkdir(parents=True, exist_ok=True)
    rows = []
    for p in range(patients):
        label = list(diagnoses)[p % len(diagnoses)]
        site = list(SITES)[p // len(diagnoses) % len(SITES)]
        morphology = draw_patient(diagnoses[label], make_rng(seed, Purpose.DRAWN_PATIENT, p))
        for s in range(slides):
            rng = make_rng(seed, Purpose.DRAWN_SLIDE, p, s)
            staining = draw_staining(SITES[site], rng)
            pixels = draw_slide(morphology, staining, rng, fields=fields, field_px=field_px, mpp=mpp)
            slide = f"P{p + 1:03d}-S{s + 1}"
            write_pyramid(out / "slides" / f"{slide}.tiff", pixels, mpp)
            rows.append((f"P{p + 1:03d}", slide, f"slides/{slide}.tiff", label, site))
    table = out / "cohort.csv"
    write_atomic(table, format_csv(("patient", "slide", "path", "label", "site"), rows).encode())
    return table


def draw_patient(diagnosis: Morphology, rng: np.random.Generator) -> Morphology:
    """One patient's own morphology, around its diagnosis."""
    density, radius, ratio, chromatin = np.exp(rng.normal(0, PATIENT_SHAPE_SD, 4)).tolist()
    return replace(
        diagnosis,
        nuclei_per_mm2=diagnosis.nuclei_per_mm2 * density ** (PATIENT_DENSITY_SD / PATIENT_SHAPE_SD),
        radius_um=diagnosis.radius_um * radius,
        axis_ratio=min(diagnosis.axis_ratio * ratio, 1.0),
        chromatin=min(diagnosis.chromatin * chromatin, 1.0),
    )


def draw_staining(white: tuple[float, float, float], rng: np.random.Generator) -> Staining:
    """One slide's staining, scanned where clear glass is recorded as `white`."""
    vectors = np.clip(STAIN_VECTORS + rng.normal(0, SLIDE_VECTOR_SD, (2, 3)), 0.02, None)
    return Staining(
        vectors=(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32),
        gains=np.exp(rng.normal(0, SLIDE_GAIN_SD, 2)).astype(np.float32),
        white=np.clip(np.array(white) + rng.normal(0, SLIDE_WHITE_SD, 3), 0.85, 0.99).astype(np.float32),
    )


def draw_slide(
    morphology: Morphology,
    staining: Staining,
    rng: np.random.Generator,
    *,
    fields: int = 20,
    field_px: int = 48,
    mpp: float = 0.5,
) -> Pixels:
    """Returns the pixels (H, W, 3) of a slide: a near-square raster of fields with one field of glass around.

    H and W are whole multiples of `field_px`, so a grid of that size and stride from (0, 0) meets each field of
    view exactly. The tissue runs on from field to field; only its light, stain gains and focus change there.
    """
    if field_px < 16 or not 0.05 <= mpp <= 4:
        raise UserError(
            f"A field of {field_px} px at {mpp} um/px cannot be drawn. A field has at least 16 px, and a pixel "
            "0.05 to 4 um. Change field_px or mpp."
        )
    columns = math.ceil(math.sqrt(fields))
    rows = math.ceil(fields / columns)
    shape = (rows * field_px, columns * field_px)
    stains = _draw_tissue(morphology, shape, mpp, rng)  # (2, H, W) concentrations
    gains, blurs, light = _draw_fields(rows, columns, field_px, rng)
    blurred = np.stack([_blur(stain, FIELD_DEFOCUS_UM / mpp) for stain in stains])
    stains += (blurred - stains) * _spread(blurs, field_px)
    stains *= _spread(gains, field_px)
    stains *= staining.gains[:, None, None]
    seen = np.exp(-np.tensordot(stains, staining.vectors, axes=(0, 0))) * light[..., None]  # (H, W, 3)

    unused = np.repeat(np.arange(rows * columns) >= fields, field_px).reshape(rows, 1, -1)
    glass = np.broadcast_to(unused, (rows, field_px, columns * field_px)).reshape(shape)
    seen[glass] = 1.0
    margin = MARGIN_FIELDS * field_px
    whole = np.pad(seen, ((margin, margin), (margin, margin), (0, 0)), constant_values=1.0) * staining.white
    whole += rng.standard_normal(whole.shape, np.float32) * np.float32(0.008)  # the sensor
    return np.clip(whole * 255 + 0.5, 0, 255).astype(np.uint8)


def _draw_fields(
    rows: int, columns: int, field_px: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32], Map]:
    """What varies from field to field and is no diagnosis: stain gains (2, rows, columns), blur and light.

    Blur (rows, columns) is 0 in focus and 1 fully out of it; light is (H, W), about 1.
    """
    gains = np.exp(FIELD_GAIN_SD * rng.standard_normal((2, rows, columns)).clip(-2.5, 2.5))
    blurs = rng.uniform(0, 1, (rows, columns))
    level = 1 + FIELD_LIGHT_SD * rng.standard_normal((rows, 1, columns, 1)).clip(-2.5, 2.5)
    tilt = rng.normal(0, FIELD_TILT_SD, (2, rows, 1, columns, 1))
    at = np.linspace(-1, 1, field_px)
    y, x = at[None, :, None, None], at[None, None, None, :]
    light = level + tilt[0] * y + tilt[1] * x - 0.03 * (x * x + y * y)
    return gains.astype(np.float32), blurs.astype(np.float32), light.reshape(rows * field_px, -1).astype(np.float32)


def _spread(values: NDArray[np.float32], field_px: int) -> NDArray[np.float32]:
    """One value per field (..., rows, columns) -> one value per pixel (..., H, W)."""
    return values.repeat(field_px, axis=-2).repeat(field_px, axis=-1)


def _draw_tissue(
    morphology: Morphology, shape: tuple[int, int], mpp: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Concentrations (2, H, W) of haematoxylin and eosin: nuclei in cytoplasm, fibres between, a few gaps."""
    course = _smooth_noise(shape, 25 / mpp, 25 / mpp, 0.0, rng) * 0.6 + rng.uniform(0, math.pi)  # radians
    fibres = _draw_fibres(course, mpp, rng)
    nuclei = _draw_nuclei(morphology, course, mpp, rng)

    spread = _blur(np.minimum(nuclei, 1), 1.3 / mpp)
    cytoplasm = 1 - np.exp(-3.0 * spread)
    opening: Map = _smooth_noise(shape, 2.2 / mpp, 2.2 / mpp, 0.0, rng) + 0.5 * fibres
    gaps = _step((opening - 1.35) / 0.8) * (1 - cytoplasm) ** 2
    grain = _smooth_noise(shape, 0.5 / mpp, 0.5 / mpp, 0.0, rng)

    clumps = _smooth_noise(shape, 0.45 / mpp, 0.45 / mpp, 0.0, rng)
    nuclei *= np.clip(1 + 0.45 * morphology.chromatin * clumps, 0.2, 2.0)
    stroma = np.clip(0.50 + 0.20 * fibres + 0.05 * grain, 0.08, None) * (1 - 0.5 * cytoplasm)
    tissue = 1 - 0.93 * gaps
    if morphology.glands_um is not None:
        hollow = _draw_glands(morphology.glands_um, shape, mpp, rng)
        tissue = tissue * (1 - 0.85 * hollow)
        nuclei = nuclei * (1 - hollow)
    haematoxylin = 1.55 * nuclei + (0.06 + 0.14 * cytoplasm) * tissue
    eosin = (stroma + cytoplasm * (0.34 + 0.05 * grain)) * tissue * (1 - 0.3 * np.minimum(nuclei, 1))
    return np.stack([haematoxylin, eosin]).astype(np.float32)


def _draw_glands(glands_um: tuple[float, float], shape: tuple[int, int], mpp: float, rng: np.random.Generator) -> Map:
    """The hollows (H, W) of glands, 1 inside: a third of the tissue, whatever their shape."""
    length, width = glands_um
    noise = _smooth_noise(shape, length / mpp, width / mpp, rng.uniform(0, math.pi), rng)
    return _step((noise - np.quantile(noise, 0.67)) / 0.25)


def _draw_fibres(course: Map, mpp: float, rng: np.random.Generator) -> Map:
    """Unit-variance streaks (H, W) that follow `course`: noise smeared in six directions, blended by the nearest."""
    woven, power = np.zeros_like(course), np.zeros_like(course)
    for direction in (k * math.pi / 6 for k in range(6)):
        weight = np.maximum(np.cos(course - direction) ** 2 - 0.5, 0) ** 2
        woven += weight * _smooth_noise(course.shape, 6.0 / mpp, 0.6 / mpp, direction, rng)
        power += weight**2
    woven /= np.sqrt(power)
    return woven


def _draw_nuclei(morphology: Morphology, course: Map, mpp: float, rng: np.random.Generator) -> Map:
    """Chromatin (H, W), about 1 inside a nucleus and 0 outside, with soft uneven outlines, rims and nucleoli."""
    height, width = course.shape
    radius = morphology.radius_um / mpp
    reach = math.ceil(1.9 * radius / math.sqrt(morphology.axis_ratio)) + 2
    per_px = morphology.nuclei_per_mm2 * mpp * mpp * 1e-6
    y, x = _scatter(per_px, height, width, mpp, rng)
    count = len(y)
    size = radius * np.exp(rng.normal(0, 0.18, count))
    ratio = np.clip(morphology.axis_ratio * np.exp(rng.normal(0, 0.15, count)), 0.3, 1.0)
    local = course[y.astype(int).clip(0, height - 1), x.astype(int).clip(0, width - 1)]
    angle = local + rng.normal(0, 0.15 + 1.2 * (morphology.axis_ratio > 0.75), count)
    depth = np.exp(rng.normal(0, 0.22, count))
    phase = rng.uniform(0, 2 * math.pi, (2, count))
    spot = rng.normal(0, 0.3, (2, count))
    edge_px = max(0.3 / mpp, 0.5)

    pad = reach + math.ceil(2 / math.sqrt(per_px))  # centres lie up to two lattice steps outside
    canvas = np.zeros((height + 2 * pad, width + 2 * pad), np.float32)
    window = np.arange(-reach, reach + 1)
    for start in range(0, count, 2048):  # bounds the memory: windows are (n, 2 reach + 1, 2 reach + 1)
        part = slice(start, start + 2048)
        cy, cx, r, q, turn, deep = (a[part, None, None].astype(np.float32) for a in (y, x, size, ratio, angle, depth))
        p = phase[:, part, None, None].astype(np.float32)
        n = spot[:, part, None, None].astype(np.float32)
        row, column = np.floor(cy).astype(np.int64), np.floor(cx).astype(np.int64)
        dy = (window[:, None] + row - cy).astype(np.float32)
        dx = (window[None, :] + column - cx).astype(np.float32)
        u = (dx * np.cos(turn) + dy * np.sin(turn)) * np.sqrt(q) / r
        v = (dy * np.cos(turn) - dx * np.sin(turn)) / (np.sqrt(q) * r)
        around = np.arctan2(v, u)
        outline = 1 + 0.05 * np.cos(2 * around + p[0]) + 0.05 * np.cos(3 * around + p[1])
        far = np.sqrt(u * u + v * v) / outline  # 1 on the outline
        inside = _step(0.5 + (1 - far) * r * np.sqrt(q) / (2 * edge_px))
        rim = np.exp(-(((far - 0.85) / 0.18) ** 2))
        nucleolus = np.exp(-((u - n[0]) ** 2 + (v - n[1]) ** 2) / 0.06)
        value = inside * deep * (0.78 + 0.22 * rim + 0.5 * morphology.chromatin * nucleolus)
        at = (row + pad + window[:, None]) * canvas.shape[1] + column + pad + window[None, :]
        drawn = inside > 0
        np.maximum.at(canvas.reshape(-1), at[drawn], value[drawn])
    return canvas[pad:-pad, pad:-pad]


def _scatter(
    per_px: float, height: int, width: int, mpp: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centres (N,), (N,), a lattice step beyond the edges too: nuclei keep their distance, yet come in clusters."""
    occupied = 0.55
    pitch = math.sqrt(occupied / per_px)
    rows, columns = (math.ceil(side / pitch) + 2 for side in (height, width))
    y, x = np.mgrid[:rows, :columns].astype(np.float64)
    x += 0.5 * (y % 2) - 0.25
    y, x = ((a - 0.5 + rng.uniform(-0.42, 0.42, a.shape)) * pitch for a in (y, x))
    clusters = _smooth_noise((rows, columns), CLUSTER_UM / mpp / pitch, CLUSTER_UM / mpp / pitch, 0.0, rng)
    kept = rng.random(y.shape) < occupied * np.exp(CLUSTER_SD * clusters - CLUSTER_SD**2 / 2)
    return y[kept], x[kept]


def _smooth_noise(
    shape: tuple[int, ...], along_px: float, across_px: float, direction: float, rng: np.random.Generator
) -> Map:
    """White noise (H, W) smeared by a Gaussian of two widths along and across `direction`; variance 1."""
    noise = rng.standard_normal(shape, np.float32)
    smooth = _filter(noise, along_px, across_px, direction)
    smooth -= smooth.mean()
    return smooth / max(float(smooth.std()), 1e-6)


def _blur(image: Map, sigma_px: float) -> Map:
    """The image under an isotropic Gaussian, its edges mirrored."""
    pad = math.ceil(3 * sigma_px)
    padded = np.pad(image, pad, mode="symmetric")
    return _filter(padded, sigma_px, sigma_px, 0.0)[pad : pad + image.shape[0], pad : pad + image.shape[1]]


def _filter(image: Map, along_px: float, across_px: float, direction: float) -> Map:
    """The image under a Gaussian of two widths, in the frequency domain (it wraps round)."""
    fy = np.fft.fftfreq(image.shape[0]).astype(np.float32)[:, None]
    fx = np.fft.rfftfreq(image.shape[1]).astype(np.float32)[None, :]
    along = fx * math.cos(direction) + fy * math.sin(direction)
    across = fy * math.cos(direction) - fx * math.sin(direction)
    transfer = np.exp(-2 * math.pi**2 * ((along * along_px) ** 2 + (across * across_px) ** 2))
    return np.fft.irfft2(np.fft.rfft2(image) * transfer, image.shape).astype(np.float32)


def _step(at: Map) -> Map:
    """0 below 0, 1 above 1, smooth between."""
    at = np.clip(at, 0, 1)
    return at * at * (3 - 2 * at)
