"""The table of a judgement: every metric of every key with its interval, and how far the encoder is ahead of floors."""

from collections.abc import Mapping

from hidisc.evaluation.compare import compare, draw_weights, find_interval, name_clusters
from hidisc.evaluation.metrics import Floats, Value
from hidisc.evaluation.predictions import ENCODER, Key, Predictions, encoder_on
from hidisc.evaluation.scores import Floor, Judged
from hidisc.ground.progress import Progress
from hidisc.settings.evaluate import BootstrapConfig, EvaluateConfig


def score_all(predictions: Mapping[Key, Predictions], config: EvaluateConfig, progress: Progress) -> tuple[Judged, ...]:
    """A row of the table for each of some predictions."""
    rows = []
    with progress.part("bootstrap", len(predictions), "levels") as part:
        for unscored in predictions.values():
            rows.append(score(unscored, config.bootstrap, config.seed))
            part.advance()
    return tuple(rows)


def score(predictions: Predictions, config: BootstrapConfig, seed: int) -> Judged:
    """Every metric of some predictions, each with a percentile interval over patients."""
    endpoint = predictions.endpoint
    measured = endpoint.measure(predictions)
    names, cluster = name_clusters(predictions), predictions.cluster
    resampled: dict[str, Floats] = {}
    resampled_by_class: dict[str, Floats] = {}
    if config.resamples and len(names) > 1:
        weights = draw_weights(len(names), config.resamples, seed)
        resampled, resampled_by_class = endpoint.resample(predictions, weights, names)

    def add_interval(value: Value, values: Floats | None) -> Value:
        if value.value is None or not config.resamples:
            return value
        if values is None:
            return value.model_copy(update={"why": f"no interval: there is only one {cluster}"})
        low, high, why = find_interval(values, config, cluster)
        return Value(value=value.value, low=low, high=high, why=why)

    by_class = {}
    for code, (label, values_of_class) in enumerate(measured.by_class.items()):
        resampled_of_class = {name: values[:, code] for name, values in resampled_by_class.items()}
        by_class[label] = {
            name: add_interval(value, resampled_of_class.get(name)) for name, value in values_of_class.items()
        }
    return Judged(
        **predictions.key.as_dict(),
        truth=predictions.truth_checksum,
        units=len(predictions),
        left_out=predictions.left_out,
        metrics={name: add_interval(value, resampled.get(name)) for name, value in measured.metrics.items()},
        by_class=by_class,
        confusion=measured.confusion,
    )


def compare_floors(
    predictions: Mapping[Key, Predictions], patches: Mapping[str, int], probe: str, config: EvaluateConfig
) -> tuple[Floor, ...]:
    """How far the encoder is ahead of each floor by one probe, at every level; `patches` of every floor."""

    def list_levels(subject: str) -> list[Predictions]:
        return [
            made for key, made in predictions.items() if (key.subject, key.probe, key.scale) == (subject, probe, None)
        ]

    floors = []
    for subject, number in patches.items():
        ahead, floor_levels = {}, {level.level: level for level in list_levels(subject)}
        for encoder in list_levels(encoder_on(subject)) or list_levels(ENCODER):
            if encoder.level in floor_levels:
                differences = compare([[encoder]], [[floor_levels[encoder.level]]], config.bootstrap, config.seed)
                ahead[encoder.level] = {metric: found.as_value() for metric, found in differences.items()}
        floors.append(Floor(subject=subject, patches=number, ahead=ahead))
    return tuple(floors)
