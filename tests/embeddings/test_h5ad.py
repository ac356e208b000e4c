"""AnnData reads the file, and scanpy finds the neighbours that are there."""

from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings import bags
from hidisc.embeddings.bags import CENTRE, CORNER
from hidisc.ground.errors import UserError
from hidisc.verbs.export_vectors import export_anndata
from tests.embeddings.test_bags import DOWNSAMPLE, PLAIN, SIZE, Made
from tests.evaluation.made import make_embeddings

anndata = pytest.importorskip("anndata", reason="needs the extra [anndata]")


def test_every_patch_is_an_observation_with_its_columns(tmp_path: Path) -> None:
    rows = sum(patches for *_, patches in PLAIN)
    more = {"stain / kind": [None if row == 1 else f"s{row % 2}" for row in range(rows)]}
    made = Made(tmp_path, PLAIN, dtype="float16", more=more)
    file, patches = export_anndata(made.embeddings.path, tmp_path / "out")
    data = anndata.read_h5ad(file)
    assert (patches, data.shape) == (rows, made.vectors.shape)
    assert data.X.dtype == np.float32
    np.testing.assert_array_equal(data.X, made.vectors.astype(np.float32))
    for name in ("patient", "slide", "label", "site", "split"):
        assert list(data.obs[name]) == list(made.table.column(name))
    assert list(data.obs["stain _ kind"].isna()) == [value is None for value in more["stain / kind"]]
    assert list(data.obs["patch"]) == list(made.table.column("patch"))
    corners = np.stack([made.table.column("x"), made.table.column("y")], axis=1)
    np.testing.assert_array_equal(data.obsm["spatial"], corners + SIZE * DOWNSAMPLE / 2)
    known = data.uns["hidisc"]
    assert (known["spatial_is"], known["patches_sha256"]) == (CENTRE, made.embeddings.info.store_checksum)
    assert (known["model"], known["history_is_complete"]) == ("mine", False)


def test_without_the_store_places_are_corners_and_imported_patches_have_none(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    gone = export_anndata(Made(tmp_path / "a", PLAIN, store=False).embeddings.path, tmp_path / "gone")[0]
    assert anndata.read_h5ad(gone).uns["hidisc"]["spatial_is"] == CORNER
    (tmp_path / "b").mkdir()
    imported = export_anndata(Made(tmp_path / "b", PLAIN, imported=True).embeddings.path, tmp_path / "imported")[0]
    assert "spatial" not in anndata.read_h5ad(imported).obsm


def test_scanpy_finds_the_neighbours(tmp_path: Path) -> None:
    scanpy = pytest.importorskip("scanpy", reason="scanpy is not installed")
    made = make_embeddings(tmp_path / "emb")
    data = anndata.read_h5ad(export_anndata(made.path, tmp_path / "out")[0])
    scanpy.pp.neighbors(data, n_neighbors=6, use_rep="X", method="gauss")
    distances = np.linalg.norm(made.vectors[:, None] - made.vectors[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    found = data.obsp["distances"]
    for row in range(0, len(made), 37):
        nearest = found[row].indices[found[row].data > 0]
        assert {*nearest} == {*np.argsort(distances[row])[: len(nearest)]}


def test_a_finished_file_is_left_alone_and_other_embeddings_are_refused(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "emb")
    file, _ = export_anndata(made.path, tmp_path / "out")
    before = file.stat().st_ino
    assert export_anndata(made.path, tmp_path / "out")[0].stat().st_ino == before
    other = make_embeddings(tmp_path / "other", seed=1)
    with pytest.raises(
        UserError, match=r"out was begun with other settings \(the content of the patches has changed\)"
    ):
        export_anndata(other.path, tmp_path / "out")


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_embeddings(tmp_path / "emb")
    monkeypatch.setattr(bags, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"--to anndata needs the library anndata. Install it: pip install 'hidisc\[an"):
        export_anndata(made.path, tmp_path / "out")
