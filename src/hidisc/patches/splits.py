"""Which patients are held out: whole patients (or whole sites), stratified by label, a pure function of the seed."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Set

from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.settings.prepare import SplitConfig


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
