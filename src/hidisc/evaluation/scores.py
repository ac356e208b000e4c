"""Scores: the evaluation of one encoder, a folder; in memory an `Evaluation`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.artefact import Artefact, open_artefact
from hidisc.embeddings.embeddings import Embeddings, ModelCard, add_labels
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.floors import FLOORS
from hidisc.evaluation.metrics import Value
from hidisc.evaluation.outcome import find_outcome
from hidisc.evaluation.predictions import ENCODER, Key, Predictions
from hidisc.ground.columns import Columns, load_columns, save_columns
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, Record, make_folder, write_atomic
from hidisc.ground.progress import Result
from hidisc.ground.text import count, plural
from hidisc.patches.store import PatchStore
from hidisc.settings.level_names import LevelNames

SCORES, NEIGHBOURS, ATTENTION = "scores.json", "neighbours.parquet", "mil/attention.parquet"


class Judged(Record):
    """A row of the table of everything that is judged: a key, and how well the units are predicted."""

    subject: str
    probe: str
    level: str
    scale: float | None = None
    fold: int | None = None
    truth: str
    """SHA-256 of the names of the units with their labels; with the endpoint, the question that is answered."""
    units: int
    left_out: int
    """Units with patches of several labels, which have no true label."""
    metrics: dict[str, Value]
    """By the keys of the endpoint's metrics."""
    by_class: dict[str, dict[str, Value]]
    """Class: its metrics against all other classes."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows: truth; columns: predicted; in the order of the classes."""

    @property
    def key(self) -> Key:
        """Its key, as the predictions have it."""
        return Key(self.subject, self.probe, self.level, self.scale, self.fold)


class Floor(Record):
    """Vectors that an encoder must beat, judged by the same probes on the same patients, such as colour alone."""

    subject: str
    patches: int
    """Patches whose vectors it has: where there are fewer than of the encoder, both are compared on these."""
    ahead: dict[str, dict[str, Value]]
    """Level: metric: how much better the encoder is by the first probe, with a paired interval over patients."""

    @property
    def title(self) -> str:
        """Its name in sentences."""
        return FLOORS[self.subject].title


class Count(Record):
    """Units of one class in the bank or in the queries, as in the paper's dataset tables."""

    label: str
    part: Literal["bank", "queries"]
    units: dict[str, int]
    """Level: how many."""


class PatchName(Record):
    """A patch, for people and for its store."""

    patient: str
    slide: str
    patch: str
    row: int
    """In its store."""


class DuplicatePair(Record):
    """A test patch and a reference patch of another patient that are one picture."""

    query: PatchName
    bank: PatchName
    agreement: float
    """Correlation of their detail, at least, with 99.9 % certainty; 1 for equal pixels."""


class Finding(Record):
    """One thing that a check of leakage or of labels found."""

    kind: Literal["leak", "circular", "warning", "note"]
    """A `leak` and a `circular` truth are refused unless allowed, and then printed, like a `warning`, wherever a number
    is; a `note` is printed once."""
    sentence: str
    pairs: tuple[DuplicatePair, ...] = ()
    """Some near-duplicates, which a page shows as pictures."""


class Diagnostic(Record):
    """One property of the embeddings and a sentence on what it means."""

    name: str
    value: float | None
    chance: float | None = None
    """The value expected by chance, where it is known."""
    meaning: str


class ScoresInfo(Record):
    """`scores.json`."""

    model: ModelCard
    embeddings: str
    """Where the embeddings of the queries were, relative to the scores."""
    bank: str
    """Where the embeddings of the bank were, relative to the scores."""
    store_checksum: str
    """Checksum of the patches in the store of the queries."""
    sampling: dict[str, int | None]
    """`per_slide` and `seed` of the patches embedded."""
    config: dict[str, Any]
    """Every setting of the evaluation."""
    endpoint: Classes
    """What was asked."""
    levels: tuple[str, ...]
    counts: tuple[Count, ...]
    unlabelled: dict[str, int]
    """Patches of the bank and of the queries left out because they have no label, or none of the classes."""
    labels: tuple[Finding, ...] = ()
    """Classes without reference or test patients, and patches without a label."""
    judged: tuple[Judged, ...]
    """The table: the encoder by every probe, its floors, each scale by itself; levels finest first."""
    remarks: dict[str, tuple[str, ...]]
    """Probe: sentences on how it was trained and applied; the first probe is the one that pages show first."""
    floors: tuple[Floor, ...] = ()
    """Empty where none was asked for, or the store was not there."""
    diagnostics: tuple[Diagnostic, ...]
    leakage: tuple[Finding, ...]
    audit: tuple[str, ...] = ()
    """What the shortcut audit says of each technical variable, a sentence each; empty where there is none."""
    folds: tuple[str, ...] = ()
    """Where the scores of each fold are, relative to these, which pool them; empty without cross-validation."""
    versions: dict[str, str | None]
    level_names: LevelNames = LevelNames()
    """What people read calls the levels so."""

    @property
    def probes(self) -> tuple[str, ...]:
        """The probes, first the one that pages show first."""
        return tuple(self.remarks)

    @property
    def tested(self) -> str:
        """Who was judged, in words and counts and without names: `9 patients of the split test`."""
        row = self.list_levels()[-1]
        units = self.level_names.count(row.units, row.level)
        if self.folds:
            return f"{units}, each judged once, in {count(len(self.folds), 'fold')}"
        if self.config.get("test_patients"):
            return f"{units} that were chosen by name"
        splits = self.config["queries"]
        return f"{units} of the {plural('split', len(splits))} {', '.join(splits)}"

    @property
    def scales(self) -> list[float]:
        """The scales that were judged by themselves, finest first; empty where there are not several."""
        return list(dict.fromkeys(row.scale for row in self.judged if row.scale is not None))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that must be shown beside every number."""
        return tuple(finding.sentence for finding in (*self.leakage, *self.labels) if finding.kind != "note")

    def list_levels(
        self, probe: str | None = None, *, subject: str = ENCODER, scale: float | None = None
    ) -> list[Judged]:
        """The rows of one subject, probe (None: the first) and scale, finest level first."""
        probe = probe or self.probes[0]
        return [row for row in self.judged if (row.subject, row.probe, row.scale) == (subject, probe, scale)]

    def find(
        self, level: str, probe: str | None = None, *, subject: str = ENCODER, scale: float | None = None
    ) -> Judged | None:
        """The row of one level among these; None where it was not judged."""
        return next((row for row in self.list_levels(probe, subject=subject, scale=scale) if row.level == level), None)


Pair = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Evaluation:
    """Everything that a folder of scores holds, in memory."""

    info: ScoresInfo
    predictions: Mapping[Key, Predictions]
    neighbours: Pair | None = None
    """Rows of the bank's embeddings (N, m) nearest to each query patch, and similarities (N, m); None: not kept."""
    attention: Pair | None = None
    """Rows of the queries' embeddings (N,) and the attention probe's weights (N,); None where there are none."""

    def with_audit(self, sentences: tuple[str, ...]) -> "Evaluation":
        """The same, and what the shortcut audit says."""
        return replace(self, info=self.info.model_copy(update={"audit": sentences}))

    def write(self, folder: Path) -> list[str]:
        """Write every file but the record of the artefact; returns their names."""
        files = {key: key.file(self.info.probes[0]) for key in self.predictions}
        for key, predictions in self.predictions.items():
            predictions.save(folder / files[key])
        written = list(files.values())
        for key, predictions in self.predictions.items():
            if key.level != "patch":  # of millions of patches nobody opens a CSV
                written.append(str(Path(files[key]).with_suffix(".csv")))
                write_atomic(folder / written[-1], predictions.to_csv().encode())
        if self.neighbours is not None and self.neighbours[0].shape[1]:
            columns: Columns = {f"row_{rank}": column for rank, column in enumerate(self.neighbours[0].T, start=1)}
            columns |= {f"similarity_{rank}": column for rank, column in enumerate(self.neighbours[1].T, start=1)}
            save_columns(folder / NEIGHBOURS, columns)
            written.append(NEIGHBOURS)
        if self.attention is not None:
            make_folder((folder / ATTENTION).parent)
            save_columns(folder / ATTENTION, dict(zip(("row", "attention"), self.attention, strict=True)))
            written.append(ATTENTION)
        write_atomic(folder / SCORES, (self.info.model_dump_json(indent=1) + "\n").encode())
        return [SCORES, *written]


@dataclass(frozen=True)
class Scores:
    """A finished evaluation: `Scores.load(path)`."""

    artefact: Artefact
    info: ScoresInfo

    @classmethod
    def load(cls, path: AnyPath) -> "Scores":
        """Open a finished evaluation; an unfinished, damaged or older one is refused with what to do."""
        path = Path(path)
        artefact = open_artefact(path, "evaluate")
        text = (path / SCORES).read_bytes()
        judged = json.loads(text).get("judged")
        if judged is None or any("truth" not in row for row in judged):
            lacking = "of hidisc 0.3 or older" if judged is None else "that do not say which labels they are about"
            raise UserError(
                f"{path} holds scores {lacking}, which this version does not read. Remove this folder and run the "
                "command that made it again; embeddings and trainings stay as they are."
            )
        return cls(artefact, ScoresInfo.model_validate_json(text))

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.artefact.path

    def result(self) -> Result:
        """The verdict, and all numbers."""
        record = self.info.model_dump(mode="json", exclude={"model": {"history": {"slides"}}})
        return Result(f"{self.path}: {self.verdict()}", {"scores": str(self.path), **record})

    def verdict(self) -> str:
        """One line: accuracy at every level by the first probe, coarsest first, and what that shows."""
        info = self.info
        words, rows = info.level_names, reversed(info.list_levels())
        parts = [f"{words.word(row.level)} accuracy {row.metrics['accuracy'].percent()} %" for row in rows]
        kinds = {finding.kind for finding in info.leakage}
        leak = " DESPITE LEAKAGE" if "leak" in kinds else ""
        leak += " BY NAMES THAT FOLLOW IT" if "circular" in kinds else ""
        unknown = "" if info.model.history.is_complete else " (what it has seen before is not known)"
        line = f"{info.model.name}, {info.probes[0]}{leak}: {', '.join(parts) or 'no verdict'}{unknown}"
        outcome = find_outcome([info])
        line += f". {outcome.sentence}" if outcome else ""
        warnings = [f" Warning: {finding.sentence}" for finding in info.labels if finding.kind == "warning"]
        return f"{line}{''.join(warnings)}"

    def open_embeddings(self) -> Embeddings:
        """The embeddings that were judged, with the labels that people gave to them; changed ones are refused."""
        return self._open(self.info.embeddings, "the embeddings")

    def open_bank(self) -> Embeddings:
        """The embeddings of the reference patients likewise."""
        return self._open(self.info.bank, "the bank")

    def _open(self, recorded: str, name: str) -> Embeddings:
        label = str(self.info.config["label"])
        embeddings = add_labels(Embeddings.load((self.path / recorded).resolve()), label)
        self.refuse_changed(name, embeddings)
        labels = self.artefact.manifest.inputs.get(f"the labels of {name}")
        if embeddings.labels_checksum != labels:
            raise self._changed(f"the labels {label!r} of {embeddings.path}")
        return embeddings

    def refuse_changed(self, name: str, embeddings: Embeddings) -> None:
        """Refuse embeddings, called `name` among the inputs, that are not those that these scores were made from."""
        if embeddings.artefact.checksum != self.artefact.manifest.inputs.get(name):
            raise self._changed(f"{name} {embeddings.path}")

    def _changed(self, what: str) -> UserError:
        return UserError(
            f"{what} are not those that {self.path} was made from. Put those back, or evaluate these with a new --out."
        )

    def open_store(self, path: AnyPath | None = None) -> PatchStore:
        """The store of the test patients, or of `path` if it was moved; one that has changed is refused."""
        if path is None:
            embeddings = self.open_embeddings()
            if embeddings.info.store is None:
                raise UserError(f"{self.path}: {embeddings.why_no_pictures}. Judge embeddings of a store instead.")
            path = (embeddings.path / embeddings.info.store).resolve()
        store = PatchStore.load(path)
        if store.checksum != self.info.store_checksum:
            raise UserError(
                f"{self.path} was made of other patches or labels than {path} holds now. Give the store that was "
                "embedded, or embed and evaluate this one."
            )
        return store

    def predictions(self, probe: str, level: str, *, subject: str = ENCODER, scale: float | None = None) -> Predictions:
        """The predictions of a probe for every unit of a level, of the encoder or of a floor."""
        return Predictions.load(self.path / Key(subject, probe, level, scale).file(self.info.probes[0]))

    def read(self) -> Evaluation:
        """The evaluation with all its predictions."""
        predictions = {
            row.key: Predictions.load(self.path / row.key.file(self.info.probes[0])) for row in self.info.judged
        }
        return Evaluation(self.info, predictions, self.neighbours(), self.attention())

    def neighbours(self) -> Pair | None:
        """Rows of the bank's embeddings (N, m) nearest to each query patch, in the order of the patch predictions,
        and their similarities (N, m); None where they were not kept."""
        path = self.path / NEIGHBOURS
        if not path.is_file():
            return None
        columns = load_columns(path)
        ranks = range(1, len(columns) // 2 + 1)
        rows, similarities = ([columns[f"{name}_{rank}"] for rank in ranks] for name in ("row", "similarity"))
        return np.stack(rows, axis=1), np.stack(similarities, axis=1)

    def attention(self) -> Pair | None:
        """Rows of the embeddings (N,) and the attention probe's weights of these patches (N,), which sum to 1 over each
        slide; None where they were not kept. A patch of a slide without one label has none (NaN)."""
        path = self.path / ATTENTION
        columns = load_columns(path) if path.is_file() else None
        return (columns["row"], columns["attention"]) if columns is not None else None
