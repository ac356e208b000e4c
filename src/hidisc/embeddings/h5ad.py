"""Embeddings as AnnData (.h5ad), as scanpy, squidpy and LazySlide read it: one observation per patch."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings
from hidisc.ground.errors import UserError
from hidisc.ground.files import replaced
from hidisc.ground.machine import versions

CENTRE, CORNER = "centre of the patch, level-0 px", "upper left corner of the patch, level-0 px"
_NUMBERS = ("patch", "mpp", "tissue_fraction", "pixel_std")


def check_h5ad(embeddings: Embeddings) -> None:
    """Refuse embeddings that cannot be written, before a folder is made for them."""
    if find_spec("anndata") is None:
        raise UserError("--to anndata needs the library anndata. Install it: pip install 'hidisc[anndata]'.")
    embeddings.refuse_coarse(embeddings.open_store(), "AnnData")


def write_h5ad(embeddings: Embeddings, path: Path) -> None:
    """Write `X` (N, D) float32, `obs` with all columns of the patches, `obsm['spatial']` and `uns['hidisc']`.

    Memory: all vectors once, as whoever opens the file will need.
    """
    import anndata
    import pandas

    table = embeddings.table
    obs: dict[str, Any] = {name: pandas.Categorical.from_codes(*table.codes(name)) for name in table.names}
    obs |= {name: table.column(name) for name in _NUMBERS}
    provenance = _describe(embeddings)
    data = anndata.AnnData(
        X=np.asarray(embeddings.vectors, np.float32),
        obs=pandas.DataFrame(
            {name.replace("/", "_"): values for name, values in obs.items()},  # a slash makes groups in HDF5
            index=[str(row) for row in range(len(embeddings))],
        ),
        var=pandas.DataFrame(index=[f"feature_{number}" for number in range(embeddings.info.dim)]),
        uns={"hidisc": provenance},
    )
    places = _find_places(embeddings)
    if places is not None:
        data.obsm["spatial"], provenance["spatial_is"] = places
    with replaced(path) as part:
        data.write_h5ad(part)


def _find_places(embeddings: Embeddings) -> tuple[NDArray[np.float64], str] | None:
    """(N, 2) places of the patches on their slides, and which point of a patch it is; None: they were imported."""
    table = embeddings.table
    corners = np.stack([table.column("x"), table.column("y")], axis=1).astype(np.float64)
    if (corners < 0).any():
        return None
    store = embeddings.open_store()
    if store is None:
        return corners, CORNER
    records = {entry.slide: store.record(entry) for entry in store.info.slides}
    codes, slides = table.codes("slide")
    extents = np.array([records[slide].size_px * (records[slide].downsample or 1) for slide in slides])
    return corners + extents[codes, None] / 2, CENTRE


def _describe(embeddings: Embeddings) -> dict[str, Any]:
    """What the vectors were made from; AnnData has no place for None."""
    info = embeddings.info
    known = {
        "model": info.model.name,
        "weights_sha256": info.model.checksum,
        "objective": info.model.objective,
        "backbone": info.model.backbone,
        "slides_learned_from": len(info.model.history.slides),
        "history_is_complete": info.model.history.is_complete,
        "labels_used": ", ".join(info.model.history.labels_used),
        "patches_sha256": info.store_checksum,
        "embeddings_sha256": embeddings.artefact.checksum,
        "hidisc": versions("hidisc")["hidisc"],
    }
    return {name: value for name, value in known.items() if value is not None}
