"""A patient saved as a folder: it opens from disk, map and slide follow each other, and nobody else is in it."""

import json
from pathlib import Path

import numpy as np
import pytest

from hidisc.explorer import saved as saved
from hidisc.explorer.saved import save_patient
from hidisc.explorer.session import Session
from hidisc.ground.errors import UserError
from tests.commands import Forks
from tests.explorer.conftest import Made
from tests.explorer.test_page import click_place
from tests.reporting.browser import open_browser, open_page, wait_for_drawing


@pytest.mark.whole
def test_map_and_slide_follow_each_other_from_disk(session: Session, tmp_path: Path) -> None:
    patient = session.slides[2].patient
    assert save_patient(session, patient, tmp_path / "taken") == 1
    rows = session.rows_of_slide[2]
    with (
        open_browser("--disable-webgl", "--disable-3d-apis") as browser,
        open_page(browser, tmp_path / "taken" / "index.html", 1300, 900) as watched,
    ):
        page = watched.page
        page.wait_for_selector("body[data-ready=yes]")
        assert page.locator("#slides tbody tr").count() == 1
        page.click("[data-view=look]")
        page.wait_for_selector(f"#map[data-drawn='{len(rows)}']")
        vector = int(session.vector_of[rows[1]])
        click_place(page, session, vector)
        page.wait_for_selector("#patch-shown:not([hidden])")
        page.wait_for_selector("#slide[data-slide='0'][data-bar]")
        for key in page.eval_on_selector_all("#overlay option", "options => options.map(option => option.value)"):
            page.select_option("#overlay", key)
        page.select_option("#colour", "label")
        page.locator("#legend .chip").first.click()
        page.locator("#slide").hover()
        page.mouse.wheel(0, -900)
        page.wait_for_load_state("networkidle")
        wait_for_drawing(page)
        assert page.locator("#naming").is_hidden()
        assert page.evaluate("() => document.getElementById('patch-picture').naturalWidth") > 0
        assert watched.errors == []
        assert watched.requests == []


def test_nothing_of_other_patients_is_in_it(session: Session, tmp_path: Path) -> None:
    patient = session.slides[2].patient
    save_patient(session, patient, tmp_path / "taken")
    text = (tmp_path / "taken" / "saved.js").read_text()
    assert patient in text
    others = {name for slide in session.slides if slide.patient != patient for name in (slide.patient, slide.slide)}
    assert not [name for name in others if name in text]
    told = json.loads(text.removeprefix("window.saved = ").removesuffix(";\n"))
    assert told["rows"] == session.rows_of_slide[2].tolist()
    for column in told["cohort"]["columns"]:
        own = session.columns[column["key"]]
        codes = np.array(told["codes"][column["key"]])
        names = [column["names"][code] if code >= 0 else None for code in codes]
        expected = own.codes[session.rows_of_slide[2]]
        assert names == [own.names[code] if code >= 0 else None for code in expected]
        assert sum(column["counts"]) == (expected >= 0).sum()


def test_a_large_slide_is_saved_without_its_finest_levels(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = session.show(0)
    monkeypatch.setattr(saved, "_MOST_TILES", 1)
    save_patient(session, session.slides[0].patient, tmp_path / "taken")
    tiles = {path.name for path in (tmp_path / "taken" / "tiles").iterdir()}
    assert tiles == {f"0-{shown.levels - 1}-0-0.jpg"}
    assert f'"finest": {shown.levels - 1}' in (tmp_path / "taken" / "saved.js").read_text()


def test_what_cannot_be_saved_is_said(session: Session, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--patient 'nobody' is no patient of .* There are 'P001', 'P002', 'P003' and"):
        save_patient(session, "nobody", tmp_path / "taken")
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match="is there already and is not overwritten"):
        save_patient(session, session.slides[0].patient, tmp_path / "taken")


def test_the_command_writes_it_and_ends(made: Made, forks: Forks, tmp_path: Path) -> None:
    words = ("explore", made.store, made.embeddings, made.scores, "--cohort", made.cohort)
    done = forks.run(*words, "--patient", "P001", "--save", tmp_path / "taken")
    assert (done.code, done.result) == (0, f"{tmp_path / 'taken' / 'index.html'}: 1 slide; open it in a browser\n")
    done = forks.run(*words, "--patient", "P001")
    assert (done.code, done.result) == (2, "")
    assert done.said == "hidisc: --save and --patient go together: a folder of one patient is written.\n"


def test_the_command_ends_by_itself_when_nobody_asks(made: Made, forks: Forks) -> None:
    done = forks.run("explore", made.store, made.embeddings, "--no-browser", "--stop-after", "0")
    assert done.code == 0
    assert done.result.startswith("http://127.0.0.1:")
    assert "press Ctrl-C here to end" in done.said
