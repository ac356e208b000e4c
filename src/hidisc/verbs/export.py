"""`hidisc export` of an encoder: for timm, ONNX and TorchScript, or with a classifier for WSInfer and QuPath."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hidisc.artefacts.artefact import make, read_settings
from hidisc.embeddings.bags import KIND
from hidisc.embeddings.embeddings import EMBEDDINGS
from hidisc.evaluation.scores import Scores
from hidisc.evaluation.task import choose_task
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, full_disk_said, write_atomic
from hidisc.ground.progress import Say, ignore
from hidisc.models.backbone import push_files
from hidisc.models.card import PREPROCESSING, Preprocessing, read_preprocessing
from hidisc.models.encoder import Encoder
from hidisc.models.export import (
    CONFIG,
    FILES,
    SCRIPT,
    Target,
    compare_exported,
    draw_pictures,
    export_encoder,
    fill_classes,
    run_wsinfer,
    write_wsinfer,
)
from hidisc.models.foreign import TIMM_CONFIG
from hidisc.patches.store import PatchStore
from hidisc.reporting.model_card import README, write_model_card
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.training.run import Run
from hidisc.verbs.export_vectors import ExportSettings, holds

if TYPE_CHECKING:  # scikit-learn, which other exports do without
    from hidisc.evaluation.probes.linear import LinearProbe

_CLOSE = 1e-4
_LEFT_OUT = " Patches were stain-normalised before it saw them, and QuPath feeds them as scanned: results may be worse."


def export_wsinfer(run_path: AnyPath, out: AnyPath, scores: AnyPath | None, say: Say = ignore) -> tuple[Path, float]:
    """Write a patch classifier for WSInfer; (the file, the largest difference of a probability when read back).

    `scores`: the evaluation whose reference patients the linear probe is fitted to again, by the same settings.
    """
    from hidisc.evaluation.probes.linear import fit_probe

    out = Path(out)
    if scores is None:
        raise UserError("--to wsinfer needs classes: give the evaluation of this run with --scores SCORES.")
    run = Run.load(run_path)
    encoder = run.encoder()
    evaluated = open_scores(Path(scores), encoder.card.weights)
    config = EvaluateConfig.model_validate(evaluated.info.config)
    if evaluated.info.folds or config.align is not None:
        raise UserError(
            f"{scores} was evaluated with --folds or align. Evaluate once more without, for one classifier."
        )
    embeddings, bank, store = evaluated.open_embeddings(), evaluated.open_bank(), evaluated.open_store()
    if store.info.mpp is None:
        scales = ", ".join(f"{scale:g}" for scale in store.scales) or "none that is known"
        raise UserError(
            f"WSInfer feeds patches of one scale (mpp), and {store.path} has {scales}. Train and evaluate on a store "
            "of one scale for it."
        )
    if not store.is_colour:
        raise UserError(f"{store.path} does not hold RGB patches, which are all that WSInfer reads.")
    inputs = {"the encoder": encoder.card.weights, "the scores": evaluated.artefact.checksum}
    with full_disk_said("The run is as it was"), make(out, "export", ExportSettings(to="wsinfer"), inputs) as work:
        if work.is_finished():
            raise UserError(f"{out / SCRIPT} is there already and is not overwritten. Give another --out.")
        task = choose_task(embeddings, bank, config)
        probe = fit_probe(task, config.linear, config.seed)
        difference = _write_wsinfer(encoder, probe, task.classes, store, out)
        card = write_model_card(encoder.card, run.info, encoder.card.describe(), "wsinfer", evaluated)
        is_normalised = ((read_settings(store.path) or {}).get("stain") or {}).get("method") == "macenko"
        if is_normalised:
            say(f"warning:{_LEFT_OUT}")
            card += f"\n**Stain.**{_LEFT_OUT}\n"
        write_atomic(out / README, card.encode())
        work.finish([SCRIPT, CONFIG, README])
    return out / SCRIPT, difference


def _write_wsinfer(
    encoder: Encoder, probe: "LinearProbe", classes: tuple[str, ...], store: PatchStore, out: Path
) -> float:
    """Write the model and compare what it says of random pictures with encoder and probe."""
    if probe.model is None:
        raise UserError(f"all reference patients are of class {classes[int(probe.present[0])]!r}: nothing to classify.")
    layer = fill_classes(*probe.model.to_layer(), probe.present, len(classes))
    assert store.info.mpp is not None
    write_wsinfer(encoder, layer, classes, store.info.size_px, store.info.mpp, out)
    x = draw_pictures(encoder)
    with torch.inference_mode():
        ours = torch.zeros(len(x), len(classes), dtype=torch.float64)
        ours[:, probe.present] = torch.from_numpy(probe.model.predict(encoder.features(x).numpy()))
        difference = float((run_wsinfer(out, x) - ours).abs().max())
    if not difference <= _CLOSE:
        raise UserError(f"{out / SCRIPT} gives other probabilities than the probe (difference {difference:.1g}).")
    return difference


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
