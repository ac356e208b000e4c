"""How far a label and a nuisance column go together in a cohort, with the patient as the unit."""

import math

import numpy as np

from hidisc.evaluation.units import Floats, Ints

_PERMUTATIONS = 999


def share_groups(patients: Ints, codes: Ints, groups: int) -> Floats:
    """(P, G) share of each patient's patches that are of each group; `patients` (N,) are 0 to P - 1."""
    counts = np.zeros((int(patients.max(initial=-1)) + 1, groups))
    np.add.at(counts, (patients, codes), 1)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def cramers_v(table: Floats) -> float | None:
    """Cramer's V of a table of patients (L, C), corrected for its bias in small cohorts (Bergsma 2013).

    phi2 = chi2 / n, less (L - 1)(C - 1) / (n - 1); a side has s - (s - 1)^2 / (n - 1) instead of s values. 0: the
    two are independent, 1: one says the other. None where a side has one value, or no fewer values than patients.
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
    found = chi_squared(labels.T @ values) - 1e-9
    drawn = [chi_squared(labels[rng.permutation(len(labels))].T @ values) for _ in range(_PERMUTATIONS)]
    return (1 + sum(value >= found for value in drawn)) / (_PERMUTATIONS + 1)
