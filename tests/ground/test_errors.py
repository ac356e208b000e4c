"""Sentences for users."""

import pickle

import pytest

from hidisc.ground.errors import UserError
from hidisc.slides.slide import SlideError


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("P\u00a01\t", "P\\xa01\\t"),
        ("Größe 漢字 😀", "Größe 漢字 😀"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_what_a_terminal_would_obey_is_spelled_out(name: str, shown: str) -> None:
    assert str(UserError(f"slide {name} is odd.")) == f"slide {shown} is odd."


def test_it_comes_back_from_a_worker_as_it_was() -> None:
    error = pickle.loads(pickle.dumps(SlideError("slide \x07 is odd.")))
    assert (type(error), str(error)) == (SlideError, "slide \\x07 is odd.")
