"""A map of vectors as `hidisc embed EMBEDDINGS run` opens it: a run that `hidisc train EMBEDDINGS` has left."""

from pathlib import Path

from hidisc.artefacts.artefact import read_kind
from hidisc.embeddings.embeddings import Embeddings, ModelCard
from hidisc.embeddings.model import OpenedModel, group_of_run
from hidisc.ground.errors import UserError
from hidisc.ground.files import digest
from hidisc.models.card import MAP_CARD, Preprocessing
from hidisc.models.vector_map import VectorMap
from hidisc.settings.embed import EmbedConfig, ForeignConfig
from hidisc.training.run import Run


def open_map(spec: str, embeddings: Embeddings, config: EmbedConfig, name: str | None = None) -> OpenedModel:
    """Open the run of a map for some embeddings; a map of another encoder's vectors is refused."""
    path, start = Path(spec), embeddings.info.model
    if path.is_dir() and read_kind(path) == "train" and not (path / MAP_CARD).is_file():
        raise UserError(
            f"{path} has learned from pictures, and {embeddings.path} holds vectors. Embed its store with it, or train "
            f"a map: `hidisc train {embeddings.path} --recipe whiten-within --out map`."
        )
    if not (path / MAP_CARD).is_file():
        raise UserError(
            f"{spec} is no map of vectors, and {embeddings.path} holds vectors. Give the folder of a finished "
            f"`hidisc train {embeddings.path} --recipe whiten-within`, or a store to embed with {spec}."
        )
    if config.model != ForeignConfig() or config.tta is not None:
        raise UserError(f"model.* and tta are for encoders of pictures, and {embeddings.path} holds vectors.")
    run, net = Run.load(path), VectorMap.load(path)
    if net.card.encoder != start.checksum:
        raise UserError(
            f"the map {path} is for vectors of {net.card.encoder_name!r}, and {embeddings.path} was made by "
            f"{start.name!r}, another encoder. Train a map on these: `hidisc train {embeddings.path} --recipe "
            "whiten-within`."
        )
    card = start.model_copy(
        update={
            "name": name or path.resolve().name,
            "kind": "run",
            "source": spec,
            "checksum": digest([start.checksum, net.card.weights]),
            "group": digest([start.group, group_of_run(run) or net.card.weights])[:16],
            "seed": run.info.seed,
            "objective": run.info.objective,
            "history": net.card.history,
        }
    )
    return OpenedModel(ModelCard.model_validate(card.model_dump()), net, net.card.features, (), Preprocessing())
