"""Streams of random numbers: one for every purpose, all from the user's seed, no two of them the same.

A stream is `SeedSequence(seed, spawn_key=...)`, whose key begins with the number of its purpose and goes on with where
it is used: a step, a rank, the name of a slide. So a draw depends on what it is for and on nothing drawn before.
"""

import hashlib
from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """The purposes of random numbers; comments name the rest of the key. No number is ever given to another purpose."""

    DRAWN_PATIENT = 1  # patient
    DRAWN_SLIDE = 2  # patient, slide
    SPLIT = 3
    STAIN_PATCHES = 4  # name of the slide
    PATIENT_ORDER = 5  # pass, label: the order of the coarsest level
    BATCH = 6  # step: what is drawn below the coarsest level
    REPLACEMENT = 7  # step, rank, place in the batch: instead of a patch that cannot be read
    VIEWS = 8  # step, rank
    DROPOUT = 9  # step, rank: also stochastic depth
    LEARNER_WEIGHTS = 10
    MONITORED_PATCHES = 11
    UNTRAINED_WEIGHTS = 12
    EMBEDDED_PATCHES = 13  # name of the slide
    EXPORT_CHECK = 14
    DUPLICATE_PAIRS = 15
    DIAGNOSED_PATCHES = 16
    CHANCE = 17
    BOOTSTRAP = 18
    LINEAR_PROBE = 19
    ATTENTION_FOLDS = 20
    ATTENTION_BAGS = 21
    ATTENTION_WEIGHTS = 22
    MAP_POINTS = 23
    MAP_START = 24
    MAP_PLACES = 25
    SHEET_PATCHES = 26
    SHOWN_VIEWS = 27
    COLLAPSED_MAP = 28
    DRAWN_TRAININGS = 29  # side of a comparison
    FLOOR_PATCHES = 30
    AUDITED_PATCHES = 31
    AUDITED_COLUMN = 32  # column
    AUDITED_COLOURS = 33
    MEASURED_PATCHES = 34
    MEASURED_VECTORS = 35
    MEASURED_VIEWS = 36
    SHRINKAGE_PARTS = 37
    COHORT_STAIN = 40  # name of the slide
    EXPLORED_SAMPLE = 45
    EXPLORED_PROBE = 46
    EXPLORED_CLUSTERS = 47


def spawn(seed: int, purpose: Purpose, *where: int | str) -> np.random.SeedSequence:
    """The stream of a purpose at a place; integers are below 2**64, names are any text."""
    key = [int(purpose)]
    for part in where:
        key += _words(part)
    return np.random.SeedSequence(seed, spawn_key=key)


def make_rng(seed: int, purpose: Purpose, *where: int | str) -> np.random.Generator:
    """A generator of NumPy for a purpose."""
    return np.random.default_rng(spawn(seed, purpose, *where))


def make_seed(seed: int, purpose: Purpose, *where: int | str, bits: int = 63) -> int:
    """A seed of at most 63 bits for a library that takes one (torch), or of `bits` (32: scikit-learn and its kind)."""
    return int(spawn(seed, purpose, *where).generate_state(1, np.uint64)[0] >> np.uint64(64 - bits))


def _words(part: int | str) -> list[int]:
    """32-bit words of a fixed number, so that no two places have one key: two of an integer, four of a name."""
    if isinstance(part, str):
        digest = hashlib.sha256(part.encode("utf-8", "surrogatepass")).digest()
        return [int.from_bytes(digest[start : start + 4], "big") for start in range(0, 16, 4)]
    low, high = int(part) & 0xFFFFFFFF, int(part) >> 32
    if not 0 <= high <= 0xFFFFFFFF:
        raise ValueError(f"{part} does not fit 64 bits")
    return [low, high]
