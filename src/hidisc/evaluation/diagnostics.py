"""Diagnostics: properties of the embeddings, each a number with a sentence on what it means.

All are of unit vectors, as neighbours are found by cosine similarity, and of patches sampled evenly over patients. The
numbers themselves (distances, spread, variance between groups, nearest neighbours) are pure functions, first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from hidisc.evaluation.neighbours import use_threads
from hidisc.evaluation.probes.folds import sample_per_patient
from hidisc.evaluation.scores import Diagnostic
from hidisc.evaluation.task import Codes, LabelledPatches, Task, Units, group
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count, plural
from hidisc.models.encoder import effective_rank

_SHUFFLES = 200
"""Times that labels or sites are assigned to patients at random, to measure what they explain by chance."""
_BLOCK = 512
"""Rows of a matrix of all pairs that are in memory at once."""
_TIE = 1e-6
"""Cosines that differ by less than this, the rounding of float32, are equal."""


def mean_distance(z: NDArray[np.float32], shared: Codes, apart: Codes) -> float | None:
    """Mean squared distance of all pairs that share a group of `shared` and none of `apart`; None: no such pair.

    z (n, D), groups (n,). It is the alignment of Wang and Isola, ICML 2020, over all pairs instead of some. Patches of
    one patient but of different slides: all pairs within patients, minus the pairs within slides.
    """
    known = shared >= 0
    z64, shared = z[known].astype(np.float64), shared[known]
    pairs, total = _sum_distances(z64, group([shared]))
    excluded_pairs, excluded = _sum_distances(z64, group([shared, apart[known]]))
    return max((total - excluded) / (pairs - excluded_pairs), 0.0) if pairs > excluded_pairs else None


def _sum_distances(z: NDArray[np.float64], units: Units) -> tuple[int, float]:
    """How many pairs (a, b) there are within units, and their |a - b|^2 summed; pairs (a, a) are among them and add 0.

    |a - b|^2 = |a|^2 + |b|^2 - 2 a.b. Over all pairs of a unit of m vectors that is 2 m sum |a|^2 - 2 |sum a|^2, so
    sums over units are enough and no pair is visited.
    """
    counts = units.counts
    squares = np.square(z).sum(axis=1)
    total = 2 * (squares * counts[units.of_row]).sum() - 2 * np.square(units.sums(z)).sum()
    return int((counts**2).sum()), float(total)


def uniformity(z: NDArray[np.float32]) -> float | None:
    """log mean exp(-2 |a - b|^2) over all pairs of z (n, D): 0 if all are equal, about -4 if spread over a sphere.

    Wang and Isola, ICML 2020. None: fewer than two vectors.
    """
    if len(z) < 2:
        return None
    squares = np.square(z).sum(axis=1)
    total = 0.0
    for rows in _blocks(len(z)):
        distance = squares[rows, None] + squares - 2 * (z[rows] @ z.T)
        nearness = np.exp(-2 * distance.clip(0), dtype=np.float64)
        nearness[np.arange(len(nearness)), np.arange(len(z))[rows]] = 0  # a patch with itself is not a pair
        total += float(nearness.sum())
    return float(np.log(total / (len(z) * (len(z) - 1))))


def unit_means(z: NDArray[np.float32], codes: Codes) -> NDArray[np.float32]:
    """(G, D) mean vector of every group, scaled to length 1, of z (n, D)."""
    known = codes >= 0
    sums = group([codes[known]]).sums(z[known].astype(np.float64))
    return (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-30)).astype(np.float32)


def variance_share(z: NDArray[np.float32], codes: Codes) -> float | None:
    """Epsilon squared of z (n, D): the share of the variance that lies between groups, 0 on average for random groups.

    It is (SSB - (G - 1) SSW / (n - G)) / SST, summed over dimensions. None: fewer than two groups, as many as patches,
    or no variance.
    """
    known = codes >= 0
    centred, units = _centre(z[known]), group([codes[known]])
    between = float((np.square(units.sums(centred)).sum(axis=1) / units.counts).sum())
    return _epsilon_squared(between, float(np.square(centred).sum()), len(centred), len(units))


def chance_share(z: NDArray[np.float32], codes: Codes, patients: Codes, rng: np.random.Generator) -> float:
    """Mean `variance_share` if the groups are assigned to patients at random; 0 where a patient has several groups.

    The patches of a patient are alike, so with few patients any groups explain some of the variance.
    """
    known = codes >= 0
    centred, groups, patient = _centre(z[known]), group([codes[known]]), group([patients[known]])
    group_of_patient = groups.of_row[patient.first]
    if (group_of_patient[patient.of_row] != groups.of_row).any():
        return 0.0
    sums, counts = patient.sums(centred), patient.counts
    is_in_group = np.eye(len(groups))[group_of_patient]  # (patients, G)
    between = []
    for _ in range(_SHUFFLES):
        shuffled = is_in_group[rng.permutation(len(patient))]
        between.append((np.square(shuffled.T @ sums).sum(axis=1) / (shuffled.T @ counts)).sum())
    total = float(np.square(centred).sum())
    return _epsilon_squared(float(np.mean(between)), total, len(centred), len(groups)) or 0.0


def neighbour_share(cosines: NDArray[np.float32], codes: Codes, apart: Codes) -> tuple[float, float] | None:
    """(share, chance) of patches whose nearest one, of those with another `apart`, is of the same group.

    cosines (n, n). Only patches with a patch of their own group among those count. If several are equally near, each
    counts in part, so that the share of a collapsed encoder is the chance. None: no patch counts.
    """
    known = np.flatnonzero(codes >= 0)
    codes, apart = codes[known], apart[known]
    shares, chances = [], []
    for rows in _blocks(len(known)):
        is_candidate = apart[rows, None] != apart
        is_same = is_candidate & (codes[rows, None] == codes)
        counts = is_same.any(axis=1)
        is_candidate, is_same = is_candidate[counts], is_same[counts]
        nearness = np.where(is_candidate, cosines[np.ix_(known[rows][counts], known)], -np.inf)
        is_nearest = nearness >= nearness.max(axis=1, keepdims=True, initial=-np.inf) - _TIE
        shares.append((is_nearest & is_same).sum(axis=1) / is_nearest.sum(axis=1))
        chances.append(is_same.sum(axis=1) / is_candidate.sum(axis=1))
    if not sum(map(len, shares)):
        return None
    return float(np.concatenate(shares).mean()), float(np.concatenate(chances).mean())


def _epsilon_squared(between: float, total: float, patches: int, groups: int) -> float | None:
    if groups < 2 or patches <= groups or total <= 1e-9 * patches:  # below: the rounding of float32
        return None
    return (between - (groups - 1) * (total - between) / (patches - groups)) / total


def _centre(z: NDArray[np.float32]) -> NDArray[np.float64]:
    z64 = z.astype(np.float64)
    return z64 - z64.mean(axis=0) if len(z64) else z64


def _blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, _BLOCK):
        yield slice(start, min(start + _BLOCK, rows))


_MOST = 4000
"""Most patches of the bank, and of the queries, that are sampled."""
_MOST_RANKED = 2048
"""Rows from which `effective_rank` is computed."""
_COLLAPSED_RANK, _COLLAPSED_COSINE = 1.5, 0.99


@dataclass(frozen=True)
class DiagnosedSample:
    """n patches of the bank or of the queries; a code is negative where a name is missing."""

    z: NDArray[np.float32]
    """(n, D) unit vectors."""
    patients: Codes
    slides: Codes
    sites: Codes
    labels: Codes
    units: dict[str, Codes]
    """Codes of every level above the patch, coarse to fine; a unit is known by its name and all names above it."""
    broken: int
    """Patches left out because their vectors are not finite."""

    def __len__(self) -> int:
        return len(self.z)

    @cached_property
    def cosines(self) -> NDArray[np.float32]:
        """(n, n), at most 64 MB."""
        return self.z @ self.z.T

    @cached_property
    def random_distance(self) -> float | None:
        """Mean squared distance of two random patches."""
        return mean_distance(self.z, np.zeros(len(self), np.int64), np.arange(len(self)))


@use_threads(1)
def diagnose(task: Task, seed: int, has_learned: bool = True) -> tuple[Diagnostic, ...]:
    """What the embeddings reflect, and whether the encoder seems to have memorised the reference patients.

    `has_learned`: whether it has learned from anything, as random weights have not.
    """
    queries = sample_patches(task.queries, task.levels, seed)
    if len(queries) < 2:
        why = f"Too few embeddings to compare: {count(len(queries), 'test patch')} with finite ones."
        return (Diagnostic(name="collapse", value=None, meaning=why),)
    bank = sample_patches(task.bank, task.levels, seed)
    return (
        *_spread(queries, has_learned),
        *(diagnostic for level in task.levels[:-1] for diagnostic in _closeness(queries, level)),
        *_variance(queries, seed),
        *_neighbours(queries, bank),
    )


def sample_patches(patches: LabelledPatches, levels: tuple[str, ...], seed: int, most: int = _MOST) -> DiagnosedSample:
    """Sample at most `most` patches, as evenly over patients as possible."""
    rng = make_rng(seed, Purpose.DIAGNOSED_PATCHES)
    sample = sample_per_patient(patches.codes("patient").astype(np.int64), most, rng)
    vectors = patches.vectors(sample)
    is_finite = np.isfinite(vectors).all(axis=1)
    sample, vectors = sample[is_finite], vectors[is_finite].astype(np.float64)
    z = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    codes = {name: patches.codes(name)[sample] for name in {*levels[:-1], "patient", "slide", "site"}}
    units: dict[str, Codes] = {}
    for depth, level in enumerate(levels[:-1], start=1):
        of_row = group([codes[name] for name in levels[:depth]]).of_row
        units[level] = np.where(codes[level] < 0, -1, of_row)
    return DiagnosedSample(
        z=z.astype(np.float32),
        patients=codes["patient"],
        slides=group([codes["patient"], codes["slide"]]).of_row,
        sites=codes["site"],
        labels=patches.labels[sample],
        units=units,
        broken=int((~is_finite).sum()),
    )


def _spread(sample: DiagnosedSample, has_learned: bool) -> Iterator[Diagnostic]:
    """Whether the embeddings differ at all; an encoder that has learned nothing cannot have collapsed."""
    n, dim = sample.z.shape
    rows = np.linspace(0, n - 1, min(n, _MOST_RANKED)).astype(np.int64)
    rank = effective_rank(torch.from_numpy(sample.z[rows]))
    most = min(len(rows), dim)
    if rank < _COLLAPSED_RANK:
        use = "all embeddings lie along one line"
    elif rank < 0.1 * most:
        use = "many dimensions carry the same information"
    else:
        use = "the dimensions are well used"
    meaning = f"Of {most:,} directions in which embeddings could differ, about {rank:,.1f} are used: {use}."
    yield Diagnostic(name="effective rank", value=rank, meaning=meaning)
    cosine = 1 - (sample.random_distance or 0.0) / 2
    if rank < _COLLAPSED_RANK or cosine > _COLLAPSED_COSINE:
        alike = f"two random patches have nearly the same embedding (cosine {cosine:.3f}, effective rank {rank:.1f})"
        meaning = f"COLLAPSED: {alike}, so none of the scores means much; train again"
        if not has_learned:
            meaning = f"Not trained: {alike}, as is usual of random weights; this is a baseline, and nothing is wrong"
    elif cosine > 0.9:
        meaning = f"Not collapsed, but any two patches have similar embeddings (cosine {cosine:.2f}), so small "
        meaning += "differences decide"
    else:
        meaning = f"Not collapsed: two random patches have different embeddings (cosine {cosine:.2f})"
    if sample.broken:
        meaning += f"; left out: {count(sample.broken, 'patch')} whose embeddings are not finite"
    yield Diagnostic(name="collapse", value=cosine, meaning=f"{meaning}.")
    yield _uniformity(sample.z, "patch")


def _closeness(sample: DiagnosedSample, level: str) -> Iterator[Diagnostic]:
    """How similar the patches of a unit are, and how different the units."""
    levels = [*sample.units, "patch"]
    finer = levels[levels.index(level) + 1]
    value = mean_distance(sample.z, sample.units[level], sample.units.get(finer, np.arange(len(sample))))
    chance = sample.random_distance
    pair = f"Patches of one {level}" + ("" if finer == "patch" else f" from different {plural(finer)}")
    if value is None:
        meaning = f"No {level} has two {plural(finer)} in the sample, so there is no pair to measure."
    elif not chance:
        meaning = f"{pair} have the same embedding, as all patches have."
    elif value > 1.1 * chance:
        meaning = f"{pair} are less similar than random patches, so the embedding does not reflect the {level}."
    elif value > 0.9 * chance:
        meaning = f"{pair} are about as similar as random patches, so the embedding hardly reflects the {level}."
    elif value > 0.5 * chance:
        meaning = f"{pair} are more similar than random patches, so the embedding partly reflects the {level}."
    else:
        meaning = f"{pair} are much more similar than random patches, so the embedding mainly reflects the {level}."
    yield Diagnostic(name=f"alignment: {level}", value=value, chance=chance, meaning=meaning)
    yield _uniformity(unit_means(sample.z, sample.units[level]), level)


def _uniformity(z: NDArray[np.float32], level: str) -> Diagnostic:
    value, name = uniformity(z), f"uniformity: {level}"
    if value is None:
        meaning = f"There are fewer than two {plural(level)}, so there is no distance between them."
        return Diagnostic(name=name, value=None, meaning=meaning)
    spread = "close together" if value > -1 else "partly spread out" if value > -2.5 else "well spread out"
    embeddings = "The embeddings of patches" if level == "patch" else f"The mean embeddings of {plural(level)}"
    meaning = f"{embeddings} are {spread} (0: all are equal, -4: spread over all directions)."
    return Diagnostic(name=name, value=value, meaning=meaning)


def _variance(sample: DiagnosedSample, seed: int) -> Iterator[Diagnostic]:
    """How much of the variance of the embeddings the label, the site and each level explain."""
    label_share = None
    for name, codes in {"label": sample.labels, "site": sample.sites, **sample.units}.items():
        if name not in sample.units and len(np.unique(codes[codes >= 0])) < 2:
            continue
        share, chance = variance_share(sample.z, codes), 0.0
        if name in ("label", "site"):
            chance = chance_share(sample.z, codes, sample.patients, make_rng(seed, Purpose.CHANCE))
        label_share = share if name == "label" else label_share
        yield _explain_variance(name, share, chance, label_share)


def _explain_variance(name: str, share: float | None, chance: float, label_share: float | None) -> Diagnostic:
    if share is None:
        meaning = f"There are fewer than two {plural(name)}, or one patch per {name}, or the embeddings do not vary."
        return Diagnostic(name=f"variance: {name}", value=None, meaning=meaning)
    meaning = f"The {name} explains {100 * max(share, 0):.0f} % of the variance between patches (epsilon squared)"
    if share <= chance + 0.01:
        meaning += ", no more than by chance"
    elif name == "label":
        meaning += f"; labels assigned to patients at random would explain {100 * chance:.0f} %"
    elif label_share is not None and label_share > 0.5 * share:
        meaning += "; the label alone explains most of that"
    elif label_share is not None:
        reflected = f"so the embedding reflects the {name} more than the label"
        meaning += f"; the label alone explains {100 * max(label_share, 0):.0f} %, {reflected}"
    return Diagnostic(name=f"variance: {name}", value=share, chance=chance, meaning=f"{meaning}.")


def _neighbours(queries: DiagnosedSample, bank: DiagnosedSample) -> Iterator[Diagnostic]:
    """How often the nearest patch of another slide or patient has the same patient, site or label."""
    test, reference = (neighbour_share(sample.cosines, sample.patients, sample.slides) for sample in (queries, bank))
    name, why = "neighbour of the same patient", "No {} patient has two slides with patches"
    yield _separation(name, test, "patient", "test", why.format("test"))
    separation = _separation(f"{name}, reference patients", reference, "patient", "reference", why.format("reference"))
    if test and reference and _above_chance(*reference) > _above_chance(*test) + 0.1:
        meaning = f"{separation.meaning[:-1]}, better than test patients: if the encoder was trained on the reference "
        separation = separation.model_copy(update={"meaning": f"{meaning}patients, it has memorised them."})
    yield separation
    for thing, codes in (("site", queries.sites), ("label", queries.labels)):
        groups = len(np.unique(codes[codes >= 0]))
        shares = neighbour_share(queries.cosines, codes, queries.patients) if groups > 1 else None
        why = f"No {thing} has two test patients" if groups > 1 else f"The test patients have {groups or 'no'} {thing}"
        yield _separation(f"neighbour of the same {thing}", shares, thing, "test", why)


def _separation(name: str, shares: tuple[float, float] | None, thing: str, role: str, why: str) -> Diagnostic:
    """A sentence on `neighbour_share` for patches of the `role` (test or reference) patients; `why` it is None."""
    if shares is None:
        return Diagnostic(name=name, value=None, meaning=f"{why}, so this cannot be measured.")
    share, chance = shares
    above = _above_chance(share, chance)
    degree = "hardly" if above < 0.1 else "partly" if above < 0.5 else "clearly"
    other, same = ("slide", "is of the same patient") if thing == "patient" else ("patient", f"has the same {thing}")
    meaning = f"For {100 * share:.0f} % of {role} patches ({100 * chance:.0f} % by chance), the most similar patch of "
    meaning += f"another {other} {same}: the encoder {degree} separates {plural(thing)}"
    if thing == "site" and above >= 0.1:
        meaning += ", so predictions may rest on the scanner or the stain"
    return Diagnostic(name=name, value=share, chance=chance, meaning=f"{meaning}.")


def _above_chance(share: float, chance: float) -> float:
    """0: by chance, 1: always."""
    return (share - chance) / (1 - chance) if chance < 1 else 0.0
