"""What levels are called, one of them and several, and which names are refused."""

import pytest

from hidisc.settings.level_names import USUAL, LevelNames

SCANS = LevelNames(slide="scan", patch="slice")
EYES = LevelNames(slide="eye", patch="picture")
WELLS = LevelNames(patient="compound", slide="well", patch="optical section")


@pytest.mark.parametrize(
    ("names", "level", "one", "several", "heading"),
    [
        (SCANS, "slide", "1 scan", "1,703 scans", "Scan"),
        (SCANS, "patch", "1 slice", "1,703 slices", "Slice"),
        (SCANS, "patient", "1 patient", "1,703 patients", "Patient"),
        (EYES, "patch", "1 picture", "1,703 pictures", "Picture"),
        (WELLS, "patch", "1 optical section", "1,703 optical sections", "Optical section"),
        (WELLS, "plate", "1 plate", "1,703 plates", "Plate"),
        (USUAL, "patch", "1 patch", "1,703 patches", "Patch"),
    ],
)
def test_levels_are_counted_and_named(names: LevelNames, level: str, one: str, several: str, heading: str) -> None:
    assert [names.count(1, level), names.count(1703, level), names.title(level)] == [one, several, heading]
    assert f"1,703 {names.plural(level)}" == several
    assert f"1 {names.word(level)}" == one


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"slide": "Scan"}, "'Scan' is not a noun in small letters"),
        ({"slide": "scan 3"}, "is not a noun"),
        ({"slide": ""}, "is not a noun"),
        ({"slide": "<b>"}, "is not a noun"),
        ({"patch": "site"}, "'site' means something else in hidisc. Choose another word, such as field or image"),
        ({"slide": "scan", "patch": "scan"}, "are not three different words"),
        ({"slide": "patch", "patch": "tile"}, "are not three different words"),
    ],
)
def test_words_that_would_confuse_are_refused(names: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LevelNames(**names)


def test_files_are_named_by_the_level() -> None:
    assert [WELLS.file_part(level) for level in ("patient", "plate", "slide", "patch")] == [
        "compound",
        "plate",
        "well",
        "optical-section",
    ]
