"""Words in sentences."""

import pytest

from hidisc.ground.text import _count_edits, count, find_nearest, merge_alike, name_some, plural, printable


def test_plurals_and_counts() -> None:
    assert [plural(noun) for noun in ("slide", "patch", "class", "box")] == ["slides", "patches", "classes", "boxes"]
    assert (count(1, "slide"), count(0, "patch"), count(1703, "slide")) == ("1 slide", "0 patches", "1,703 slides")


def test_some_of_many_names() -> None:
    assert name_some(["a", "b"]) == "'a', 'b'"
    assert name_some(["a", "b", "c", "d", "e"]) == "'a', 'b', 'c' and 2 more"
    assert name_some([]) == ""


def test_what_cannot_be_printed_is_a_question_mark() -> None:
    assert printable("a\tb\n c\x1b[31m") == "a b c?[31m"


def test_sentences_that_differ_in_numbers_are_one() -> None:
    folds = ["A vote of 200 of 905 patches, C = 0.01.", "A vote of 200 of 1,955 patches, C = 0.1.", "It converged."]
    assert merge_alike(folds) == ["A vote of 200 of 905 to 1,955 patches, C = 0.01 to 0.1.", "It converged."]
    assert merge_alike(["slide 'S-1' is 3 wide", "slide 'S-2' is 3 wide"]) == [
        "slide 'S-1' is 3 wide",
        "slide 'S-2' is 3 wide",
    ]


def test_the_nearest_name_contains_what_was_typed_or_needs_few_edits() -> None:
    names = ["TCGA-EV-5903", "TCGA-55-1594", "TCGA-55-15", "slide-1"]
    assert find_nearest("TCGA-55", names) == ["TCGA-55-15", "TCGA-55-1594"]
    assert find_nearest("tcga-ev-5930", names, 1) == ["TCGA-EV-5903"]
    assert find_nearest("slide_1", names) == ["slide-1"]
    assert find_nearest("unlike", names) == []


@pytest.mark.parametrize(
    ("one", "other", "edits"), [("", "abc", 3), ("kitten", "sitting", 3), ("ab", "ba", 2), ("a", "a", 0)]
)
def test_edits_are_counted_as_levenshtein_did(one: str, other: str, edits: int) -> None:
    assert _count_edits(one, other) == _count_edits(other, one) == edits
