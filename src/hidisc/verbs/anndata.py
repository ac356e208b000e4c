"""`hidisc export --to anndata`: embeddings as one .h5ad file."""

from pathlib import Path

from hidisc.artefacts.artefact import make
from hidisc.embeddings.h5ad import check_h5ad, write_h5ad
from hidisc.ground.files import full_disk_said
from hidisc.ground.paths import AnyPath
from hidisc.verbs.bags import ExportSettings, open_embeddings
from hidisc.verbs.words import speaks

H5AD = "embeddings.h5ad"


@speaks
def export_anndata(embeddings_path: AnyPath, out: AnyPath) -> tuple[Path, int]:
    """Write embeddings as AnnData; (the file, how many patches)."""
    out = Path(out)
    embeddings = open_embeddings(Path(embeddings_path), "anndata")
    check_h5ad(embeddings)
    settings, inputs = ExportSettings(to="anndata"), {"the patches": embeddings.artefact.checksum}
    with full_disk_said("The embeddings are as they were"), make(out, "patches", settings, inputs) as work:
        if not work.is_finished():
            write_h5ad(embeddings, out / H5AD)
            work.finish([H5AD])
    return out / H5AD, len(embeddings)
