"""Technical variables (site, scanner, batch, date, colour), and how far the label goes with them."""

import math
import re
from dataclasses import dataclass, replace

import numpy as np
from sklearn.cluster import KMeans

from hidisc.embeddings.colour import COLOUR, read_colour
from hidisc.embeddings.embeddings import Embeddings, find_rows_in_store
from hidisc.evaluation.metrics import Floats, Ints
from hidisc.evaluation.task import Codes, group
from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_seed
from hidisc.ground.text import count
from hidisc.patches.store import PatchStore
from hidisc.patches.table import PatchTable
from hidisc.settings.audit import AuditConfig
from hidisc.slides.names import address_computed

_KNOWN = ("site", "scanner", "batch", "centre", "center", "hospital", "date")
"""A column whose name contains one of these words is audited without being named in the settings."""
_DATE = re.compile(r"\d{4}-\d\d(-\d\d)?")
"""ISO dates: their order as text is their order in time."""
_PER_SLIDE = 8
"""Patches of a slide whose mean colour is the slide's."""


@dataclass(frozen=True)
class TechnicalVariable:
    """One technical variable of N patches."""

    name: str
    codes: Ints
    """(N,) codes into `values`; -1 where the value is not known, or where only one patient has it."""
    values: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Sentences on values that were left out or grouped."""
    obstacle: str = ""
    """Why there are no values; empty where there are values."""


def find_variables(embeddings: Embeddings, config: AuditConfig) -> tuple[TechnicalVariable, ...]:
    """The columns to audit, as the settings say; a column that the table lacks is refused."""
    table = embeddings.table
    names = config.columns
    if names is None:
        names = (*list_known(embeddings, config.label), _name_colour(table))
    unknown = [name for name in names if name not in (*table.names, COLOUR, address_computed(COLOUR))]
    if unknown:
        raise UserError(
            f"columns: {embeddings.path} has no column of names {unknown[0]!r}; it has {', '.join(table.names)}. "
            f"Choose among these and `{COLOUR}`."
        )
    patients = table.codes("patient")[0]
    return tuple(_drop_rare(_read(embeddings, name, config), patients) for name in names)


def _name_colour(table: PatchTable) -> str:
    """What the mean colour of slides is called: `colour`, or `computed:colour` beside a column of the user's own."""
    return address_computed(COLOUR) if COLOUR in table.names else COLOUR


def list_known(embeddings: Embeddings, label: str) -> list[str]:
    """Columns of technical variables, known by their names, with two values or more."""
    table = embeddings.table
    known = [name for name in table.names if any(word in name.lower() for word in _KNOWN) and name != label]
    return [name for name in known if len(np.unique(codes := table.codes(name)[0])) - bool((codes < 0).any()) > 1]


def _read(embeddings: Embeddings, name: str, config: AuditConfig) -> TechnicalVariable:
    table = embeddings.table
    if name not in table.names:
        name = _name_colour(table)
        store = embeddings.open_store()
        if store is None:
            gone = f"{embeddings.why_no_pictures}, so that their colours cannot be read"
            return TechnicalVariable(name, np.full(len(table), -1), (), obstacle=gone)
        return _group_colours(embeddings, store, config, name)
    codes, values = table.codes(name)
    if len(values) > config.bins and all(map(_DATE.fullmatch, values)):
        return _bin_dates(name, codes, values, config.bins)
    return TechnicalVariable(name, codes.astype(np.int64), values)


def _group_colours(embeddings: Embeddings, store: PatchStore, config: AuditConfig, name: str) -> TechnicalVariable:
    """Slides by the mean colour of 8 of their patches, in groups of similar colour."""
    table, groups = embeddings.table, config.bins
    slides = group([table.codes("patient")[0], table.codes("slide")[0]])
    chosen = [rows[np.linspace(0, len(rows) - 1, min(len(rows), _PER_SLIDE)).astype(int)] for rows in slides.rows()]
    slide = np.repeat(np.arange(len(slides)), [len(rows) for rows in chosen])
    sums, read = np.zeros((len(slides), store.input_channels)), np.zeros(len(slides))
    for number, row in zip(slide, find_rows_in_store(embeddings, np.concatenate(chosen), store), strict=True):
        for colour in read_colour(store, int(row)).numpy():
            sums[number] += colour[: store.input_channels]
            read[number] += 1
    codes = np.full(len(slides), -1)
    codes[read > 0] = cluster_colours(sums[read > 0] / read[read > 0, None], groups, config.seed)
    values = tuple(f"{number} of {groups}" for number in range(1, groups + 1))
    note = f"Slides in {groups} groups by their mean colour (k-means of whitened means of the channels); "
    return TechnicalVariable(name, codes[slides.of_row], values, (f"{note}1 is the darkest.",))


def cluster_colours(colours: Floats, groups: int, seed: int) -> Ints:
    """(S,) the group of each slide by its mean colour (S, C), the darkest first.

    Colours are whitened first: slides differ most in brightness, and a stain or a scanner shows in hue as well.
    """
    if len(colours) <= groups:
        return np.zeros(len(colours), np.int64)
    centred = colours - colours.mean(axis=0)
    along, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    whitened = along[:, sizes > 1e-6 * max(sizes[0], 1e-30)]
    if not whitened.shape[1] or sizes[0] < 1e-6:
        return np.zeros(len(colours), np.int64)
    kmeans = KMeans(groups, n_init=10, random_state=make_seed(seed, Purpose.AUDITED_COLOURS, bits=32))
    group_of = kmeans.fit_predict(whitened)
    brightness = [colours[group_of == number].mean() for number in range(groups)]
    return np.argsort(np.argsort(brightness))[group_of]


def _bin_dates(name: str, codes: Codes, dates: tuple[str, ...], bins: int) -> TechnicalVariable:
    """Patches by their date in bins of about equal size, the earliest first."""
    order = np.argsort(np.argsort(dates, kind="stable"), kind="stable")[codes]
    edges = np.quantile(order[codes >= 0], np.arange(1, bins) / bins)
    bin_of = np.where(codes >= 0, np.searchsorted(edges, order, side="right"), -1)
    values = tuple(f"{number} of {bins}" for number in range(1, bins + 1))
    note = f"Dates in {bins} groups of about equally many patches; 1 is the earliest."
    return TechnicalVariable(name, bin_of, values, (note,))


def _drop_rare(variable: TechnicalVariable, patients: Codes) -> TechnicalVariable:
    """The variable without the values that only one patient has, and without names for values that no patch has."""
    codes, total = variable.codes, len(variable.values)
    pairs = np.unique(np.stack([codes[codes >= 0], patients[codes >= 0]]), axis=1)
    patients_of_value = np.bincount(pairs[0], minlength=total)
    common = np.flatnonzero(patients_of_value > 1)
    renumbered = np.full(total + 1, -1)
    renumbered[common] = np.arange(len(common))
    rare = int((patients_of_value == 1).sum())
    left_out = [f"Left out: {count(rare, 'value')} that only one patient has."] if rare else []
    values = tuple(variable.values[code] for code in common)
    return replace(variable, codes=renumbered[codes], values=values, notes=(*variable.notes, *left_out))


_PERMUTATIONS = 999


def share_groups(patients: Ints, codes: Ints, groups: int) -> Floats:
    """(P, G) share of each patient's patches that are of each group; `patients` (N,) are 0 to P - 1."""
    counts = np.zeros((int(patients.max(initial=-1)) + 1, groups))
    np.add.at(counts, (patients, codes), 1)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def cramers_v(table: Floats) -> float | None:
    """Cramer's V of a table of patients (L, C), corrected for its bias in small cohorts (Bergsma 2013).

    phi2 = chi2 / n, less (L - 1)(C - 1) / (n - 1); a side has s - (s - 1)^2 / (n - 1) instead of s values. 0: the
    two are independent, 1: each determines the other. None where a side has one value, or as many as patients.
    """
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    n, sides = table.sum(), np.array(table.shape)
    if min(sides) < 2 or n <= max(sides):
        return None
    phi2 = chi_squared(table) / n
    corrected = max(0.0, phi2 - np.prod(sides - 1) / (n - 1))
    values = sides - (sides - 1) ** 2 / (n - 1)
    return min(1.0, math.sqrt(corrected / (values.min() - 1)))


def chi_squared(table: Floats) -> float:
    """Pearson's chi squared of a table without empty rows and columns, against independence."""
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return float((np.square(table - expected) / expected).sum())


def permute_labels(labels: Floats, values: Floats, rng: np.random.Generator) -> float:
    """p: how often a random assignment of labels (P, L) to patients goes with their values (P, C) at least as well."""
    labels, values = labels[:, labels.sum(axis=0) > 0], values[:, values.sum(axis=0) > 0]
    observed = chi_squared(labels.T @ values) - 1e-9
    permuted = [chi_squared(labels[rng.permutation(len(labels))].T @ values) for _ in range(_PERMUTATIONS)]
    return (1 + sum(value >= observed for value in permuted)) / (_PERMUTATIONS + 1)
