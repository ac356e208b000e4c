"""`hidisc export` of embeddings: one file per slide for other tools; no encoder is opened."""

from collections.abc import Callable
from pathlib import Path

from hidisc.artefacts.artefact import read_kind
from hidisc.embeddings.bags import KIND, write_bags
from hidisc.embeddings.embeddings import Embeddings
from hidisc.ground.errors import UserError
from hidisc.ground.files import full_disk_said
from hidisc.ground.paths import AnyPath
from hidisc.training.run import RUN


def export_bags(embeddings_path: AnyPath, out: AnyPath, say: Callable[[str], None] = lambda _: None) -> int:
    """Write embeddings as bags, one HDF5 per slide for CLAM, TRIDENT and STAMP; how many. A killed export goes on."""
    embeddings_path, out = Path(embeddings_path), Path(out)
    if holds(embeddings_path, RUN, "train"):
        raise UserError(
            f"{embeddings_path} is a run, and --to {KIND} writes embeddings. Make them with `hidisc embed STORE "
            f"{embeddings_path} --out EMB` and give EMB."
        )
    embeddings = Embeddings.load(embeddings_path)
    with full_disk_said("What has been written is whole"):
        return write_bags(embeddings, out, say)


def holds(path: Path, file: str, kind: str) -> bool:
    """Whether a folder holds what this file, or what began it, says."""
    return (path / file).is_file() or read_kind(path) == kind
