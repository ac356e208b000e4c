"""From a config to what is trained: encoder, objective, optimiser."""

import torch

from hidisc.ground.seeds import Purpose, make_seed
from hidisc.models.batch_norm import normalise_over_ranks
from hidisc.models.encoder import build_encoder
from hidisc.objectives.objective import find_objective, load_settings
from hidisc.patches.store import PatchStore
from hidisc.settings.train import TrainConfig
from hidisc.training.learner import Learner
from hidisc.training.training_set import TrainingSet


def choose_training_set(store: PatchStore, config: TrainConfig) -> TrainingSet:
    """The patches the config learns from."""
    return TrainingSet.choose(store, config, find_objective(load_settings(config.objective)).needs_labels)


def build_learner(training_set: TrainingSet, config: TrainConfig, world: int) -> Learner:
    """Encoder and objective, their random weights from the config's seed alone."""
    settings = load_settings(config.objective)
    kind = find_objective(settings)
    store = training_set.store
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(make_seed(config.seed, Purpose.LEARNER_WEIGHTS))
        encoder = build_encoder(
            config.model.backbone,
            config.model.options,
            config.model.head if kind.uses_head else None,
            channels=store.input_channels,
            size_px=store.info.size_px,
            mpp=store.info.mpp,
            input=store.info.input,
            weights=config.model.weights,
            classes=() if kind.uses_head else training_set.classes,
        )
        learner = Learner(encoder, kind(settings, encoder, config.batch.levels, training_set.classes))
    if config.compute.sync_batchnorm and world > 1:
        normalise_over_ranks(learner)
    if config.compute.compile is True:  # `training.compiling` has decided what `auto` means
        learner.encoder.backbone.compile()
    return learner.to(memory_format=torch.channels_last) if config.compute.channels_last else learner


def build_optimizer(learner: Learner, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW over everything that learns."""
    trained = [parameter for parameter in learner.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, config.optim.learning_rate, weight_decay=config.optim.weight_decay)
