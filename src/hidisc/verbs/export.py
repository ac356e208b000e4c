"""`hidisc export` of a run: its encoder for other tools."""

from pathlib import Path

from hidisc.artefacts.artefact import make
from hidisc.embeddings.bags import KIND
from hidisc.embeddings.embeddings import EMBEDDINGS
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.ground.files import full_disk_said, write_atomic
from hidisc.ground.paths import AnyPath
from hidisc.models.export import FILES, TIMM_CONFIG, Target, compare_exported, export_encoder
from hidisc.models.hub import push_files
from hidisc.models.preprocessing import PREPROCESSING, Preprocessing, read_preprocessing
from hidisc.reporting.model_card import README, write_model_card
from hidisc.training.run import Run
from hidisc.verbs.bags import ExportSettings, holds
from hidisc.verbs.words import speaks


@speaks
def export(
    run_path: AnyPath, out: AnyPath, to: Target, *, scores: AnyPath | None = None, push: str | None = None
) -> tuple[Path, float]:
    """Write a run's encoder for timm, ONNX or TorchScript, with its model card; (the file, the relative difference).

    `scores`: an evaluation of the encoder, for the card. `push`: OWNER/NAME on the hub, to which the files are copied.
    """
    run_path, out = Path(run_path), Path(out)
    if to not in FILES:
        raise UserError(f"to = {to!r} is none of {', '.join(FILES)}. Embeddings become bags with `export_bags`.")
    if holds(run_path, EMBEDDINGS, "embed"):
        raise UserError(
            f"{run_path} holds embeddings, and --to {to} writes an encoder. Give --to {KIND}, or the run "
            "that made them."
        )
    run = Run.load(run_path)
    encoder = run.encoder()
    inputs = {"the encoder": encoder.card.weights}
    evaluated = None if scores is None else open_scores(Path(scores), encoder.card.weights)
    if evaluated is not None:
        inputs["the scores"] = evaluated.artefact.checksum
    with full_disk_said("The run is as it was"), make(out, "export", ExportSettings(to=to), inputs) as work:
        if not work.is_finished():
            difference = export_encoder(encoder, out, to)
            card = write_model_card(encoder.card, run.info, read_preprocessing(out) or Preprocessing(), to, evaluated)
            write_atomic(out / README, card.encode())
            work.finish(_list_files(out, to))
        elif push is None:
            raise UserError(f"{out / FILES[to]} is there already and is not overwritten. Give another --out.")
        else:
            difference = compare_exported(encoder, out, to)
    if push is not None:
        push_files(out, _list_files(out, to), push)
    return out / FILES[to], difference


def _list_files(out: Path, to: Target) -> list[str]:
    """The files of an exported encoder."""
    return [name for name in (FILES[to], PREPROCESSING, TIMM_CONFIG, README) if (out / name).is_file()]


def open_scores(path: Path, weights: str) -> Scores:
    """The evaluation of the encoder with these weights; that of another one is refused."""
    scores = Scores.load(path)
    if scores.info.model.checksum != weights:
        raise UserError(
            f"{path} is an evaluation of another encoder ({scores.info.model.name}). Give the scores of this run."
        )
    return scores
