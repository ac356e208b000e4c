"""The models of a report: each is a row of its tables, an encoder with its evaluations that differ only in seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from hidisc.artefacts.artefact import read_kind
from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.compare import Difference, compare
from hidisc.evaluation.predictions import Predictions, refuse_changed_labels
from hidisc.evaluation.scores import Judged, Scores, ScoresInfo
from hidisc.ground.errors import UserError
from hidisc.ground.files import digest
from hidisc.settings.config import keep_facts
from hidisc.settings.evaluate import BootstrapConfig, EvaluateConfig
from hidisc.settings.level_names import USUAL, LevelNames
from hidisc.training.run import Run


@dataclass(frozen=True)
class EvaluatedModel:
    """An encoder and its evaluations: one row of the tables of a report."""

    name: str
    """Its name in tables; no two models of a report have the same name."""
    scores: tuple[Scores, ...]
    """Its evaluations, which differ only in the seed of the training or of the patches sampled; may be none."""
    embeddings: tuple[Embeddings | None, ...]
    """The test patients' embeddings of each evaluation, None where they are gone or changed; or embeddings alone."""
    run_metrics: list[dict[str, float]] | None
    """Rows of metrics.csv of the first training; None where the encoder is not of hidisc, or its run is gone."""

    @property
    def info(self) -> ScoresInfo | None:
        """The facts of the first evaluation; None without an evaluation."""
        return self.scores[0].info if self.scores else None

    @property
    def words(self) -> LevelNames:
        """The words of its store for patient, slide and patch."""
        first = self.scores[0] if self.scores else self.first_embeddings
        return first.info.level_names if first else USUAL

    @property
    def first_embeddings(self) -> Embeddings | None:
        """The embeddings of the first evaluation that still has some."""
        return next((embeddings for embeddings in self.embeddings if embeddings is not None), None)

    @property
    def bootstrap(self) -> BootstrapConfig:
        """How the intervals of its first evaluation were made."""
        return BootstrapConfig.model_validate(self.scores[0].info.config.get("bootstrap", {}))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all its evaluations, each sentence once; they must stand beside every number."""
        return tuple(dict.fromkeys(sentence for scores in self.scores for sentence in scores.info.warnings))

    @property
    def trainings(self) -> tuple[tuple[Scores, ...], ...]:
        """Its evaluations by training, in the order of the seeds; several samples of patches are one training."""
        groups: dict[tuple[int, str], list[Scores]] = {}
        for scores in self.scores:
            card = scores.info.model
            key = (card.seed, "") if card.seed is not None else (-1, card.checksum)
            groups.setdefault(key, []).append(scores)
        return tuple(tuple(groups[key]) for key in sorted(groups))

    def predictions(self, probe: str, level: str) -> list[list[Predictions]]:
        """The predictions of each evaluation of each training."""
        return [[scores.predictions(probe, level) for scores in training] for training in self.trainings]

    @property
    def was_trained(self) -> bool:
        """Whether its encoder was trained with a seed, unlike colour alone and downloaded weights."""
        return any(scores.info.model.seed is not None for scores in self.scores)

    def find_levels(self, probe: str, level: str) -> list[Judged]:
        """The scores of one level by one probe, one per evaluation; empty if any evaluation lacks them."""
        levels = [row for scores in self.scores if (row := scores.info.find(level, probe)) is not None]
        return levels if len(levels) == len(self.scores) else []

    @property
    def has_leakage(self) -> bool:
        """Whether any of its evaluations found test data that the encoder may have learned from."""
        return any(finding.kind != "note" for scores in self.scores for finding in scores.info.leakage)

    @property
    def label_notes(self) -> tuple[str, ...]:
        """The notes of all its evaluations on missing labels, each sentence once; warnings are not among them."""
        notes = (item.sentence for scores in self.scores for item in scores.info.labels if item.kind == "note")
        return tuple(dict.fromkeys(notes))

    @property
    def labels_used(self) -> tuple[str, ...]:
        """The uses of labels in its training, as far as known, without `monitor`, which teaches nothing."""
        cards = [scores.info.model for scores in self.scores]
        cards += [made.info.model for made in self.embeddings if made is not None and not self.scores]
        return tuple(dict.fromkeys(use for card in cards for use in card.history.labels_used if use != "monitor"))


def gather(paths: Sequence[Path]) -> list[EvaluatedModel]:
    """The models of folders of scores or embeddings, in the order given.

    Scores that cannot share a table are refused. Embeddings that belong to scores given as well are no second row.
    """
    groups: dict[Any, list[Scores]] = {}
    alone: dict[Any, Embeddings] = {}
    for path in paths:
        artefact = _open(path)
        if isinstance(artefact, Scores):
            groups.setdefault(_group(artefact), []).append(artefact)
        else:
            alone[path.resolve()] = artefact
            groups.setdefault(path.resolve(), [])  # keeps the order given
    _refuse_others(groups)
    models = [
        _make_model(scores, [open_if_unchanged(each.open_embeddings) for each in scores] or [alone[key]])
        for key, scores in groups.items()
    ]
    judged = {made.path.resolve() for model in models if model.scores for made in model.embeddings if made}
    return _name_apart([model for key, model in zip(groups, models, strict=True) if key not in judged])


def compare_models(
    model: EvaluatedModel, baseline: EvaluatedModel, probe: str, level: str, config: BootstrapConfig, seed: int
) -> dict[str, Difference]:
    """How much better a model is than a baseline, by resamples of their common patients and of the trainings of each.

    Models that cannot be compared are refused.
    """
    return compare(model.predictions(probe, level), baseline.predictions(probe, level), config, seed)


@dataclass(frozen=True)
class Comparison:
    """How much better a model is than the first one of a report, at one level by one probe."""

    model: EvaluatedModel
    first: EvaluatedModel
    probe: str
    level: str
    config: BootstrapConfig
    differences: dict[str, Difference]
    """Differences by the keys of the endpoint's metrics; empty where the models cannot be compared."""
    refusal: str = ""
    """Why the models cannot be compared; empty where they were."""


def compare_with_first(
    models: Sequence[EvaluatedModel], probe: str, level: str, config: BootstrapConfig, seed: int
) -> list[Comparison]:
    """Every model that was judged by this probe at this level, compared with the first of them."""
    judged = [model for model in models if model.find_levels(probe, level)]
    if not judged:
        raise UserError(f"nothing here has been evaluated by the probe {probe!r} at the {level} level.")
    first, *others = judged
    comparisons = []
    for model in others:
        differences, refusal = {}, ""
        try:
            differences = compare_models(model, first, probe, level, config, seed)
        except UserError as error:
            refusal = str(error)
        comparisons.append(Comparison(model, first, probe, level, config, differences, refusal))
    return comparisons


def open_if_unchanged(open_it: Callable[[], Embeddings]) -> Embeddings | None:
    """What `open_embeddings` or `open_bank` of some scores opens; None where it is gone or has changed since."""
    with suppress(UserError):
        return open_it()
    return None


def _open(path: Path) -> Scores | Embeddings:
    """Open a folder of scores or embeddings, as its `config.yaml` says which of the two it is."""
    kind = read_kind(path)
    if kind == "evaluate":
        return Scores.load(path)
    if kind == "embed":
        return Embeddings.load(path)
    there = "holds neither scores nor embeddings" if path.is_dir() else "is no folder"
    raise UserError(
        f"{path} {there}, so there is nothing to report. Give folders made by `hidisc evaluate` or `hidisc embed`."
    )


def _group(scores: Scores) -> Any:
    """A key that is equal for evaluations whose numbers may be averaged: they differ in seeds only."""
    info = scores.info
    facts = keep_facts(EvaluateConfig, info.config, ("seed",))
    facts["knn"].pop("keep", None)  # changes no number
    facts["folds"].pop("seed", None)  # every training has other folds of the same patients
    question = info.endpoint, info.levels, _name_truth(info)
    return "scores", info.model.group, digest(facts), info.sampling["per_slide"], *question


def _name_truth(info: ScoresInfo) -> str:
    """The checksum of the coarsest units (patients) that were predicted, with their labels."""
    row = info.find(info.levels[0])
    return row.truth if row else ""


def is_one_test(models: Iterable[EvaluatedModel]) -> bool:
    """Whether all evaluations are of the same test patients."""
    return len({_name_truth(scores.info) for model in models for scores in model.scores}) <= 1


def _refuse_others(groups: Mapping[Any, Sequence[Scores]]) -> None:
    """Refuse scores that cannot stand in one table, and an evaluation that is given twice."""
    seen: dict[Any, Scores] = {}
    listed = [(key, scores) for key, members in groups.items() for scores in members]
    for key, scores in listed:
        home, first, info = listed[0][1].path, listed[0][1].info, scores.info
        ours, theirs = first.endpoint, info.endpoint
        facts = [
            ("label", (ours.label,), (theirs.label,)),
            ("classes", ours.classes, theirs.classes),
            ("levels", first.levels, info.levels),
        ]
        if len(theirs.classes) == 2:
            facts.append(("positive class", (ours.positive_class,), (theirs.positive_class,)))
        for what, old, new in facts:
            if old != new:
                raise UserError(
                    f"{scores.path} has {what} {', '.join(new)}, but {home} has {what} {', '.join(old)}, "
                    "so they cannot stand in one table. Evaluate them alike, or make two reports."
                )
        _refuse_changed_labels(listed[0][1], scores)
        sampled = info.sampling["seed"] if info.sampling["per_slide"] is not None else None
        same = (key, info.model.checksum, info.model.seed, sampled)
        if same in seen:
            raise UserError(
                f"{scores.path} and {seen[same].path} judge the same encoder by the same patches, which would count "
                "it twice. Give one of them."
            )
        seen[same] = scores


def _refuse_changed_labels(first: Scores, scores: Scores) -> None:
    """Refuse scores in which a patient has another label than in the first ones."""
    for row in scores.info.list_levels():
        same = first.info.find(row.level)
        if row.level == "patch" or same is None or same.truth == row.truth:
            continue
        try:
            refuse_changed_labels(first.predictions(same.probe, row.level), scores.predictions(row.probe, row.level))
        except UserError as error:
            raise UserError(f"{first.path} and {scores.path} cannot stand in one table: {error}") from error


def _make_model(scores: Sequence[Scores], embeddings: Sequence[Embeddings | None]) -> EvaluatedModel:
    """The model of some evaluations, or of embeddings alone, with the log of its training if the run still exists."""
    first = scores[0] if scores else embeddings[0]
    assert first is not None
    card, rows = first.info.model, None
    if card.kind == "run":
        with suppress(UserError):
            rows = Run.load(first.path / card.source).metrics() or None
    return EvaluatedModel(card.name, tuple(scores), tuple(embeddings), rows)


def _name_apart(models: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """Give models different names: the second model of a name is called `NAME #2`, or has the next free number."""
    taken, used = {model.name for model in models}, set[str]()
    named = []
    for model in models:
        free = (f"{model.name} #{number}" for number in count(2) if f"{model.name} #{number}" not in taken | used)
        name = next(free) if model.name in used else model.name
        used.add(name)
        named.append(replace(model, name=name))
    return named
