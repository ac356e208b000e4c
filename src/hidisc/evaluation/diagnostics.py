"""Diagnostics: properties of the embeddings, each a number with a sentence on what it means.

All are of unit vectors, as neighbours are found by cosine similarity, and of patches sampled evenly over patients.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from hidisc.evaluation.folds import sample_per_patient
from hidisc.evaluation.geometry import (
    chance_share,
    mean_distance,
    neighbour_share,
    uniformity,
    unit_means,
    variance_share,
)
from hidisc.evaluation.scores import Diagnostic
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.evaluation.threads import use_threads
from hidisc.evaluation.units import Codes, group
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count, plural
from hidisc.models.effective_rank import effective_rank

_MOST = 4000
"""Most patches of the bank, and of the queries, that are sampled."""
_MOST_RANKED = 2048
"""Rows from which `effective_rank` is computed."""
_COLLAPSED_RANK, _COLLAPSED_COSINE = 1.5, 0.99


@dataclass(frozen=True)
class Sample:
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
def diagnose(task: Task, seed: int) -> tuple[Diagnostic, ...]:
    """What the embeddings reflect, and whether the encoder seems to have memorised the reference patients."""
    queries = sample_patches(task.queries, task.levels, seed)
    if len(queries) < 2:
        why = f"Too few embeddings to compare: {count(len(queries), 'test patch')} with finite ones."
        return (Diagnostic(name="collapse", value=None, meaning=why),)
    bank = sample_patches(task.bank, task.levels, seed)
    return (
        *_spread(queries),
        *(diagnostic for level in task.levels[:-1] for diagnostic in _closeness(queries, level)),
        *_variance(queries, seed),
        *_neighbours(queries, bank),
    )


def sample_patches(patches: LabelledPatches, levels: tuple[str, ...], seed: int, most: int = _MOST) -> Sample:
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
    return Sample(
        z=z.astype(np.float32),
        patients=codes["patient"],
        slides=group([codes["patient"], codes["slide"]]).of_row,
        sites=codes["site"],
        labels=patches.labels[sample],
        units=units,
        broken=int((~is_finite).sum()),
    )


def _spread(sample: Sample) -> Iterator[Diagnostic]:
    """Whether the embeddings differ at all."""
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
        meaning = (
            f"COLLAPSED: two random patches have nearly the same embedding (cosine {cosine:.3f}, effective rank "
            f"{rank:.1f}), so none of the scores means much; train again"
        )
    elif cosine > 0.9:
        meaning = f"Not collapsed, but any two patches have similar embeddings (cosine {cosine:.2f}), so small "
        meaning += "differences decide"
    else:
        meaning = f"Not collapsed: two random patches have different embeddings (cosine {cosine:.2f})"
    if sample.broken:
        meaning += f"; left out: {count(sample.broken, 'patch')} whose embeddings are not finite"
    yield Diagnostic(name="collapse", value=cosine, meaning=f"{meaning}.")
    yield _uniformity(sample.z, "patch")


def _closeness(sample: Sample, level: str) -> Iterator[Diagnostic]:
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


def _variance(sample: Sample, seed: int) -> Iterator[Diagnostic]:
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
        meaning += (
            f"; the label alone explains {100 * max(label_share, 0):.0f} %, so the embedding reflects the {name} "
        )
        meaning += "more than the label"
    return Diagnostic(name=f"variance: {name}", value=share, chance=chance, meaning=f"{meaning}.")


def _neighbours(queries: Sample, bank: Sample) -> Iterator[Diagnostic]:
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
