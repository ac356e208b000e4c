"""`hidisc export` of embeddings: one file per slide for other tools; no encoder is opened."""

from pathlib import Path

from hidisc.artefacts.artefact import read_kind
from hidisc.embeddings.bags import KIND, write_bags
from hidisc.embeddings.embeddings import Embeddings
from hidisc.ground.callbacks import Say, ignore
from hidisc.ground.errors import UserError
from hidisc.ground.files import full_disk_said
from hidisc.ground.paths import AnyPath
from hidisc.settings.config import Config
from hidisc.training.run import RUN
from hidisc.verbs.words import speaks


class ExportSettings(Config):
    """What an exported folder depends on beside its inputs."""

    to: str


@speaks
def export_bags(embeddings_path: AnyPath, out: AnyPath, say: Say = ignore) -> int:
    """Write embeddings as bags, one HDF5 per slide for CLAM, TRIDENT and STAMP; how many. A killed export goes on."""
    embeddings = open_embeddings(Path(embeddings_path), KIND)
    with full_disk_said("What has been written is whole"):
        return write_bags(embeddings, Path(out), say)


def open_embeddings(path: Path, to: str) -> Embeddings:
    """Embeddings to export; a run is refused with what to do."""
    if holds(path, RUN, "train"):
        raise UserError(
            f"{path} is a run, and --to {to} writes embeddings. Make them with `hidisc embed STORE {path} --out EMB` "
            "and give EMB."
        )
    return Embeddings.load(path)


def holds(path: Path, file: str, kind: str) -> bool:
    """Whether a folder holds what this file, or what began it, says."""
    return (path / file).is_file() or read_kind(path) == kind
