"""`hidisc audit` writes a page, tables and a record; it is finished once, and what changed under it is refused."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hidisc.auditing.audit import Audit
from hidisc.evaluation.metrics import Value
from hidisc.ground.errors import UserError
from hidisc.reporting.audit import _cohort_tables, _measures_table
from hidisc.settings.audit import AuditConfig
from hidisc.settings.level_names import USUAL
from hidisc.verbs.audit import audit
from hidisc.verbs.doctor import find_damage
from tests.commands import Forks
from tests.embeddings.test_colour import embed_colour
from tests.evaluation.made import make_embeddings
from tests.reporting.browser import open_browser, open_page
from tests.reporting.test_page import HOSTILE, Reader
from tests.training.stores import make_store

QUICK = AuditConfig.model_validate({"bootstrap": {"resamples": 100, "interval": 0.99}, "columns": ["site"]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings of two encoders, and their audit."""
    folder = tmp_path_factory.mktemp("audit")
    for name in ("first", "second"):
        make_embeddings(folder / name, name=name, seed=len(name))
    audit([folder / "first", folder / "second"], folder / "audit", QUICK)
    return folder


def test_the_page_shows_the_encoders_side_by_side(folder: Path) -> None:
    made = Audit.load(folder / "audit")
    text = Reader((folder / "audit" / "audit.html").read_text()).text
    assert [encoder.name for encoder in made.info.encoders] == ["first", "second"]
    for encoder in made.info.encoders:
        assert encoder.embeddings == f"../{encoder.name}"
        assert encoder.columns[0].sentence.replace(" %", "\N{NO-BREAK SPACE}%") in text
    assert made.info.encoders[0].columns[0].robustness.percent().split()[0] in text
    assert (folder / "audit" / "tables" / "audit-1-site.csv").is_file()
    assert find_damage(folder / "audit") == []
    assert "site" in made.verdict() or "clear" in made.verdict()
    assert not re.search(r"nuisance|\bTold\b", text)
    assert "Cramer's V: how far label and variable go together" in " ".join(text.split())


def test_patients_of_several_colours_are_counted_once_and_said(folder: Path) -> None:
    """A patient with slides of two colours stands in both columns; the sum of the table is no number of patients."""
    encoder = Audit.load(folder / "audit").info.encoders[0]
    column = encoder.columns[0]
    twice = column.model_copy(update={"table": ((6, 3), (3, 6), (3, 3)), "patients": 18})
    (table,) = _cohort_tables("1-site", "site", [(encoder, twice)], USUAL).values()
    assert table.notes == (
        "18 patients; one with patches of several values or labels stands in each of them, so the numbers add up to "
        "24.",
    )
    once = column.model_copy(update={"table": ((3, 3), (3, 3), (3, 3)), "patients": 18})
    assert next(iter(_cohort_tables("1-site", "site", [(encoder, once)], USUAL).values())).notes == ()


def test_a_measure_that_no_encoder_has_is_no_row_of_dashes(folder: Path) -> None:
    encoder = Audit.load(folder / "audit").info.encoders[0]
    lacking = encoder.columns[0].model_copy(update={"balanced": Value(value=None, why="too few patients")})
    table = _measures_table("site", [(encoder, lacking)])
    assert "Label, balanced reference" not in [row[0] for row in table.rows]
    assert any("too few patients" in note for note in table.notes)


def test_a_finished_audit_stays_and_other_embeddings_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    page = tmp_path / "copy" / "audit" / "audit.html"
    before, paths = page.stat().st_mtime_ns, [tmp_path / "copy" / name for name in ("first", "second")]
    audit(paths, page.parent, QUICK)
    assert page.stat().st_mtime_ns == before
    with pytest.raises(UserError, match=r"was begun with other settings \(k: 20 -> 5\)"):
        audit(paths, page.parent, QUICK.model_copy(update={"k": 5}))
    shutil.rmtree(paths[0])
    make_embeddings(paths[0], name="first", seed=9)
    with pytest.raises(UserError, match=r"the content of \.\./first has changed"):
        audit(paths, page.parent, QUICK)
    page.unlink()
    with pytest.raises(UserError, match=r"audit .* is damaged"):
        Audit.load(page.parent)


def test_encoders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("before", "after"):
        make_embeddings(tmp_path / name, name="encoder", seed=len(name))
    made = audit([tmp_path / "before", tmp_path / "after"], tmp_path / "audit", QUICK)
    assert [encoder.name for encoder in made.info.encoders] == ["encoder (before)", "encoder (after)"]
    with pytest.raises(UserError, match=r"there is nothing to audit\. Give embeddings"):
        audit([], tmp_path / "none", QUICK)


def test_colours_are_read_from_the_store_and_a_lost_one_changes_the_audit(tmp_path: Path) -> None:
    store = make_store(tmp_path, patches=3)
    made = embed_colour(store, tmp_path / "embeddings")
    config = QUICK.model_copy(update={"columns": ("colour",), "bins": 2})
    (column,) = audit([made.path], tmp_path / "audit", config).info.encoders[0].columns
    assert column.values == ("1 of 2", "2 of 2")
    assert column.table == ((4, 0), (0, 4)), "the label decides the brightness in this store"
    assert column.outcome == "cannot be told apart"
    shutil.rmtree(store)
    with pytest.raises(UserError, match=r"the content of the store of \.\./embeddings has changed"):
        audit([made.path], tmp_path / "audit", config)


def test_the_command_prints_one_line_or_a_record(folder: Path, forks: Forks) -> None:
    quick = ("--set", "bootstrap.resamples=50", "--set", "columns=[site]")
    ended = forks.run("audit", "first", "--out", "out", *quick, folder=folder)
    assert ended.code == 0
    assert ended.result.startswith("out: ")
    ended = forks.run("audit", "first", "--out", "out", *quick, "--json", folder=folder)
    assert json.loads(ended.result)["encoders"][0]["columns"][0]["column"] == "site"
    ended = forks.run("audit", "audit", "--out", "other", folder=folder)
    assert (ended.code, ended.said) == (
        2,
        "hidisc: audit holds no embeddings (it is an audit). Make them with `hidisc embed`.\n",
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.mark.parametrize("width", [1300, 390])
def test_a_browser_shows_it_at_any_width_and_obeys_no_name(browser: Any, tmp_path: Path, width: int) -> None:
    make_embeddings(tmp_path / "hostile", name=HOSTILE[0], classes=HOSTILE[1:4])
    audit([tmp_path / "hostile"], tmp_path / "audit", QUICK)
    with open_page(browser, tmp_path / "audit" / "audit.html", width) as shown:
        assert shown.errors == []
        assert shown.requests == []
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
        assert HOSTILE[0] in shown.page.inner_text("body")
