"""`metrics.csv`: what is written reads back bit for bit, and a resumed run has no row twice."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidisc.training.log import Metrics, read_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.csv"


def write(path: Path, *steps: int, resumed_at: int = 0) -> None:
    metrics = Metrics(path, resumed_at)
    for step in steps:
        metrics.add({"step": step, "loss": step / 3})


def steps_of(path: Path) -> list[float]:
    return [row["step"] for row in read_metrics(path)]


@given(st.lists(st.floats(width=64), min_size=1, max_size=4))
def test_numbers_read_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics.csv"
    row = {"step": 7, **{f"level-{number}": value for number, value in enumerate(values)}}
    Metrics(path, 0).add(row)
    (found,) = read_metrics(path)
    assert list(found) == list(row)
    assert repr(found) == repr(row)


def test_names_of_levels_are_no_formulas_and_may_hold_commas(path: Path) -> None:
    row = {"step": 1, "=1+1": 0.5, "a, b": -1.5, '"x"': 2.0}
    Metrics(path, 0).add(row)
    assert path.read_text() == 'step,\'=1+1,"a, b","""x"""\n1,0.5,-1.5,2.0\n'
    assert read_metrics(path) == [row]
    Metrics(path, 1).add({**row, "step": 2})
    assert read_metrics(path) == [row, {**row, "step": 2}]


def test_what_came_after_the_checkpoint_is_written_anew(path: Path) -> None:
    write(path, 1, 2, 3, 4, 5)
    write(path, 4, 5, 6, resumed_at=3)
    assert steps_of(path) == [1, 2, 3, 4, 5, 6]
    assert path.read_text().count("step") == 1
    assert read_metrics(path)[3] == {"step": 4, "loss": 4 / 3}


def test_a_run_without_a_checkpoint_begins_anew(path: Path) -> None:
    write(path, 1, 2)
    write(path, 1, resumed_at=0)
    assert steps_of(path) == [1]


@pytest.mark.parametrize("left", ["", "3", "3,", "3,0.1234", "3,0.1234,5\n", "4\n"])
def test_a_row_cut_short_is_left_out(path: Path, left: str) -> None:
    write(path, 1, 2)
    whole = path.read_text()
    path.write_text(whole + left)
    assert steps_of(path) == [1, 2]
    write(path, 3, resumed_at=2)
    assert path.read_text() == whole + "3,1.0\n"


@pytest.mark.parametrize("left", ["", "st", "step,loss", "step,loss\n", "step,loss\n1"])
def test_a_file_cut_short_before_its_first_row(path: Path, left: str) -> None:
    path.write_text(left)
    assert read_metrics(path) == []
    write(path, 1)
    assert path.read_text() == "step,loss\n1,0.3333333333333333\n"


def test_no_file_has_no_rows(path: Path) -> None:
    assert read_metrics(path) == []


def test_a_row_is_on_disk_as_soon_as_it_is_written(path: Path) -> None:
    metrics = Metrics(path, 0)
    metrics.add({"step": 1, "loss": 0.5})
    assert path.read_text() == "step,loss\n1,0.5\n"
