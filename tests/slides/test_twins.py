"""Names that people take for one are named in a warning; names that differ are left alone."""

import unicodedata

import pytest

from hidisc.slides.names import Name, find_twins, fold


def pair(one: str, other: str, kind: str = "patient") -> list[str]:
    return find_twins([Name(kind, one, "row 2"), Name(kind, other, "row 5")])


ENDS = (
    "are treated as two, but differ only in case, spaces, hyphens or the form of their letters. "
    "If they are one patient, write them alike."
)


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        pytest.param("P1", "p1", "'P1' (row 2) and 'p1' (row 5)", id="case"),
        pytest.param(
            "Straße", "STRASSE", r"'Stra\xdfe' (row 2) and 'STRASSE' (row 5)", id="case of more than one letter"
        ),
        pytest.param("P 1", "P\u00a01", r"'P 1' (row 2) and 'P\xa01' (row 5)", id="no-break space"),
        pytest.param("P 1", "P  1", "'P 1' (row 2) and 'P  1' (row 5)", id="two spaces"),
        pytest.param("P1", "P\u200b1", r"'P1' (row 2) and 'P\u200b1' (row 5)", id="zero-width space"),
        pytest.param("P1", "P\u20601", r"'P1' (row 2) and 'P\u20601' (row 5)", id="word joiner"),
        pytest.param("P1", "P\u00ad1", r"'P1' (row 2) and 'P\xad1' (row 5)", id="soft hyphen"),
        pytest.param("P1", "\uff30\uff11", r"'P1' (row 2) and '\uff30\uff11' (row 5)", id="full width"),
        pytest.param("P1", "P 1", "'P1' (row 2) and 'P 1' (row 5)", id="a space or none"),
        pytest.param("P-1", "p1", "'P-1' (row 2) and 'p1' (row 5)", id="a hyphen or none"),
        pytest.param("A-1-2", "A1_2", "'A-1-2' (row 2) and 'A1_2' (row 5)", id="hyphens between digits"),
        pytest.param("5 \u00b5m", "5 \u03bcm", r"'5 \xb5m' (row 2) and '5 \u03bcm' (row 5)", id="micro and mu"),
        pytest.param("Zo\u00eb", "Zoe\u0308", r"'Zo\xeb' (row 2) and 'Zoe\u0308' (row 5)", id="decomposed"),
        pytest.param("zo\u00eb", "ZOE\u200b\u0308", r"'zo\xeb' (row 2) and 'ZOE\u200b\u0308' (row 5)", id="all of it"),
    ],
)
def test_twins_are_named_with_their_places(one: str, other: str, shown: str) -> None:
    assert pair(one, other) == [f"patients {shown} {ENDS}"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("P1", "P1"),
        ("P1", "P2"),
        ("P1-1", "P11"),
        ("Zoe", "Zoë"),
        ("P1", ""),
        ("o", "0"),
        ("P01", "P1"),
    ],
)
def test_other_names_are_no_twins(one: str, other: str) -> None:
    assert pair(one, other) == []


def test_slides_with_and_without_a_space_are_two() -> None:
    assert pair("S1", "S 1", "slide") == []


def test_folding_twice_is_folding_once() -> None:
    every = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Co")]
    names = [f"a{one}\u0308 {one}" for one in every]
    folded = [fold(name) for name in names]
    again = [name for name, once in zip(names, folded, strict=True) if fold(once) != once]
    assert again == []


def test_a_pair_is_named_once_however_often_it_stands_there() -> None:
    names = [Name("patient", name, f"row {row}") for row, name in enumerate(["P1", "p1"] * 50, 2)]
    assert find_twins(names) == [f"patients 'P1' (row 2) and 'p1' (row 3) {ENDS}"]


def test_kinds_and_scopes_are_apart() -> None:
    assert find_twins([Name("label", "Ulm", "row 2"), Name("site", "ulm", "row 2")]) == []
    assert find_twins([Name("slide", "A", "row 2", "p1"), Name("slide", "a", "row 3", "p2")]) == []
    assert len(find_twins([Name("slide", "A", "row 2", "p1"), Name("slide", "a", "row 3", "p1")])) == 1


def test_a_long_list_is_cut() -> None:
    names = [Name("slide", name, "row 2") for n in range(30) for name in (f"S{n}", f"s{n}")]
    warnings = find_twins(names)
    assert len(warnings) == 21
    assert warnings[-1] == "... and 10 more pairs of names that differ only so."
