"""Which patients are held out: by splits, once and for all, or by folds, each patient once."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import numpy as np

from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count, name_some, plural
from hidisc.patches.table import PatchTable
from hidisc.settings.evaluate import FoldsConfig
from hidisc.settings.prepare import SplitConfig

FEW_PATIENTS = 10
"""Of a test split: fewer show nothing, for the interval of any number is as wide as what is looked for."""


def warn_of_few(test_patients: int) -> list[str]:
    """What to do where so few patients are held out that a result shows nothing."""
    if not 0 < test_patients < FEW_PATIENTS:
        return []
    return [
        f"{count(test_patients, 'test patient')} can show nothing: in `hidisc evaluate` and `hidisc benchmark`, "
        "--folds 3 or more makes every patient of the cohort a test patient once."
    ]


def find_split_doubts(rows: Iterable[tuple[str, str | None, str | None]]) -> list[str]:
    """Classes that training never sees, and test patients that are too few, of rows of patient, label and split."""
    listed = list(rows)
    labels: dict[str | None, set[str | None]] = defaultdict(set)
    for _, label, split in listed:
        labels[split].add(label)
    unseen = sorted(str(label) for label in labels["test"] - labels["train"] if label)
    doubts = []
    if unseen and labels["train"] - {None}:
        doubts.append(
            f"{plural('class', len(unseen))} {name_some(unseen)} {'is' if len(unseen) == 1 else 'are'} in the split "
            "'test' and not in 'train', so no test patient of it can be predicted correctly. Choose other splits, or "
            "evaluate with --folds."
        )
    return [*doubts, *warn_of_few(len({patient for patient, _, split in listed if split == "test"}))]


def split_patients(
    labels: Mapping[str, str | None],
    config: SplitConfig,
    seed: int,
    sites: Mapping[str, Set[str | None]] | None = None,
) -> dict[str, str]:
    """Split of every patient, given each patient's label and, where sites are kept whole, the sites it was seen at.

    Does not depend on the order of the patients. Every label's count in a split is its exact share rounded down or
    up; with `keep_sites` the shares are as near as whole sites allow.
    """
    fractions = config.fractions
    if config.folds:
        fractions = {f"fold-{number}": 1.0 for number in range(1, config.folds + 1)}
    total = sum(fractions.values())
    shares = {split: fraction / total for split, fraction in fractions.items() if fraction > 0}
    names = sorted(labels)
    order = [names[index] for index in make_rng(seed, Purpose.SPLIT).permutation(len(names))]
    if config.keep_sites:
        if not sites or not any(site for seen in sites.values() for site in seen):
            raise UserError(
                "split.keep_sites is on, but no slide has a site. Fill in the `site` column, "
                "or --set split.keep_sites=false."
            )
        return _split_sites(order, labels, shares, sites)
    return _split_each(order, labels, shares)


def _split_each(order: list[str], labels: Mapping[str, str | None], shares: Mapping[str, float]) -> dict[str, str]:
    """Fill each label's whole quota per split first; what is left over goes where the split as a whole lacks most."""
    of_label: dict[str | None, list[str]] = defaultdict(list)
    for patient in order:
        of_label[labels[patient]].append(patient)
    split_of: dict[str, str] = {}
    left_over: list[tuple[str, list[str]]] = []
    for patients in of_label.values():
        waiting = iter(patients)
        exact = {split: share * len(patients) for split, share in shares.items()}
        for split, quota in exact.items():
            for _ in range(math.floor(quota + 1e-9)):
                split_of[next(waiting)] = split
        candidates = [split for split, quota in exact.items() if quota - math.floor(quota + 1e-9) > 1e-9]
        left_over += [(patient, candidates) for patient in waiting]
        # a label's left-over patients go to different splits: each takes its split off the shared list
    have = Counter(split_of.values())
    for patient, candidates in left_over:
        split = max(candidates or shares, key=lambda split: shares[split] * len(order) - have[split])
        if candidates:
            candidates.remove(split)
        split_of[patient] = split
        have[split] += 1
    return split_of


def _split_sites(
    order: list[str],
    labels: Mapping[str, str | None],
    shares: Mapping[str, float],
    sites: Mapping[str, Set[str | None]],
) -> dict[str, str]:
    """Largest group of sites first, each to the split where the label counts then miss their shares least."""
    groups = sorted(connect_sites(order, sites), key=len, reverse=True)
    totals = Counter(labels.values())
    have: dict[str, Counter[str | None]] = {split: Counter() for split in shares}

    def miss(split: str, added: Counter[str | None]) -> float:
        after = have[split] + added
        by_label = sum((after[label] - shares[split] * count) ** 2 for label, count in totals.items())
        return by_label + (after.total() - shares[split] * len(order)) ** 2

    split_of = {}
    for group in groups:
        added = Counter(labels[patient] for patient in group)
        split = min(shares, key=lambda split: miss(split, added) - miss(split, Counter()))
        have[split] += added
        split_of.update(dict.fromkeys(group, split))
    return split_of


def connect_sites(order: list[str], sites: Mapping[str, Set[str | None]]) -> list[list[str]]:
    """Patients in groups that share no site; one seen at two sites ties those together."""
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for patient in order:
        for site in sorted(name for name in sites.get(patient, ()) if name is not None):
            parent[root(("patient", patient))] = root(("site", site))  # this way round the paths stay short
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for patient in order:
        groups[root(("patient", patient))].append(patient)
    return list(groups.values())


Folds = tuple[tuple[str, ...], ...]
"""Names of the patients of each fold."""


def make_folds(table: PatchTable, config: FoldsConfig, label: str, where: Path) -> Folds:
    """Assign every patient that has a label to one fold; `label` is the column that is predicted.

    Folds by patient have about equally many patients of each label. A patient with patches of several labels counts as
    a label of its own kind, such as `benign, malignant`.
    """
    labels = {patient: ", ".join(sorted(names)) for patient, names in _names_by_patient(table, label).items()}
    if not labels:
        raise UserError(
            f"no patient of {where} has a {label}, so folds cannot judge anyone. Give it a `{label}` column."
        )
    if config.by == "each-site":
        return _one_per_site(table, labels, where)
    if len(labels) < config.number:
        raise UserError(
            f"{config.number} folds need {config.number} patients with a {label} or more, and {where} has "
            f"{len(labels)}. Give fewer --folds."
        )
    rule = SplitConfig(folds=config.number, keep_sites=config.by == "site")
    sites = _names_by_patient(table, "site") if config.by == "site" else None
    found = split_patients(labels, rule, config.seed, sites)
    folds = tuple(
        tuple(sorted(patient for patient, fold in found.items() if fold == f"fold-{number}"))
        for number in range(1, config.number + 1)
    )
    if not all(folds):
        sites_found = len({site for seen in (sites or {}).values() for site in seen})
        raise UserError(
            f"{config.number} folds by site need {config.number} sites or more that share no patient, and {where} has "
            f"{count(sites_found, 'site')}. Give fewer --folds, or --set folds.by=patient."
        )
    return folds


def _one_per_site(table: PatchTable, labels: dict[str, str], where: Path) -> Folds:
    """A fold for each site; sites that share a patient are one fold."""
    sites = _names_by_patient(table, "site")
    homeless = sorted(set(labels) - set(sites))
    if homeless:
        raise UserError(
            f"folds.by=each-site needs the site of every patient, and {where} does not say that of "
            f"{name_some(homeless)}. Fill in the `site` column, or --set folds.by=patient."
        )
    groups = connect_sites(sorted(labels), sites)
    if len(groups) < 2:
        raise UserError(
            f"folds.by=each-site needs two sites or more that share no patient, and {where} has one. Choose "
            "--set folds.by=patient."
        )
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _names_by_patient(table: PatchTable, column: str) -> dict[str, set[str]]:
    """The names in a column that each patient's patches have; patients without any are left out."""
    (patients, patient_names), (codes, names) = table.codes("patient"), table.codes(column)
    pairs = np.unique(np.stack([patients, codes], axis=1)[(patients >= 0) & (codes >= 0)], axis=0)
    found: dict[str, set[str]] = defaultdict(set)
    for patient, code in pairs.tolist():
        found[patient_names[patient]].add(names[code])
    return dict(found)
