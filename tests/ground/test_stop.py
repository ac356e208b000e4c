"""Ctrl-C and SIGTERM: heard once between two steps, or the end of a block at once, with a sentence and an exit code."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from hidisc.ground.stop import SIGNALS, StopRequest, stopped_at_once

CODES = {signal.SIGINT: None, signal.SIGTERM: 143}


@pytest.fixture
def before() -> dict[signal.Signals, object]:
    return {number: signal.getsignal(number) for number in SIGNALS}


def test_a_request_is_heard_once_and_a_second_one_ends_at_once(before: dict[signal.Signals, object]) -> None:
    with StopRequest() as request:
        assert request.received is None
        signal.raise_signal(signal.SIGTERM)
        assert request.received == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


@pytest.mark.parametrize(("number", "code"), CODES.items())
def test_a_granted_request_ends_with_the_code_of_its_signal(number: signal.Signals, code: int | None) -> None:
    with StopRequest() as request:
        signal.raise_signal(number)
        with pytest.raises(SystemExit if code else KeyboardInterrupt) as caught:
            request.grant()
    assert getattr(caught.value, "code", None) == code


@pytest.mark.parametrize(("number", "code"), CODES.items())
def test_a_block_is_ended_at_once_and_it_is_said_how_to_go_on(
    before: dict[signal.Signals, object], number: signal.Signals, code: int | None
) -> None:
    said: list[str] = []
    with pytest.raises(SystemExit if code else KeyboardInterrupt) as caught, stopped_at_once(said.append):
        signal.raise_signal(number)
    assert said == ["stopped. What is finished is safe: run the same command to go on."]
    assert getattr(caught.value, "code", None) == code
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_a_block_that_ends_by_itself_or_by_an_error_says_nothing() -> None:
    said: list[str] = []
    with stopped_at_once(said.append):
        pass
    with pytest.raises(ValueError, match="wrong"), stopped_at_once(said.append):
        raise ValueError("wrong")
    assert said == []


def test_outside_the_main_thread_nothing_is_caught(before: dict[signal.Signals, object]) -> None:
    def work() -> bool:
        with StopRequest(), stopped_at_once(print):
            return {number: signal.getsignal(number) for number in SIGNALS} == before

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result()
