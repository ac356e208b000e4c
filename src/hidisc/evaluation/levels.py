"""The predictions of a probe at its levels: written to the folder of the scores, and scored."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hidisc.evaluation.compare import score_level
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import LevelScores
from hidisc.ground.files import make_folder
from hidisc.ground.progress import Watch, ignore
from hidisc.settings.evaluate import EvaluateConfig


def write_levels(
    predictions: Sequence[Predictions],
    files: Mapping[str, str],
    out: Path,
    positive: int,
    config: EvaluateConfig,
    watch: Watch = ignore,
) -> tuple[LevelScores, ...]:
    """Write the predictions of each level under its name in `files`, and score them; `watch` is called per level."""
    for level in predictions:
        make_folder((out / files[level.level]).parent)
        level.save(out / files[level.level])
    scored = []
    for level in predictions:
        scored.append(score_level(level, positive, config.bootstrap, config.seed))
        watch(1)
    return tuple(scored)
