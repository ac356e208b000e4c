"""The explorer of scans, as ACDC has them: counts, headings and columns say scan and slice, sentences say slide."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hidisc.explorer.saved import save_patient
from hidisc.explorer.session import Session, open_session
from hidisc.patches.nifti import find_nifti
from hidisc.settings.config import load_config
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.prepare import VolumesConfig
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.explore import save_page
from hidisc.verbs.prepare import import_volumes
from tests.explorer.conftest import JUDGING, Listening, Made
from tests.patches.volumes import write_cohort
from tests.reporting.browser import open_browser, open_page, wait_for_drawing

pytestmark = pytest.mark.whole
OTHER = re.compile(r"\b\w*(?:slide|patch)\w*", re.I)
HEADINGS = """() => [...document.querySelectorAll("h1, h2, th, dt, figcaption, nav button, #summary, #filters")]
  .map((element) => element.textContent).join(" ")"""
"""What stands over the parts of the page, and in the heads of its tables and facts."""
TEXTS = """() => {
  const heard = (element) => ["alt", "aria-label", "placeholder", "title"].map((name) => element.getAttribute(name));
  return [document.title, document.body.textContent, ...[...document.querySelectorAll("*")].flatMap(heard)].join(" ");
}"""
"""All that the page says, shown or hidden, in texts and to screen readers."""


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Six patients with two scans of six slices each."""
    folder = tmp_path_factory.mktemp("scans")
    root = write_cohort(folder / "nifti", patients=6)
    config = load_config(VolumesConfig, None, ["size_px=32", "split.fractions={train: 0.5, test: 0.5}"])
    import_volumes(find_nifti(root, config, folder / "patients.csv"), folder / "store", config, workers=0)
    embed(folder / "store", "colour", folder / "embeddings", EmbedConfig(), device="cpu", shown=False)
    evaluate(folder / "embeddings", folder / "scores", JUDGING, device="cpu")
    return Made(folder / "patients.csv", folder / "store", folder / "embeddings", folder / "scores")


@pytest.fixture(scope="module")
def volumes(scans: Made) -> Session:
    return open_session(scans.store, [scans.embeddings, scans.scores], None, lambda _: None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser("--disable-webgl", "--disable-webgl2", "--disable-3d-apis") as browser:
        yield browser


def walk(page: Any, refused: str = "") -> str:
    """Go through all of the page; what it said on the way. `refused`: what is answered to a wish for GeoJSON."""
    said = []

    def note() -> str:
        page.wait_for_load_state("networkidle")
        wait_for_drawing(page)
        said.append(page.evaluate(TEXTS))
        return page.inner_text("#status")

    page.wait_for_selector("body[data-ready=yes]")
    note()
    page.fill("#search", "nobody is called so")
    note()
    page.fill("#search", "")
    page.click("[data-view=look]")
    for ask in ("#boxes-file", "#drawn"):
        page.click(ask)
        assert "pen " in note()
    page.select_option("#colour", "computed:similarity")
    assert "hoose" in note()
    page.select_option("#colour", "slide")
    page.click("#naming button:not([type])")
    assert "hoose" in note()
    page.fill("#set", "walked")
    page.click("#uncertain")
    page.wait_for_selector("#status.wrong:has-text('a probe needs')")
    note()
    page.click("[data-view=cohort]")
    page.locator("#slides .open").first.click()
    page.wait_for_selector("#slide[data-slide='0']")
    page.select_option("#overlay", "computed:similarity")
    assert "hoose" in note()
    page.click("#beside")
    assert "ow open" in note()
    page.click("#beside")
    note()  # the map is back
    page.locator("#map").focus()
    page.keyboard.press("s")
    page.wait_for_selector("#gallery button")
    note()
    page.fill("#label", "one")
    page.click("#naming button:not([type])")
    page.wait_for_selector("#saved:has-text('one')")
    note()
    page.locator("#gallery button").first.click()
    page.wait_for_selector("#patch-shown:not([hidden])")
    note()
    page.fill("#label", "two")
    page.click("#naming button:not([type])")
    page.wait_for_selector("#saved:has-text('two')")
    for number in (1, page.inner_text("#found-title").split()[0]):
        page.click("#undo")
        page.wait_for_selector(f"#saved:has-text('({number} ')")
        note()
    page.click("#alike button")
    page.wait_for_selector("#found-title:has-text('Most alike')")
    note()
    page.click("#boxes-file")
    page.wait_for_function("said => document.getElementById('status').textContent.includes(said)", arg=refused)
    note()
    page.locator("#map").focus()
    page.keyboard.press("Escape")
    note()
    return "\n".join(said)


def test_headings_counts_and_columns_of_the_page_say_scan_and_slice(browser: Any, volumes: Session) -> None:
    listening = Listening(volumes)
    try:
        with open_page(browser, listening.server.address, 1300, 900) as watched:
            text = walk(watched.page, "these patches were imported as files")
            headings = watched.page.evaluate(HEADINGS)
            heads = watched.page.eval_on_selector_all("th", "heads => heads.map(head => head.innerText)")
    finally:
        listening.end()
    assert OTHER.findall(headings) == []
    assert [error for error in watched.errors if "400" not in error] == []
    assert heads[:3] == ["patient", "scan", "class"]
    for sentence in (
        "6 patients, 12 scans, 72 slices",
        "Map and scan",
        "No slide is like that.",
        "Open a slide first.",
        "Choose a patch first: the others",
        "The patches were imported: they stand side by side",
        "72 slices selected",
        "to the selected 72 slices",
        "72 slices are now “one”",
        "a probe needs patches of two names",
        "The nearest patches",
        "place on the scan",
        "these patches were imported as files: it is not known where on a slide they are.",
        "to the patch that you choose",
    ):
        assert sentence in text


def test_the_page_of_slides_says_slide(browser: Any, made: Made) -> None:
    listening = Listening(made.open())
    try:
        with open_page(browser, listening.server.address, 1300, 900) as watched:
            text = walk(watched.page)
    finally:
        listening.end()
    for sentence in ("8 slides", "Map and slide", "No slide is like that.", "patches selected", "place on the slide"):
        assert sentence in text
    assert not re.search(r"\b(?:scans?|slices?)\b", text)


def test_a_saved_page_says_scan_and_slice_too(browser: Any, volumes: Session, tmp_path: Path) -> None:
    save_patient(volumes, "patient000", tmp_path / "taken")
    with open_page(browser, tmp_path / "taken" / "index.html", 1300, 900) as watched:
        page = watched.page
        page.wait_for_selector("body[data-ready=yes]")
        page.locator("#slides .open").first.click()
        page.wait_for_selector("#slide[data-slide='0']")
        page.locator("#slide").focus()
        page.keyboard.press("+")
        page.keyboard.press("Enter")
        wait_for_drawing(page)
        text, headings = page.evaluate(TEXTS), page.evaluate(HEADINGS)
    assert OTHER.findall(headings) == []
    assert "1 patient, 2 scans, 12 slices" in text


def test_what_the_command_says_of_scans(scans: Made, tmp_path: Path) -> None:
    said: list[str] = []
    (scans.embeddings / "explorer-map.parquet").unlink(missing_ok=True)
    assert save_page(scans.store, [scans.embeddings], "patient001", tmp_path / "taken", say=said.append) == 2
    assert said[0].startswith("placing 72 patches on the map")


def test_files_keep_the_names_of_their_columns(volumes: Session) -> None:
    listed = volumes.list_slides()[0]
    assert ("slide" in listed, "patches" in listed) == (True, True)
    assert list(volumes.columns)[:3] == ["label", "patient", "slide"]
