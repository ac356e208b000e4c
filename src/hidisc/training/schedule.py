"""The learning rate of a step, and what learns in it."""

from math import cos, pi

from hidisc.settings.train import OptimConfig


def learning_rate(step: int, config: OptimConfig) -> float:
    """At step 0, 1, ...: rises linearly over the warm-up, then falls to 0 along half a cosine."""
    warm = int(config.warmup * config.steps)
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    return config.learning_rate * 0.5 * (1 + cos(pi * (step - warm) / max(config.steps - warm, 1)))


def is_backbone_frozen(step: int, config: OptimConfig) -> bool:
    """Whether the backbone keeps its weights at step 0, 1, ..."""
    return step < int(config.freeze_backbone * config.steps)
