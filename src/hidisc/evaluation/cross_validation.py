"""Cross-validation: the evaluations of all folds pooled over their key, so that every patient is judged once."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hidisc.embeddings.embeddings import Embeddings, ModelCard
from hidisc.evaluation.compare import compare_floors, score_all
from hidisc.evaluation.predictions import pool_folds
from hidisc.evaluation.scores import Count, Diagnostic, Evaluation, Finding, Pair
from hidisc.evaluation.task import choose_levels, choose_task
from hidisc.ground.errors import UserError
from hidisc.ground.files import relate
from hidisc.ground.progress import SILENT, Progress
from hidisc.ground.text import count, drop_numbers, merge_numbers, name_some, plural
from hidisc.models.card import hash_name
from hidisc.patches.splits import Folds, make_folds
from hidisc.settings.evaluate import EvaluateConfig, FoldsConfig


def choose_folds(queries: Embeddings, config: EvaluateConfig, has_bank: bool) -> list[EvaluateConfig]:
    """The settings of every fold, which name its test patients; empty without cross-validation.

    Floors are measured once for all folds, and the audit looks at all patients, so a fold has no audit of its own.
    """
    if not config.folds.are_used:
        return []
    if has_bank or config.test_patients is not None:
        raise UserError("--folds choose reference and test patients themselves. Leave out --bank and test_patients.")
    folds = plan_folds(queries, config.folds, config)
    card = queries.info.model
    seen = {hash_name(patient) for patient in card.history.patients}
    known = [patient for fold in folds for patient in fold if hash_name(patient) in seen]
    if known and not config.leakage.allow:
        raise UserError(
            f"{card.name!r} has learned from {count(len(known), 'patient')} of these ({name_some(known)}), so folds of "
            "its embeddings cannot judge it: each fold needs an encoder of its own, trained without the fold's "
            "patients. `hidisc benchmark SUITE STORE --folds K` trains and judges these."
        )
    return [_test_on(patients, config) for patients in folds]


def plan_folds(given: Embeddings, rule: FoldsConfig, config: EvaluateConfig) -> Folds:
    """The patients of every fold; folds that cannot be judged are refused."""
    coarsest = choose_levels(given, config)[0]
    folds = make_folds(given.table, rule, config.label, given.path)
    for patients in folds:
        choose_task(given, given, _test_on(patients, config))
    units = [set(given.table.column(coarsest)[given.table.of_patients(fold, "", given.path)]) for fold in folds]
    if sum(map(len, units)) > len(set.union(*units)):
        remedy = "--set folds.by=site" if coarsest == "site" else f"levels=[...] without {coarsest}"
        raise UserError(
            f"levels begin with {coarsest!r}, and some {plural(coarsest)} of {given.path} have patients in several "
            f"folds, so that they would be judged more than once. Set {remedy}."
        )
    return folds


def _test_on(patients: Sequence[str], config: EvaluateConfig) -> EvaluateConfig:
    """The settings of one fold."""
    return config.model_copy(update={"folds": FoldsConfig(), "audit": False, "test_patients": tuple(patients)})


def pool_evaluations(
    folds: Sequence[Evaluation],
    paths: Sequence[Path],
    config: EvaluateConfig,
    model: ModelCard,
    out: Path,
    progress: Progress = SILENT,
) -> Evaluation:
    """The evaluation that `folds`, whose folders are `paths`, are together, about `model`.

    What any fold lacks (a level that has no unit there, a scale) is left out.
    """
    tables = [{replace(key, fold=None): predictions for key, predictions in fold.predictions.items()} for fold in folds]
    shared = [key for key in tables[0] if all(key in table for table in tables)]
    predictions = {key: pool_folds([table[key] for table in tables]) for key in shared}
    first, infos = folds[0].info, [fold.info for fold in folds]
    floors = set.intersection(*({floor.subject for floor in info.floors} for info in infos))
    sizes = {floor.subject: floor.patches for floor in first.floors if floor.subject in floors}
    probes = first.endpoint.list_probes(config.probes)
    changes = {
        "model": model,
        "embeddings": relate(paths[0] / first.embeddings, out),
        "bank": relate(paths[0] / first.bank, out),
        "config": config.model_dump(mode="json"),
        "counts": _add_counts([info.counts for info in infos]),
        "unlabelled": {
            "bank": max(info.unlabelled["bank"] for info in infos),
            "queries": sum(info.unlabelled["queries"] for info in infos),
        },
        "labels": _unite(info.labels for info in infos),
        "judged": score_all(predictions, config, progress),
        "remarks": {probe: _pool_remarks([info.remarks.get(probe, ()) for info in infos]) for probe in first.remarks},
        "floors": compare_floors(predictions, sizes, probes[0], config),
        "diagnostics": _choose_middle([info.diagnostics for info in infos]),
        "leakage": _unite(info.leakage for info in infos),
        "folds": tuple(relate(path, out) for path in paths),
    }
    banks = {(path / info.bank).resolve() for path, info in zip(paths, infos, strict=True)}
    neighbours = _pool_neighbours([fold.neighbours for fold in folds]) if len(banks) == 1 else None
    return Evaluation(first.model_copy(update=changes), predictions, neighbours)


def _pool_remarks(folds: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What a probe says of itself in the folds; remarks that differ in numbers only are one, with ranges."""
    alike: dict[str, dict[int, str]] = {}
    for number, remarks in enumerate(folds, start=1):
        for remark in remarks:
            alike.setdefault(drop_numbers(remark), {})[number] = remark
    pooled = []
    for members in alike.values():
        numbers = ", ".join(map(str, members))
        where = "" if len(members) == len(folds) else f"In {plural('fold', len(members))} {numbers} of {len(folds)}: "
        pooled.append(f"{where}{merge_numbers(list(members.values()))}")
    return tuple(pooled)


def _pool_neighbours(folds: Sequence[Pair | None]) -> Pair | None:
    """The neighbours of all folds, which are rows of the same embeddings; None where a fold has kept other ones."""
    known = [pair for pair in folds if pair is not None]
    if len(known) < len(folds) or len({rows.shape[1] for rows, _ in known}) > 1:
        return None
    rows, similarities = (np.concatenate(parts) for parts in zip(*known, strict=True))
    return rows, similarities


def _add_counts(folds: Sequence[Sequence[Count]]) -> tuple[Count, ...]:
    """Test units of all folds together, and the reference units of the fold that has fewest."""
    counts = []
    for same in zip(*folds, strict=True):
        combine = sum if same[0].part == "queries" else min
        units = {level: combine(counted.units[level] for counted in same) for level in same[0].units}
        counts.append(same[0].model_copy(update={"units": units}))
    return tuple(counts)


def _unite(folds: Iterable[Sequence[Finding]]) -> tuple[Finding, ...]:
    """The findings of all folds, each sentence once."""
    return tuple({finding.sentence: finding for findings in folds for finding in findings}.values())


def _choose_middle(folds: Sequence[Sequence[Diagnostic]]) -> tuple[Diagnostic, ...]:
    """Each diagnostic that all folds have, from the fold whose value is the middle one."""
    chosen = []
    for diagnostic in folds[0]:
        same = [item for fold in folds for item in fold if item.name == diagnostic.name and item.value is not None]
        if len(same) == len(folds):
            chosen.append(sorted(same, key=lambda item: item.value or 0.0)[len(same) // 2])
    return tuple(chosen)
