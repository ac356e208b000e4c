"""Scores: the evaluation of one encoder, a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hidisc.artefacts.artefact import Artefact, open_artefact
from hidisc.embeddings.embeddings import ModelCard
from hidisc.evaluation.predictions import Predictions
from hidisc.ground.columns import Columns, load_columns, save_columns
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, Record
from hidisc.settings.config import use_new_names
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.level_names import LevelNames

SCORES, NEIGHBOURS, ATTENTION = "scores.json", "neighbours.parquet", "mil/attention.parquet"

METRICS = ("accuracy", "mca", "auroc", "auprc", "sensitivity", "specificity", "top2", "top3")
"""In the order tables show them."""


class Value(Record):
    """A number with the ends of its interval; all None where it is undefined, and `why`."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""
    """Why the value is undefined or has no interval, or what its interval leaves out."""

    def percent(self) -> str:
        """`87.4 [81.2, 92.0]` of 100, without the ends where there are none; `undefined` where it is."""
        if self.value is None:
            return "undefined"
        value = f"{100 * self.value:.1f}"
        if self.low is None or self.high is None:
            return value
        return f"{value} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


class LevelScores(Record):
    """How well the classes of the units of one level are predicted."""

    level: str
    units: int
    left_out: int
    """Units with patches of several labels, which have no true label."""
    metrics: dict[str, Value]
    """By the names of METRICS."""
    by_class: dict[str, dict[str, Value]]
    """Class: its sensitivity, specificity, auroc and auprc, one against the rest."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows: truth; columns: predicted; in the order of the classes."""


class ProbeScores(Record):
    """The scores of one probe: `knn`, `linear` or `mil`."""

    name: str
    remarks: tuple[str, ...] = ()
    """Sentences on how the probe was trained and applied."""
    levels: tuple[LevelScores, ...]
    """Finest first: patch, slide, patient."""

    def level(self, name: str) -> LevelScores | None:
        """The scores of one level, None where this probe has none."""
        return next((level for level in self.levels if level.level == name), None)


class FloorScores(Record):
    """What can be predicted from the colour of the patches alone, by the same probes and patients."""

    patches: int
    """Patches whose colour was measured."""
    probes: tuple[ProbeScores, ...]
    differences: dict[str, dict[str, Value]]
    """Level: metric: how much better the encoder is by the first probe, with a paired interval over patients."""

    def verdict(self, level: str) -> str:
        """Whether the encoder is better than colour alone at a level, in words; empty where it was not judged there."""
        found = self.differences.get(level, {})
        metric = "auroc" if found.get("auroc") and found["auroc"].value is not None else "accuracy"
        ahead = found.get(metric)
        if ahead is None or ahead.value is None or ahead.low is None or ahead.high is None:
            return ""
        size = f"{100 * ahead.value:+.1f} points of {level} {metric.replace('auroc', 'AUROC')}"
        size += f" [{100 * ahead.low:.1f}, {100 * ahead.high:.1f}]"
        if ahead.low > 0:
            return f"better than colour alone ({size})"
        return f"worse than colour alone ({size})" if ahead.high < 0 else f"no better than colour alone ({size})"


class ScaleScores(Record):
    """How well the classes are predicted from the patches of one scale, by the first probe."""

    mpp: float
    levels: tuple[LevelScores, ...]
    """Finest first."""
    floor: tuple[LevelScores, ...] = ()
    """The same for colour alone; empty where it was not judged."""


class Count(Record):
    """Units of one class in the bank or in the queries, as in the paper's dataset tables."""

    label: str
    part: Literal["bank", "queries"]
    units: dict[str, int]
    """Level: how many."""


class Finding(Record):
    """One thing that a check of leakage or of labels found."""

    kind: Literal["leak", "warning", "note"]
    """A `leak` is refused unless allowed, a `warning` is printed wherever a number is, a `note` is printed once."""
    sentence: str


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
    classes: tuple[str, ...]
    positive: str
    levels: tuple[str, ...]
    counts: tuple[Count, ...]
    unlabelled: dict[str, int] = Field({})
    """Patches of the bank and of the queries left out because they have no label, or none of the classes."""
    labels: tuple[Finding, ...] = ()
    """Classes without reference or test patients, and patches without a label."""
    probes: tuple[ProbeScores, ...]
    diagnostics: tuple[Diagnostic, ...]
    leakage: tuple[Finding, ...]
    floor: FloorScores | None = None
    """The same for colour alone; None where it was not asked for, or the store was not there."""
    audit: tuple[str, ...] = ()
    """What the shortcut audit says of each nuisance column, a sentence each; empty where there is none."""
    scales: tuple[ScaleScores, ...] = ()
    """Each scale by itself, finest first, where there are several; `probes` are about all scales together."""
    folds: tuple[str, ...] = ()
    """Where the scores of each fold are, relative to these, which pool them; empty without cross-validation."""
    versions: dict[str, str | None]
    level_names: LevelNames = LevelNames()
    """What people read calls the levels so."""

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, fields: Any) -> Any:
        """Scores of hidisc 0.2 say `opinions` where later ones say `probes`, and `side` of a count for `part`."""
        if not isinstance(fields, dict) or "opinions" not in fields:
            return fields
        fields["probes"] = fields.pop("opinions")
        fields["config"] = use_new_names(EvaluateConfig, fields["config"])
        for count in fields["counts"]:
            count["part"] = count.pop("side")
        return fields

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that must be shown beside every number."""
        return tuple(finding.sentence for finding in (*self.leakage, *self.labels) if finding.kind != "note")


def predictions_file(probe: str, level: str, first: str, of_floor: bool = False) -> str:
    """Name, within the folder, of a probe's predictions; those of the first probe are at the top."""
    if of_floor:
        return f"colour/{probe}/predictions_{level}.parquet"
    return f"predictions_{level}.parquet" if probe == first else f"{probe}/predictions_{level}.parquet"


def scale_file(mpp: float, level: str, of_floor: bool = False) -> str:
    """Name, within the folder, of the first probe's predictions from one scale."""
    return f"{'colour/' if of_floor else ''}scales/{mpp:g}/predictions_{level}.parquet"


@dataclass(frozen=True)
class Scores:
    """A finished evaluation: `Scores.load(path)`."""

    artefact: Artefact
    info: ScoresInfo

    @classmethod
    def load(cls, path: AnyPath) -> "Scores":
        """Open a finished evaluation; an unfinished or damaged one is refused with what to do."""
        path = Path(path)
        artefact = open_artefact(path, "evaluate")
        return cls(artefact, ScoresInfo.model_validate_json((path / SCORES).read_bytes()))

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.artefact.path

    def verdict(self) -> str:
        """One line: accuracy at every level by the first probe, coarsest first, with its interval."""
        levels = reversed(self.info.probes[0].levels)
        parts = [f"{level.level} accuracy {level.metrics['accuracy'].percent()} %" for level in levels]
        leak = " DESPITE LEAKAGE" if any(finding.kind == "leak" for finding in self.info.leakage) else ""
        unknown = "" if self.info.model.history.is_complete else " (what it has seen before is not known)"
        line = f"{self.info.model.name}, {self.info.probes[0].name}{leak}: {', '.join(parts) or 'no verdict'}{unknown}"
        floor = self.info.floor.verdict(self.info.levels[0]) if self.info.floor else ""
        line += f"; {floor}" if floor else ""
        warnings = [f". Warning: {finding.sentence}" for finding in self.info.labels if finding.kind == "warning"]
        return self.info.level_names.speak(f"{line}{''.join(warnings)}")

    def predictions(self, probe: str, level: str, *, of_floor: bool = False) -> Predictions:
        """The predictions of a probe for every unit of a level; `of_floor`: from the colour of the patches alone."""
        probes = self.info.floor.probes if of_floor and self.info.floor else self.info.probes
        scored = next(scores for scores in probes if scores.name == probe).level(level)
        file = predictions_file(probe, level, self.info.probes[0].name, of_floor)
        found = Predictions.load(self.path / file, level, scored.left_out if scored else 0)
        if self.info.folds and found.fold is None:
            raise UserError(
                f"{self.path} pools folds as hidisc did before AUROC compared within folds. Its numbers cannot stand "
                "beside new ones. Run the command that made it with a new --out."
            )
        return found

    def scale_predictions(self, mpp: float, *, of_floor: bool = False) -> list[Predictions]:
        """The predictions of the first probe from one scale at every level, finest first."""
        scored = next(scale for scale in self.info.scales if scale.mpp == mpp)
        return [
            Predictions.load(self.path / scale_file(mpp, level.level, of_floor), level.level, level.left_out)
            for level in (scored.floor if of_floor else scored.levels)
        ]

    def neighbours(self) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Rows of the bank's embeddings (N, m) nearest to each query patch, in the order of the patch predictions,
        and their similarities (N, m); None where they were not kept."""
        path = self.path / NEIGHBOURS
        if not path.is_file():
            return None
        columns = load_columns(path)
        ranks = range(1, len(columns) // 2 + 1)
        rows, similarities = ([columns[f"{name}_{rank}"] for rank in ranks] for name in ("row", "similarity"))
        return np.stack(rows, axis=1), np.stack(similarities, axis=1)

    def attention(self) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Rows of the embeddings (N,) and the attention probe's weights of these patches (N,), which sum to 1 over each
        slide; None where they were not kept. A patch of a slide without one label has none (NaN)."""
        path = self.path / ATTENTION
        columns = load_columns(path) if path.is_file() else None
        return (columns["row"], columns["attention"]) if columns is not None else None


def save_neighbours(path: Path, rows: NDArray[np.int64], similarities: NDArray[np.float32]) -> None:
    """Write what `Scores.neighbours` reads."""
    columns: Columns = {f"row_{rank}": column for rank, column in enumerate(rows.T, start=1)}
    columns |= {f"similarity_{rank}": column for rank, column in enumerate(similarities.T, start=1)}
    save_columns(path, columns)
