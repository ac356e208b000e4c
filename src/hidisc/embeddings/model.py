"""Any encoder in one form (run, encoder alone, timm name, TorchScript, ONNX, colour), and which patches are embedded.

What a run was fed is known and kept to. An encoder from elsewhere is fed what `config.model` says, else what came with
it (`preprocessing.json` beside it, the sizes in an ONNX file, timm's own notes), else pixels in [0, 1] as they are.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hidisc.artefacts.artefact import open_artefact, read_kind, read_manifest, read_settings
from hidisc.embeddings.colour import COLOUR, fit_colour, refuse_path
from hidisc.embeddings.embeddings import ModelCard, ModelKind
from hidisc.ground.errors import UserError
from hidisc.ground.files import digest, hash_file
from hidisc.ground.seeds import Purpose, make_rng, make_seed
from hidisc.models.card import (
    CARD,
    INSIDE,
    NOTHING,
    PIXELS,
    WEIGHTS,
    Preprocessing,
    hash_weights,
    read_preprocessing,
    trust_history,
)
from hidisc.models.encoder import Encoder, build_encoder, describe_weights, hash_given_weights, hash_tensors
from hidisc.models.export import FILES
from hidisc.models.foreign import (
    ONNX_SUFFIX,
    TORCHSCRIPT_SUFFIXES,
    OnnxNet,
    Prepared,
    TorchScriptNet,
    check_output,
    open_timm_folder,
    size_of_timm,
)
from hidisc.patches.store import PatchStore
from hidisc.settings.config import keep_facts
from hidisc.settings.embed import EmbedConfig, ForeignConfig
from hidisc.settings.train import TrainConfig
from hidisc.training.run import RUN, Run


def choose_rows(store: PatchStore, config: EmbedConfig) -> NDArray[np.int64]:
    """(N,) rows of the store's table, ascending; a slide's draw depends on the seed and its own name only."""
    is_chosen = np.ones(len(store), bool)
    if config.splits is not None:
        is_chosen &= store.table.in_splits(config.splits, "splits", store.path)
    if config.mpp is not None:
        is_chosen &= store.table.at_scales(config.mpp, "mpp", store.path)
    if not is_chosen.any():
        raise UserError(f"{store.path} holds no patches to embed. See its pictures/ for what was dropped.")
    if config.per_slide is None:
        return np.flatnonzero(is_chosen)
    drawn = []
    for slide, rows in store.table.rows_by("slide").items():
        rows = rows[is_chosen[rows]]
        if len(rows) > config.per_slide:
            rows = make_rng(config.seed, Purpose.EMBEDDED_PATCHES, slide).choice(rows, config.per_slide, replace=False)
        drawn.append(rows)
    return np.sort(np.concatenate(drawn))


TIMM = "timm:"
_CLOSE = 0.02
"""Share by which two pixel sizes may differ and count as one."""


@dataclass(frozen=True)
class OpenedModel:
    """An encoder ready for a store: `net` takes (B, C, H, W) float in [0, 1] at the store's size and gives (B, D).

    `net` is in evaluation mode on the CPU; `.to(device)` moves it unless `runs_on_cpu_only`.
    """

    card: ModelCard
    net: Prepared
    dim: int
    """D, the width of the embedding."""
    notes: tuple[str, ...]
    """Notes for the user, a sentence each."""
    fed: Preprocessing
    """What the network is fed."""

    @property
    def checksum(self) -> str:
        """Digest of its weights, of what is known of them, and of the mean and deviation that came with them."""
        facts = [self.card.checksum, self.card.history.model_dump(exclude={"started_from"}), self.card.group]
        if self.fed.mean is not None or self.fed.std is not None:
            facts.append({"mean": self.fed.mean, "std": self.fed.std, "size_px": self.card.size_px})
        return digest(facts)

    @property
    def runs_on_cpu_only(self) -> bool:
        """Whether the encoder computes on the CPU wherever it is moved (ONNX)."""
        return self.net.runs_on_cpu_only


_UNNAMED = {"name": "", "source": ""}
"""What `open_model` fills in for every kind of encoder."""
_Found = tuple[ModelCard, nn.Module, Preprocessing]
"""What is known of an encoder, its network, and what to feed it: a mean and deviation only where none is inside."""


def open_model(spec: str, store: PatchStore, config: EmbedConfig, name: str | None = None) -> OpenedModel:
    """Open the encoder that `spec` names for the patches of a store, refusing one that does not fit them.

    `spec`: the folder of a finished run, one with an encoder alone, one that `hidisc export` wrote, `timm:NAME`, a
    TorchScript file, an ONNX file or `colour`. Only `timm:NAME` with `model.weights: hub` asks the network; no global
    state of random numbers is touched.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(make_seed(config.seed, Purpose.UNTRAINED_WEIGHTS))
        card, network, fed = _open(spec, store, config)
    _refuse_other_input(spec, fed, store)
    is_inside = fed.mean_and_std_are_applied == INSIDE
    net = Prepared(network, card.size_px, *((None, None) if is_inside else (fed.mean, fed.std))).eval()
    dim, notes = check_output(net, store.input_channels, store.info.size_px, spec)
    own_name = spec.removeprefix(TIMM) if spec.startswith(TIMM) else Path(spec).resolve().name
    card = card.model_copy(update={"name": name or own_name, "source": spec})
    return OpenedModel(card, net, dim, (*_notes_on(card, fed, store), *notes), fed)


def _open(spec: str, store: PatchStore, config: EmbedConfig) -> _Found:
    path, given = Path(spec), config.model
    if spec.startswith(TIMM):
        return _open_timm(spec.removeprefix(TIMM), store, config)
    if spec == COLOUR:
        return _open_colour(store, config)
    if not path.exists():
        raise UserError(
            f"{spec} does not exist. Give the folder of a run, one that `hidisc export` wrote, `timm:NAME`, `colour`, "
            "or a TorchScript or ONNX file."
        )
    is_run = (path / RUN).is_file() or read_kind(path) == "train"
    if is_run or (path / CARD).is_file():
        run = Run.load(path) if is_run else None
        _refuse_settings(spec, given, ForeignConfig())
        return _open_encoder(path, run)
    _check_export(path if path.is_dir() else path.parent)
    if path.is_dir():
        return _open_folder(path, store, given)
    return _open_file(path, store, given)


def _check_export(folder: Path) -> None:
    """Refuse a damaged export of ours: without the files beside the weights, they would be fed something else."""
    try:
        manifest = read_manifest(folder)
        kind = manifest.kind if manifest else read_kind(folder)
    except ValueError:
        kind = "export"
    if kind == "export":
        open_artefact(folder, "export")


def _open_encoder(path: Path, run: Run | None) -> _Found:
    """The encoder in a folder, of a run or alone; it subtracts its mean itself."""
    encoder = Encoder.load(path)
    fed = encoder.card.describe().model_copy(update={"mean": None, "std": None})
    checksum = encoder.card.weights or hash_file(path / WEIGHTS)
    card = ModelCard(
        **_UNNAMED,
        kind="run" if run else "encoder",
        checksum=checksum,
        group=(_group_of(run) if run else None) or checksum,
        seed=run.info.seed if run else None,
        objective=run.info.objective if run else None,
        backbone=encoder.card.backbone,
        size_px=encoder.card.size_px,
        history=encoder.card.history if run else trust_history(encoder.card.history),
    )
    return card, encoder, fed


def _group_of(run: Run) -> str | None:
    """Digest of a training's settings and patches but for its seed; None when config.yaml is gone."""
    settings = read_settings(run.path)
    if settings is None:
        return None
    facts = keep_facts(TrainConfig, settings, ("seed", "monitor"))
    return digest({"settings": facts, "store": run.info.store})[:16]


def _open_timm(name: str, store: PatchStore, config: EmbedConfig) -> _Found:
    """A timm model, random from the seed, from timm's hub or from a file."""
    given = config.model
    if name.startswith("local-dir:"):
        raise UserError(f"timm:{name} is a folder. Give the folder itself, {name.removeprefix('local-dir:')}.")
    size_px = given.size_px or store.info.size_px
    if given.weights and not given.size_px:
        size_px = describe_weights(Path(given.weights)).size_px or size_of_timm(name) or size_px
    encoder = build_encoder(
        name,
        given.options,
        None,
        channels=store.input_channels,
        size_px=size_px,
        input=store.info.input,
        weights=given.weights,
    )
    card = encoder.card
    mean, std = _given_scale(given, store)
    encoder = Encoder(card.model_copy(update={"mean": mean or card.mean, "std": std or card.std}), encoder.backbone)
    fed = Preprocessing(backbone=name, channels=card.channels, size_px=size_px)
    if given.weights is None:
        made = {"timm": name, "options": card.options, "channels": card.channels, "size_px": size_px}
        checksum, group = digest({**made, "seed": config.seed}), digest(made)[:16]
    else:
        scale = {"mean": encoder.card.mean, "std": encoder.card.std, "mean_and_std_are_applied": INSIDE}
        fed = fed.model_copy(update=scale)
        checksum = group = hash_given_weights(given.weights, encoder.backbone)
    known = ModelCard(
        **_UNNAMED,
        kind="timm",
        checksum=checksum,
        group=group,
        seed=config.seed if given.weights is None else None,
        backbone=name,
        size_px=size_px,
        history=card.history,
    )
    return known, encoder, fed


def _open_colour(store: PatchStore, config: EmbedConfig) -> _Found:
    """The colour floor, standardised over the patches that are embedded; it has learned from nothing."""
    refuse_path(Path(COLOUR))
    _refuse_settings(COLOUR, config.model, ForeignConfig())
    net = fit_colour(store, choose_rows(store, config))
    checksum, size_px = hash_tensors(net), store.info.size_px
    card = ModelCard(**_UNNAMED, kind="colour", checksum=checksum, group=checksum, size_px=size_px, history=NOTHING)
    return card, net, Preprocessing()


def _open_folder(path: Path, store: PatchStore, given: ForeignConfig) -> _Found:
    """A folder that `hidisc export` wrote, or a timm folder from elsewhere."""
    there = [file for file in FILES.values() if (path / file).is_file()]
    if not there:
        raise UserError(
            f"{path} holds no encoder (no {RUN}, {CARD}, {', '.join(FILES.values())}). Give the folder of a finished "
            "`hidisc train`, one that `hidisc export` wrote, or the file itself."
        )
    if len(there) > 1:
        raise UserError(f"{path} holds {len(there)} encoders ({', '.join(there)}). Move them to folders of their own.")
    if there[0] != FILES["timm"]:
        return _open_file(path / there[0], store, given)
    net, fed = open_timm_folder(path)
    return _foreign("timm", net, path / FILES["timm"], fed, store, given)


def _open_file(path: Path, store: PatchStore, given: ForeignConfig) -> _Found:
    """A TorchScript or ONNX file, ours or another's."""
    suffix = path.suffix.lower()
    known = read_preprocessing(path.parent) or Preprocessing()
    if suffix == ONNX_SUFFIX:
        return _open_onnx(path, known, store, given)
    if suffix in TORCHSCRIPT_SUFFIXES:
        return _foreign("torchscript", TorchScriptNet(path), path, known, store, given)
    if suffix == ".safetensors":
        raise UserError(f"{path} holds weights without their network. Give `timm:NAME --set model.weights={path}`.")
    raise UserError(
        f"{path} is no encoder that can be opened. Give a TorchScript file ({', '.join(TORCHSCRIPT_SUFFIXES)}), an "
        f"ONNX file ({ONNX_SUFFIX}), a folder, or `timm:NAME`."
    )


def _open_onnx(path: Path, known: Preprocessing, store: PatchStore, given: ForeignConfig) -> _Found:
    """An ONNX file; it takes the sizes that are written in it."""
    net = OnnxNet(path)
    _, channels, height, width = net.shape
    if height != width and None not in (height, width):
        raise UserError(f"{path} takes pictures of {width} x {height} px. Export it for square ones.")
    fixed = height or width
    if fixed and given.size_px and fixed != given.size_px:
        raise UserError(
            f"model.size_px = {given.size_px}, and {path} takes pictures of {fixed} px only. Leave model.size_px out."
        )
    known = known.model_copy(update={"channels": channels or known.channels, "size_px": fixed or known.size_px})
    return _foreign("onnx", net, path, known, store, given)


def _foreign(
    kind: ModelKind, net: nn.Module, file: Path, known: Preprocessing, store: PatchStore, given: ForeignConfig
) -> _Found:
    """An encoder from elsewhere with what it is fed: the user's settings, else its own file, else plain pixels."""
    _refuse_settings(str(file), given, ForeignConfig(size_px=given.size_px, mean=given.mean, std=given.std))
    mean, std = _given_scale(given, store)
    if known.mean_and_std_are_applied == INSIDE:
        if mean or std:
            raise UserError(
                f"model.{'mean' if mean else 'std'} is set, and {file} applies its own inside (preprocessing.json). "
                "Leave it out."
            )
        known = known.model_copy(update={"mean": None, "std": None})
    size_px = given.size_px or known.size_px or store.info.size_px
    fed = known.model_copy(update={"size_px": size_px, "mean": mean or known.mean, "std": std or known.std})
    checksum = hash_weights(file)
    if known.weights is not None and known.weights != checksum:
        raise UserError(
            f"{file} is not the file that preprocessing.json beside it speaks of. Export it again, or remove "
            "preprocessing.json and say what to feed it with --set model.size_px, model.mean and model.std."
        )
    card = ModelCard(
        **_UNNAMED,
        kind=kind,
        checksum=checksum,
        group=checksum,
        backbone=fed.backbone,
        size_px=size_px,
        history=trust_history(known.history),
    )
    return card, net, fed


def _given_scale(given: ForeignConfig, store: PatchStore) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """The user's (mean, std), one value per channel of the store."""
    for name, values in (("mean", given.mean), ("std", given.std)):
        if values is not None and len(values) != store.input_channels:
            raise UserError(
                f"model.{name} has {len(values)} values, and {store.path} gives {store.input_channels} channels. Give "
                "one per channel."
            )
    if given.std is not None and min(given.std) <= 0:
        raise UserError(f"model.std = {list(given.std)}: pixels are divided by it. Give values above 0.")
    return given.mean, given.std


def _refuse_settings(source: str, given: ForeignConfig, used: ForeignConfig) -> None:
    """Refuse settings that would do nothing."""
    idle = [name for name in ForeignConfig.model_fields if getattr(given, name) != getattr(used, name)]
    if idle:
        raise UserError(f"model.{idle[0]} is set, and {source} brings its own. Leave it out.")


def _refuse_other_input(source: str, fed: Preprocessing, store: PatchStore) -> None:
    """Refuse an encoder that takes other channels than the store gives."""
    pixels = PIXELS[store.info.input]
    if fed.pixels is not None and fed.pixels != pixels:
        raise UserError(
            f"{source} takes pixels as {fed.pixels!r}, and {store.path} gives {pixels!r}. Give an encoder that learned "
            "from such a store."
        )
    if fed.channels is not None and fed.channels != store.input_channels:
        raise UserError(
            f"{source} takes {fed.channels} channels, and {store.path} gives {store.input_channels}. Give an encoder "
            "that learned from such a store."
        )
    for name, values in (("mean", fed.mean), ("std", fed.std)):
        if values is not None and len(values) != store.input_channels:
            raise UserError(
                f"the {name} that came with {source} has {len(values)} values, and {store.path} gives "
                f"{store.input_channels} channels. Correct preprocessing.json, or give model.{name}."
            )


def _notes_on(card: ModelCard, fed: Preprocessing, store: PatchStore) -> tuple[str, ...]:
    """Notes for the user before the numbers are trusted."""
    notes = []
    stored_px = store.info.size_px
    if card.size_px != stored_px:
        notes.append(f"patches are resized from {stored_px} to {card.size_px} px")
    for mpp in store.scales if fed.mpp else ():
        seen = mpp * stored_px / card.size_px
        if fed.mpp and abs(seen / fed.mpp - 1) > _CLOSE:
            notes.append(
                f"the encoder learned at {fed.mpp:g} um/px and sees these patches at {seen:.3g} (the store has {mpp:g})"
            )
    if card.kind == "timm" and card.seed is not None:
        notes.append(
            f"the encoder's weights are random (seed {card.seed}); --set model.weights=hub or a .safetensors file "
            "gives trained ones"
        )
    if not card.history.is_complete:
        notes.append("what the encoder has seen is not known, so overlap with these patients cannot be ruled out")
    return tuple(notes)
