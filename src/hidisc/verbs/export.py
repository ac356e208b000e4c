"""`hidisc export` of a run: its encoder for other tools."""

from pathlib import Path

from hidisc.artefacts.artefact import make
from hidisc.embeddings.bags import KIND
from hidisc.embeddings.embeddings import EMBEDDINGS
from hidisc.ground.errors import UserError
from hidisc.ground.files import full_disk_said
from hidisc.ground.paths import AnyPath
from hidisc.models.export import FILES, TIMM_CONFIG, Target, export_encoder
from hidisc.models.preprocessing import PREPROCESSING
from hidisc.settings.config import Config
from hidisc.training.run import Run
from hidisc.verbs.bags import holds


class _Settings(Config):
    """What an exported encoder depends on beside the run."""

    to: str


def export(run_path: AnyPath, out: AnyPath, to: Target) -> tuple[Path, float]:
    """Write a run's encoder for timm, ONNX or TorchScript; (the file, the largest relative difference found)."""
    run_path, out = Path(run_path), Path(out)
    if to not in FILES:
        raise UserError(f"to = {to!r} is none of {', '.join(FILES)}. Embeddings become bags with `export_bags`.")
    if holds(run_path, EMBEDDINGS, "embed"):
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
