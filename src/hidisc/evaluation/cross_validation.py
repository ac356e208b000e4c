"""Cross-validation: the predictions of all folds pooled, so that every patient is judged once, as one evaluation."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hidisc.embeddings.embeddings import ModelCard
from hidisc.evaluation.floor import compare_with_floor
from hidisc.evaluation.levels import write_levels
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scales import score_scales
from hidisc.evaluation.scores import (
    NEIGHBOURS,
    SCORES,
    Count,
    Diagnostic,
    Finding,
    FloorScores,
    ProbeScores,
    Scores,
    predictions_file,
    save_neighbours,
)
from hidisc.ground.errors import UserError
from hidisc.ground.files import relate, write_atomic
from hidisc.settings.evaluate import EvaluateConfig


def write_pooled(folds: Sequence[Scores], out: Path, config: EvaluateConfig, model: ModelCard) -> list[str]:
    """Write the evaluation that `folds` are together, about `model`; returns the names of its files."""
    first = folds[0].info
    positive = first.classes.index(first.positive)
    probes, files = _pool_probes(folds, out, config, positive)
    floor = None
    floors = [fold.info.floor for fold in folds if fold.info.floor]
    if len(floors) == len(folds):
        of_floor, more = _pool_probes(folds, out, config, positive, of_floor=True)
        differences = compare_with_floor(out, config, probes[0], positive)
        floor = FloorScores(patches=floors[0].patches, probes=of_floor, differences=differences)
        files += more
    shared = set.intersection(*({scale.mpp for scale in fold.info.scales} for fold in folds))

    def pool_scale(mpp: float, of_floor: bool) -> list[Predictions]:
        of_folds = (fold.scale_predictions(mpp, of_floor=of_floor) for fold in folds)
        return [pool_predictions(parts) for parts in zip(*of_folds, strict=False)]

    scales, more = score_scales(sorted(shared), pool_scale, out, positive, config)
    files += [*more, *_pool_neighbours(folds, out)]
    info = first.model_copy(
        update={
            "model": model,
            "embeddings": relate(folds[0].path / first.embeddings, out),
            "bank": relate(folds[0].path / first.bank, out),
            "config": config.model_dump(mode="json"),
            "counts": _add_counts(folds),
            "unlabelled": {
                "bank": max(fold.info.unlabelled["bank"] for fold in folds),
                "queries": sum(fold.info.unlabelled["queries"] for fold in folds),
            },
            "labels": _unite(fold.info.labels for fold in folds),
            "probes": probes,
            "floor": floor,
            "scales": scales,
            "diagnostics": _choose_middle([fold.info.diagnostics for fold in folds]),
            "leakage": _unite(fold.info.leakage for fold in folds),
            "folds": tuple(relate(fold.path, out) for fold in folds),
        }
    )
    write_atomic(out / SCORES, (info.model_dump_json(indent=1) + "\n").encode())
    return [SCORES, *files]


def _pool_probes(
    folds: Sequence[Scores], out: Path, config: EvaluateConfig, positive: int, *, of_floor: bool = False
) -> tuple[tuple[ProbeScores, ...], list[str]]:
    """The scores of every probe over all folds, its predictions written; returns the names of their files as well."""
    probes: list[ProbeScores] = []
    files: list[str] = []
    for name in config.probes:
        shared = _levels_of_all(folds, name)
        names = {level: predictions_file(name, level, config.probes[0], of_floor) for level in shared}
        pooled = [
            pool_predictions([fold.predictions(name, level, of_floor=of_floor) for fold in folds]) for level in shared
        ]
        levels = write_levels(pooled, names, out, positive, config)
        files += names.values()
        probes.append(ProbeScores(name=name, remarks=_pool_remarks(folds, name), levels=levels))
    return tuple(probes), files


def pool_predictions(folds: Sequence[Predictions]) -> Predictions:
    """The units of all folds, one fold after the other; a patient that two folds have judged is refused."""
    patients = [set(fold.clusters.tolist()) for fold in folds]
    if sum(map(len, patients)) != len(set().union(*patients)):
        raise UserError("two folds have judged the same patient, so they cannot be pooled. Make the folds anew.")
    first = folds[0]
    return Predictions(
        first.level,
        first.classes,
        {name: np.concatenate([fold.units[name] for fold in folds]) for name in first.units},
        np.concatenate([fold.truth for fold in folds]),
        np.concatenate([fold.scores for fold in folds]),
        sum(fold.left_out for fold in folds),
        np.repeat(np.arange(1, len(folds) + 1), [len(fold) for fold in folds]),
    )


def _levels_of_all(folds: Sequence[Scores], probe: str) -> list[str]:
    """Levels, finest first, at which a probe has judged in every fold."""
    found = [
        [level.level for item in fold.info.probes if item.name == probe for level in item.levels] for fold in folds
    ]
    return [level for level in found[0] if all(level in levels for levels in found)]


def _pool_remarks(folds: Sequence[Scores], probe: str) -> tuple[str, ...]:
    """What a probe says of itself: as it is where all folds say the same, else as the first fold says it."""
    found = [next((item.remarks for item in fold.info.probes if item.name == probe), ()) for fold in folds]
    return tuple(
        remark if all(remark in remarks for remarks in found) else f"In fold 1 of {len(folds)}: {remark}"
        for remark in found[0]
    )


def _pool_neighbours(folds: Sequence[Scores], out: Path) -> list[str]:
    """Write the neighbours of all folds where they are rows of the same embeddings."""
    found = [fold.neighbours() for fold in folds]
    is_one = len({(fold.path / fold.info.bank).resolve() for fold in folds}) == 1
    kept = [pair for pair in found if pair is not None]
    if not is_one or len(kept) < len(folds) or len({rows.shape[1] for rows, _ in kept}) > 1:
        return []
    rows, similarities = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    save_neighbours(out / NEIGHBOURS, rows, similarities)
    return [NEIGHBOURS]


def _add_counts(folds: Sequence[Scores]) -> tuple[Count, ...]:
    """Test units of all folds together, and the reference units of the fold that has fewest."""
    counts = []
    for number, first in enumerate(folds[0].info.counts):
        units = [fold.info.counts[number].units for fold in folds]
        combine = sum if first.part == "queries" else min
        counts.append(
            first.model_copy(update={"units": {level: combine(one[level] for one in units) for level in units[0]}})
        )
    return tuple(counts)


def _unite(found: Iterable[Sequence[Finding]]) -> tuple[Finding, ...]:
    """The findings of all folds, each sentence once."""
    return tuple({finding.sentence: finding for findings in found for finding in findings}.values())


def _choose_middle(folds: Sequence[Sequence[Diagnostic]]) -> tuple[Diagnostic, ...]:
    """Each diagnostic that all folds have, from the fold whose value is the middle one."""
    chosen = []
    for diagnostic in folds[0]:
        same = [item for found in folds for item in found if item.name == diagnostic.name and item.value is not None]
        if len(same) == len(folds):
            chosen.append(sorted(same, key=lambda item: item.value or 0.0)[len(same) // 2])
    return tuple(chosen)
