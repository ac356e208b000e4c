"""What levels are called: sentences in other words, and what is no word of a sentence."""

import pytest

from hidisc.ground.errors import UserError
from hidisc.reporting.spoken import speak_html
from hidisc.settings.level_names import USUAL, LevelNames

SCANS = LevelNames(slide="scan", patch="slice")
EYES = LevelNames(slide="eye", patch="picture")
WELLS = LevelNames(patient="compound", slide="well", patch="optical section")


@pytest.mark.parametrize(
    ("names", "text", "spoken"),
    [
        (SCANS, "3/10 slides, 1 slide, 7 patches of a patch", "3/10 scans, 1 scan, 7 slices of a slice"),
        (SCANS, "Slides and Patches; the slide's patches.", "Scans and Slices; the scan's slices."),
        (EYES, "A slide, a slide\nand a patch", "An eye, an eye\nand a picture"),
        (EYES, "a\nslide of an unknown patient", "an\neye of an unknown patient"),
        (WELLS, "2 patients: patient-level accuracy", "2 compounds: compound-level accuracy"),
        (WELLS, "a patch, all patches", "an optical section, all optical sections"),
        (SCANS, "patchy slideshow, dispatches", "patchy slideshow, dispatches"),
    ],
)
def test_words_of_a_sentence_are_exchanged(names: LevelNames, text: str, spoken: str) -> None:
    assert names.speak(text) == spoken
    assert names.speak(spoken) == spoken
    assert USUAL.speak(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "--recipe hidisc-slide, HiDisc-Slide and --per-slide",
        "`slide > patch`",
        "'a slide' and \"a patch\"",
        "/data/slides/patch.png, slides\\patch and slide_patch",
        "--set 'batch.levels=[patient, slide, patch]'",
        "set levels=[patient, slide, patch].",
        "batch.draw={slide: 2, patch: 2}",
        "patches.parquet and slide.json",
        "label_level=slide",
    ],
)
def test_code_names_settings_and_paths_stay(text: str) -> None:
    assert SCANS.speak(text) == text


def test_names_with_apostrophes_do_not_hide_the_words_after_them() -> None:
    text = "the patients' slides of \"O'Neill\" and the slide's patches"
    assert SCANS.speak(text) == "the patients' scans of \"O'Neill\" and the scan's slices"


def test_a_page_changes_its_text_and_nothing_else() -> None:
    page = (
        '<h2 class="patch" alt="a patch">A slide &amp; <b>patches</b></h2><style>.slide{}</style><pre>slide: 2</pre>'
        "<code>patch</code><script>let patch = 1;</script><p>slide &#39;patch 3&#39; &lt;slide&gt;</p>"
    )
    spoken = speak_html(page, EYES)
    assert spoken == (
        '<h2 class="patch" alt="a picture">An eye &amp; <b>pictures</b></h2><style>.slide{}</style><pre>slide: 2</pre>'
        "<code>patch</code><script>let patch = 1;</script><p>eye &#39;patch 3&#39; &lt;eye&gt;</p>"
    )
    assert speak_html(page, USUAL) == page


def test_messages_and_errors_of_a_block_are_spoken() -> None:
    said: list[str] = []
    with SCANS.spoken(said.append) as say:
        say("2 slides")
    assert said == ["2 scans"]
    with pytest.raises(UserError, match=r"^no slice has a label\.$"), SCANS.spoken(said.append):
        raise UserError("no patch has a label.")
    with pytest.raises(ValueError, match="a slide"), SCANS.spoken(said.append):
        raise ValueError("a slide")  # no message for users


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
    assert [WELLS.name(level) for level in ("patient", "plate", "slide", "patch")] == [
        "compound",
        "plate",
        "well",
        "optical-section",
    ]
