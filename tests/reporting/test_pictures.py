"""The page shows the patches it says it shows: on the map, on the sheets, and as pictures."""

import base64
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.colors import to_hex
from numpy.typing import NDArray
from PIL import Image

from hidisc.embeddings.embeddings import EMBEDDINGS, PATCHES, VECTORS, Embeddings, EmbeddingsInfo, ModelCard
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.predictions import ENCODER, Key, Predictions
from hidisc.evaluation.scores import DuplicatePair, Finding, PatchName, Scores
from hidisc.ground.files import relate
from hidisc.models.card import History
from hidisc.patches.record import SlideId
from hidisc.patches.store import PatchStore
from hidisc.patches.table import SCHEMA, PatchTable
from hidisc.reporting.compose import compose
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.points import (
    GREY,
    MapInput,
    PatchReader,
    Points,
    choose_points,
    find_map_input,
    judge_patches,
    name_points,
    pack_sprite,
    read_points,
    to_uri,
)
from hidisc.reporting.sheets import (
    SHEET_PX,
    SheetRow,
    SheetTile,
    choose_queries,
    draw_sheet,
    make_sheet,
    show_duplicates,
)
from hidisc.settings.report import ReportConfig
from hidisc.slides.slide import shrink
from tests.evaluation.made import make_embeddings
from tests.finished import finish
from tests.reporting.judged import make_scores
from tests.training.stores import damage, make_store

Rename = Mapping[str, Callable[[str], str | None]]


def embed_store(
    store: Path,
    folder: Path,
    *,
    rows: NDArray[np.int64] | None = None,
    name: str = "made",
    rename: Rename | None = None,
    seed: int = 0,
) -> Embeddings:
    """Embeddings of a store's patches (or of `rows` of its table): random vectors, in which the class shows.

    `rename`: other names for those in a column of the table, such as `{"patient": str.upper}`.
    """
    opened = PatchStore.load(store)
    table = opened.table.select(np.arange(len(opened)) if rows is None else rows)
    columns = {field.name: table.arrow.column(field.name) for field in SCHEMA}
    for column, new in (rename or {}).items():
        old = table.column(column)
        columns[column] = pa.array([new(str(value)) for value in old], pa.string()).dictionary_encode()
    rng = np.random.default_rng(seed)
    bright = np.array([ord(str(label)[-1]) for label in table.column("label")])
    vectors = rng.normal(size=(len(table), 8)) + 2 * (bright[:, None] == bright.max())
    folder.mkdir(parents=True)
    PatchTable(pa.table(columns, schema=SCHEMA)).save(folder / PATCHES)
    np.save(folder / VECTORS, vectors.astype(np.float32))
    slides = tuple(
        SlideId(patient=slide.patient, slide=slide.slide, checksum=slide.checksum) for slide in opened.info.slides
    )
    card = ModelCard(
        name=name, kind="run", source=f"../runs/{name}", checksum=f"sha-{name}", group=name, seed=seed, size_px=32,
        backbone="test_resnet", objective="hidisc", history=History(slides=slides[:4]),
    )  # fmt: skip
    info = EmbeddingsInfo(
        rows=len(table), dim=8, dtype="float32", model=card, store=relate(store, folder), slides=slides, splits=None,
        store_checksum=opened.checksum, per_slide=None, seed=0, bad_patches=0, versions={},
    )  # fmt: skip
    (folder / EMBEDDINGS).write_text(info.model_dump_json())
    finish(folder, "embed")
    return Embeddings.load(folder)


def unpack(uri: str) -> NDArray[np.uint8]:
    """The pixels in a data address."""
    head, data = uri.split(",", 1)
    assert head == "data:image/jpeg;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def alike(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Correlation of two pictures."""
    return float(np.corrcoef(a.ravel().astype(float), b.ravel().astype(float))[0, 1])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("store"), patches=4)


# ---- pictures


def test_tiles_are_the_patches_that_were_embedded(store: Path, tmp_path: Path) -> None:
    """Embeddings are a part of the store in another order; rows of either mean different patches."""
    rows = np.random.default_rng(0).permutation(64)[:30]
    embeddings = embed_store(store, tmp_path / "emb", rows=rows)
    reader = PatchReader()
    found = reader.tiles(embeddings, np.array([7, 0, 29]), 32)
    opened = PatchStore.load(store)
    assert found is not None
    np.testing.assert_array_equal(found, opened.read_many(rows[[7, 0, 29]]))
    smaller = reader.tiles(embeddings, np.array([3]), 16)
    assert smaller is not None
    np.testing.assert_array_equal(smaller[0], shrink(opened.read(int(rows[3])), 16))
    assert reader.missing == ()
    assert reader.unreadable == 0


def test_a_patch_that_cannot_be_read_is_grey_and_counted(tmp_path: Path) -> None:
    store = make_store(tmp_path, patches=2)
    embeddings = embed_store(store, tmp_path / "emb")
    damage(store, 5)
    reader = PatchReader()
    found = reader.tiles(embeddings, np.arange(8), 16)
    assert found is not None
    assert (found[5] == GREY).all()
    assert all(found[place].std() > 5 for place in range(8) if place != 5)
    assert reader.unreadable == 1


@pytest.mark.parametrize("fate", ["gone", "changed"])
def test_without_its_store_there_are_no_pictures_and_a_reason(store: Path, tmp_path: Path, fate: str) -> None:
    embeddings = embed_store(store, tmp_path / "emb")
    change = {"store": str(tmp_path / "none")} if fate == "gone" else {"store_checksum": "another"}
    info = embeddings.info.model_copy(update=change)
    moved = Embeddings(embeddings.artefact, info, embeddings.table, embeddings.vectors)
    reader = PatchReader()
    assert reader.tiles(moved, np.arange(3), 16) is None
    assert reader.tiles(moved, np.arange(3), 16) is None
    (reason,) = reader.missing
    name = "none" if fate == "gone" else "store"
    assert reason == (
        f"the store {name!r} is not where it was, or has changed. Embed it again to see its pictures."
    )  # and nobody's home
    assert reader.tiles(embeddings, np.arange(3), 16) is not None  # others know where it is
    inputs = MapInput("a", moved, np.arange(3), None, (), "label")
    points = choose_points([inputs], 3, np.random.default_rng(0))
    assert read_points(reader, [inputs], points, 16) is None


@pytest.mark.parametrize(("count", "side", "sheets"), [(1, 16, 1), (7, 24, 1), (300, 256, 2)])
def test_a_sprite_holds_each_tile_where_it_says(count: int, side: int, sheets: int) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (count, 3), dtype=np.uint8)
    tiles = np.broadcast_to(colours[:, None, None], (count, side, side, 3))
    sprite = pack_sprite(np.ascontiguousarray(tiles))
    assert len(sprite.uris) == sheets
    assert sprite.side_px == side
    pixels = [unpack(uri) for uri in sprite.uris]
    assert max(max(sheet.shape) for sheet in pixels) <= 4096
    for number in range(count):
        row, column = divmod(number % sprite.each, sprite.across)
        top, left = row * side, column * side
        tile = pixels[number // sprite.each][top : top + side, left : left + side].astype(int)
        assert tile.shape == (side, side, 3)
        middle = tile[2:-2, 2:-2]
        assert np.abs(middle - colours[number]).max() < 12, number


# ---- the map


def inputs(embeddings: Embeddings, rows: NDArray[np.int64], classes: tuple[str, ...] = ("a", "b")) -> MapInput:
    return MapInput(embeddings.info.model.name, embeddings, rows, None, classes, "label")


def identity(one: MapInput, places: NDArray[np.int64]) -> list[tuple[str, int]]:
    slide, patch = (one.embeddings.table.column(name)[one.rows[places]] for name in ("slide", "patch"))
    return list(zip(slide.tolist(), patch.tolist(), strict=True))


def test_all_encoders_show_the_same_patches(store: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(64)
    ones = [
        inputs(embed_store(store, tmp_path / "a"), np.arange(10, 60)),
        inputs(embed_store(store, tmp_path / "b", rows=order, name="b"), np.flatnonzero(order >= 5)),
    ]
    points = choose_points(ones, 20, np.random.default_rng(3))
    shown = [identity(one, places) for one, places in zip(ones, points.places, strict=True)]
    assert points.shared
    assert shown[0] == shown[1]
    assert len(set(shown[0])) == 20 == len(points.home)
    np.testing.assert_array_equal(points.patch[0], np.arange(20))
    np.testing.assert_array_equal(points.patch[1], np.arange(20))
    # at random: neither in the order of the table, nor always the same ones
    assert (np.diff(points.places[0]) < 0).any()
    other = choose_points(ones, 20, np.random.default_rng(4))
    assert set(identity(ones[0], other.places[0])) != set(shown[0])
    again = choose_points(ones, 20, np.random.default_rng(3))
    np.testing.assert_array_equal(again.places[1], points.places[1])


def test_points_are_no_more_than_there_are(store: Path, tmp_path: Path) -> None:
    points = choose_points([inputs(embed_store(store, tmp_path / "a"), np.arange(9))], 50, np.random.default_rng(0))
    assert sorted(points.places[0]) == list(range(9))
    assert points.shared


def test_encoders_with_little_in_common_show_their_own(store: Path, tmp_path: Path) -> None:
    """Two patches are in both and count once, so that they can be found in either map."""
    a, b = embed_store(store, tmp_path / "a"), embed_store(store, tmp_path / "b", name="b")
    ones = [inputs(a, np.arange(0, 22)), inputs(b, np.arange(20, 40))]
    points = choose_points(ones, 50, np.random.default_rng(0))
    assert not points.shared
    assert [len(places) for places in points.places] == [22, 20]
    assert len(points.home) == 40
    shared = set(points.patch[0]) & set(points.patch[1])
    assert len(shared) == 2
    for number in shared:
        where = [int(np.flatnonzero(patch == number)[0]) for patch in points.patch]
        assert identity(ones[0], points.places[0][where[:1]]) == identity(ones[1], points.places[1][where[1:]])


def test_patches_of_different_stores_are_never_the_same(store: Path, tmp_path: Path) -> None:
    other = make_store(tmp_path, patches=3)
    ones = [
        inputs(embed_store(store, tmp_path / "a"), np.arange(48)),
        inputs(embed_store(other, tmp_path / "b", name="b"), np.arange(48)),
    ]
    points = choose_points(ones, 30, np.random.default_rng(0))
    assert not points.shared
    assert len(points.home) == 60
    sprite = read_points(PatchReader(), ones, points, 32)
    assert sprite is not None
    sheet = unpack(sprite.uris[0])
    for number in (0, 29, 30, 59):
        encoder, place = points.home[number]
        row, column = divmod(number, sprite.across)
        tile = sheet[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
        read = PatchStore.load([store, other][encoder]).read(int(ones[encoder].rows[place]))
        assert alike(tile, read) > 0.9, number


def test_points_have_the_names_of_their_patches(store: Path, tmp_path: Path) -> None:
    rename: Rename = {"label": lambda name: None if name == "a" else "z", "site": lambda _: None}
    one = embed_store(store, tmp_path / "a", rename=rename)
    two = embed_store(store, tmp_path / "b", rename={"site": lambda _: "north"})
    ones = [inputs(one, np.arange(4, 9), ()), inputs(two, np.arange(30, 50))]
    points = Points((), (), np.array([[0, 0], [0, 4], [1, 0], [1, 19]]), False)
    columns = {column.key: column for column in name_points(ones, points)}
    assert list(columns) == ["label", "patient", "slide", "site"]
    assert columns["label"].names == ("a", "b", "z")  # the classes that were asked about first
    for key, column in columns.items():
        for number, (encoder, place) in enumerate(points.home):
            table = ones[encoder].embeddings.table
            value = table.column(key)[ones[encoder].rows[place]]
            code = column.codes[number]
            assert (None if code < 0 else column.names[code]) == value, (key, number)
    assert "site" not in {column.key for column in name_points(ones[:1], Points((), (), np.array([[0, 0]]), True))}


def test_the_map_is_of_the_queries_by_the_nearest_neighbours(tmp_path: Path) -> None:
    embeddings = make_embeddings(tmp_path / "emb")
    scores = make_scores(tmp_path / "scores", embeddings, probes=("mil", "linear", "knn"))
    found = find_map_input(EvaluatedModel("x", (scores,), (embeddings,), None))
    assert found is not None
    assert set(embeddings.table.column("split")[found.rows]) == {"test"}
    judged = scores.predictions("knn", "patch")
    np.testing.assert_array_equal(found.predicted, judged.predicted)
    np.testing.assert_array_equal(found.rows, judged.units["row"])
    assert found.classes == ("a", "b", "c")


def test_the_map_of_an_evaluation_that_judged_no_patches(tmp_path: Path) -> None:
    embeddings = make_embeddings(tmp_path / "emb")
    scores = make_scores(tmp_path / "scores", embeddings, probes=("mil",))
    found = find_map_input(EvaluatedModel("x", (scores,), (embeddings,), None))
    assert found is not None
    assert judge_patches(scores) is None
    assert found.predicted is None
    np.testing.assert_array_equal(found.rows, np.flatnonzero(embeddings.table.column("split") == "test"))


@pytest.mark.parametrize(("test", "expected"), [(0.5, 180), (0.0, 360)])
def test_the_map_of_embeddings_alone_is_of_their_test_split_or_of_all(
    tmp_path: Path, test: float, expected: int
) -> None:
    embeddings = make_embeddings(tmp_path / "emb", test=test)
    found = find_map_input(EvaluatedModel("x", (), (embeddings,), None))
    assert found is not None
    assert len(found.rows) == expected
    assert find_map_input(EvaluatedModel("x", (), (None,), None)) is None


# ---- sheets


def predictions_of(truth: list[int], said: list[int], patients: list[str]) -> Predictions:
    scores = np.eye(2)[said] * 0.5 + 0.25
    units = {"patient": np.array(patients, object), "row": np.arange(len(truth))}
    endpoint = Classes(label="label", classes=("a", "b"), positive=0)
    return Predictions(Key(ENCODER, "knn", "patch"), endpoint, units, np.array(truth), scores)


def test_queries_are_right_or_wrong_and_of_many_patients() -> None:
    truth = [0] * 40
    said = [0] * 20 + [1] * 20
    patients = (["p"] * 17 + ["q", "r", "s"]) * 2
    predictions = predictions_of(truth, said, patients)
    for right in (True, False):
        chosen = choose_queries(predictions, 5, right, np.random.default_rng(0))
        assert ((predictions.predicted == predictions.truth)[chosen] == right).all()
        assert set(predictions.clusters[chosen[:4]]) == {"p", "q", "r", "s"}
        assert len(set(chosen)) == 5
    several = {tuple(choose_queries(predictions, 5, True, np.random.default_rng(seed))) for seed in range(5)}
    assert len(several) > 1
    assert len(choose_queries(predictions, 50, True, np.random.default_rng(0))) == 20
    assert len(choose_queries(predictions_of([0], [0], ["p"]), 5, False, np.random.default_rng(0))) == 0


def test_a_sheet_shows_queries_beside_their_neighbours(store: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(2).permutation(64)
    queries = embed_store(store, tmp_path / "queries")
    bank = embed_store(store, tmp_path / "bank", rows=order)
    truth = queries.table.column("label")[:10]
    predictions = predictions_of([int(label == "b") for label in truth], [0] * 10, ["p"] * 10)
    near = np.random.default_rng(0).integers(0, 64, (10, 3))
    near[4, 2] = -1
    similar = np.linspace(1, 0, 30, dtype=np.float32).reshape(10, 3)
    reader = PatchReader()
    rows = make_sheet(reader, queries, bank, predictions, (near, similar), np.array([4, 9]), "label")
    opened = PatchStore.load(store)
    assert [len(row.neighbours) for row in rows] == [2, 3]
    for place, row in zip((4, 9), rows, strict=True):
        assert row.query.label == truth[place]
        assert row.query.patient == queries.table.column("patient")[place]
        assert row.predicted == "a"
        assert row.query.uri is not None
        assert alike(unpack(row.query.uri), shrink(opened.read(place), SHEET_PX)) > 0.95
        for number, shown in enumerate(row.neighbours):
            at = near[place, number]
            assert shown.label == bank.table.column("label")[at]
            assert shown.patient == bank.table.column("patient")[at]
            assert shown.agrees == (shown.label == truth[place])
            assert shown.similarity == pytest.approx(similar[place, number])
            assert shown.uri is not None
            assert alike(unpack(shown.uri), shrink(opened.read(int(order[at])), SHEET_PX)) > 0.95


def test_a_sheet_is_a_figure_too() -> None:
    """Each query is followed by its neighbours, and their borders say whether they agree."""
    tile = to_uri(np.full((16, 16, 3), 200, np.uint8))
    query = SheetTile(tile, "$a_b$", "p", True)
    near = tuple(SheetTile(tile, "a" * 60, "q", agrees, 0.25) for agrees in (True, False, True))
    axes = draw_sheet([SheetRow(query, "z", near), SheetRow(query, "$a_b$", near[:1])]).axes[0]
    assert len(axes.images) == 6
    borders = [to_hex(patch.get_edgecolor()) for patch in axes.patches]
    assert [borders.count(colour) for colour in ("#0a6e5c", "#d1571f")] == [3, 1]
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("predicted z") == 1
    assert texts.count("$a_b$") == 2
    assert texts.count("0.250") == 4
    assert max(map(len, texts)) <= 17
    assert not any(text.get_parse_math() for text in axes.texts)
    assert not draw_sheet([]).axes[0].images


def test_a_sheet_without_pictures_still_names_its_patches(store: Path, tmp_path: Path) -> None:
    made = embed_store(store, tmp_path / "emb")
    info = made.info.model_copy(update={"store": str(tmp_path / "none")})
    gone = Embeddings(made.artefact, info, made.table, made.vectors)
    predictions = predictions_of([0, 0], [0, 0], ["p", "p"])
    found = (np.array([[1], [0]]), np.ones((2, 1), np.float32))
    rows = make_sheet(PatchReader(), gone, gone, predictions, found, np.array([0]), "label")
    assert rows[0].query.uri is None
    assert rows[0].neighbours[0].uri is None
    assert rows[0].neighbours[0].patient


# ---- near-duplicates


def test_pairs_that_are_one_picture_stand_side_by_side(store: Path, tmp_path: Path) -> None:
    """Rows are those of the store, whatever rows were embedded; a pair that two seeds found is shown once."""
    opened = PatchStore.load(store)
    rows = np.random.default_rng(0).permutation(64)
    table = opened.table

    def named(row: int) -> PatchName:
        patient, slide, patch = (str(table.column(column)[row]) for column in ("patient", "slide", "patch"))
        return PatchName(patient=patient, slide=slide, patch=patch, row=row)

    pairs = tuple(
        DuplicatePair(query=named(ours), bank=named(theirs), agreement=agreement)
        for ours, theirs, agreement in ((5, 60, 0.914), (40, 3, 1.0))
    )
    finding = Finding(kind="leak", sentence="Two.", pairs=pairs)
    judged = []
    for seed in range(2):
        embeddings = embed_store(store, tmp_path / f"emb{seed}", rows=rows, seed=seed)
        made = make_scores(tmp_path / f"scores{seed}", embeddings, seed=seed)
        judged.append(Scores(made.artefact, made.info.model_copy(update={"leakage": (finding,)})))
        judged[-1].info.model_validate_json(judged[-1].info.model_dump_json())
    model = EvaluatedModel("one", tuple(judged), (None, None), None)
    page = compose([model], tmp_path / "page_files", ReportConfig(points=20), lambda _: None)
    part = page.split('<section id="duplicates">')[1].split("</section>")[0]
    assert '<a href="#duplicates">' in page
    uris = re.findall(r'src="(data:image/jpeg;base64,[^"]*)"', part)
    assert len(uris) == 4
    for uri, row in zip(uris, (5, 60, 40, 3), strict=True):
        pixels = opened.read(row)
        assert alike(unpack(uri), shrink(pixels, SHEET_PX)) > 0.98
        assert f"<bdi>{table.column('slide')[row]}, {table.column('patch')[row]}</bdi>" in part
        assert f"<bdi>{table.column('patient')[row]}</bdi>" in part
    assert re.findall(r'num">([0-9.]+)<', part) == ["0.91", "1.00"]


def test_pairs_without_their_store_are_named(store: Path, tmp_path: Path) -> None:
    embeddings = embed_store(store, tmp_path / "emb")
    patch = PatchName(patient="P", slide="S", patch="7", row=3)
    finding = Finding(kind="warning", sentence="One.", pairs=(DuplicatePair(query=patch, bank=patch, agreement=0.9),))
    made = make_scores(tmp_path / "scores", embeddings)
    scores = Scores(made.artefact, made.info.model_copy(update={"leakage": (finding,), "bank": "gone"}))
    [(ours, theirs)] = show_duplicates([EvaluatedModel("one", (scores,), (None,), None)], PatchReader())
    assert ours.uri is not None
    assert theirs == SheetTile(None, "S, 7", "P", True, 0.9)
