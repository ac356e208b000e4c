"""A report is one page and a folder of files, whatever is missing; a browser draws it, and obeys no name on it."""

import base64
import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.patches.store import PatchStore
from hidisc.reporting import compose as composing
from hidisc.reporting import curves
from hidisc.reporting import figures as writing
from hidisc.reporting.evaluated import gather
from hidisc.reporting.points import choose_points, find_map_input
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.report import ReportConfig
from hidisc.slides.slide import shrink
from hidisc.verbs.doctor import find_damage
from hidisc.verbs.report import report
from tests.evaluation.made import make_embeddings
from tests.finished import refinish
from tests.reporting.browser import Watched, open_browser, open_page, wait_for_drawing
from tests.reporting.judged import LACK, LEAK, LEFT, make_scores
from tests.reporting.pdf import skip_pdf
from tests.reporting.test_page import Reader
from tests.reporting.test_pictures import alike, embed_store
from tests.training.stores import make_store

QUICK = ReportConfig(points=20, picture_px=32, sheet_rows=2)
BAD = "<script>alert(1)</script>"
WORSE = '"><img src=x onerror=alert(2)></script>'
PAD_PX, MAP_SIDE = 18, 9999
"""As in page.js."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("store"), patches=8)


@pytest.fixture(scope="module")
def judged(store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Scores of two encoders."""
    folder = tmp_path_factory.mktemp("judged")
    for name, accuracy in (("first", 0.7), ("second", 0.9)):
        embeddings = embed_store(store, folder / f"emb-{name}", name=name, seed=len(name))
        make_scores(folder / name, embeddings, name=name, group=name, accuracy=accuracy)
    return [folder / "first", folder / "second"]


def sketch(patch: pytest.MonkeyPatch) -> None:
    """Have figures drawn but not written out, and some not even drawn: they take most of a small report's time."""
    pixel = io.BytesIO()
    Image.new("RGB", (1, 1)).save(pixel, "PNG")
    files = {"pdf": b"", "png": pixel.getvalue(), "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>"}
    patch.setattr(writing, "render", lambda _, suffix: files[suffix])
    patch.setattr(curves, "draw_confusion", lambda *_: Figure())
    patch.setattr(composing, "draw_curves", lambda *_: Figure())


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch(monkeypatch)


@pytest.fixture(scope="module")
def made(judged: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The page of both, and what was said on the way."""
    said: list[str] = []
    out = tmp_path_factory.mktemp("report") / "my report.html"
    with pytest.MonkeyPatch.context() as patch:
        skip_pdf(patch)
        assert report(judged, out, QUICK, said.append) == out
    return out, said


def map_data(path: Path) -> dict[str, Any]:
    return json.loads(Reader(path.read_text()).scripts[0])


def text_of(path: Path) -> str:
    return " ".join(Reader(path.read_text()).text.split())


def test_a_page_with_all_sections_and_its_files(made: tuple[Path, list[str]]) -> None:
    out, said = made
    found = Reader(out.read_text())
    assert [section["id"] for section in found.all("section")] == [
        "verdict", "evaluated", "metrics", "patients", "map", "neighbours", "diagnostics", "about",
    ]  # fmt: skip
    assert "drawing the map of second ..." in said
    files = out.with_name("my report_files")
    links = [link["href"] or "" for link in found.all("a") if not (link["href"] or "").startswith("#")]
    listed = {link.replace("%20", " ") for link in links}
    written = {
        path.relative_to(out.parent).as_posix()
        for folder in ("figures", "tables")
        for path in files.glob(f"{folder}/*")
    }
    assert listed == written
    stems = {Path(link).name for link in listed}
    assert {
        "confusion-1-first-patient.pdf",
        "curves-slide.png",
        "map-2-second.pdf",
        "neighbours-1-first-wrong.pdf",
    } <= stems
    assert {"metrics-knn.csv", "metrics-mil.tex", "classes-knn-patch.md", "comparison-knn-patient.csv"} <= stems
    assert {"data-1-first.csv", "diagnostics.tex"} <= stems
    with (files / "tables" / "metrics-knn.csv").open() as file:
        assert [row[1] for row in csv.reader(file)][1:3] == ["first", "second"]


def test_the_page_compares_the_encoders(made: tuple[Path, list[str]]) -> None:
    text = text_of(made[0])
    assert "first, second" in text
    assert "between second and first in patient accuracy" in text or "second is" in text
    assert "in patient AUROC" in text
    assert text.count("; one training each") == 3  # two sentences, and a note of the table
    assert text.count("There is one training per encoder, so these sentences are about the encoders") == 1
    assert "the same as of first" in text


def test_the_page_says_who_votes_and_what_is_shown(made: tuple[Path, list[str]], judged: list[Path]) -> None:
    text = text_of(made[0])
    bank = sum(count.units["patch"] for count in Scores.load(judged[0]).info.counts if count.part == "bank")
    assert bank < 200  # all patches of the reference patients vote
    said = f"The {bank} nearest patches of the reference patients vote on the class of a patch"
    assert text.count(said) == 4  # correct and wrong ones of two encoders
    assert text.count("; the 8 nearest are shown.") == 4
    assert "Reference patients (train)" in text
    assert "Test patients (test)" in text


def test_a_note_stands_once_on_the_page_and_in_every_file(made: tuple[Path, list[str]]) -> None:
    note = "Bold: the best value, and every value whose error range"
    assert text_of(made[0]).count(note) == 1
    for name in ("metrics-knn", "metrics-linear", "classes-knn-patch"):
        table = made[0].with_name("my report_files") / "tables" / f"{name}.md"
        assert note in table.read_text()


@pytest.mark.usefixtures("sketched")
def test_the_encoder_is_named_in_the_title_of_its_matrix(
    judged: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(curves, "draw_confusion", lambda _counts, _classes, title: titles.append(title) or Figure())
    report(judged, tmp_path / "r.html", QUICK)
    assert titles[:2] == ["first, patient level", "second, patient level"]
    assert "Confusion matrices" in text_of(tmp_path / "r.html")


@pytest.mark.usefixtures("sketched")
def test_a_users_title_is_kept(store: Path, tmp_path: Path) -> None:
    embed_store(store, tmp_path / "emb", name="alone")
    titled = QUICK.model_copy(update={"title": "Mine"})
    assert "<title>Mine</title>" in report([tmp_path / "emb"], tmp_path / "r.html", titled).read_text()


def test_the_map_shows_what_was_judged(made: tuple[Path, list[str]], judged: list[Path]) -> None:
    data = map_data(made[0])
    columns = {column["key"]: column for column in data["columns"]}
    assert [panel["name"] for panel in data["panels"]] == ["first", "second"]
    assert data["panels"][0]["patch"] == data["panels"][1]["patch"] == list(range(20))
    assert "All encoders show the same patches." in text_of(made[0])
    for panel, path in zip(data["panels"], judged, strict=True):
        predictions = Scores.load(path).predictions("knn", "patch")
        known = {
            (slide, int(patch)): (predictions.classes[truth], predictions.classes[said])
            for slide, patch, truth, said in zip(
                predictions.units["slide"], predictions.units["patch"], predictions.truth, predictions.predicted,
                strict=True,
            )
        }  # fmt: skip
        names, slides = columns["label"]["names"], columns["slide"]["names"]
        shown = [
            (slides[columns["slide"]["codes"][patch]], names[columns["label"]["codes"][patch]], names[said])
            for patch, said in zip(panel["patch"], panel["predicted"], strict=True)
        ]
        expected = sorted((slide, *labels) for (slide, _), labels in known.items())
        assert all(entry in expected for entry in shown)
        assert {entry[1] for entry in shown} == {"a", "b"}
        assert 0 == min(panel["x"] + panel["y"]) < max(panel["x"] + panel["y"]) <= MAP_SIDE


@pytest.mark.usefixtures("sketched")
def test_the_same_input_gives_the_same_bytes(judged: list[Path], tmp_path: Path) -> None:
    one, same = (report(judged, tmp_path / name / "report.html", QUICK) for name in "ab")
    assert one.read_bytes() == same.read_bytes()
    other = report(judged, tmp_path / "c" / "report.html", QUICK.model_copy(update={"seed": 1}))
    assert map_data(other)["columns"] != map_data(one)["columns"]


def test_a_finished_page_is_never_overwritten(judged: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("mine")
    with pytest.raises(UserError, match=r"report.html is there already .* Give another --out, or delete it\."):
        report(judged, out, QUICK)
    assert out.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [out]


def test_only_pages_are_written(judged: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.html"):
        report(judged, tmp_path / "report", QUICK)
    with pytest.raises(UserError, match="nothing to report"):
        report([tmp_path], tmp_path / "report.html", QUICK)
    assert list(tmp_path.iterdir()) == []


def test_files_of_something_else_are_not_mixed_up(judged: list[Path], tmp_path: Path) -> None:
    (tmp_path / "report_files").mkdir()
    (tmp_path / "report_files" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds something else \(mine\.txt\)"):
        report(judged, tmp_path / "report.html", QUICK)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("sketched")
def test_the_page_comes_last_and_a_stopped_report_is_begun_again(
    judged: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report.html"
    quick = QUICK.model_copy(update={"sheet_rows": 0})
    with monkeypatch.context() as patch:
        patch.setattr(composing, "fill_template", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            report(judged[:1], out, quick)
    assert not out.exists()
    assert (tmp_path / "report_files" / "tables" / "metrics-knn.csv").is_file()
    with pytest.raises(UserError, match="other settings"):
        report(judged, out, quick)
    assert report(judged[:1], out, quick) == out
    written = out.stat().st_mtime_ns
    assert report(judged[:1], out, quick) == out  # finished, so left as it is
    assert out.stat().st_mtime_ns == written
    with pytest.raises(UserError, match="other settings"):
        report(judged, out, quick)
    assert "neighbours" not in {section["id"] for section in Reader(out.read_text()).all("section")}
    assert [path.name for path in tmp_path.glob("**/.part-*")] == []


@pytest.mark.usefixtures("sketched")
def test_embeddings_alone_have_a_map_and_counts_but_no_metrics(store: Path, tmp_path: Path) -> None:
    embed_store(store, tmp_path / "emb", name="alone")
    out = report([tmp_path / "emb"], tmp_path / "report.html", QUICK)
    found = Reader(out.read_text())
    assert [section["id"] for section in found.all("section")] == ["verdict", "evaluated", "map", "about"]
    text = text_of(out)
    assert "<title>Embeddings of alone</title>" in out.read_text()  # nothing is judged
    assert "<h1><bdi>Embeddings of alone</bdi></h1>" in out.read_text()
    assert "Embedded, not evaluated" in text
    assert "Data of alone" in text
    data = map_data(out)
    assert data["panels"][0]["predicted"] is None
    assert len(data["panels"][0]["patch"]) == 20
    assert data["sprite"] is not None


@pytest.mark.usefixtures("sketched")
def test_encoders_that_share_no_patches_have_maps_of_their_own(store: Path, tmp_path: Path) -> None:
    rows = np.flatnonzero(PatchStore.load(store).table.column("split") == "test")
    for name, part in (("odd", rows[1::2]), ("even", rows[::2])):
        embed_store(store, tmp_path / name, rows=part, name=name)
    out = report([tmp_path / "odd", tmp_path / "even"], tmp_path / "report.html", QUICK)
    odd, even = (panel["patch"] for panel in map_data(out)["panels"])
    assert (odd, even) == (list(range(16)), list(range(16, 32)))
    assert "show the same patches" not in text_of(out)


@pytest.mark.usefixtures("sketched")
def test_embeddings_without_labels_or_store(tmp_path: Path) -> None:
    embeddings = make_embeddings(tmp_path / "emb", store=str(tmp_path / "no store"))
    scores = make_scores(tmp_path / "scores", embeddings)
    out = report([scores.path], tmp_path / "report.html", QUICK)
    text = text_of(out)
    assert text.count("No pictures:") == 2  # of the map, and of the sheets
    assert "the store 'no store' is not where it was, or has changed. Embed it again to see its pictures." in text
    assert map_data(out)["sprite"] is None
    assert "no picture" in text


@pytest.mark.usefixtures("sketched")
def test_unlabelled_embeddings_have_a_map(store: Path, tmp_path: Path) -> None:
    embed_store(store, tmp_path / "emb", rename={"label": lambda _: None})
    out = report([tmp_path / "emb"], tmp_path / "report.html", QUICK)
    label = map_data(out)["columns"][0]
    assert (label["key"], label["names"], set(label["codes"])) == ("label", [], {-1})


@pytest.mark.usefixtures("sketched")
def test_scores_whose_embeddings_are_gone(tmp_path: Path) -> None:
    embeddings = make_embeddings(tmp_path / "emb")
    one = make_scores(tmp_path / "one", embeddings, name="one", group="one", recorded=str(tmp_path / "gone"))
    out = report([one.path], tmp_path / "report.html", QUICK)
    text = text_of(out)
    assert "There is no map" in text
    assert "None of one: its embeddings are gone" in text
    assert '"metrics"' in out.read_text()
    two = make_scores(tmp_path / "two", embeddings, name="two", group="two")
    text = text_of(report([one.path, two.path], tmp_path / "both.html", QUICK))
    assert "No map of one: its embeddings are gone" in text


@pytest.mark.usefixtures("sketched")
def test_neighbours_that_were_not_kept(tmp_path: Path) -> None:
    scores = make_scores(tmp_path / "scores", make_embeddings(tmp_path / "emb"))
    (scores.path / "neighbours.parquet").unlink()
    refinish(scores.path)
    assert "no neighbours were kept" in text_of(report([scores.path], tmp_path / "report.html", QUICK))


@pytest.mark.usefixtures("sketched")
@pytest.mark.parametrize("fate", ["gone", "shorter"])
def test_a_bank_that_is_gone_or_has_changed(tmp_path: Path, fate: str) -> None:
    scores = make_scores(tmp_path / "scores", make_embeddings(tmp_path / "emb"))
    if fate == "shorter":
        make_embeddings(tmp_path / "bank", patients=2)
    info = scores.info.model_copy(update={"bank": "../bank"})
    (scores.path / "scores.json").write_text(info.model_dump_json())
    refinish(scores.path)
    text = text_of(report([scores.path], tmp_path / "report.html", QUICK))
    assert "None of made: the embeddings of its reference patients ('bank') are gone or changed." in text
    assert "patches predicted" not in text


@pytest.mark.usefixtures("sketched")
def test_leakage_is_on_top_and_above_every_table(tmp_path: Path) -> None:
    embeddings = make_embeddings(tmp_path / "emb")
    leaky = make_scores(tmp_path / "leaky", embeddings, name="leaky", group="a", leak=True)
    clean = make_scores(tmp_path / "clean", embeddings, name="clean", group="b", seed=1)
    html = report([clean.path, leaky.path], tmp_path / "report.html", QUICK).read_text()
    assert html.count('class="alarm again"') == html.count("<table") > 5
    assert html.index(f"leaky: {LEAK}") < html.index("<table")
    assert html.count(LEAK) == html.count("<table") + 1  # no table repeats it in its notes


@pytest.mark.usefixtures("sketched")
def test_what_the_labels_lack_is_beside_the_numbers(tmp_path: Path) -> None:
    embeddings = make_embeddings(tmp_path / "emb")
    lacking = make_scores(tmp_path / "lacking", embeddings, lacks=(LACK, LEFT))
    page = report([lacking.path], tmp_path / "report.html", QUICK)
    html = page.read_text()
    warning = LACK.sentence.replace("'", "&#39;")
    assert html.count('class="alarm again"') == html.count("<table") > 5
    assert html.count(warning) == html.count("<table") + 1
    assert html.index(warning) < html.index(LEFT.sentence) < html.index('id="metrics"')  # with the counts of the data
    for name in ("data-1-made", "metrics-knn"):
        said = (tmp_path / "report_files" / "tables" / f"{name}.csv").read_text()
        assert LACK.sentence in said
        assert LEFT.sentence in said


@pytest.mark.usefixtures("sketched")
def test_several_trainings_of_each_are_compared_as_methods(tmp_path: Path) -> None:
    embeddings = make_embeddings(tmp_path / "emb")
    paths = [
        make_scores(tmp_path / f"{name}{seed}", embeddings, name=name, group=name, seed=seed).path
        for name in "ab"
        for seed in range(2)
    ]
    text = text_of(report(paths, tmp_path / "report.html", QUICK))
    assert text.count("; 2 trainings each") == 3
    assert "There is one training per encoder" not in text


@pytest.mark.usefixtures("sketched")
def test_two_classes_and_one_opinion(tmp_path: Path) -> None:
    embeddings = make_embeddings(tmp_path / "emb", classes=("benign", "malignant"))
    scores = make_scores(tmp_path / "scores", embeddings, probes=("mil",), config=EvaluateConfig(positive="benign"))
    text = text_of(report([scores.path], tmp_path / "report.html", QUICK))
    assert "Judged by attention over the patches of a slide" in text
    assert "(positive: benign)" in text
    assert map_data(tmp_path / "report.html")["panels"][0]["predicted"] is None


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def hostile(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two encoders on which every name is an attack, and long."""
    folder = tmp_path_factory.mktemp("hostile")

    def spoil(text: str) -> Callable[[str], str]:
        return lambda name: f"{text}{name}"

    rename = {
        "label": spoil(BAD),
        "patient": spoil(WORSE),
        "slide": spoil("\u202e🧠 " + "long" * 60),
        "site": spoil(BAD),
    }
    for number, name in enumerate((BAD, WORSE)):
        embeddings = embed_store(store, folder / f"emb{number}", name=name, rename=rename, seed=number)
        make_scores(folder / f"scores{number}", embeddings, name=name, group=name, leak=True)
    out = folder / "report.html"
    settings = QUICK.model_copy(update={"title": BAD + WORSE})
    with pytest.MonkeyPatch.context() as patch:
        sketch(patch)
        return report([folder / "scores0", folder / "scores1"], out, settings)


def pixels_of(watched: Watched, canvas: str) -> np.ndarray:
    """What is drawn on a canvas, (H, W, 4)."""
    address = watched.page.evaluate("name => document.querySelector(name).toDataURL()", canvas)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",")[1]))).convert("RGBA"))


def drawn_share(watched: Watched, number: int) -> float:
    """Share of a map's pixels that are not empty."""
    return float((pixels_of(watched, f"#map-{number}")[..., 3] > 0).mean())


def go_to(watched: Watched, number: int) -> dict[str, float]:
    """Scroll a map into view; its place."""
    watched.page.evaluate(
        "number => document.getElementById(`map-${number}`).scrollIntoView({block: 'center', behavior: 'instant'})",
        number,
    )
    wait_for_drawing(watched.page)
    return watched.page.locator(f"#map-{number}").bounding_box()


def place_of(box: dict[str, float], panel: dict[str, Any], index: int) -> tuple[float, float]:
    """Where on the screen a point of a map is, before any zoom."""
    room = box["width"] - 2 * PAD_PX
    x = box["x"] + PAD_PX + panel["x"][index] / MAP_SIDE * room
    return x, box["y"] + PAD_PX + (1 - panel["y"][index] / MAP_SIDE) * room


def rank_lonely(panel: dict[str, Any]) -> list[int]:
    """Points, those farthest from all others first: there is no doubt which of them is pointed at."""
    xy = np.array([panel["x"], panel["y"]], float).T
    away = np.linalg.norm(xy[:, None] - xy[None], axis=2) + 1e9 * np.eye(len(xy))
    return (-away.min(axis=1)).argsort().tolist()


def loneliest(panel: dict[str, Any]) -> int:
    return rank_lonely(panel)[0]


@pytest.mark.whole
def test_a_browser_draws_the_maps_and_asks_for_nothing(browser: Any, made: tuple[Path, list[str]]) -> None:
    with open_page(browser, made[0]) as watched:
        for number in range(2):
            go_to(watched, number)
            assert drawn_share(watched, number) > 0.001
        broken = watched.page.evaluate("[...document.images].filter(image => !image.naturalWidth).length")
        assert broken == 0
        assert watched.errors == []
        assert watched.requests == []


@pytest.mark.whole
def test_pointing_at_a_patch_shows_it(
    browser: Any, made: tuple[Path, list[str]], judged: list[Path], store: Path
) -> None:
    """The picture is the one that lies in the store, its names are the table's, and each encoder's guess is its own."""
    data = map_data(made[0])
    columns = {column["key"]: column for column in data["columns"]}
    charted = [one for subject in gather(judged) if (one := find_map_input(subject))]
    points = choose_points(charted, QUICK.points, make_rng(QUICK.seed, Purpose.MAP_POINTS))
    opened = PatchStore.load(store)
    pictures = [shrink(opened.read(row), QUICK.picture_px) for row in range(len(opened))]
    panel = data["panels"][1]
    tried = rank_lonely(panel)[:6]
    assert len({panel["patch"][index] % data["sprite"]["across"] for index in tried}) > 1
    guesses = set()
    with open_page(browser, made[0]) as watched:
        box = go_to(watched, 1)
        tip = watched.page.locator("#tip")
        for index in tried:
            watched.page.mouse.move(*place_of(box, panel, index))
            wait_for_drawing(watched.page)
            assert tip.is_visible()
            patch = panel["patch"][index]
            assert tip.get_attribute("data-patch") == str(patch)
            names = [columns[key]["names"][columns[key]["codes"][patch]] for key in ("label", "patient", "slide")]
            guessed = [columns["label"]["names"][one["predicted"][one["patch"].index(patch)]] for one in data["panels"]]
            assert tip.locator("dd").all_inner_texts() == names + guessed
            guesses.add(tuple(guessed))
            row = int(charted[1].rows[points.places[1][index]])  # of the embeddings, and here of the store as well
            assert [opened.table.column(key)[row] for key in ("label", "patient", "slide")] == names
            shown = pixels_of(watched, "#tip canvas")[..., :3]
            likeness = [alike(shown, picture) for picture in pictures]
            assert np.argmax(likeness) == row
            assert likeness[row] > 0.9
        assert len(guesses) > 1
        watched.page.mouse.move(2, 2)
        wait_for_drawing(watched.page)
        assert not tip.is_visible()
        assert watched.errors == []


@pytest.mark.whole
def test_the_legend_isolates_and_the_wheel_zooms(browser: Any, made: tuple[Path, list[str]]) -> None:
    with open_page(browser, made[0]) as watched:
        page = watched.page
        schemes = page.locator("#colour-by button").all_inner_texts()
        assert schemes == ["class", "prediction", "right or wrong", "patient", "slide"]
        data = map_data(made[0])
        box = go_to(watched, 0)
        panel, label = data["panels"][0], data["columns"][0]["codes"]
        index = loneliest(panel)
        other = 1 - label[panel["patch"][index]]
        page.locator(f"#legend .chip[data-code='{other}']").click()
        assert page.locator("#legend .chip[aria-pressed=true]").count() == 1
        box = go_to(watched, 0)
        page.mouse.move(*place_of(box, panel, index))
        wait_for_drawing(page)
        assert not page.locator("#tip").is_visible()  # a patch that is not shown is not found
        page.locator(f"#legend .chip[data-code='{other}']").click()
        box = go_to(watched, 0)
        page.mouse.move(*place_of(box, panel, index))
        wait_for_drawing(page)
        assert page.locator("#tip").is_visible()
        page.mouse.wheel(0, -400)
        wait_for_drawing(page)
        assert "zoomed" in (page.locator("#map-0").get_attribute("class") or "")
        assert page.locator("#tip").get_attribute("data-patch") == str(panel["patch"][index])  # zoomed around it
        before = drawn_share(watched, 0)
        page.mouse.down()
        page.mouse.move(box["x"] + 40, box["y"] + 40, steps=4)
        page.mouse.up()
        page.mouse.dblclick(box["x"] + 40, box["y"] + 40)
        wait_for_drawing(page)
        assert "zoomed" not in (page.locator("#map-0").get_attribute("class") or "")
        assert drawn_share(watched, 0) != before
        for scheme in schemes:
            page.locator("#colour-by button", has_text=scheme).first.click()
            assert page.locator("#legend .chip").count() >= 1
        page.select_option("#only", str(other))
        assert page.locator("#legend .chip").count() == 2  # slides of the one test patient of a class
        assert watched.errors == []


@pytest.mark.whole
def test_names_are_text_in_a_browser(browser: Any, hostile: Path) -> None:
    with open_page(browser, hostile) as watched:
        page = watched.page
        assert page.locator("h1").inner_text() == BAD + WORSE
        assert page.locator("figure.panel figcaption").all_inner_texts() == [BAD, WORSE]
        for scheme in ("class", "prediction", "patient", "slide", "site"):
            page.locator("#colour-by button", has_text=scheme).first.click()
        page.locator("#colour-by button", has_text="patient").click()
        assert page.locator("#legend .name").first.inner_text().startswith(WORSE)
        data = map_data(hostile)
        box = go_to(watched, 0)
        index = loneliest(data["panels"][0])
        page.mouse.move(*place_of(box, data["panels"][0], index))
        wait_for_drawing(page)
        assert page.locator("#tip dd").nth(1).inner_text().startswith(WORSE)
        assert page.evaluate("document.querySelectorAll('img[src=x], script:not([type])').length") == 1
        assert watched.errors == []
        assert watched.requests == []


@pytest.mark.whole
def test_a_phone_needs_no_sideways_scrolling(browser: Any, hostile: Path, made: tuple[Path, list[str]]) -> None:
    for path in (hostile, made[0]):
        with open_page(browser, path, 360, 740, has_touch=True, is_mobile=True, device_scale_factor=2) as watched:
            page = watched.page
            assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
            data = map_data(path)
            box = go_to(watched, 1)
            assert drawn_share(watched, 1) > 0.001
            index = loneliest(data["panels"][1])
            page.touchscreen.tap(*place_of(box, data["panels"][1], index))
            wait_for_drawing(page)
            tip = page.locator("#tip")
            assert tip.is_visible()
            inside = tip.bounding_box()
            assert inside["x"] >= 0
            assert inside["x"] + inside["width"] <= 360
            assert tip.get_attribute("data-patch") == str(data["panels"][1]["patch"][index])
            assert watched.errors == []


@pytest.mark.whole
def test_it_prints_without_controls(browser: Any, made: tuple[Path, list[str]], tmp_path: Path) -> None:
    with open_page(browser, made[0]) as watched:
        page = watched.page
        page.emulate_media(media="print")
        for control in (".tools", ".legend", ".panels", ".contents", "#tip"):
            assert not page.locator(control).is_visible(), control
        assert page.locator(".paper-only img").first.is_visible()
        page.pdf(path=str(tmp_path / "page.pdf"), format="A4")
        data = (tmp_path / "page.pdf").read_bytes()
        assert data.startswith(b"%PDF")
        assert 3 <= data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") <= 40
        assert watched.errors == []


@pytest.mark.whole
def test_without_scripts_the_maps_are_pictures(browser: Any, made: tuple[Path, list[str]]) -> None:
    with open_page(browser, made[0], java_script_enabled=False) as watched:
        assert watched.page.locator(".paper-only img").first.is_visible()
        assert not watched.page.locator(".panels").is_visible()


# ---- a report is an artefact


@pytest.mark.usefixtures("sketched")
def test_a_page_and_its_files_are_verified_and_made_again(judged: list[Path], tmp_path: Path) -> None:
    out = report(judged[:1], tmp_path / "r.html", QUICK)
    page, files = out.read_bytes(), tmp_path / "r_files"
    assert find_damage(out) == find_damage(files) == []
    lost = sorted((files / "tables").iterdir())[0]
    content = lost.read_bytes()
    lost.unlink()
    assert find_damage(out) == [f"tables/{lost.name} is missing"]
    said: list[str] = []
    report(judged[:1], out, QUICK, said.append)
    assert said[0].startswith(f"note: {files} is damaged (tables/{lost.name} is missing)")
    assert (lost.read_bytes(), out.read_bytes()) == (content, page)
    assert find_damage(out) == []


@pytest.mark.usefixtures("sketched")
def test_a_page_that_someone_has_edited_is_not_overwritten(judged: list[Path], tmp_path: Path) -> None:
    out = report(judged[:1], tmp_path / "r.html", QUICK)
    out.write_text(out.read_text() + "<!-- my notes -->")
    edited = out.read_bytes()
    with pytest.raises(UserError) as caught:
        report(judged[:1], out, QUICK)
    assert str(caught.value) == f"{out} has been changed since it was written. Delete it to have it made anew."
    assert out.read_bytes() == edited
    out.unlink()
    report(judged[:1], out, QUICK)
    assert find_damage(out) == []


def test_no_page_or_record_holds_an_absolute_path(made: tuple[Path, list[str]], judged: list[Path]) -> None:
    out, _ = made
    files = [out, *out.with_name("my report_files").glob("*.*"), *(judged[0] / name for name in ("scores.json",))]
    for file in files:
        if file.is_file():
            text = file.read_text("utf-8", "replace")
            assert str(out.parent) not in text
            assert str(judged[0].parent) not in text
