"""Folds of cross-validation: which patients are held out together, a pure function of the table and the seed."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from hidisc.ground.errors import UserError
from hidisc.ground.text import count, name_some
from hidisc.patches.splits import connect_sites, split_patients
from hidisc.patches.table import PatchTable
from hidisc.settings.folds import FoldsConfig
from hidisc.settings.prepare import SplitConfig

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
