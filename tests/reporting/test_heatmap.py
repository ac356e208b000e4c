"""Scores are painted where their patches lie on the slide, and what cannot be painted is said."""

import io
import shutil
from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar
from numpy.typing import NDArray
from PIL import Image

from hidisc.embeddings.embeddings import EMBEDDINGS, PATCHES, VECTORS, Embeddings, EmbeddingsInfo, ModelCard
from hidisc.evaluation.scores import SCORES, Scores
from hidisc.ground.errors import UserError
from hidisc.ground.files import relate
from hidisc.models.card import UNKNOWN
from hidisc.patches.store import PatchStore
from hidisc.reporting.figures import figure_style, render
from hidisc.reporting.heatmap import choose_scale_um, draw_heatmap, paint
from hidisc.settings.config import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs import report as verb
from hidisc.verbs.prepare import prepare
from hidisc.verbs.report import heatmap
from tests.finished import finish, refinish
from tests.patches.pictures import make_store, pictures_of
from tests.reporting.judged import LEAK, make_scores


def embed_store(folder: Path, store: PatchStore) -> Embeddings:
    """Random vectors beside the table of a store."""
    folder.mkdir()
    store.table.save(folder / PATCHES)
    vectors = np.random.default_rng(0).normal(size=(len(store), 4)).astype(np.float32)
    np.save(folder / VECTORS, vectors)
    info = EmbeddingsInfo(
        rows=len(vectors),
        dim=4,
        dtype="float32",
        model=ModelCard(
            name="made", kind="timm", source="timm:made", checksum="sha", group="made", size_px=32, history=UNKNOWN
        ),
        store=relate(store.path, folder),
        store_checksum=store.checksum,
        slides=(),
        splits=None,
        per_slide=None,
        seed=0,
        bad_patches=0,
        versions={},
    )
    (folder / EMBEDDINGS).write_text(info.model_dump_json())
    finish(folder, "embed")
    return Embeddings.load(folder)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`store`: patches of 24 px at twice the slides' mpp, so 48 level-0 px long; `scores`: the test split evaluated."""
    folder = tmp_path_factory.mktemp("heat")
    cohort = draw_cohort(folder, patients=4, slides=1, fields=12, seed=3)
    prepare(cohort, folder / "store", load_config(PrepareConfig, None, ["grid.size_px=24", "grid.mpp=1.0"]), workers=0)
    make_scores(folder / "scores", embed_store(folder / "embeddings", PatchStore.load(folder / "store")), leak=True)
    return folder


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the verb hands to the figure, which is not drawn."""
    seen: dict[str, Any] = {}

    def look(thumbnail: Any, heats: Any, title: str, captions: Any, marked: Any, um_per_px: Any, words: Any) -> str:
        seen.update(
            thumbnail=thumbnail, heats=heats, title=title, captions=captions, marked=marked, um_per_px=um_per_px
        )
        seen["words"] = words
        return "figure"

    monkeypatch.setattr(verb, "draw_heatmap", look)
    monkeypatch.setattr(verb, "render", lambda figure, suffix: f"{figure} as {suffix}".encode())
    return seen


def find_tested(home: Path) -> str:
    return str(Scores.load(home / "scores").predictions("knn", "patch").units["slide"][0])


def paint_slowly(
    shape: tuple[int, int], downsample: float, corners: NDArray[Any], extent: float, values: NDArray[Any]
) -> NDArray[np.float64]:
    """Pixel by pixel: the mean over the patches its middle lies in."""
    y, x = ((np.arange(count) + 0.5) * downsample for count in shape)
    across = [(left <= x) & (x < left + extent) for left, _ in corners]
    down = [(top <= y) & (y < top + extent) for _, top in corners]
    heat = np.full(shape, np.nan)
    for row in range(shape[0]):
        for column in range(shape[1]):
            inside = [number for number in range(len(corners)) if down[number][row] and across[number][column]]
            if inside:
                heat[row, column] = sum(values[inside]) / len(inside)
    return heat


# ---- where


@pytest.mark.parametrize("size", [127.3, 127.5, 126.98, 64.01])
def test_patches_that_touch_leave_no_seam(size: float) -> None:
    """As `hidisc heatmap` calls it: corners and the side in whole pixels."""
    places = np.round(np.arange(8) * size).astype(int)
    corners = np.stack(np.meshgrid(places, places), axis=-1).reshape(-1, 2)
    shape = (int(8 * size), int(8 * size))
    assert not np.isnan(paint(shape, 1.0, corners, ceil(size), np.ones(64))).any()


@pytest.mark.parametrize("seed", range(6))
def test_pixels_get_the_mean_of_the_patches_they_lie_in(seed: int) -> None:
    rng = np.random.default_rng(seed)
    downsample, extent = float(rng.uniform(1, 9)), float(rng.uniform(20, 60))  # overlapping, and over the edges
    corners, values = rng.integers(-30, 200, (9, 2)), rng.random(9)
    shape = (int(180 / downsample), int(150 / downsample))
    slow = paint_slowly(shape, downsample, corners, extent, values)
    np.testing.assert_allclose(paint(shape, downsample, corners, extent, values), slow)
    assert 0 < np.isnan(slow).mean() < 1


def test_a_patch_smaller_than_a_pixel_is_seen() -> None:
    heat = paint((4, 5), 100.0, np.array([[201, 101]]), 10.0, np.array([0.25]))
    assert heat[1, 2] == 0.25
    assert np.isfinite(heat).sum() == 1


def test_the_picture_shows_a_score_where_its_patch_is() -> None:
    thumbnail = np.full((60, 90, 3), 240, np.uint8)
    heat = paint((60, 90), 2.0, np.array([[100, 20], [20, 80]]), 40.0, np.array([1.0, 0.0]))
    figure = draw_heatmap(thumbnail, {"a": heat, "b": np.full((60, 90), np.nan)}, "Slide", ["caption"], "b")
    picture = np.asarray(Image.open(io.BytesIO(render(figure, "png"))).convert("RGB")).astype(int)
    scale = picture.shape[1] / figure.bbox.width
    plain, hot, empty = (axes.get_window_extent() for axes in figure.axes[:3])

    def colour(panel: Any, x: float, y: float) -> NDArray[Any]:
        """At a place of the thumbnail."""
        column = panel.x0 + (x + 0.5) / 90 * panel.width
        row = panel.y0 + (1 - (y + 0.5) / 60) * panel.height
        return picture[len(picture) - round(scale * row), round(scale * column)]

    yellow, purple = colour(hot, 60, 20), colour(hot, 20, 50)
    assert yellow[0] > 200
    assert yellow[1] > 200
    assert yellow[2] < 160  # viridis at 1
    assert purple[1] < 130
    assert purple[2] > purple[1]  # viridis at 0
    for x, y in ((48, 20), (72, 20), (60, 8), (60, 32), (5, 50), (32, 50)):  # around the boxes: the slide in grey
        assert np.ptp(colour(hot, x, y)) == 0
    for x, y in ((51, 11), (69, 29)):  # in its corners
        assert np.abs(colour(hot, x, y) - yellow).max() < 6
    assert (colour(plain, 60, 20) == 240).all()
    assert np.ptp(colour(empty, 60, 20)) == 0


def test_panels_and_their_names() -> None:
    heats = {f"class {number}": np.zeros((30, 40)) for number in range(4)}
    figure = draw_heatmap(np.zeros((30, 40, 3), np.uint8), heats, "Slide S", ["one", "two"], "class 2")
    *panels, bar = [axes for axes in figure.axes if axes.get_visible()]
    titles = [axes.get_title(loc="left") for axes in panels]
    assert titles == ["Slide", "class 0", "class 1", "class 2 (truth)", "class 3"]
    assert bar.get_ylim() == (0, 1)
    assert [text.get_text() for text in figure.texts] == ["Slide S", "one", "two"]


@pytest.mark.parametrize("name", ["$x_1$", "<script>alert(1)</script>", "W" * 300, "two\nlines\0", "患者 🧫"])
def test_any_name_can_be_painted(name: str) -> None:
    figure = draw_heatmap(np.zeros((30, 400, 3), np.uint8), {name: np.zeros((30, 400))}, name, [name, name * 9], name)
    assert render(figure, "png")
    texts = [*figure.texts, *(axes.title for axes in figure.axes), *(axes._left_title for axes in figure.axes)]
    for text in texts:
        assert "\n" not in text.get_text()
        assert not text.get_parse_math()
    for box in boxes_of(figure, texts):
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.width  # nothing runs off the page


@pytest.mark.parametrize(
    ("width_um", "length_um"),
    [(500, 100), (600, 100), (1000, 200), (2000, 500), (2600, 500), (5000, 1000), (9_999, 2000), (26_000, 5000)],
)
def test_a_scale_bar_has_a_round_length_of_about_a_fifth(width_um: float, length_um: float) -> None:
    assert choose_scale_um(width_um) == pytest.approx(length_um)


@pytest.mark.parametrize("width_um", np.geomspace(0.3, 3e6, 50))
def test_a_scale_bar_is_never_far_from_a_fifth(width_um: float) -> None:
    length_um = choose_scale_um(width_um)
    assert f"{length_um:.0e}"[0] in "125"
    assert 0.12 < length_um / width_um < 0.33


@pytest.mark.parametrize(
    ("shape", "um_per_px", "text", "length_px"),
    [((60, 90), 8.0, "200 µm", 25.0), ((900, 600), 16.0, "2 mm", 125.0), ((150, 900), 0.5, "100 µm", 200.0)],
)
def test_the_slide_has_a_scale_bar_of_the_length_that_it_names(
    shape: tuple[int, int], um_per_px: float, text: str, length_px: float
) -> None:
    heats = {"a": np.zeros(shape)}
    figure = draw_heatmap(np.full((*shape, 3), 200, np.uint8), heats, "Slide", um_per_px=um_per_px)
    slide, heat, *_ = figure.axes
    (bar,) = [artist for artist in slide.artists if isinstance(artist, AnchoredSizeBar)]
    assert bar.txt_label.get_text() == text
    (line,) = bar.size_bar.get_children()
    assert line.get_width() == pytest.approx(length_px)
    assert not heat.artists  # its panel has the same scale
    box = bar.get_window_extent(FigureCanvasAgg(figure).get_renderer())
    panel = slide.get_window_extent()
    assert panel.x0 <= box.x0 < box.x1 <= panel.x1
    assert panel.y0 <= box.y0 < box.y1 <= panel.y1


def test_a_slide_of_unknown_scale_has_no_scale_bar() -> None:
    figure = draw_heatmap(np.zeros((60, 90, 3), np.uint8), {"a": np.zeros((60, 90))}, "Slide")
    assert not figure.axes[0].artists


def boxes_of(figure: Any, texts: Iterable[Any]) -> list[Any]:
    """Where texts are, in the figure's own dots."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    with figure_style():
        return [text.get_window_extent(renderer) for text in texts if text.get_text()]


# ---- the verb


def test_the_scores_of_the_slide_are_painted_at_their_places(home: Path, tmp_path: Path, drawn: dict[str, Any]) -> None:
    slide = find_tested(home)
    assert heatmap(home / "store", home / "scores", slide, tmp_path / "heat.png") == tmp_path / "heat.png"
    store = PatchStore.load(home / "store")
    entry = next(item for item in store.info.slides if item.slide == slide)
    pixels, downsample = store.thumbnail(entry)  # type: ignore[misc]
    found = Scores.load(home / "scores").predictions("knn", "patch")
    mine = found.units["slide"] == slide
    corners = np.stack([found.units["x"], found.units["y"]], axis=1)[mine]
    np.testing.assert_array_equal(drawn["thumbnail"], pixels)
    assert list(drawn["heats"]) == list(found.classes)
    numbered = paint_slowly(pixels.shape[:2], downsample, corners, 48.0, np.arange(len(corners)))
    np.testing.assert_array_equal(np.unique(numbered[~np.isnan(numbered)]), np.arange(12))  # no two overlap
    for code, name in enumerate(found.classes):
        heat = drawn["heats"][name]
        np.testing.assert_array_equal(np.isnan(heat), np.isnan(numbered))
        for number, score in enumerate(found.scores[mine, code]):
            assert (heat[numbered == number] == score).all()
    assert drawn["um_per_px"] == 0.5 * downsample  # a level-0 px of the drawn slides is 0.5 um wide
    assert (tmp_path / "heat.png").read_bytes() == b"figure as png"


def test_the_caption_says_truth_prediction_and_leaks(home: Path, tmp_path: Path, drawn: dict[str, Any]) -> None:
    slide = find_tested(home)
    heatmap(home / "store", home / "scores", slide, tmp_path / "heat.png", probe="linear")
    pooled = Scores.load(home / "scores").predictions("linear", "slide")
    place = int(np.flatnonzero(pooled.units["slide"] == slide)[0])
    truth, said = pooled.classes[pooled.truth[place]], pooled.classes[pooled.predicted[place]]
    assert drawn["title"] == f"Slide {slide}"
    assert drawn["marked"] == truth
    assert drawn["captions"] == (
        f"patient {slide[:4]}, truth {truth!r}, predicted {said!r} ({100 * pooled.scores[place].max():.0f} %)",
        "made, linear, 12 patches",
        f"Warning: {LEAK}",
    )


def test_a_label_alone(home: Path, tmp_path: Path, drawn: dict[str, Any]) -> None:
    heatmap(home / "store", home / "scores", find_tested(home), tmp_path / "heat.pdf", label="large-oval")
    assert list(drawn["heats"]) == ["large-oval"]
    assert (tmp_path / "heat.pdf").read_bytes() == b"figure as pdf"


def test_a_slide_of_several_labels_is_painted_without_a_truth(
    home: Path, tmp_path: Path, drawn: dict[str, Any]
) -> None:
    slide, scores = find_tested(home), Scores.load(home / "scores")
    (tmp_path / "scores").mkdir()
    found = scores.predictions("knn", "patch")
    mine = found.units["slide"] == slide
    mixed = found.truth.copy()
    mixed[np.flatnonzero(mine)[0]] = (mixed[mine][0] + 1) % len(found.classes)
    replace(found, truth=mixed).save(tmp_path / "scores" / "predictions_patch.parquet")
    pooled = scores.predictions("knn", "slide")
    kept = pooled.units["slide"] != slide
    units = {name: values[kept] for name, values in pooled.units.items()}
    replace(pooled, units=units, truth=pooled.truth[kept], scores=pooled.scores[kept]).save(
        tmp_path / "scores" / "predictions_slide.parquet"
    )
    (tmp_path / "scores" / SCORES).write_text(scores.info.model_dump_json())
    finish(tmp_path / "scores", "evaluate")
    heatmap(home / "store", tmp_path / "scores", slide, tmp_path / "heat.png")
    mean = found.scores[mine].mean(axis=0)
    assert drawn["marked"] is None
    assert drawn["captions"][0] == (
        f"patient {slide[:4]}, truth of several labels, predicted {found.classes[mean.argmax()]!r} "
        f"({100 * mean.max():.0f} %)"
    )


def test_a_picture_is_written_and_the_same_each_time(home: Path, tmp_path: Path) -> None:
    for name in ("one.png", "two.PNG", "one.pdf"):
        heatmap(home / "store", home / "scores", find_tested(home), tmp_path / name, label="large-oval")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.PNG").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")


# ---- what cannot be painted


def refused(store: Path, scores: Path, slide: str, out: Path, **options: Any) -> str:
    with pytest.raises(UserError) as error:
        heatmap(store, scores, slide, out, **options)
    assert not out.exists()
    return str(error.value)


def test_wrong_names_are_refused_with_the_right_ones(home: Path, tmp_path: Path) -> None:
    store, scores, slide, out = home / "store", home / "scores", find_tested(home), tmp_path / "heat.png"
    said = refused(store, scores, slide, tmp_path / "heat.jpg")
    assert (
        said == f"--out {tmp_path}/heat.jpg is neither a .png nor a .pdf file. Give a name that ends in one of these."
    )
    said = refused(store, scores, slide[:-1] + "9", out)
    assert said.startswith(f"{slide[:-1] + '9'!r} is no slide of {store}. Did you mean ")
    assert repr(slide) in said
    assert refused(store, scores, "???", out) == (
        f"'???' is no slide of {store}. There are 'P001-S1', 'P002-S1', 'P003-S1', 'P004-S1'."
    )
    said = refused(store, scores, slide, out, label="oval")
    assert said == "--label 'oval' is none of the classes: dense-round, dense-spindle, large-oval, sparse-round."
    said = refused(store, scores, slide, out, probe="forest")
    assert said == f"{scores} has no probe 'forest'. It has knn, linear, mil."


def test_a_slide_that_was_not_asked_about(home: Path, tmp_path: Path) -> None:
    asked = set(Scores.load(home / "scores").predictions("knn", "patch").units["slide"])
    other = next(item.slide for item in PatchStore.load(home / "store").info.slides if item.slide not in asked)
    said = refused(home / "store", home / "scores", other, tmp_path / "heat.png")
    assert said == (
        f"slide {other!r} is not of the test patients of {home / 'scores'} (splits: test). "
        f"Some that are: {', '.join(map(repr, sorted(asked)))}."
    )


def test_probes_without_scores_of_patches_or_slides(home: Path, tmp_path: Path) -> None:
    slide, scores = find_tested(home), Scores.load(home / "scores")
    said = refused(home / "store", home / "scores", slide, tmp_path / "heat.png", probe="mil")
    assert said == (
        f"'mil' in {home / 'scores'} has no scores of single patches (only of: slide, patient), so there is nothing to "
        "paint. Choose another probe, or evaluate with levels that end in patch."
    )
    (tmp_path / "scores").mkdir()
    found = scores.predictions("knn", "patch")
    units = {name: values for name, values in found.units.items() if name != "slide"}
    replace(found, units=units).save(tmp_path / "scores" / "predictions_patch.parquet")
    info = scores.info.model_copy(update={"levels": ("patient", "patch")})
    (tmp_path / "scores" / SCORES).write_text(info.model_dump_json())
    finish(tmp_path / "scores", "evaluate")
    said = refused(home / "store", tmp_path / "scores", slide, tmp_path / "heat.png")
    assert said == (
        f"{tmp_path / 'scores'} was evaluated without slides (levels patient, patch), so it is not known which patches "
        "are of which. Evaluate with levels=[patient, slide, patch]."
    )


def test_imported_patches_have_no_slide_to_paint_on(home: Path, tmp_path: Path) -> None:
    store = make_store(tmp_path, pictures_of("P1/A", "P2/B"))
    scores = Path(shutil.copytree(home / "scores", tmp_path / "scores"))
    info = Scores.load(scores).info.model_copy(update={"store_checksum": store.checksum})
    (scores / SCORES).write_text(info.model_dump_json())
    refinish(scores)
    said = refused(store.path, scores, "P1/A", tmp_path / "heat.png")
    assert said == (
        f"slide 'P1/A' of {store.path} was imported as patches, so it has no thumbnail to paint on. "
        "Heatmaps need a store made by `hidisc prepare`."
    )


def test_scores_of_another_store_are_not_painted(home: Path, tmp_path: Path) -> None:
    other = shutil.copytree(home / "store", tmp_path / "store")
    PatchStore.load(other).table.select(np.arange(5)).save(other / "patches.parquet")
    refinish(other)
    assert refused(other, home / "scores", find_tested(home), tmp_path / "heat.png") == (
        f"{home / 'scores'} was made of other patches or labels than {other} holds now. Give the store that was "
        "embedded, or embed and evaluate this one."
    )
