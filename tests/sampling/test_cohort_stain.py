"""Views in other stains of the cohort: what is measured, what is drawn, and what a drawn stain does to a pixel."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.patches.folders import find_folder
from hidisc.patches.store import PatchStore
from hidisc.sampling.cohort_stain import (
    VECTORS,
    BatchStains,
    CohortStain,
    StainTable,
    measure_pixels,
    measure_stains,
)
from hidisc.sampling.operations import restain
from hidisc.sampling.views import make_views
from hidisc.settings.train import ViewsConfig
from hidisc.slides.stain import LIGHT, REFERENCE
from hidisc.verbs.prepare import import_patches
from hidisc.verbs.views import show_views
from tests.patches.pictures import write_pictures
from tests.training.stores import damage, make_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PatchStore:
    return PatchStore.load(make_store(tmp_path_factory.mktemp("tiny")))


def training_rows(store: PatchStore) -> NDArray[np.int64]:
    return np.flatnonzero(store.table.in_splits(("train",), "data.splits", store.path))


def amounts_of(pixel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Amounts of the two stains and of the rest in a pixel (3,) of levels 0 to 255, slowly."""
    density = np.array([-np.log((level + 1) / LIGHT) for level in pixel])
    return np.linalg.solve(VECTORS, density)


def paint(amounts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The pixel in [0, 1] that shows amounts (3,)."""
    return np.clip((LIGHT * np.exp(-VECTORS @ amounts) - 1) / 255, 0, 1)


def stains(own: NDArray[np.float64], mean: NDArray[np.float64], std: NDArray[np.float64]) -> BatchStains:
    return BatchStains(*(torch.tensor(values, dtype=torch.float32) for values in (own, mean, std)))


def test_the_axes_are_haematoxylin_eosin_and_what_is_neither() -> None:
    np.testing.assert_array_equal(VECTORS[:, :2], REFERENCE.vectors)
    np.testing.assert_allclose(VECTORS[:, 2] @ VECTORS[:, :2], 0, atol=1e-12)


def test_a_stain_is_the_mean_and_the_spread_of_the_amounts() -> None:
    pixels = np.random.default_rng(0).integers(30, 220, (40, 3), dtype=np.uint8)
    amounts = np.array([amounts_of(pixel) for pixel in pixels.astype(float)])
    expected = np.column_stack([amounts.mean(axis=0), np.log(amounts.std(axis=0))])
    np.testing.assert_allclose(measure_pixels(pixels), expected, atol=1e-6)


def test_a_slide_without_a_stain_has_the_least_spread() -> None:
    spreads = np.array(measure_pixels(np.full((40, 3), 200, np.uint8)))[:, 1]
    np.testing.assert_allclose(spreads, np.log(0.01))


def test_the_slides_that_are_learned_from_are_measured_and_no_others(store: PatchStore) -> None:
    rows = training_rows(store)
    found = measure_stains(store, rows, seed=0)
    codes, names = store.table.codes("slide")
    assert list(found.slides) == sorted({names[code] for code in codes[rows]})
    assert len(found.slides) == 12
    for name, stain in found.slides.items():  # fewer patches than are sampled, so all of them count
        pixels = store.read_many(rows[codes[rows] == names.index(name)]).reshape(-1, 3)
        np.testing.assert_allclose(stain, measure_pixels(pixels), rtol=1e-9)
    assert found == measure_stains(store, rows[::-1], seed=0), "the order of the rows does not matter"


def test_of_many_patches_some_are_drawn_by_the_seed(tmp_path: Path) -> None:
    many = PatchStore.load(make_store(tmp_path, patches=20))
    rows = training_rows(many)
    assert measure_stains(many, rows, 0) == measure_stains(many, rows, 0) != measure_stains(many, rows, 1)


def test_patches_that_cannot_be_read(tmp_path: Path) -> None:
    path = make_store(tmp_path)
    damage(path, 0, 1, 2)
    damaged = PatchStore.load(path)
    rows = training_rows(damaged)
    codes, names = damaged.table.codes("slide")
    stain = measure_stains(damaged, rows, 0).slides[names[codes[0]]]
    np.testing.assert_allclose(stain, measure_pixels(damaged.read_many([3, 4, 5]).reshape(-1, 3)), rtol=1e-9)
    damage(path, 3, 4, 5)
    with pytest.raises(
        UserError, match=r"No other patch of slide 'P0/P0-x' can be read: repair or remove that slide\.$"
    ):
        measure_stains(PatchStore.load(path), rows, 0)


def test_a_view_has_the_stain_that_was_drawn() -> None:
    """All pixels of a slide, mapped as one picture: their stain is the drawn one, and ranks of amounts are kept."""
    rng = np.random.default_rng(1)
    amounts = rng.normal([0.5, 0.4, 0.0], [0.1, 0.08, 0.02], (400, 3))
    pixels = np.array([paint(amount) for amount in amounts])
    own = np.column_stack([amounts.mean(axis=0), np.log(amounts.std(axis=0))])
    mean, std = own + np.array([[0.05, 0.1], [-0.05, 0.05], [0.01, -0.1]]), np.full((3, 2), 0.02)
    uniform = torch.rand(5, 6, generator=torch.Generator().manual_seed(0))
    uniform[0] = 0.0  # as far as it goes
    maps = stains(own[None], mean, std).draw_maps(uniform)
    normal = np.clip(torch.distributions.Normal(0, 1).icdf(uniform.double()).numpy(), -2, 2).reshape(5, 3, 2)
    for view in range(5):
        x = torch.tensor(pixels.T.reshape(1, 3, 20, 20), dtype=torch.float32)
        mapped = restain(x, maps[view : view + 1])[0].double().flatten(1).T.numpy()
        target = mean + std * normal[view]
        factor = np.exp(target[:, 1] - own[:, 1])
        expected = [paint((amount - own[:, 0]) * factor + target[:, 0]) for amount in amounts]
        np.testing.assert_allclose(mapped, expected, atol=2e-5)
        found = np.array([amounts_of(pixel * 255) for pixel in mapped])
        np.testing.assert_allclose(found.mean(axis=0), target[:, 0], atol=1e-4)
        np.testing.assert_allclose(np.log(found.std(axis=0)), target[:, 1], atol=1e-3)


def test_slides_that_are_stained_alike_stay_as_they_are() -> None:
    picture = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.8
    own = np.array([[0.4, -2.0], [0.3, -2.5], [0.0, -4.0]])
    config = ViewsConfig(ops=("cohort_stain",), probability=1)
    alike = stains(np.stack([own, own]), own, np.zeros((3, 2)))
    views = make_views(picture, 3, config, torch.Generator().manual_seed(0), colour=True, stains=alike)
    torch.testing.assert_close(views, picture[:, None].expand(-1, 3, -1, -1, -1), atol=2e-5, rtol=0)


def test_each_picture_starts_from_the_stain_of_its_own_slide(store: PatchStore) -> None:
    """Without spread between slides, all views of all slides have the cohort's mean stain."""
    cohort = measure_stains(store, training_rows(store), 0)
    table = StainTable(store, cohort)
    codes, names = store.table.codes("slide")
    rows = torch.tensor([0, 40, 7])
    found = table.look_up(rows)
    for stain, row in zip(found.own, rows, strict=True):
        np.testing.assert_allclose(stain, cohort.slides[names[codes[row]]], rtol=1e-6)
    every = np.array(list(cohort.slides.values()))
    np.testing.assert_allclose(found.mean, every.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.std, every.std(axis=0), rtol=1e-4, atol=1e-6)


def test_views_without_stains_are_refused() -> None:
    with pytest.raises(ValueError, match="'cohort_stain' needs the stain of every image's slide"):
        make_views(torch.rand(1, 3, 8, 8), 2, ViewsConfig(ops=("cohort_stain",)), torch.Generator(), colour=True)


def test_grey_pictures_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = {
        f"P{n}/S{n}/{k}.png": rng.integers(0, 255, (16, 16), dtype=np.uint8) for n in range(2) for k in range(2)
    }
    import_patches(find_folder(write_pictures(tmp_path / "pictures", pictures)), tmp_path / "store", workers=0)
    grey = PatchStore.load(tmp_path / "store")
    with pytest.raises(UserError) as caught:
        measure_stains(grey, np.arange(4), 0)
    assert str(caught.value) == (
        f"views.ops: 'cohort_stain' measures stains in 8-bit red, green and blue, and {grey.path} has no such "
        "pictures. Leave 'cohort_stain' out of views.ops."
    )


def test_it_can_be_looked_at(store: PatchStore, tmp_path: Path) -> None:
    config = ViewsConfig(ops=("cohort_stain",), probability=1)
    assert show_views(store.path, tmp_path / "views.png", config).stat().st_size > 1000


def test_it_reads_back_as_it_was_written(store: PatchStore) -> None:
    cohort = measure_stains(store, training_rows(store), 0)
    assert CohortStain.model_validate_json(cohort.model_dump_json()) == cohort
