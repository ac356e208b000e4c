"""Places and clusters on the map: kept for the same embeddings, made again for others, sensible when there are many."""

from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings.embeddings import VECTORS, Embeddings
from hidisc.explorer import projection as projection
from hidisc.explorer.projection import MAP, PlacedPatches, load_map, place
from hidisc.ground.columns import load_columns, save_columns
from tests.evaluation.made import make_embeddings
from tests.finished import refinish


def is_same(one: PlacedPatches, other: PlacedPatches) -> bool:
    return bool((one.places == other.places).all() and (one.clusters == other.clusters).all())


def test_places_are_computed_once_and_kept(tmp_path: Path) -> None:
    made, said = make_embeddings(tmp_path / "embeddings", patients=2), list[str]()
    first = load_map(made, said.append)
    assert first.places.shape == (len(made), 2)
    assert (first.places.min(), first.places.max()) == (0, 1)
    assert set(first.clusters) == set(range(8))
    assert [line.split(" (")[0] for line in said] == [f"placing {len(made)} patches on the map"]
    assert is_same(load_map(made, said.append), first)
    assert len(said) == 1


def test_places_of_other_embeddings_are_made_again_and_that_is_said(tmp_path: Path) -> None:
    made, said = make_embeddings(tmp_path / "embeddings", patients=2), list[str]()
    load_map(made, said.append)
    vectors = np.load(made.path / VECTORS)
    np.save(made.path / VECTORS, vectors[::-1])
    (made.path / MAP).rename(tmp_path / MAP)
    refinish(made.path)
    (tmp_path / MAP).rename(made.path / MAP)
    other = Embeddings.load(made.path)
    again = load_map(other, said.append)
    assert said[1] == (
        f"note: {made.path / MAP} is damaged, or not of these embeddings or of this version, and is made again"
    )
    assert is_same(load_map(other, said.append), again)
    assert len(said) == 3


def test_a_file_that_is_damaged_or_has_no_clusters_is_made_again(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "embeddings", patients=2)
    first = load_map(made, lambda _: None)
    (made.path / MAP).write_bytes(b"nothing")
    assert is_same(load_map(made, lambda _: None), first)
    columns = load_columns(made.path / MAP)
    save_columns(made.path / MAP, {name: values for name, values in columns.items() if name != "cluster"})
    assert is_same(load_map(made, lambda _: None), first)


def test_of_many_patches_a_sample_is_placed_and_the_others_go_where_they_belong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(projection, "WHOLE", 300)
    monkeypatch.setattr(projection, "SAMPLE", 300)
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 4, 3000)
    vectors = (6 * rng.normal(size=(4, 20))[classes] + rng.normal(size=(3000, 20))).astype(np.float32)
    places = place(vectors, seed=0)
    assert np.isfinite(places).all()
    centres = np.stack([np.median(places[classes == code], axis=0) for code in range(4)])
    nearest = np.linalg.norm(places[:, None] - centres, axis=2).argmin(axis=1)
    assert (nearest == classes).mean() > 0.98
    assert (places == place(vectors, seed=0)).all()
