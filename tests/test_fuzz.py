"""The fuzz suite itself: a few inputs of every kind and one kill, so that `make fuzz` does not fall asleep."""

from pathlib import Path

import pytest
from fuzz.artefacts import Artefacts
from fuzz.harness import Judge, Kind, Outcome, Tally, Wrong, find_fault, judge, rng_of, try_all
from fuzz.kills import Kills
from fuzz.mutations import Rng, mutate
from fuzz.run import format_table
from fuzz.slides import Slides
from fuzz.tables import Tables

from hidisc.ground.errors import UserError

pytestmark = pytest.mark.whole


@pytest.mark.parametrize(
    ("kind", "number"),
    [(Tables(), 20), (Slides(), 20), (Artefacts(("store",)), 20), (Kills(("store",), times=(1,)), 1)],
    ids=lambda value: value.name if isinstance(value, Kind) else "",
)
def test_nothing_falls_through(kind: Kind, number: int, tmp_path: Path) -> None:
    tally = try_all(kind, number, seed=0, workers=1, keep=tmp_path)
    assert tally.fell == []
    assert tally.tried == tally.refused + tally.accepted == number


class _Bad(Kind):
    """Inputs that go wrong in every way there is."""

    name, limit_s = "bad", 1

    def prepare(self, home: Path) -> None:
        (home / "made").touch()

    def open(self, home: Path, folder: Path) -> Judge:
        assert (home / "made").exists()
        number = 0

        def say(rng: Rng, index: int) -> Outcome:
            nonlocal number
            (folder / "input" / "it").write_bytes(rng.bytes(3))
            return judge(lambda: _WAYS[int(rng.integers(len(_WAYS)))]())

        return say


def _raise(error: BaseException) -> None:
    raise error


def _hang() -> None:
    import time

    time.sleep(60)


def _die() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


_WAYS = (
    lambda: None,
    lambda: _raise(UserError("repair it.")),
    lambda: _raise(UserError("")),
    lambda: _raise(KeyError("x")),
    lambda: _raise(Wrong("two patients became one")),
    _die,
    _hang,
)


def test_what_falls_through_is_counted_named_and_kept(tmp_path: Path) -> None:
    tally = try_all(_Bad(), 40, seed=1, workers=2, keep=tmp_path)
    ways = [int(_after_three_bytes(index).integers(len(_WAYS))) for index in range(40)]
    assert (tally.tried, tally.accepted, tally.refused) == (40, ways.count(0), ways.count(1))
    said = {
        2: "refused without a word",
        3: "KeyError at test_fuzz.py:",
        4: "two patients became one",
        5: "the process died with exit code -9",
        6: "not done after 1 s",
    }
    assert set(range(7)) == set(ways)
    fell = {int(line.split()[1].strip(":")): line for line in tally.fell}
    assert {index for index, way in enumerate(ways) if way > 1} == fell.keys()
    for index, line in fell.items():
        assert line.startswith(f"bad {index}: {said[ways[index]]}")
        kept = tmp_path / f"bad-1-{index}"
        assert (kept / "input" / "it").read_bytes() == rng_of(1, "bad", index).bytes(3)
        assert (kept / "what.txt").read_text().strip() in line


def _after_three_bytes(index: int) -> Rng:
    rng = rng_of(1, "bad", index)
    rng.bytes(3)
    return rng


def test_an_input_is_a_function_of_seed_kind_and_number() -> None:
    data = bytes(range(256)) * 8
    one = [mutate(data, rng_of(3, "slides", index)) for index in range(50)]
    assert one == [mutate(data, rng_of(3, "slides", index)) for index in range(50)]
    assert len({changed for changed, _ in one}) > 45
    assert mutate(data, rng_of(3, "tables", 0)) != one[0] != mutate(data, rng_of(4, "slides", 0))


def test_sentences_have_faults() -> None:
    assert find_fault("slide 'S' is damaged. Copy it again.\n") is None
    assert find_fault("\x1b[31mred") == "refused with unprintable characters ['\\x1b']: '\\x1b[31mred'"
    assert str(find_fault("x" * 200_000)).startswith("refused with 200,000 characters: xxx")


def test_the_table_of_counts() -> None:
    tally = Tally("tables", 1200, 1000, 199, 12.4, ["tables 7: KeyError"])
    assert format_table([tally]).splitlines()[2] == "| tables | 1,200 | 1,000 | 199 | 1 | 12 |"
