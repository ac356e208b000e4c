"""Maps in closed form: the sums they are computed from, and what they do to directions that are planted in vectors."""

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.models import linear_maps
from hidisc.models.linear_maps import LinearMap, Moments, centre, measure_moments, turn_to_units, whiten
from hidisc.patches.table import SCHEMA, PatchTable
from hidisc.sampling.hierarchy import Hierarchy, Tree

Floats = NDArray[np.float64]
PATIENTS, SLIDES, PATCHES, DIM = 60, 3, 8, 12


def draw(seed: int = 0, patients: int = PATIENTS, dim: int = DIM) -> tuple[NDArray[np.float32], list[str], list[str]]:
    """Vectors, patients and slides; rows of a slide are not next to each other.

    Planted: direction 0 differs between patients, 1 between slides of a patient, 2 varies within slides, most of all.
    """
    rng = np.random.default_rng(seed)
    vectors, whose, slides = [], [], []
    for patient in range(patients):
        of_patient = np.zeros(dim)
        of_patient[0] = 3 * rng.normal()
        for slide in range(SLIDES):
            of_slide = np.zeros(dim)
            of_slide[1] = 3 * rng.normal()
            for _ in range(PATCHES):
                noise = rng.normal(size=dim)
                noise[2] *= 10
                vectors.append(50 + of_patient + of_slide + noise)
                whose.append(f"P{patient}")
                slides.append(f"S{slide}")
    order = rng.permutation(len(vectors))
    return np.array(vectors, np.float32)[order], [whose[row] for row in order], [slides[row] for row in order]


def plant(patients: list[str], slides: list[str], rows: NDArray[np.bool_] | None = None) -> Tree:
    columns = {name: pa.nulls(len(slides), SCHEMA.field(name).type) for name in SCHEMA.names}
    columns |= {
        name: pa.array(values).dictionary_encode().cast(SCHEMA.field(name).type)
        for name, values in (("patient", patients), ("slide", slides))
    }
    table = PatchTable(pa.table(columns, schema=SCHEMA))
    return Hierarchy().grow(table, np.ones(len(slides), bool) if rows is None else rows)


def slow_within(vectors: NDArray[np.float32], *names: list[str]) -> Floats:
    """The covariance within units, a unit and a row at a time."""
    units: dict[tuple[str, ...], list[Floats]] = {}
    for row, unit in zip(vectors.astype(np.float64), zip(*names, strict=True), strict=True):
        units.setdefault(unit, []).append(row)
    scatter, freedom = np.zeros((vectors.shape[1],) * 2), 0
    for rows in units.values():
        mean = sum(rows) / len(rows)
        for row in rows:
            scatter += np.outer(row - mean, row - mean)
        freedom += len(rows) - 1
    return scatter / freedom


def added(parts: tuple[Moments, ...]) -> Moments:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def within_of(vectors: NDArray[np.float32], *names: list[str]) -> Floats:
    return slow_within(np.asarray(vectors, np.float32), *names)


def test_the_sums_are_those_of_the_equations() -> None:
    vectors, patients, slides = draw()
    moments = added(measure_moments(vectors, plant(patients, slides), "here"))
    assert (moments.rows, moments.units) == (len(vectors), (PATIENTS, PATIENTS * SLIDES))
    np.testing.assert_allclose(moments.mean, vectors.astype(np.float64).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.covariance(), np.cov(vectors.astype(np.float64).T), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.covariance(0), slow_within(vectors, patients), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.covariance(1), slow_within(vectors, patients, slides), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [1, 3, 7, 50, 10_000])
def test_blocks_of_any_size_give_the_same_sums(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, patients, slides = draw(patients=7)
    tree = plant(patients, slides)
    whole = added(measure_moments(vectors, tree, "here"))
    monkeypatch.setattr(linear_maps, "_ROWS", rows)
    parts = added(measure_moments(vectors, tree, "here"))
    assert parts.units == whole.units
    for level in (None, 0, 1):
        np.testing.assert_allclose(parts.covariance(level), whole.covariance(level), rtol=1e-8, atol=1e-8)


def test_a_large_offset_costs_no_digits() -> None:
    """Without the shift, squares of 10,000 would swallow a variance of 0.0001."""
    rng = np.random.default_rng(0)
    vectors = 10_000 + 0.01 * rng.normal(size=(400, 4))
    tree = plant([f"P{row // 20}" for row in range(400)], [f"S{row // 10}" for row in range(400)])
    moments = added(measure_moments(vectors, tree, "here"))
    np.testing.assert_allclose(moments.covariance(), np.cov(vectors.T), rtol=1e-9)


def test_rows_that_are_left_out_change_nothing() -> None:
    vectors, patients, slides = draw(patients=9)
    learned = np.array([patient not in ("P0", "P3") for patient in patients])
    tree = plant(patients, slides, learned)
    before = added(measure_moments(vectors, tree, "here"))
    vectors[~learned] = np.nan
    after = added(measure_moments(vectors, tree, "here"))
    np.testing.assert_array_equal(before.square, after.square)


def test_no_part_shares_a_patient_with_another() -> None:
    vectors, patients, slides = draw(patients=11)
    vectors[:, 0] = [int(patient[1:]) for patient in patients]  # every patient at one place
    parts = measure_moments(vectors, plant(patients, slides), "here")
    assert len(parts) == 5
    assert sum(part.units[0] for part in parts) == 11
    assert all(part.scatter(0)[0][0, 0] < 1e-6 for part in parts)


def test_centring_takes_out_the_mean_and_nothing_else() -> None:
    vectors, patients, slides = draw()
    made = centre(measure_moments(vectors, plant(patients, slides), "here")).apply(vectors)
    np.testing.assert_allclose(made, vectors - vectors.astype(np.float64).mean(axis=0), atol=1e-4)


def test_whitened_vectors_have_the_identity_as_their_covariance() -> None:
    vectors, patients, slides = draw()
    parts = measure_moments(vectors, plant(patients, slides), "here")
    made = whiten(parts, 8, 0.0, None, "here").apply(vectors)
    np.testing.assert_allclose(np.cov(made.T.astype(np.float64)), np.eye(8), atol=1e-4)


@pytest.mark.parametrize("level", [0, 1])
def test_the_covariance_within_units_becomes_the_identity(level: int) -> None:
    vectors, patients, slides = draw()
    parts = measure_moments(vectors, plant(patients, slides), "here")
    made = whiten(parts, DIM, 0.0, level, "here").apply(vectors)
    names = (patients,) if level == 0 else (patients, slides)
    np.testing.assert_allclose(within_of(made, *names), np.eye(DIM), atol=1e-3)


def test_with_shrinkage_it_becomes_what_the_equation_says() -> None:
    """A map A of the components P: A ((1 - a) P'WP + a tr(P'WP)/d 1) A' = 1, W by the slow oracle."""
    vectors, patients, slides = draw()
    made = whiten(measure_moments(vectors, plant(patients, slides), "here"), 6, 0.3, 1, "here")
    _, directions = np.linalg.eigh(np.cov(vectors.astype(np.float64).T))
    basis = directions[:, -6:]
    within = basis.T @ slow_within(vectors, patients, slides) @ basis
    shrunk = 0.7 * within + 0.3 * np.trace(within) / 6 * np.eye(6)
    assert made.matrix is not None
    of_components = made.matrix @ basis
    np.testing.assert_allclose(of_components @ shrunk @ of_components.T, np.eye(6), atol=1e-6)
    np.testing.assert_allclose(of_components @ basis.T, made.matrix, atol=1e-9)  # nothing outside the components


def share(made: LinearMap, direction: int) -> float:
    """How much of the length of mapped vectors a planted direction has, of all directions of equal length."""
    assert made.matrix is not None
    return float(np.square(made.matrix[:, direction]).sum() / np.square(made.matrix).sum())


def test_what_varies_within_slides_counts_less() -> None:
    vectors, patients, slides = draw()
    parts = measure_moments(vectors, plant(patients, slides), "here")
    within, plain = whiten(parts, DIM, 0.01, 1, "here"), whiten(parts, DIM, 0.01, None, "here")
    assert share(within, 2) < 0.1 * min(share(within, 0), share(within, 1))
    assert share(plain, 0) < 0.5 * share(within, 0), "whitening by all variance also takes out what patients differ in"


def test_within_patients_the_slides_count_as_noise_too() -> None:
    vectors, patients, slides = draw()
    parts = measure_moments(vectors, plant(patients, slides), "here")
    of_slide, of_patient = (whiten(parts, DIM, 0.01, level, "here") for level in (1, 0))
    assert share(of_patient, 1) < 0.4 * share(of_slide, 1)
    assert share(of_patient, 0) > 0.8 * share(of_slide, 0)


def test_linear_hidisc_finds_where_units_differ() -> None:
    vectors, patients, slides = draw()
    parts = measure_moments(vectors, plant(patients, slides), "here")
    both = turn_to_units(parts, DIM, 2, 0.01, (1, 1), "here")
    assert both.matrix is not None
    assert both.matrix.shape == (2, DIM)
    directions = np.linalg.svd(both.matrix)[2][:2]
    assert np.linalg.norm(directions[:, :2], axis=1).min() > 0.95, "it keeps the planted directions 0 and 1"
    of_patient = turn_to_units(parts, DIM, 1, 0.01, (1, 0), "here").matrix
    assert of_patient is not None
    assert abs(of_patient[0, 0]) / np.linalg.norm(of_patient) > 0.95, "between patients, direction 0 alone"


def test_linear_hidisc_has_the_generalised_eigenvalues_that_scipy_finds() -> None:
    linalg = pytest.importorskip("scipy.linalg")
    vectors, patients, slides = draw()
    parts = measure_moments(vectors, plant(patients, slides), "here")
    made = turn_to_units(parts, DIM, 4, 0.0, (0, 1), "here").matrix
    within, total = slow_within(vectors, patients, slides), np.cov(vectors.astype(np.float64).T)
    expected = linalg.eigh(total - within, within, eigvals_only=True)[::-1][:4]
    assert made is not None
    np.testing.assert_allclose(made @ within @ made.T, np.eye(4), atol=1e-6)
    np.testing.assert_allclose(made @ (total - within) @ made.T, np.diag(expected), rtol=1e-5, atol=1e-5)


def test_shrinkage_is_weak_with_much_and_strong_with_little_to_learn_from() -> None:
    chosen = []
    for patients in (4, 400):
        vectors, whose, slides = draw(patients=patients, dim=40)
        made = whiten(measure_moments(vectors, plant(whose, slides), "here"), 40, None, 1, "here")
        chosen.append(made.shrinkage)
    assert chosen[0] is not None
    assert chosen[1] is not None
    assert chosen[1] < 0.01 < chosen[0]


def test_the_chosen_shrinkage_predicts_left_out_patients_best() -> None:
    """Against the density of scipy, row by row, of vectors less the mean of their slide."""
    stats = pytest.importorskip("scipy.stats")
    vectors, patients, slides = draw(patients=10, dim=20)
    tree = plant(patients, slides)
    parts = measure_moments(vectors, tree, "here")
    basis, losses = np.eye(20), []
    for shrinkage in linear_maps._SHRINKAGES:
        loss = 0.0
        for number, left_out in enumerate(parts):
            within = added(tuple(part for at, part in enumerate(parts) if at != number)).covariance(1)
            shrunk = (1 - shrinkage) * within + shrinkage * np.trace(within) / 20 * np.eye(20)
            scatter, freedom = left_out.scatter(1)
            # freedom times the mean log density of vectors whose second moments are those of the left-out patients
            loss -= freedom * stats.multivariate_normal(cov=shrunk).logpdf(np.zeros(20))
            loss += 0.5 * np.trace(np.linalg.solve(shrunk, scatter))
        losses.append(loss)
    assert linear_maps._choose_shrinkage(parts, basis, 1) == linear_maps._SHRINKAGES[int(np.argmin(losses))]


# Bad input


def test_more_components_than_numbers_are_refused() -> None:
    vectors, patients, slides = draw(patients=4)
    parts = measure_moments(vectors, plant(patients, slides), "here")
    with pytest.raises(UserError, match=r"map.dim = 13, and the vectors of here have 12 numbers. Set map.dim=12 or"):
        whiten(parts, 13, None, 1, "here")


def test_fewer_directions_than_components_are_refused() -> None:
    vectors, patients, slides = draw(patients=4)
    vectors[:, 5:] = vectors[:, :7]
    parts = measure_moments(vectors, plant(patients, slides), "here")
    with pytest.raises(UserError, match=r"vectors of here to learn from vary in 7 directions only. Set map.dim=7"):
        whiten(parts, 8, None, 1, "here")
    vectors[:] = 1
    parts = measure_moments(vectors, plant(patients, slides), "here")
    with pytest.raises(UserError, match=r"the 96 vectors of here to learn from are all the same. Give others"):
        whiten(parts, 8, None, 1, "here")


def test_units_of_one_vector_each_are_refused() -> None:
    vectors, patients, _ = draw(patients=4)
    slides = [f"S{row}" for row in range(len(patients))]
    parts = measure_moments(vectors, plant(patients, slides), "here")
    with pytest.raises(UserError, match=r"no unit has two vectors to learn from.*Choose a coarser map.level"):
        whiten(parts, 8, None, 1, "here")
    assert whiten(parts, 8, None, 0, "here").matrix is not None


def test_units_whose_vectors_are_all_the_same_are_refused() -> None:
    vectors, patients, slides = draw(patients=20)
    of_slide = dict(zip(zip(patients, slides, strict=True), vectors, strict=True))
    same = np.array([of_slide[unit] for unit in zip(patients, slides, strict=True)])
    parts = measure_moments(same, plant(patients, slides), "here")
    with pytest.raises(UserError, match="the vectors of a unit are all the same"):
        whiten(parts, 8, None, 1, "here")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused(value: float) -> None:
    vectors, patients, slides = draw(patients=4)
    vectors[7, 3] = value
    with pytest.raises(UserError, match=r"has 1 vector with NaN or infinity among \d+, such as that of row 7"):
        measure_moments(vectors, plant(patients, slides), "here")


def test_more_directions_than_components_are_refused() -> None:
    vectors, patients, slides = draw(patients=4)
    parts = measure_moments(vectors, plant(patients, slides), "here")
    with pytest.raises(UserError, match=r"map.keep = 9 is more than map.dim = 8. Set map.keep=8 or less."):
        turn_to_units(parts, 8, 9, None, (1, 1), "here")


def test_linear_hidisc_without_a_level_is_refused() -> None:
    vectors, patients, slides = draw(patients=4)
    parts = measure_moments(vectors, plant(patients, slides), "here")
    with pytest.raises(UserError, match="linear-hidisc needs a level above the patch whose weight is above 0"):
        turn_to_units(parts, 8, 4, None, (0, 0), "here")


def test_one_patient_is_enough_where_nobody_can_be_left_out() -> None:
    vectors, patients, slides = draw(patients=1, dim=4)
    (part,) = measure_moments(vectors, plant(patients, slides), "here")
    assert whiten((part,), 4, None, 1, "here").shrinkage == 0.1
