"""Diagnostics: what the embeddings are made of, each number with a sentence on what it means.

All are of unit vectors, as neighbours are found by cosine, and of patches spread alike over patients.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from hidisc.evaluation.folds import sample_per_patient
from hidisc.evaluation.scores import Diagnostic
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.models.effective_rank import effective_rank

_MOST = 4000
"""Most patches of the bank, and of the queries, that are looked at."""
_MOST_RANKED = 2048
"""Rows that `effective_rank` looks at."""
_COLLAPSED_RANK, _COLLAPSED_COSINE = 1.5, 0.99
_DEALS = 200
"""Times that labels or sites are dealt out to patients at random, to see what they explain by chance."""
_BLOCK = 512
_TIE = 1e-6
"""Cosines that differ by less, the rounding of float32, are one."""

Codes = NDArray[np.int64]
"""(n,) which group each patch belongs to; negative: none."""


@dataclass(frozen=True)
class Sample:
    """n patches of the bank or of the queries."""

    z: NDArray[np.float32]
    """(n, D) unit vectors."""
    patients: Codes
    slides: Codes
    sites: Codes
    labels: Codes
    units: dict[str, Codes]
    """Of every level above the patch, coarse to fine; a unit is one of its own and of all names above it."""
    broken: int
    """Patches left out as their vectors are not finite."""

    def __len__(self) -> int:
        return len(self.z)

    @cached_property
    def cosines(self) -> NDArray[np.float32]:
        """(n, n), at most 64 MB."""
        return self.z @ self.z.T


def diagnose(task: Task, seed: int) -> tuple[Diagnostic, ...]:
    """What the encoder makes of the queries, and whether it knows the patients of the bank by heart."""
    queries = draw(task.queries, task.levels, seed)
    if len(queries) < 2:
        why = f"There are {len(queries)} query patches with finite embeddings, and nothing to compare."
        return (Diagnostic(name="collapse", value=None, meaning=why),)
    bank = draw(task.bank, task.levels, seed)
    return (
        *_spread(queries),
        *(found for level in task.levels[:-1] for found in _geometry(queries, level)),
        *_variance(queries, seed),
        *_neighbours(queries, bank),
    )


# --- the patches looked at ---------------------------------------------------------------------------------------


def draw(patches: LabelledPatches, levels: tuple[str, ...], seed: int, most: int = _MOST) -> Sample:
    """At most `most` of some patches, as many of each patient as there are or as of any other."""
    places = sample_per_patient(
        patches.codes("patient").astype(np.int64), most, make_rng(seed, Purpose.DIAGNOSED_PATCHES)
    )
    vectors = patches.vectors(places)
    is_finite = np.isfinite(vectors).all(axis=1)
    places, vectors = places[is_finite], vectors[is_finite].astype(np.float64)
    z = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    codes = {name: patches.codes(name)[places].astype(np.int64) for name in {*levels[:-1], "patient", "slide", "site"}}
    units: dict[str, Codes] = {}
    above = np.zeros(len(places), np.int64)
    for level in levels[:-1]:
        above = _join(above, codes[level])
        units[level] = np.where(codes[level] < 0, -1, above)
    return Sample(
        z=z.astype(np.float32),
        patients=codes["patient"],
        slides=_join(codes["patient"], codes["slide"]),
        sites=codes["site"],
        labels=patches.labels[places],
        units=units,
        broken=int((~is_finite).sum()),
    )


def _join(above: Codes, own: Codes) -> Codes:
    """(n,) a code for every pair of codes."""
    return np.unique(np.stack([above, own]), axis=1, return_inverse=True)[1].reshape(-1)


# --- the numbers -------------------------------------------------------------------------------------------------


def mean_distance(z: NDArray[np.float32], shared: Codes, apart: Codes) -> float | None:
    """Mean squared distance of all pairs that share a group of `shared` and none of `apart`; None: no such pair.

    z (n, D). Wang and Isola's alignment, ICML 2020, over every pair instead of a few: |a - b|^2 summed over all pairs
    of a group of m is 2 m sum |a|^2 - 2 |sum a|^2, less the same of the groups within it that are kept apart.
    """
    known = shared >= 0
    z64, shared = z[known].astype(np.float64), shared[known]
    pairs, total = 0, 0.0
    for groups, sign in ((shared, 1), (_join(shared, apart[known]), -1)):
        sums, counts, group = _sum_groups(z64, groups)
        pairs += sign * int((counts**2).sum())
        total += sign * 2 * float((np.square(z64).sum(axis=1) * counts[group]).sum() - np.square(sums).sum())
    return max(total / pairs, 0.0) if pairs else None


def uniformity(z: NDArray[np.float32]) -> float | None:
    """log mean exp(-2 |a - b|^2) over all pairs of z (n, D): 0 all in one place, about -4 spread over a sphere.

    Wang and Isola, ICML 2020. None: fewer than two.
    """
    if len(z) < 2:
        return None
    square = np.square(z).sum(axis=1)
    total = 0.0
    for rows in _blocks(len(z)):
        distance = square[rows, None] + square - 2 * (z[rows] @ z.T)
        near = np.exp(-2 * distance.clip(0), dtype=np.float64)
        near[np.arange(len(near)), np.arange(len(z))[rows]] = 0  # a patch with itself is no pair
        total += float(near.sum())
    return float(np.log(total / (len(z) * (len(z) - 1))))


def unit_means(z: NDArray[np.float32], units: Codes) -> NDArray[np.float32]:
    """(G, D) means of the vectors z (n, D) of every unit, brought to length 1."""
    known = units >= 0
    sums = _sum_groups(z[known].astype(np.float64), units[known])[0]
    return (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-30)).astype(np.float32)


def variance_share(z: NDArray[np.float32], groups: Codes) -> float | None:
    """Epsilon squared of z (n, D): share of the variance that lies between groups, 0 on average for random groups.

    It is (SSB - (G - 1) SSW / (n - G)) / SST, summed over dimensions. None: fewer than two groups, as many as patches,
    or no variance.
    """
    known = groups >= 0
    centred = _centre(z[known])
    sums, counts, _ = _sum_groups(centred, groups[known])
    between = float((np.square(sums).sum(axis=1) / counts).sum())
    return _epsilon(between, float(np.square(centred).sum()), len(centred), len(counts))


def chance_share(z: NDArray[np.float32], groups: Codes, patients: Codes, rng: np.random.Generator) -> float:
    """`variance_share` when the groups are dealt out to patients at random; 0 where a patient has several.

    The patches of a patient are alike, so that with few patients any labels explain something.
    """
    known = groups >= 0
    centred, groups = _centre(z[known]), groups[known]
    sums, counts, patient = _sum_groups(centred, patients[known])
    first = np.unique(patient, return_index=True)[1]
    own = np.unique(groups[first], return_inverse=True)[1]
    if (own[patient] != np.unique(groups, return_inverse=True)[1]).any():
        return 0.0
    is_in = np.eye(own.max() + 1)[own]  # (patients, G)
    between = []
    for _ in range(_DEALS):
        dealt = is_in[rng.permutation(len(own))]
        between.append((np.square(dealt.T @ sums).sum(axis=1) / (dealt.T @ counts)).sum())
    share = _epsilon(float(np.mean(between)), float(np.square(centred).sum()), len(centred), is_in.shape[1])
    return share or 0.0


def neighbour_share(cosines: NDArray[np.float32], groups: Codes, apart: Codes) -> tuple[float, float] | None:
    """(share, chance) of patches whose nearest one, of those with another `apart`, is of the same group.

    cosines (n, n). Only patches that have one of their own group among those count; ties count in parts, so that the
    share of a collapsed encoder is the chance. None: no patch counts.
    """
    known = np.flatnonzero(groups >= 0)
    groups, apart = groups[known], apart[known]
    shares, chances = [], []
    for rows in _blocks(len(known)):
        may = apart[rows, None] != apart
        hit = may & (groups[rows, None] == groups)
        counts = hit.any(axis=1)
        may, hit = may[counts], hit[counts]
        near = np.where(may, cosines[np.ix_(known[rows][counts], known)], -np.inf)
        tied = near >= near.max(axis=1, keepdims=True, initial=-np.inf) - _TIE
        shares.append((tied & hit).sum(axis=1) / tied.sum(axis=1))
        chances.append(hit.sum(axis=1) / may.sum(axis=1))
    if not sum(map(len, shares)):
        return None
    return float(np.concatenate(shares).mean()), float(np.concatenate(chances).mean())


def _sum_groups(
    z: NDArray[np.float64], groups: Codes
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Sums (G, D) of z (n, D), counts (G,), and each row's group as a place among these (n,)."""
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if not len(group):
        return np.zeros((0, z.shape[1])), counts, group
    order = np.argsort(group, kind="stable")
    return np.add.reduceat(z[order], np.cumsum(counts) - counts), counts, group


def _epsilon(between: float, total: float, patches: int, groups: int) -> float | None:
    if groups < 2 or patches <= groups or total <= 1e-9 * patches:  # below: the rounding of float32
        return None
    return (between - (groups - 1) * (total - between) / (patches - groups)) / total


def _centre(z: NDArray[np.float32]) -> NDArray[np.float64]:
    z64 = z.astype(np.float64)
    return z64 - z64.mean(axis=0) if len(z64) else z64


def _blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, _BLOCK):
        yield slice(start, min(start + _BLOCK, rows))


# --- what they mean ----------------------------------------------------------------------------------------------


def _spread(sample: Sample) -> Iterator[Diagnostic]:
    """Whether the vectors differ at all."""
    n, dim = sample.z.shape
    everyone = np.arange(n)
    rows = np.linspace(0, n - 1, min(n, _MOST_RANKED)).astype(np.int64)
    rank = effective_rank(torch.from_numpy(sample.z[rows]))
    most = min(len(rows), dim)
    if rank < _COLLAPSED_RANK:
        use = "all patches lie along one line"
    elif rank < 0.1 * most:
        use = "the encoder says much the same in many of its numbers"
    else:
        use = "the encoder makes use of what it has"
    yield Diagnostic(
        name="effective rank",
        value=rank,
        meaning=f"Of {most:,} directions in which patches could differ, about {rank:,.1f} are used: {use}.",
    )
    apart = mean_distance(sample.z, np.zeros(n, np.int64), everyone)
    cosine = 1 - (apart or 0.0) / 2
    if rank < _COLLAPSED_RANK or cosine > _COLLAPSED_COSINE:
        said = (
            f"COLLAPSED: two random patches look nearly the same to the encoder (cosine {cosine:.3f}, effective rank "
        )
        said += f"{rank:.1f}), so no number on this page means much; train again."
    elif cosine > 0.9:
        said = f"Not collapsed, but any two patches are much alike (cosine {cosine:.2f}), so that small differences "
        said += "decide."
    else:
        said = f"Not collapsed: two random patches look different to the encoder (cosine {cosine:.2f})."
    if sample.broken:
        said = f"{said[:-1]}; {sample.broken:,} patches with embeddings that are not finite are left out."
    yield Diagnostic(name="collapse", value=cosine, meaning=said)
    yield _uniformity(sample.z, "patch")


def _geometry(sample: Sample, level: str) -> Iterator[Diagnostic]:
    """How near the patches of a unit are to each other, and how far apart the units."""
    n, units = len(sample), sample.units[level]
    levels = list(sample.units)
    finer = levels[levels.index(level) + 1] if level != levels[-1] else "patch"
    value = mean_distance(sample.z, units, np.arange(n) if finer == "patch" else sample.units[finer])
    chance = mean_distance(sample.z, np.zeros(n, np.int64), np.arange(n))
    name = f"alignment: {level}"
    if value is None:
        why = f"No {level} has two {_plural(finer)} among those looked at, so there is no pair to measure."
        yield Diagnostic(name=name, value=None, chance=chance, meaning=why)
    else:
        whose = f"Patches of one {level}" + ("" if finer == "patch" else f", taken from different {_plural(finer)},")
        yield Diagnostic(name=name, value=value, chance=chance, meaning=f"{whose} {_closeness(value, chance, level)}.")
    yield _uniformity(unit_means(sample.z, units), level)


def _closeness(value: float, chance: float | None, level: str) -> str:
    if not chance:
        return "are in one place, as all patches are"
    if value > 1.1 * chance:
        return f"are further apart than strangers: the {level} is the last thing the encoder sees"
    if value > 0.9 * chance:
        return f"are nearly as far apart as strangers: the {level} is not what the encoder sees"
    if value > 0.5 * chance:
        return f"are nearer to each other than strangers are: the {level} is part of what the encoder sees"
    return f"are much nearer to each other than strangers are: the {level} is most of what the encoder sees"


def _uniformity(z: NDArray[np.float32], level: str) -> Diagnostic:
    value, name = uniformity(z), f"uniformity: {level}"
    if value is None:
        why = f"There are fewer than two {_plural(level)}, so there is no distance between them."
        return Diagnostic(name=name, value=None, meaning=why)
    if value > -1:
        said = "are crowded together (0 is one place, -4 is spread out)"
    elif value > -2.5:
        said = "fill part of the room there is (0 is one place, -4 is spread out)"
    else:
        said = "are well spread out (0 is one place, -4 is spread out)"
    what = "Patches" if level == "patch" else f"The {_plural(level)}, each as the mean of its patches,"
    return Diagnostic(name=name, value=value, meaning=f"{what} {said}.")


def _variance(sample: Sample, seed: int) -> Iterator[Diagnostic]:
    """How much of the differences between patches goes with what is known of them."""
    label = None
    for name, groups in {"label": sample.labels, "site": sample.sites, **sample.units}.items():
        if name not in sample.units and len(np.unique(groups[groups >= 0])) < 2:
            continue
        share, chance = variance_share(sample.z, groups), 0.0
        if name in ("label", "site"):
            chance = chance_share(sample.z, groups, sample.patients, make_rng(seed, Purpose.CHANCE))
        label = share if name == "label" else label
        yield _explained(name, share, chance, label)


def _explained(name: str, share: float | None, chance: float, label: float | None) -> Diagnostic:
    if share is None:
        why = f"There are fewer than two {_plural(name)}, or one patch of each, or no variance to explain."
        return Diagnostic(name=f"variance: {name}", value=None, meaning=why)
    said = f"The {name} of a patch explains {100 * max(share, 0):.0f} % of how patches differ (epsilon squared)"
    if share <= chance + 0.01:
        said += ", no more than names given at random would"
    elif name == "label":
        said += f", where labels given to patients at random would explain {100 * chance:.0f} %"
    elif label is not None and label > 0.5 * share:
        said += ", and the label alone most of that"
    elif label is not None:
        said += f", and the label alone {100 * max(label, 0):.0f} %: more is seen of the {name} than of the class"
    return Diagnostic(name=f"variance: {name}", value=share, chance=chance, meaning=f"{said}.")


def _neighbours(queries: Sample, bank: Sample) -> Iterator[Diagnostic]:
    """Whom a patch's nearest neighbour belongs to, when it may not be of its own slide or patient."""
    asked, known = (neighbour_share(sample.cosines, sample.patients, sample.slides) for sample in (queries, bank))
    why = "No patient of the {} has two slides with patches"
    yield _told_apart("neighbour of the same patient", asked, "patient", why.format("queries"))
    found = _told_apart("neighbour of the same patient, in the bank", known, "patient", why.format("bank"))
    if asked and known and _above_chance(*known) > _above_chance(*asked) + 0.1:
        said = f"{found.meaning[:-1]}, better than in the queries: if it learned from the bank, it knows it by heart."
        found = found.model_copy(update={"meaning": said})
    yield found
    for thing, groups in (("site", queries.sites), ("label", queries.labels)):
        there = len(np.unique(groups[groups >= 0]))
        nearest = neighbour_share(queries.cosines, groups, queries.patients) if there > 1 else None
        why = f"No {thing} has two patients" if there > 1 else f"The queries have {there or 'no'} {thing}"
        yield _told_apart(f"neighbour of the same {thing}", nearest, thing, why)


def _told_apart(name: str, found: tuple[float, float] | None, thing: str, why: str) -> Diagnostic:
    if found is None:
        return Diagnostic(name=name, value=None, meaning=f"{why}, so there is nothing to tell apart.")
    share, chance = found
    above = _above_chance(share, chance)
    how = "hardly" if above < 0.1 else "partly" if above < 0.5 else "clearly"
    of = "another slide is of the same patient" if thing == "patient" else f"another patient has the same {thing}"
    said = f"The most similar patch of {of} in {100 * share:.0f} % of cases, {100 * chance:.0f} % by chance: "
    said += f"the encoder {how} tells {_plural(thing)} apart"
    if thing == "site" and above >= 0.1:
        said += ", so that a scanner or a stain may pass for a finding"
    return Diagnostic(name=name, value=share, chance=chance, meaning=f"{said}.")


def _above_chance(share: float, chance: float) -> float:
    """0: by chance, 1: always."""
    return (share - chance) / (1 - chance) if chance < 1 else 0.0


def _plural(level: str) -> str:
    return "patches" if level == "patch" else f"{level}s"
