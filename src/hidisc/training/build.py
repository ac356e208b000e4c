"""What a training is made of: its patches, encoder, objective and optimiser."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hidisc.artefacts.inputs import ANY_INPUTS, ExpectedInputs
from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_seed
from hidisc.models.backbone import count_depths, count_features, list_tokens
from hidisc.models.batch_norm import normalise_over_ranks
from hidisc.models.encoder import Encoder, build_encoder, hash_given_weights, hash_start
from hidisc.objectives.objective import find_objective
from hidisc.patches.record import SlideId
from hidisc.patches.store import PatchStore
from hidisc.sampling.hierarchy import Hierarchy, Tree
from hidisc.sampling.sampler import Sampler
from hidisc.sampling.views import list_kinds
from hidisc.settings.config import Config
from hidisc.settings.train import DataConfig, TrainConfig, ViewsConfig
from hidisc.training.step import Learner


@dataclass(frozen=True)
class TrainingSet:
    """The tree of the patches to learn from; labels only where they are asked for."""

    store: PatchStore
    tree: Tree
    classes: tuple[str, ...]
    """Names of the label codes of batches; empty when labels are not used."""
    labels_used: tuple[str, ...]
    """The purposes that labels are used for; empty: labels are not used."""

    def sampler(self, config: TrainConfig, world: int) -> Sampler:
        """The sampler of a run; with `batch.balance`, the label of a root is that of its first patch."""
        labels = None
        if config.batch.balance:
            labels = self.store.table.codes("label")[0][self.tree.leaves[self.tree.root_leaves()]]
        return Sampler(self.tree, config.batch, config.seed, world, labels)

    def count_single(self, level: str, inner: str) -> tuple[int, int]:
        """How many units of a level have one unit of a finer level, and how many units there are."""
        first, last = (self.tree.levels.index(name) for name in (level, inner))
        starts = np.arange(len(self.tree.starts[first]))
        for of_level in self.tree.starts[first:last]:
            starts = of_level[starts]
        return int((np.diff(starts) == 1).sum()), len(starts) - 1

    @property
    def mpp(self) -> float | None:
        """Micrometres per px of the patches to learn from; None: not known, or several."""
        scales = np.unique(self.store.table.column("mpp")[self.tree.leaves]).round(4)
        return float(scales[0]) if len(scales) == 1 and not np.isnan(scales[0]) else None

    def slides(self) -> tuple[SlideId, ...]:
        """Every slide with a patch to learn from."""
        codes, names = self.store.table.codes("slide")
        return list_slides(self.store, codes[self.tree.leaves], names)


def rows_to_learn(store: PatchStore, data: DataConfig) -> NDArray[np.bool_]:
    """(N,) mask of the patches to learn from: of the given splits and scales, without the patients left out."""
    rows = store.table.in_splits(data.splits, "data.splits", store.path)
    if data.mpp is not None:
        rows &= store.table.at_scales(data.mpp, "data.mpp", store.path)
    return rows & ~store.table.of_patients(data.leave_out, "data.leave_out", store.path)


def list_slides(store: PatchStore, codes: NDArray[np.int32], names: Sequence[str]) -> tuple[SlideId, ...]:
    """The slides of a store that occur among codes (N,) of names, with the checksums of their files."""
    present = {names[code] for code in np.unique(codes)}
    return tuple(
        SlideId(patient=slide.patient, slide=slide.slide, checksum=slide.checksum)
        for slide in store.info.slides
        if slide.slide in present
    )


def find_start(config: TrainConfig, expected: ExpectedInputs = ANY_INPUTS) -> dict[str, str]:
    """The checksums of the starting weights (`hash_start`); settings that need weights and lack them are refused."""
    model, optim = config.model, config.optim
    if model.weights is None:
        needing = {
            "model.batch_norm=frozen": model.batch_norm == "frozen",
            "optim.layer_decay": optim.layer_decay < 1,
            "optim.freeze_backbone": optim.freeze_backbone > 0,
        }
        for name in [name for name, is_set in needing.items() if is_set][:1]:
            raise UserError(
                f"{name} is for training that starts from weights, and model.weights is null. Give them with --set "
                "model.weights=FILE (or a folder with an encoder, or `hub`)."
            )
    return hash_start(model.weights, expected)


def choose_training_set(store: PatchStore, config: TrainConfig, objective: Config) -> TrainingSet:
    """The patches of the splits to learn from; where the objective needs labels, only those that have one."""
    rows = rows_to_learn(store, config.data)
    needs_labels = find_objective(objective).needs_labels
    used = []
    classes: tuple[str, ...] = ()
    if needs_labels or config.batch.balance:
        label, classes = store.table.codes("label")
        rows &= label >= 0
        if len(np.unique(label[rows])) < 2:
            raise UserError(
                f"objective {objective.model_dump()['name']!r} and batch.balance need labels, and the patches to learn "
                "from have fewer than two. Give the cohort a `label` column and prepare it again."
            )
        used = ["objective"] * needs_labels + ["class balance"] * config.batch.balance
    if config.monitor.every is not None:
        used.append("monitor")
    return TrainingSet(store, Hierarchy(config.batch.levels).grow(store.table, rows), classes, tuple(used))


def build_learner(training_set: TrainingSet, config: TrainConfig, objective: Config, world: int) -> Learner:
    """Encoder and objective, their random weights from the config's seed alone."""
    kind = find_objective(objective)
    store = training_set.store
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(make_seed(config.seed, Purpose.LEARNER_WEIGHTS))
        encoder = build_encoder(
            config.model.backbone,
            config.model.options,
            config.model.head if kind.uses_head else None,
            channels=store.input_channels,
            size_px=store.info.size_px,
            mpp=training_set.mpp,
            input=store.info.input,
            weights=config.model.weights,
            scale=(config.model.mean, config.model.std) if config.model.mean and config.model.std else None,
            classes=() if kind.uses_head else training_set.classes,
        )
        if config.model.weights is not None:
            history = encoder.card.history.after(hash_given_weights(config.model.weights, encoder.backbone))
            encoder.card = encoder.card.model_copy(update={"history": history})
        _check_sizes(encoder, config.views)
        encoder.keeps_statistics = config.model.batch_norm == "frozen"
        learner = Learner(encoder, kind(objective, encoder, config.batch.levels, training_set.classes))
    if config.compute.sync_batchnorm and world > 1:
        normalise_over_ranks(learner)
    if config.compute.compile is True:  # `training.compiling` has decided what `auto` means
        learner.encoder.backbone.compile()
    return learner.to(memory_format=torch.channels_last) if config.compute.channels_last else learner


def _check_sizes(encoder: Encoder, views: ViewsConfig) -> None:
    """Refuse views that the backbone does not take, and local ones that are larger than global ones."""
    (_, part), *_ = list_kinds(views, 1)
    sizes = {"global": part.find_size(encoder.card.size_px, encoder.card.size_px)[0]}
    if views.local.number:
        sizes["local"] = views.local.size_px
        if sizes["local"] > sizes["global"]:
            raise UserError(
                f"views.local.size_px = {sizes['local']}: local views are parts of patches, and global ones have "
                f"{sizes['global']} px. Set it to {sizes['global'] // 2} or so."
            )
    for kind, size_px in sizes.items():
        if size_px != encoder.card.size_px:
            count_features(
                encoder.backbone,
                encoder.card.channels,
                size_px,
                f"Change views.{kind}.size_px. A vision transformer takes views of several sizes, multiples of its own "
                "patches, with --set 'model.options={dynamic_img_size: true}'.",
            )


def build_optimizer(learner: Learner, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW over everything that learns; the `scale` of a group is its share of the learning rate."""
    optim, backbone, prefix = config.optim, learner.encoder.backbone, "encoder.backbone."
    depths = {prefix + name: depth for name, depth in count_depths(backbone).items()} if optim.layer_decay < 1 else {}
    tokens = {prefix + name for name in list_tokens(backbone)}
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            decays = optim.decay_norms or (parameter.ndim > 1 and name not in tokens)
            key = optim.layer_decay ** depths.get(name, 0), optim.weight_decay if decays else 0.0
            groups.setdefault(key, []).append(parameter)
    return torch.optim.AdamW(
        [{"params": params, "scale": scale, "weight_decay": decay} for (scale, decay), params in groups.items()],
        optim.learning_rate,
    )
