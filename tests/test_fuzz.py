"""The fuzz suite itself: a few inputs of every kind and one kill, so that `make fuzz` does not fall asleep."""

from pathlib import Path

import pytest
from fuzz.artefacts import Artefacts
from fuzz.harness import Judge, Kind, Outcome, Tally, Wrong, find_fault, find_untried, judge, rng_of, try_all
from fuzz.kills import Kills
from fuzz.mutations import Rng, mutate
from fuzz.requests import Requests
from fuzz.run import KINDS, format_table, main
from fuzz.slides import MAKERS, Slides
from fuzz.suites import Suites
from fuzz.tables import Tables
from fuzz.volumes import Volumes
from fuzz.workbooks import Workbooks

from hidisc.ground.errors import UserError

pytestmark = pytest.mark.whole


FEW = {"tables": (Tables(), 20), "slides": (Slides(), len(MAKERS)), "artefacts": (Artefacts(("store",)), 20)}
FEW |= {kind.name: (kind, 2 * len(kind.groups)) for kind in (Workbooks(), Volumes(), Suites(), Requests())}
FEW["kills"] = (Kills(("store",), times=(1,)), 1)


@pytest.mark.parametrize("name", KINDS)
def test_nothing_falls_through(name: str, tmp_path: Path) -> None:
    kind, number = FEW[name]
    tally = try_all(kind, number, seed=0, workers=1, keep=tmp_path)
    assert tally.fell == []
    assert tally.tried == tally.refused + tally.accepted == number
    assert find_untried(kind, tally) is None


def test_a_kind_of_which_nothing_was_tried_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--inputs", "0", "--only", "slides"]) == 1
    assert "slides: 0 tried. Raise --inputs" in capsys.readouterr().err
    tally = Tally("slides")
    for name in tuple(MAKERS)[1:]:
        tally.add(Outcome("accepted"), 0, name)
    assert find_untried(Slides(), tally) is None, "fewer inputs than groups"
    tally.add(Outcome("refused"), 0, "plain.bmp")
    assert find_untried(Slides(), tally) == "slides: 0 tried of pyramid.tiff"


class _Broken(Kind):
    """A kind whose judge does not come to its inputs."""

    name, limit_s = "suites", 10

    def __init__(self, way: str) -> None:
        self.way = way

    def prepare(self, home: Path) -> None:
        if self.way == "what inputs are made from is missing":
            raise FileNotFoundError(home / "whole")

    def open(self, home: Path, folder: Path) -> Judge:
        if self.way == "the judge cannot be opened":
            raise KeyError("run")
        error = KeyError("run") if self.way == "the judge dies of every input" else UserError("there is no store.")
        return lambda rng, index: judge(lambda: _raise(error))


@pytest.mark.parametrize(
    "way",
    [
        "what inputs are made from is missing",
        "the judge cannot be opened",
        "the judge dies of every input",
        "every input is refused before it is looked at",
    ],
)
def test_a_broken_kind_fails_the_run(way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(KINDS, "suites", _Broken(way))
    words = ["--only", "suites", "--inputs", "400", "--workers", "1", "--keep", str(tmp_path)]
    if "missing" in way or "opened" in way:
        with pytest.raises(SystemExit, match="suites"):
            main(words)
    else:
        assert main(words) == 1


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
