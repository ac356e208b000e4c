"""An input that must be what it was: the same one passes, another or none is refused with what to do."""

import pickle
from pathlib import Path

import pytest

from hidisc.artefacts.inputs import ANY_INPUTS, STORE, ChangedInputError, ExpectedInputs


def test_another_input_than_expected_is_refused(tmp_path: Path) -> None:
    expected = ExpectedInputs(tmp_path / "out").add(STORE, "abc")
    expected.compare(STORE, "abc", "the store s")
    expected.compare("the bank", "def", "the bank b")  # of which nothing is expected
    for checksum in ("def", None):
        with pytest.raises(ChangedInputError) as caught:
            expected.compare(STORE, checksum, "the store s")
        assert str(caught.value) == (
            f"the store s is no longer what it was when {tmp_path / 'out'} was begun. Put it back as it was to go on, "
            "or give a new --out. What is finished is kept."
        )
    ANY_INPUTS.compare(STORE, "def", "the store s")


def test_it_is_sent_to_workers_and_comes_back(tmp_path: Path) -> None:
    expected = ExpectedInputs(tmp_path, {STORE: "abc"})
    assert pickle.loads(pickle.dumps(expected)) == expected
    assert str(pickle.loads(pickle.dumps(ChangedInputError("a sentence")))) == "a sentence"
