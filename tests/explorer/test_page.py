"""The page in a browser without WebGL: every way through it, by pointer and by keys, without an error or a request
that leaves this machine."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hidisc.embeddings.given_names import labels_file
from hidisc.explorer import answers as answers
from hidisc.explorer.labels import LabelSets
from hidisc.explorer.regions import MOST_LETTERS
from hidisc.explorer.session import Session, open_session
from hidisc.ground.columns import load_columns
from hidisc.patches.annotations import read_geojson, write_geojson
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.prepare import prepare
from tests.explorer.conftest import Listening, Made
from tests.reporting.browser import Watched, open_browser, open_page, wait_for_drawing

pytestmark = pytest.mark.whole
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser("--disable-webgl", "--disable-webgl2", "--disable-3d-apis") as browser:
        yield browser


@pytest.fixture
def watched(browser: Any, listening: Listening) -> Iterator[Watched]:
    with open_page(browser, listening.server.address, 1300, 900) as watched:
        wait_until_ready(watched.page)
        yield watched
        assert watched.errors == []
        assert all(address.startswith(listening.root) for address in watched.requests)


def wait_until_ready(page: Any) -> None:
    page.wait_for_selector("body[data-ready=yes]")
    wait_for_drawing(page)


def slide_rows(page: Any) -> list[str]:
    return page.eval_on_selector_all("#slides tbody tr", "rows => rows.map(row => row.innerText)")


def click_place(page: Any, session: Session, vector: int) -> None:
    """Click a patch on the map, which shows all of it."""
    box = page.locator("#map").bounding_box()
    scale = 0.94 * min(box["width"], box["height"])
    x, y = (session.places[vector] - 0.5) * scale
    page.mouse.click(box["x"] + box["width"] / 2 + float(x), box["y"] + box["height"] / 2 + float(y))


def has_ink(page: Any, canvas: str) -> bool:
    """Whether anything but white is drawn."""
    return page.evaluate(
        """id => {
          const canvas = document.getElementById(id);
          const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          let ink = 0;
          for (let at = 0; at < pixels.length; at += 4) ink += pixels[at] + pixels[at + 1] + pixels[at + 2] < 600;
          return ink > 30;
        }""",
        canvas,
    )


def test_the_browser_has_no_webgl(watched: Watched) -> None:
    assert watched.page.evaluate("document.createElement('canvas').getContext('webgl')") is None


def test_the_address_does_not_keep_the_token(watched: Watched, listening: Listening) -> None:
    assert watched.page.url == listening.root
    assert listening.server.token not in watched.page.evaluate("document.cookie")


def test_the_table_is_searched_filtered_and_sorted(watched: Watched, session: Session) -> None:
    page = watched.page
    assert len(slide_rows(page)) == len(session.slides)
    name = session.slides[3].slide
    page.fill("#search", name.lower())
    assert len(slide_rows(page)) == 1
    page.fill("#search", "no such slide")
    assert page.inner_text("#more") == "No slide is like that."
    page.fill("#search", "")
    page.select_option("#filters label:has-text('split') select", "test")
    tested = [slide for slide in session.list_slides() if slide["split"] == "test"]
    assert len(slide_rows(page)) == len(tested)
    page.select_option("#filters label:has-text('split') select", "")
    for _ in range(2):
        page.click("th[data-column=patches] button")
        column = page.eval_on_selector_all("th", "heads => heads.findIndex(head => head.dataset.column === 'patches')")
        texts = page.eval_on_selector_all("#slides tbody tr", f"rows => rows.map(row => row.cells[{column}].innerText)")
        numbers = [int(text) for text in texts]
        is_down = page.get_attribute("th[data-column=patches]", "aria-sort") == "descending"
        assert numbers == sorted(numbers, reverse=is_down)
    assert is_down
    page.click("#wall")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#thumbnails img')].every(img => img.complete && img.naturalWidth)"
    )
    assert page.locator("#thumbnails button").count() == len(session.slides)
    page.locator("#thumbnails button").first.click()
    page.wait_for_selector("#slide[data-slide='0']")


def test_a_row_opens_its_slide_with_scale_bar_boxes_and_overlay(watched: Watched, session: Session) -> None:
    page = watched.page
    page.locator("#slides .open", has_text=session.slides[2].slide).click()
    page.wait_for_selector("#slide[data-slide='2']")
    page.wait_for_selector("#slide[data-bar]")
    assert page.get_attribute("#slide", "data-bar").endswith("µm")
    assert session.slides[2].slide in page.inner_text("#slide-name")
    assert "is read from" in page.inner_text("#source")
    page.wait_for_load_state("networkidle")
    wait_for_drawing(page)
    assert has_ink(page, "slide")
    for option in page.eval_on_selector_all("#overlay option", "options => options.map(option => option.value)"):
        if option != "computed:similarity":
            page.select_option("#overlay", option)
    page.fill("#strength", "0.9")
    page.uncheck("#boxes")
    box = page.locator("#slide").bounding_box()
    shown = session.show(2)
    scale = 0.94 * min(box["width"] / shown.width, box["height"] / shown.height)
    middle = shown.corners[0] + shown.extent / 2 - np.array([shown.width, shown.height]) / 2
    x = box["x"] + box["width"] / 2 + float(middle[0]) * scale
    y = box["y"] + box["height"] / 2 + float(middle[1]) * scale
    page.mouse.move(x, y)
    page.wait_for_selector(f"#tip:not([hidden])[data-row='{shown.rows[0]}']")
    assert session.slides[2].patient in page.inner_text("#tip")
    page.mouse.click(x, y)
    page.wait_for_selector("#patch-shown:not([hidden])")
    assert session.slides[2].patient in page.inner_text("#facts")
    page.locator("#slide").hover()
    page.mouse.wheel(0, -600)
    page.locator("#slide-pane .zoom button").nth(2).click()
    with page.expect_download() as download:
        page.click("[data-save=slide]")
    assert download.value.suggested_filename == "slide.png"


def test_a_point_opens_its_slide_and_what_is_like_it(watched: Watched, session: Session) -> None:
    page = watched.page
    page.click("[data-view=look]")
    page.wait_for_selector(f"#map[data-drawn='{len(session.embedded)}']")
    wait_for_drawing(page)
    assert has_ink(page, "map")
    click_place(page, session, 11)
    page.wait_for_selector("#patch-shown:not([hidden])")
    row = int(session.embedded[11])
    page.wait_for_selector(f"#slide[data-slide='{session.slide_of[row]}']")
    page.select_option("#apart", "patient")
    page.click("#alike button")
    page.wait_for_selector("#gallery button")
    rows = page.eval_on_selector_all("#gallery button", "tiles => tiles.map(tile => Number(tile.dataset.row))")
    patients = session.store.table.column("patient")
    assert len(rows) == 24
    assert all(patients[other] != patients[row] for other in rows)
    page.locator("#gallery button").first.click()
    page.wait_for_selector(f"#slide[data-slide='{session.slide_of[rows[0]]}']")
    for key in page.eval_on_selector_all("#colour option", "options => options.map(option => option.value)"):
        page.select_option("#colour", key)
        page.wait_for_load_state("networkidle")
    page.select_option("#overlay", "computed:similarity")
    page.select_option("#colour", "label")
    page.locator("#legend .chip").first.click()
    first = int((session.columns["label"].codes == 0).sum())
    page.wait_for_selector(f"#map[data-drawn='{first}']")


def test_an_outline_is_named_undone_and_on_the_disk(watched: Watched, session: Session, made: Made) -> None:
    page, path = watched.page, labels_file(made.embeddings, "mine")
    page.click("[data-view=look]")
    page.wait_for_selector("#map[data-drawn]")
    page.click("[data-tool=map]")
    box = page.locator("#map").bounding_box()
    corners = [(0.02, 0.02), (0.98, 0.02), (0.98, 0.98), (0.02, 0.98)]
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    page.mouse.move(*at[0])
    page.mouse.down()
    for corner in at[1:]:
        page.mouse.move(*corner, steps=4)
    page.mouse.up()
    page.wait_for_selector("#gallery button")
    assert page.inner_text("#found-title") == f"{len(session.embedded)} patches selected"
    page.fill("#label", HOSTILE)
    page.click("#naming button:has-text('Save the name')")
    page.wait_for_selector("#saved:has-text('labels/mine.parquet')")
    assert set(load_columns(path)["label"]) == {HOSTILE}
    page.select_option("#colour", "given:mine")
    page.wait_for_selector(f"#legend .chip:has-text('{HOSTILE}')")
    page.click("#undo")
    page.wait_for_selector("#saved:has-text('was taken back')")
    assert len(load_columns(path)["label"]) == 0
    page.click("#undo")
    page.wait_for_selector("#status.wrong:has-text('left to undo')")
    assert len(watched.errors) == 1  # the browser says that a request was refused
    watched.errors.clear()


def test_a_rectangle_lights_up_points_and_two_names_make_a_probe(watched: Watched, session: Session) -> None:
    page = watched.page
    page.locator("#slides .open").nth(1).click()
    page.wait_for_selector("#slide[data-slide]")
    for slide, name in ((1, "one"), (4, "other")):
        page.click("[data-view=cohort]")
        page.locator("#slides .open", has_text=session.slides[slide].slide).click()
        page.wait_for_selector(f"#slide[data-slide='{slide}']")
        page.keyboard.down("Shift")
        box = page.locator("#slide").bounding_box()
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] - 5, box["y"] + box["height"] - 5, steps=3)
        with page.expect_response("**/select"):  # both slides have as many patches
            page.mouse.up()
        wait_for_drawing(page)
        page.keyboard.up("Shift")
        number = len(session.rows_of_slide[slide])
        page.wait_for_selector(f"#found-title:has-text('{number} patches selected')")
        page.fill("#label", name)
        page.press("#label", "Enter")
        page.wait_for_selector(f"#saved:has-text('{name}')")
    page.click("#uncertain")
    page.wait_for_selector("#found-title:has-text('To name next')")
    assert page.locator("#gallery button").count() == 24
    for _ in range(2):
        page.click("#undo")
        page.wait_for_selector("#saved:has-text('was taken back')")


def test_boxes_go_to_qupath_and_regions_come_back(
    watched: Watched, session: Session, made: Made, tmp_path: Path
) -> None:
    page, path = watched.page, labels_file(made.embeddings, "qupath")
    page.click("[data-view=look]")
    page.click("#drawn")
    page.wait_for_selector("#status.wrong:has-text('Open the slide of the regions first')")
    page.click("[data-view=cohort]")
    page.locator("#slides .open", has_text=session.slides[3].slide).click()
    page.wait_for_selector("#slide[data-slide='3']")
    with page.expect_download() as download:
        page.click("#boxes-file")
    assert download.value.suggested_filename == f"{session.slides[3].slide}.geojson"
    boxes = read_geojson(Path(download.value.path()))
    assert [region.rings[0][0].tolist() for region in boxes] == session.show(3).corners.tolist()
    drawn = [replace(region, name="gland", kind="annotation") for region in boxes[:5]]
    write_geojson(tmp_path / "drawn.geojson", drawn)
    (tmp_path / "bad.geojson").write_text("<xml>")
    (tmp_path / "huge.geojson").write_bytes(b" " * (MOST_LETTERS + 1))
    page.fill("#set", "qupath")
    with page.expect_file_chooser() as chooser:
        page.click("#drawn")
    chooser.value.set_files(tmp_path / "drawn.geojson")
    page.wait_for_selector("#saved:has-text('named by drawn.geojson: gland. Saved in labels/qupath.parquet')")
    assert load_columns(path)["label"].tolist() == ["gland"] * 5
    page.set_input_files("#regions", tmp_path / "huge.geojson")
    page.wait_for_selector("#status.wrong:has-text('huge.geojson is larger than 16 MB')")
    page.set_input_files("#regions", tmp_path / "bad.geojson")
    page.wait_for_selector("#status.wrong:has-text('cannot be read as GeoJSON')")
    page.click("#undo")
    page.wait_for_selector("#saved:has-text('(5 patches) was taken back')")
    assert load_columns(path)["label"].tolist() == []
    path.unlink()
    assert len(watched.errors) == 1  # the browser says that a request was refused
    watched.errors.clear()


def test_what_is_alike_can_be_selected_asked_for_again_saved_and_forgotten(watched: Watched, session: Session) -> None:
    page = watched.page
    page.click("[data-view=look]")
    page.wait_for_selector(f"#map[data-drawn='{len(session.embedded)}']")
    click_place(page, session, 11)
    page.wait_for_selector("#patch-shown:not([hidden])")
    page.click("#alike button")
    page.wait_for_selector("#found-title:has-text('Most alike')")
    assert page.inner_text("#named") == "to the chosen patch"
    with page.expect_download() as download:
        page.click("#patches-csv")
    lines = Path(download.value.path()).read_text().splitlines()
    assert (len(lines), lines[0].split(",")[:4]) == (25, ['"patch"', '"x"', '"y"', '"class"'])
    page.click("#select-found")
    page.wait_for_selector("#found-title:has-text('24 patches selected')")
    assert page.inner_text("#named") == "to the selected 24 patches"
    page.click("#alike-found")
    page.wait_for_selector("#found-title:has-text('Most alike')")
    page.locator("#map").focus()
    page.keyboard.press("Escape")
    assert page.inner_text("#named") == "to the chosen patch"


def test_two_slides_of_any_size_have_one_scale(browser: Any, tmp_path: Path) -> None:
    lines = ["patient,slide,path,mpp"]
    for name, fields, mpp in (("small", 4, 0.5), ("large", 16, 0.25)):
        draw_cohort(tmp_path / name, patients=4, slides=1, fields=fields, field_px=48, seed=0)
        lines.append(f"{name},{name},{name}/slides/P001-S1.tiff,{mpp}")
    (tmp_path / "cohort.csv").write_text("\n".join(lines))
    config = PrepareConfig.model_validate(
        {"grid": {"size_px": 24}, "split": {"fractions": {"train": 0.5, "test": 0.5}}}
    )
    prepare(tmp_path / "cohort.csv", tmp_path / "store", config, workers=0)
    listening = Listening(open_session(tmp_path / "store", [], tmp_path / "cohort.csv", lambda _: None))

    def scales(page: Any) -> list[float]:
        wait_for_drawing(page)
        return [float(page.get_attribute(canvas, "data-um")) for canvas in ("#slide", "#other")]

    try:
        with open_page(browser, listening.server.address, 1300, 900) as watched:
            page = watched.page
            wait_until_ready(page)
            page.locator("#slides .open").nth(1).click()
            page.wait_for_selector("#slide[data-slide='1']")
            page.click("#beside")
            page.wait_for_selector("#other[data-slide='1']")
            page.click("[data-view=cohort]")
            page.locator("#slides .open").nth(0).click()
            page.wait_for_selector("#slide[data-slide='0']")
            page.wait_for_selector("#other[data-um]")
            seen = [scales(page)]
            for canvas in ("#slide", "#other"):
                page.locator(canvas).focus()
                for keys in ("+++", "-" * 12, "0", "+" * 20, "0"):
                    for key in keys:
                        page.keyboard.press(key)
                    page.keyboard.press("ArrowLeft")
                    seen.append(scales(page))
            np.testing.assert_allclose([one for one, _ in seen], [other for _, other in seen], rtol=1e-4)
            assert len({round(one, 3) for one, _ in seen}) > 4
            page.click("#beside")
            assert page.locator("#other").is_hidden()
            assert watched.errors == []
    finally:
        listening.end()


def test_all_of_it_with_keys_alone(watched: Watched, session: Session) -> None:
    page = watched.page

    def reach(selector: str) -> None:
        """Press Tab until an element has the focus."""
        for _ in range(200):
            page.keyboard.press("Tab")
            if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
                return
        raise AssertionError(f"Tab does not reach {selector}")

    reach("#search")
    page.keyboard.type(session.slides[1].slide)
    reach("#slides .open")
    page.keyboard.press("Enter")
    page.wait_for_selector("#slide[data-slide='1']")
    reach("#map")
    page.wait_for_selector("#map[data-drawn]")
    for key in ("+", "ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "-", "0", "s"):
        page.keyboard.press(key)
    page.wait_for_selector("#gallery button")
    assert page.inner_text("#found-title") == f"{len(session.embedded)} patches selected"
    reach("#gallery button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#patch-shown:not([hidden])")
    reach("#slide")  # the patch is at the cross
    page.keyboard.press("Enter")
    reach("#alike button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#found-title:has-text('Most alike')")
    reach("#label")
    page.keyboard.type("by keys")
    page.keyboard.press("Enter")
    page.wait_for_selector("#saved:has-text('1 patch is now “by keys”')")
    reach("#undo")
    page.keyboard.press("Enter")
    page.wait_for_selector("#saved:has-text('was taken back')")


def test_a_million_points_would_be_a_picture_and_points_near_by(
    watched: Watched, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST_POINTS", 20)
    page = watched.page
    page.click("[data-view=look]")
    page.select_option("#colour", "patient")
    page.wait_for_selector("#map[data-drawn=density]")
    wait_for_drawing(page)
    assert has_ink(page, "map")
    page.locator("#map").focus()
    for _ in range(9):
        page.keyboard.press("+")
    page.wait_for_function("() => Number(document.getElementById('map').dataset.drawn) <= 20")


def test_hostile_names_are_harmless(browser: Any, tmp_path: Path) -> None:
    cohort = draw_cohort(tmp_path / "drawn", patients=4, slides=1, fields=4, field_px=48, seed=0)
    lines = cohort.read_text().splitlines()
    changed = [lines[0], *(line.replace("P001", f"{HOSTILE}") for line in lines[1:])]
    (cohort.parent / "hostile.csv").write_text("\n".join(changed).replace(f"slides/{HOSTILE}", "slides/P001"))
    config = PrepareConfig.model_validate({"grid": {"size_px": 48}})
    prepare(cohort.parent / "hostile.csv", tmp_path / HOSTILE.replace("/", ""), config, workers=0)
    session = open_session(tmp_path / HOSTILE.replace("/", ""), [], None, lambda _: None)
    sets = LabelSets(session.store.path, session.store.table, session.slides, lambda _: None)
    sets.give("mine", HOSTILE, np.array([0]), given_by="patch")
    listening = Listening(open_session(session.store.path, [], None, lambda _: None))
    try:
        with open_page(browser, listening.server.address) as watched:
            wait_until_ready(watched.page)
            assert any(HOSTILE in row for row in slide_rows(watched.page))
            watched.page.locator("#slides .open").first.click()
            watched.page.wait_for_selector("#slide[data-slide]")
            watched.page.select_option("#overlay", "patient")
            watched.page.wait_for_load_state("networkidle")
            assert watched.errors == []
            assert watched.page.locator("img[src=x]").count() == 0
    finally:
        listening.end()


def test_an_explorer_that_has_ended_is_said(browser: Any, made: Made) -> None:
    listening = Listening(made.open())
    with open_page(browser, listening.server.address) as watched:
        wait_until_ready(watched.page)
        listening.end()
        watched.page.locator("#slides .open").first.click()
        watched.page.wait_for_selector("#status.wrong:has-text('its command has ended')")


def test_a_late_answer_does_not_colour_the_map_by_another_column(watched: Watched, session: Session) -> None:
    page = watched.page
    waiting: list[Any] = []
    page.route("**/points?by=patient*", lambda route: waiting.append(route))
    page.click("[data-view=look]")
    page.wait_for_selector(f"#map[data-drawn='{len(session.embedded)}']")
    with page.expect_request("**/points?by=patient*"):
        page.select_option("#colour", "patient")
    # the new column is chosen and the old answer comes before the map asks again
    page.evaluate("() => { window.late = setTimeout; window.setTimeout = (does, ms) => window.late(does, ms + 500); }")
    page.select_option("#colour", "computed:score 0")
    waiting[0].continue_()
    with page.expect_response("**/points?by=computed*"):
        pass
    wait_for_drawing(page)
    assert (180, 184, 182) in find_colours(page)  # patches of reference patients have no score, but a patient


def find_colours(page: Any) -> set[tuple[int, ...]]:
    """The colours that fill more than 40 pixels of the map."""
    found = page.evaluate(
        """() => {
          const canvas = document.getElementById("map");
          const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const times = new Map();
          for (let at = 0; at < pixels.length; at += 4) {
            const key = `${pixels[at]},${pixels[at + 1]},${pixels[at + 2]}`;
            times.set(key, (times.get(key) ?? 0) + 1);
          }
          return [...times].filter(([, number]) => number > 40).map(([key]) => key);
        }"""
    )
    return {tuple(int(part) for part in key.split(",")) for key in found}


def test_the_place_stays_when_the_page_is_loaded_again_or_left_with_back(
    watched: Watched, session: Session, listening: Listening
) -> None:
    page = watched.page
    page.click("#by-patient")
    page.locator("#slides .open").nth(3).click()
    assert page.url == f"{listening.root}#patient=3"
    assert len(slide_rows(page)) == 1
    page.locator("#slides .open").click()
    page.wait_for_selector("#slide[data-slide='3']")
    row = int(session.rows_of_slide[3][0])
    page.goto(f"{listening.root}#slide=3&patch={row}")
    page.reload()
    wait_until_ready(page)
    page.wait_for_selector("#slide[data-slide='3']")
    page.wait_for_selector("#patch-shown:not([hidden])")
    assert session.slides[3].patient in page.inner_text("#facts")
    page.go_back()
    page.wait_for_selector("#patch-shown", state="hidden")
    assert page.url == f"{listening.root}#slide=3"
    page.go_back()
    page.wait_for_selector("#cohort:not([hidden])")
    assert (page.url, len(slide_rows(page))) == (f"{listening.root}#patient=3", 1)
    page.click("#whose button")
    assert len(slide_rows(page)) == len(session.slides)
    assert page.url == f"{listening.root}#cohort"


def test_a_score_has_a_colour_bar_and_a_slide_without_scores_says_why(watched: Watched, session: Session) -> None:
    page = watched.page
    split = session.store.table.column("split")
    train, test = (
        next(n for n, rows in enumerate(session.rows_of_slide) if split[rows[0]] == name) for name in ("train", "test")
    )
    page.click("[data-view=look]")
    page.select_option("#overlay", "computed:score 0")
    for number, steps in ((test, 10), (train, 0)):
        page.click("[data-view=cohort]")
        with page.expect_response("**/overlay*"):
            page.locator("#slides .open", has_text=session.slides[number].slide).click()
        page.wait_for_selector(f"#slide[data-slide='{number}']")
        wait_for_drawing(page)
        assert page.locator("#slide-legend .step").count() == steps
    assert "the evaluation judged its test patients alone, and this slide is of a patient of the split 'train'" in (
        page.inner_text("#painted")
    )
    page.select_option("#colour", "computed:score 0")
    first = page.locator("#legend .step").first
    first.click()
    number = int((session.columns["computed:score 0"].codes == 0).sum())
    page.wait_for_selector(f"#map[data-drawn='{number}']")


def test_each_browser_undoes_its_own_names(browser: Any, listening: Listening, session: Session) -> None:
    row = int(session.rows_of_slide[0][0])
    pages = []
    try:
        for name in ("first", "second"):
            opened = open_page(browser, listening.server.address, 1300, 900)
            page = opened.__enter__().page
            pages.append((opened, page))
            wait_until_ready(page)
            page.goto(f"{listening.root}#slide=0&patch={row}")
            page.reload()
            page.wait_for_selector("#patch-shown:not([hidden])")
            page.fill("#set", "browsers")
            page.fill("#label", name)
            page.click("#naming button:not([type])")
            page.wait_for_selector(f"#saved:has-text('“{name}”')")
        pages[0][1].click("#undo")
        pages[0][1].wait_for_selector("#saved:has-text('nothing was taken back: 1 patch was named anew elsewhere')")
        assert session.labels.find("browsers")[row] == "second"
        pages[1][1].click("#undo")
        pages[1][1].wait_for_selector("#saved:has-text('was taken back')")
        assert session.labels.find("browsers")[row] == "first"
    finally:
        for opened, _ in pages:
            opened.__exit__(None, None, None)
