"""Every purpose has a stream of random numbers of its own, and nobody draws from any other."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import hidisc
from hidisc.ground.seeds import Purpose, make_rng, make_seed, spawn

ROOT = Path(hidisc.__file__).parent
PURPOSES = {
    "DRAWN_PATIENT": 1,
    "DRAWN_SLIDE": 2,
    "SPLIT": 3,
    "STAIN_PATCHES": 4,
    "PATIENT_ORDER": 5,
    "BATCH": 6,
    "REPLACEMENT": 7,
    "VIEWS": 8,
    "DROPOUT": 9,
    "LEARNER_WEIGHTS": 10,
    "MONITORED_PATCHES": 11,
    "UNTRAINED_WEIGHTS": 12,
    "EMBEDDED_PATCHES": 13,
    "EXPORT_CHECK": 14,
    "DUPLICATE_PAIRS": 15,
    "DIAGNOSED_PATCHES": 16,
    "CHANCE": 17,
    "BOOTSTRAP": 18,
    "LINEAR_PROBE": 19,
    "ATTENTION_FOLDS": 20,
    "ATTENTION_BAGS": 21,
    "ATTENTION_WEIGHTS": 22,
    "MAP_POINTS": 23,
    "MAP_START": 24,
    "MAP_PLACES": 25,
    "SHEET_PATCHES": 26,
    "SHOWN_VIEWS": 27,
    "COLLAPSED_MAP": 28,
    "DRAWN_TRAININGS": 29,
    "FLOOR_PATCHES": 30,
    "AUDITED_PATCHES": 31,
    "AUDITED_COLUMN": 32,
    "AUDITED_COLOURS": 33,
    "MEASURED_PATCHES": 34,
    "MEASURED_VECTORS": 35,
    "MEASURED_VIEWS": 36,
    "SHRINKAGE_PARTS": 37,
    "COHORT_STAIN": 40,
    "EXPLORED_SAMPLE": 45,
    "EXPLORED_PROBE": 46,
    "EXPLORED_CLUSTERS": 47,
}
"""Results depend on these numbers: a purpose may be added, and none may get the number of another."""


def test_purposes_keep_their_numbers_and_share_none() -> None:
    assert {name: int(purpose) for name, purpose in Purpose.__members__.items()} == PURPOSES
    assert len(set(PURPOSES.values())) == len(PURPOSES)


def places() -> list[tuple[int | str, ...]]:
    """Where streams are used: nowhere in particular, steps, ranks, places in a batch, names."""
    numbers: list[int | str] = [0, 1, 2, 7, 2**32 - 1, 2**32, 2**32 + 1, 2**64 - 1]
    names: list[int | str] = ["", "0", "P1", "p1", "P\u00a01", "P1/A", "\udce9"]
    pairs = [(step, rank) for step, rank in product(numbers, [0, 1, 2])]
    triples = [(step, rank, index) for step, rank, index in product([0, 1, 2], repeat=3)]
    return [(), *((number,) for number in numbers), *((name,) for name in names), *pairs, *triples]


def test_no_two_streams_are_the_same() -> None:
    """Neither by their key nor by what is drawn from them, over purposes, places and seeds."""
    keys = [tuple(spawn(0, purpose, *where).spawn_key) for purpose in Purpose for where in places()]
    assert len(set(keys)) == len(keys) == len(PURPOSES) * len(places())
    seeds = (0, 1, 2, 2**32, 2**63)
    drawn = [make_seed(seed, purpose, *where) for seed in seeds for purpose in Purpose for where in places()]
    assert len(set(drawn)) == len(drawn)


def test_a_stream_is_that_of_numpy_s_spawn_key() -> None:
    expected = np.random.default_rng(np.random.SeedSequence(3, spawn_key=(8, 5, 0, 1, 0))).random(4)
    assert make_rng(3, Purpose.VIEWS, 5, 1).random(4).tolist() == expected.tolist()
    assert make_rng(3, Purpose.VIEWS, 5, 1).random(4).tolist() == expected.tolist()


def test_streams_are_the_same_in_every_version() -> None:
    """What a seed gives today it must give tomorrow, or results cannot be repeated."""
    assert make_rng(0, Purpose.SPLIT).permutation(8).tolist() == [6, 2, 0, 3, 4, 1, 7, 5]
    assert make_seed(1, Purpose.VIEWS, 2, 3) == 5773562858536545849
    assert make_seed(1, Purpose.EMBEDDED_PATCHES, "Größe") == 8954030767243322210
    assert make_seed(1, Purpose.MAP_START, bits=32) == 2470547993


@pytest.mark.parametrize("bits", [32, 63])
def test_seeds_for_other_libraries_fit_them(bits: int) -> None:
    found = [make_seed(seed, Purpose.MAP_PLACES, bits=bits) for seed in range(200)]
    assert all(0 <= number < 2**bits for number in found)
    assert max(found) > 2 ** (bits - 1)
    assert len(set(found)) == 200


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_place_that_is_no_64_bit_number_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"^{number} does not fit 64 bits$"):
        spawn(0, Purpose.BATCH, number)


def test_every_purpose_is_drawn_for_in_one_place_and_nothing_else_makes_a_stream() -> None:
    texts = {path: path.read_text() for path in ROOT.rglob("*.py") if path.name != "seeds.py"}
    used = [name for text in texts.values() for name in re.findall(r"Purpose\.([A-Z_]+)", text)]
    assert sorted(used) == sorted(PURPOSES)
    for path, text in texts.items():
        for made in ("default_rng(", "SeedSequence(", "RandomState(", "random.seed("):
            assert made not in text, f"{path} makes a stream of its own"
        # a generator on a device is started by a number that another generator drew
        started = text.count("manual_seed(make_seed(") + text.count("torch.Generator(device).manual_seed(seed)")
        assert text.count("manual_seed(") == started, path
