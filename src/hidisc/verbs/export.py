"""`hidisc export`: a run's encoder, or embeddings, for other tools."""

from collections.abc import Callable
from pathlib import Path

from hidisc.artefacts.artefact import make, read_kind
from hidisc.embeddings.bags import KIND, write_bags
from hidisc.embeddings.embeddings import EMBEDDINGS, Embeddings
from hidisc.ground.errors import UserError
from hidisc.ground.files import full_disk_said
from hidisc.ground.paths import AnyPath
from hidisc.models.export import FILES, TIMM_CONFIG, Target, export_encoder
from hidisc.models.preprocessing import PREPROCESSING
from hidisc.settings.config import Config
from hidisc.training.run import RUN, Run


class _Settings(Config):
    """What an exported encoder depends on beside the run."""

    to: str


def export(run_path: AnyPath, out: AnyPath, to: Target) -> tuple[Path, float]:
    """Write a run's encoder for timm, ONNX or TorchScript; (the file, the largest relative difference found)."""
    run_path, out = Path(run_path), Path(out)
    if to not in FILES:
        raise UserError(f"to = {to!r} is none of {', '.join(FILES)}. Embeddings become bags with `export_bags`.")
    if _is(run_path, EMBEDDINGS, "embed"):
        raise UserError(
            f"{run_path} holds embeddings, and --to {to} writes an encoder. Give --to {KIND}, or the run "
            "that made them."
        )
    encoder = Run.load(run_path).encoder()
    inputs = {"the encoder": encoder.card.weights}
    with full_disk_said("The run is as it was"), make(out, "export", _Settings(to=to), inputs) as work:
        if work.is_finished():
            raise UserError(f"{out / FILES[to]} is there already and is not overwritten. Give another --out.")
        difference = export_encoder(encoder, out, to)
        work.finish(name for name in (FILES[to], PREPROCESSING, TIMM_CONFIG) if (out / name).is_file())
    return out / FILES[to], difference


def export_bags(embeddings_path: AnyPath, out: AnyPath, say: Callable[[str], None] = lambda _: None) -> int:
    """Write embeddings as bags, one HDF5 per slide for CLAM, TRIDENT and STAMP; how many. A killed export goes on."""
    embeddings_path, out = Path(embeddings_path), Path(out)
    if _is(embeddings_path, RUN, "train"):
        raise UserError(
            f"{embeddings_path} is a run, and --to {KIND} writes embeddings. Make them with `hidisc embed STORE "
            f"{embeddings_path} --out EMB` and give EMB."
        )
    embeddings = Embeddings.load(embeddings_path)
    with full_disk_said("What has been written is whole"):
        return write_bags(embeddings, out, say)


def _is(path: Path, file: str, kind: str) -> bool:
    return (path / file).is_file() or read_kind(path) == kind
