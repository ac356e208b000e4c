"""Which patients are held out: whole patients (or whole sites), stratified by label, a pure function of the seed."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Set

from hidisc.errors import UserError
from hidisc.seeds import Purpose, make_rng
from hidisc.settings.preparing import SplitConfig


def split_patients(
    labels: Mapping[str, str | None],
    config: SplitConfig,
    seed: int,
    sites: Mapping[str, Set[str | None]] | None = None,
) -> dict[str, str]:
    """Side of every patient, given each patient's label and, where sites are kept whole, the sites it was seen at.

    Does not depend on the order of the patients. Every label's count on a side is its exact share rounded down or
    up; with `keep_sites` the shares are as near as whole sites allow.
    """
    fractions = config.fractions
    if config.folds:
        fractions = {f"fold-{number}": 1.0 for number in range(1, config.folds + 1)}
    total = sum(fractions.values())
    shares = {side: fraction / total for side, fraction in fractions.items() if fraction > 0}
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
    """Fill each label's whole quota a side first; what is left over goes where the side as a whole lacks most."""
    of_label: dict[str | None, list[str]] = defaultdict(list)
    for patient in order:
        of_label[labels[patient]].append(patient)
    side_of: dict[str, str] = {}
    left_over: list[tuple[str, list[str]]] = []
    for patients in of_label.values():
        waiting = iter(patients)
        exact = {side: share * len(patients) for side, share in shares.items()}
        for side, quota in exact.items():
            for _ in range(math.floor(quota + 1e-9)):
                side_of[next(waiting)] = side
        candidates = [side for side, quota in exact.items() if quota - math.floor(quota + 1e-9) > 1e-9]
        left_over += [(patient, candidates) for patient in waiting]
        # a label's left-over patients go to different sides: each takes its side off the shared list
    have = Counter(side_of.values())
    for patient, candidates in left_over:
        side = max(candidates or shares, key=lambda side: shares[side] * len(order) - have[side])
        if candidates:
            candidates.remove(side)
        side_of[patient] = side
        have[side] += 1
    return side_of


def _split_sites(
    order: list[str],
    labels: Mapping[str, str | None],
    shares: Mapping[str, float],
    sites: Mapping[str, Set[str | None]],
) -> dict[str, str]:
    """Largest group of sites first, each to the side where the label counts then miss their shares least."""
    groups = sorted(_connected(order, sites), key=len, reverse=True)
    totals = Counter(labels.values())
    have: dict[str, Counter[str | None]] = {side: Counter() for side in shares}

    def miss(side: str, added: Counter[str | None]) -> float:
        after = have[side] + added
        by_label = sum((after[label] - shares[side] * count) ** 2 for label, count in totals.items())
        return by_label + (after.total() - shares[side] * len(order)) ** 2

    side_of = {}
    for group in groups:
        added = Counter(labels[patient] for patient in group)
        side = min(shares, key=lambda side: miss(side, added) - miss(side, Counter()))
        have[side] += added
        side_of.update(dict.fromkeys(group, side))
    return side_of


def _connected(order: list[str], sites: Mapping[str, Set[str | None]]) -> list[list[str]]:
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
