"""The audit of one encoder: neighbours searched once, then every technical variable measured and judged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hidisc.auditing.audit import ColumnAudit, EncoderAudit, decide, is_inseparable
from hidisc.auditing.shortcuts import (
    AuditedSample,
    Paired,
    add_resamples,
    average_cells,
    compare_unseen,
    correlate_reference,
    count_shared,
    expect_shared,
    find_other_patients,
    probe_variable,
    sum_pairs,
    to_value,
)
from hidisc.auditing.variables import (
    TechnicalVariable,
    cramers_v,
    find_variables,
    list_known,
    permute_labels,
    share_groups,
)
from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.leakage import find_circular
from hidisc.evaluation.metrics import Floats, Ints, Value, divide
from hidisc.evaluation.neighbours import to_unit
from hidisc.evaluation.probes.folds import sample_per_patient
from hidisc.evaluation.task import LabelledPatches, group
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Say, ignore
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.models.card import hash_name
from hidisc.settings.audit import AuditConfig
from hidisc.settings.evaluate import EvaluateConfig

_EQUAL = 1e-6
"""Difference of similarities up to which neighbours are equally near."""
_UNSEEN, _CORRELATED = ("seen", "unseen", "unseen_drop"), ("balanced", "correlated", "correlated_drop")
_MEASURES = ("robustness", "probe", *_UNSEEN, *_CORRELATED)


@dataclass(frozen=True, kw_only=True)
class _Cohort(LabelledPatches):
    """The N audited patches of some embeddings."""

    classes: tuple[str, ...]
    patients: Ints
    """(N,) 0 to P - 1."""


def run_audit(embeddings: Embeddings, config: AuditConfig, device: str = "cpu", say: Say = ignore) -> EncoderAudit:
    """Audit an encoder by its embeddings; `say` is called before each step."""
    cohort = _choose_patches(embeddings, config)
    variables = find_variables(embeddings, config)
    name, rng = embeddings.info.model.name, make_rng(config.seed, Purpose.AUDITED_PATCHES)
    say(f"searching the neighbours of {name} ...")
    queries = sample_per_patient(cohort.patients, config.queries, rng)
    near, neighbours = find_other_patients(cohort, queries, cohort.patients, config.k, config.memory_gb, device)
    is_flat = bool(((near[:, 0] - near[:, -1] < _EQUAL) & np.isfinite(near[:, -1])).mean() > 0.5)
    columns = []
    for variable in variables:
        say(f"auditing the {variable.name} of {name} ...")
        columns.append(decide(_audit_column(cohort, variable, queries, neighbours, is_flat, config)))
    return EncoderAudit(
        name=name,
        embeddings=str(embeddings.path),
        patients=int(cohort.patients.max()) + 1,
        patches=len(cohort),
        label=config.label,
        classes=cohort.classes,
        notes=_note(cohort, len(queries)),
        columns=tuple(columns),
    )


def audit_known_columns(
    embeddings: Embeddings, config: EvaluateConfig, device: str = "cpu", say: Say = ignore
) -> tuple[str, ...]:
    """A sentence on each site, scanner, batch or date column of the table, for the page of an evaluation.

    The audit looks at stored embeddings, so there are no sentences where aligned ones were judged.
    """
    columns = tuple(list_known(embeddings, config.label))
    if not columns or config.align is not None:
        return ()
    settings = AuditConfig(label=config.label, columns=columns, memory_gb=config.knn.memory_gb, seed=config.seed)
    audited = run_audit(embeddings, settings, device, say).columns
    for column in audited:
        say(f"audit of {column.column}: {column.sentence}")
    return tuple(column.sentence for column in audited)


def _choose_patches(embeddings: Embeddings, config: AuditConfig) -> _Cohort:
    """The patches with a label; all of them as one class where there is none."""
    table = embeddings.table
    if config.label not in table.names:
        raise UserError(
            f"{embeddings.path} has no column of names {config.label!r}; it has {', '.join(table.names)}. "
            "Set label=... to one of these."
        )
    is_chosen = np.ones(len(table), bool)
    if config.splits is not None:
        is_chosen = table.in_splits(config.splits, "splits", embeddings.path)
    codes, names = table.codes(config.label)
    if not (codes[is_chosen] >= 0).any():
        codes, names = np.zeros_like(codes), ("no label",)
    rows = np.flatnonzero(is_chosen & (codes >= 0))
    if not len(rows):
        raise UserError(f"{embeddings.path} has no patch to audit.")
    present, labels = np.unique(codes[rows], return_inverse=True)
    patients = group([table.codes("patient")[0][rows]]).of_row
    classes, left_out = tuple(names[code] for code in present), int(is_chosen.sum()) - len(rows)
    return _Cohort(embeddings, rows, labels, left_out, classes=classes, patients=patients)


def _audit_column(
    cohort: _Cohort, variable: TechnicalVariable, queries: Ints, neighbours: Ints, is_flat: bool, config: AuditConfig
) -> ColumnAudit:
    """Measure one column; a number that cannot be measured says why."""
    rng = make_rng(config.seed, Purpose.AUDITED_COLUMN, variable.name)
    values = variable.codes[cohort.rows]
    known = np.flatnonzero(values >= 0)
    present, values[known] = np.unique(values[known], return_inverse=True)
    patients = group([cohort.patients[known]]).of_row
    labels = share_groups(patients, cohort.labels[known], len(cohort.classes))  # (P, L)
    shares = share_groups(patients, values[known], len(present))  # (P, C)
    v = cramers_v(labels.T @ shares)
    table = tuple(tuple(row) for row in ((labels > 0).T.astype(int) @ (shares > 0)).tolist())
    why = _find_obstacle(variable, v, table, is_flat)
    found: dict[str, Any] = dict.fromkeys(_MEASURES, Value(value=None, why=why or "the patches have no labels"))
    found |= {"robustness_chance": None, "probe_chance": None}
    if not why:
        weights = add_resamples(int(cohort.patients.max()) + 1, config.bootstrap.resamples, config.seed)
        chosen = known[sample_per_patient(patients, config.patches, rng)]
        z = cohort[chosen]
        unit = to_unit(z)
        cosines = (unit @ unit.T).numpy()
        sample = AuditedSample(z, cosines, cohort.patients[chosen], cohort.labels[chosen], values[chosen])
        found["probe"], found["probe_chance"] = probe_variable(sample, weights, config.bootstrap.interval, rng)
        if len(cohort.classes) > 1:
            found |= _measure_accuracy(sample, weights, config, rng)
            index = _measure_robustness(cohort, values, queries, neighbours, weights, config)
            found["robustness"], found["robustness_chance"] = index
    few = "the patches have no labels" if len(cohort.classes) < 2 else "there are too few patients or values"
    return ColumnAudit(
        column=variable.name,
        values=tuple(variable.values[code] for code in present),
        patients=len(labels),
        table=table,
        notes=variable.notes,
        association=Value(value=v, why=few if v is None else ""),
        association_p=None if v is None else permute_labels(labels, shares, rng),
        **found,
    )


def _find_obstacle(
    variable: TechnicalVariable, v: float | None, table: tuple[tuple[int, ...], ...], is_flat: bool
) -> str:
    """Why a column cannot be measured; empty where it can."""
    values = len(table[0]) if table else 0
    if values < 2:
        return variable.obstacle or f"{['no value has', 'only one value has'][values]} two patients"
    if is_flat:
        return "all embeddings are nearly equal, so nothing can be predicted from them"
    return "label and variable cannot be told apart" if is_inseparable(v, table) else ""


def _measure_accuracy(
    sample: AuditedSample, weights: Floats, config: AuditConfig, rng: np.random.Generator
) -> dict[str, Value]:
    """Accuracy of the label on unseen values, and with correlated reference patients, each with the drop."""
    found = _average(_UNSEEN, sample, compare_unseen(sample, config.k, rng), sample.labels, weights, config)
    drawn = correlate_reference(sample, config.k, rng)
    if drawn is None:
        few = Value(value=None, why="fewer than two labels have two values with two patients each")
        return found | dict.fromkeys(_CORRELATED, few)
    return found | _average(_CORRELATED, sample, drawn, sample.cells, weights, config)


def _average(
    names: Sequence[str], sample: AuditedSample, paired: Paired, cells: Ints, weights: Floats, config: AuditConfig
) -> dict[str, Value]:
    """Mean over cells before, after, and of the difference; each with what other reference patients would change."""

    def average(scores: Floats, weights: Floats) -> tuple[Floats, float]:
        rows = paired.rows
        found = average_cells(scores, sample.patients[rows], cells[rows], int(cells.max()) + 1, weights)
        there = ~np.isnan(found.means[0])
        return found.means[:, there].mean(axis=1), float(np.linalg.norm(found.errors[there]) / there.sum())

    values = {}
    for name, draws in zip(names, (paired.before, paired.after, paired.before - paired.after), strict=True):
        spread = np.std([average(draw, weights[:1])[0][0] for draw in draws])
        resampled, error = average(draws.mean(axis=0), weights)
        values[name] = to_value(resampled, config.bootstrap.interval, error, float(spread))
    return values


def _measure_robustness(
    cohort: _Cohort, values: Ints, queries: Ints, neighbours: Ints, weights: Floats, config: AuditConfig
) -> tuple[Value, float | None]:
    """The robustness index with its interval, and its chance."""
    pairs = count_shared(cohort.labels, values, queries, neighbours)
    patients = np.stack([cohort.patients[queries].repeat(neighbours.shape[1]), cohort.patients[neighbours].ravel()])
    label_alone, value_alone = (sum_pairs(part.ravel(), patients, weights) for part in pairs)
    expected = [part.sum() for part in expect_shared(cohort.labels, values, cohort.patients, queries)]
    if not label_alone[0] + value_alone[0] or not sum(expected):
        return Value(value=None, why="no neighbour shares the label or the variable alone"), None
    index = divide(label_alone, label_alone + value_alone)
    return to_value(index, config.bootstrap.interval), float(expected[0] / sum(expected))


def _note(cohort: _Cohort, queries: int) -> tuple[str, ...]:
    """Sentences that a reader of the numbers must know: which patches were sampled, which the encoder has seen."""
    notes = []
    if queries < len(cohort):
        notes.append(
            f"The neighbours of {queries:,} of {len(cohort):,} patches were searched, sampled evenly over patients."
        )
    history = cohort.embeddings.info.model.history
    names = set(cohort.names("patient"))
    seen = sum(name in history.patients or hash_name(name) in history.patients for name in names)
    if seen:
        notes.append(f"The encoder was trained on {seen:,} of these {count(len(names), 'patient')}.")
    elif not history.is_complete:
        notes.append("What the encoder was trained on is not known; it may be these patients.")
    return (*notes, *(finding.sentence for finding in find_circular(cohort.embeddings, cohort.rows)))
