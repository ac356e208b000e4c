"""Words in sentences."""

from hidisc.ground.text import count, name_some, plural, printable


def test_plurals_and_counts() -> None:
    assert [plural(noun) for noun in ("slide", "patch", "class", "box")] == ["slides", "patches", "classes", "boxes"]
    assert (count(1, "slide"), count(0, "patch"), count(1703, "slide")) == ("1 slide", "0 patches", "1,703 slides")


def test_some_of_many_names() -> None:
    assert name_some(["a", "b"]) == "'a', 'b'"
    assert name_some(["a", "b", "c", "d", "e"]) == "'a', 'b', 'c' and 2 more"
    assert name_some([]) == ""


def test_what_cannot_be_printed_is_a_question_mark() -> None:
    assert printable("a\tb\n c\x1b[31m") == "a b c?[31m"
