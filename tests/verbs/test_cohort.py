"""`hidisc cohort`: the draft is a table that `prepare` takes as it is where nothing was doubtful."""

import csv
import json
from pathlib import Path

import pytest

from hidisc.ground.errors import UserError
from hidisc.patches.store import PatchStore
from hidisc.settings.config import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.cohort import Cohort
from hidisc.slides.draft import NO_SCALE
from hidisc.slides.names import FOR_PEOPLE, OPTIONAL, REQUIRED, WRITTEN
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.prepare import draft_cohort, prepare
from tests.commands import Forks
from tests.slides.test_draft import draw


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_prepare_takes_a_draft_without_doubts_as_it_is(tmp_path: Path) -> None:
    drawn = draw_cohort(tmp_path / "drawn", patients=3, slides=2, fields=2, seed=1)
    said: list[str] = []
    draft = draft_cohort(drawn.parent / "slides", tmp_path / "lab" / "cohort.csv", "{patient}-{slide}", say=said.append)
    assert said == []
    assert (len(draft.rows), draft.patients) == (6, 3)
    built = prepare(
        tmp_path / "lab" / "cohort.csv",
        tmp_path / "store",
        load_config(PrepareConfig, None, ["grid.size_px=48"]),
        workers=0,
        say=said.append,
    )
    assert built.summary()["patients"] == 3
    assert not [line for line in said if "cohort.csv" in line]
    truth = {Path(row["path"]).name: row["patient"] for row in rows_of(drawn)}
    assert {row.path.name: row.patient for row in Cohort.load(tmp_path / "lab" / "cohort.csv").slides} == truth
    assert not {*FOR_PEOPLE} & {*PatchStore.load(tmp_path / "store").table.columns}


def test_columns_to_fill_in_are_empty(tmp_path: Path) -> None:
    draft_cohort(draw(tmp_path / "in", "P1_1.tif", "P2_1.png"), tmp_path / "c.csv", "{patient}_{slide}")
    first, second = rows_of(tmp_path / "c.csv")
    assert list(first) == [*REQUIRED, *OPTIONAL, *FOR_PEOPLE]
    assert (first["path"], first["label"], first["mpp"], first["split"]) == ("in/P1_1.tif", "", "", "")
    assert float(first["file_mpp"]) == pytest.approx(0.5, rel=1e-3)
    assert (first["file_size_px"], first["doubt"]) == ("60 x 40", "")
    assert (second["file_mpp"], second["file_reader"], second["doubt"]) == ("", "pillow", NO_SCALE)


def test_nothing_is_overwritten_and_nothing_is_written_where_it_is_refused(tmp_path: Path) -> None:
    draw(tmp_path / "in", "P1_1.tif")
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(UserError, match=r"mine.csv is there already and is not overwritten. Give another --out."):
        draft_cohort(tmp_path / "in", tmp_path / "mine.csv")
    with pytest.raises(UserError, match=r"cohort.xlsx is no CSV file. Give a name that ends in .csv."):
        draft_cohort(tmp_path / "in", tmp_path / "cohort.xlsx")
    with pytest.raises(UserError, match=r"P1_1.tif is not a folder. Give the folder that holds the slides."):
        draft_cohort(tmp_path / "in" / "P1_1.tif", tmp_path / "c.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty holds no slide that can be read \(.bif .bmp .*\). Give another one."):
        draft_cohort(tmp_path / "empty", tmp_path / "c.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "in", "mine.csv"]


def test_the_command_says_what_is_doubtful(forks: Forks, tmp_path: Path) -> None:
    draw(tmp_path / "in", "P1_1.png", "P2_1.png")
    (tmp_path / "in" / "broken.svs").write_bytes(b"no slide")
    words = ("cohort", tmp_path / "in", "--pattern", "{patient}_{slide}", "--out", tmp_path / "c.csv")
    done = forks.run(*words)
    assert done.result == f"{tmp_path / 'c.csv'}: 2 slides of 2 patients, 2 rows to check (column `doubt`)\n"
    assert f"doubtful: 2 slides: {NO_SCALE}\n" in done.said
    assert "left out: broken.svs: cannot be read" in done.said
    (tmp_path / "c.csv").unlink()
    record = json.loads(forks.run(*words, "--json").result)
    assert (record["slides"], record["doubts"], len(record["left_out"])) == (2, {NO_SCALE: 2}, 1)


def test_the_command_says_how_many_slides_are_nobody_s(forks: Forks, tmp_path: Path) -> None:
    draw(tmp_path / "in", "P1_1.png", "biopsy.png", "block.png")
    done = forks.run("cohort", tmp_path / "in", "--pattern", "{patient}_{slide}", "--out", tmp_path / "c.csv")
    assert ": 3 slides of 1 patient (2 slides without one), 3 rows to check" in done.result


def test_names_of_columns_are_known_everywhere() -> None:
    from hidisc.patches.table import SCHEMA

    assert set(SCHEMA.names) == ({*REQUIRED, *OPTIONAL, *WRITTEN} & {*SCHEMA.names})


@pytest.mark.whole
def test_tcga_slides_need_no_editing(shared_data: Path, tmp_path: Path) -> None:
    said: list[str] = []
    draft = draft_cohort(shared_data / "monusac" / "svs", tmp_path / "cohort.csv", say=said.append)
    assert (said, len(draft.rows), draft.patients) == ([], 16, 16)
    truth = {row["path"].split("/")[-1]: row["patient"] for row in rows_of(shared_data / "monusac" / "cohort_svs.csv")}
    assert {row.path.name: row.names["patient"] for row in draft.rows} == truth
    built = prepare(tmp_path / "cohort.csv", tmp_path / "store", load_config(PrepareConfig, "small-regions"), workers=0)
    assert (built.summary()["patients"], built.info.failures) == (16, ())


def test_real_folders_are_drafted_and_their_doubts_said(shared_data: Path, tmp_path: Path) -> None:
    regions = draft_cohort(shared_data / "monusac" / "images", tmp_path / "regions.csv")
    truth = {row["path"].split("/")[-1]: row["patient"] for row in rows_of(shared_data / "monusac" / "cohort.csv")}
    assert {row.path.name: row.names["patient"] for row in regions.rows} == truth
    assert regions.count_doubts() == {NO_SCALE: len(truth)}
    said: list[str] = []
    mixed = draft_cohort(shared_data / "wsi", tmp_path / "mixed.csv", say=said.append)
    assert {row.path.stem: (row.names.get("patient"), row.mpp is None) for row in mixed.rows} == {
        "cmu-1-small-region": (None, False),
        "generic-four-levels": (None, True),
        "tcga-cr-7395-two-levels-no-mpp": ("TCGA-CR-7395", True),
    }
    assert said[0].startswith("left out: not-a-slide.dcm: cannot be read: ")
