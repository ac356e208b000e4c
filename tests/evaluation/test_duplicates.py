"""A test patch that is a picture of another patient's reference patch is found by its pixels, and nothing else is."""

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hidisc.artefacts.artefact import Artefact, Manifest
from hidisc.embeddings.embeddings import Embeddings, EmbeddingsInfo, ModelCard, find_rows_in_store
from hidisc.evaluation import duplicates
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.duplicates import find_duplicates
from hidisc.evaluation.scores import DuplicatePair, Finding, PatchName
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.errors import UserError
from hidisc.models.card import UNKNOWN
from hidisc.patches.store import PatchStore
from hidisc.settings.evaluate import LeakageConfig
from hidisc.settings.prepare import FilterConfig
from tests.evaluation.test_detail import eye
from tests.patches.pictures import make_store, noise
from tests.training.stores import damage

PATCHES = 5
NEVER = "of 65,000 such pairs of different patients in six public cohorts none reached 0.8"
BANK, QUERIES = ("A", "B"), ("Y", "Z")


def tissue(seed: int, size_px: int = 48) -> NDArray[np.uint8]:
    """Coarse coloured noise, (size_px, size_px, 3), others for every seed."""
    blocks = np.random.default_rng(seed).integers(40, 220, (12, 12, 3), dtype=np.uint8)
    return blocks.repeat(size_px // 12, 0).repeat(size_px // 12, 1)


def glass(seed: int) -> NDArray[np.uint8]:
    """White with the same faint shadow at one edge, and noise."""
    shadow = 240 - np.linspace(0, 10, 48)[:, None, None]
    return (shadow + np.random.default_rng(seed).normal(0, 1, (48, 48, 3))).round().astype(np.uint8)


def saved_again(pixels: NDArray[np.uint8], quality: int = 60) -> NDArray[np.uint8]:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def pictures() -> dict[str, NDArray[np.uint8]]:
    """Two patients of the bank and two of the queries, one slide each; every patch is another picture."""
    names = [f"{patient}/{patient.lower()}/{number}.png" for patient in BANK + QUERIES for number in range(PATCHES)]
    return {name: tissue(seed) for seed, name in enumerate(names)}


def stored(folder: Path, changed: dict[str, NDArray[np.uint8]] | None = None) -> PatchStore:
    return make_store(folder, pictures() | (changed or {}), filter=FilterConfig(min_pixel_std=0))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> PatchStore:
    """No picture twice; not to be changed."""
    return stored(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> PatchStore:
    """Patch 1 of Z is patch 3 of A, turned over and saved anew; not to be changed."""
    copy = saved_again(pictures()["A/a/3.png"][::-1].transpose(1, 0, 2))
    return stored(tmp_path_factory.mktemp("copied"), {"Z/z/1.png": copy})


def embed(store: PatchStore, rows: NDArray[np.int64] | None = None) -> Embeddings:
    """Some rows of a store with vectors of zeros: what is nearest is said by the tests."""
    table = store.table if rows is None else store.table.select(rows)
    artefact = Artefact(Path("made"), Manifest(kind="embed", inputs={}, files=()))
    info = EmbeddingsInfo(
        rows=len(table),
        dim=2,
        dtype="float32",
        model=ModelCard(name="made", kind="run", source="", checksum="", group="", size_px=48, history=UNKNOWN),
        store=str(store.path),
        store_checksum=store.checksum,
        slides=(),
        splits=None,
        per_slide=None,
        seed=0,
        bad_patches=0,
        versions={},
    )
    return Embeddings(artefact, info, table, np.zeros((len(table), 2), np.float32))


def side_of(embeddings: Embeddings, patients: tuple[str, ...]) -> LabelledPatches:
    rows = np.flatnonzero(np.isin(embeddings.table.column("patient"), patients))
    return LabelledPatches(embeddings, rows, np.zeros(len(rows), np.int64), 0)


def task_of(queries: Embeddings, bank: Embeddings | None = None) -> Task:
    levels = ("patient", "slide", "patch")
    return Task(
        Classes(label="label", classes=("a", "b"), positive=1),
        levels,
        side_of(bank or queries, BANK),
        side_of(queries, QUERIES),
    )


def row_of(embeddings: Embeddings, slide: str, patch: int) -> int:
    table = embeddings.table
    [row] = np.flatnonzero((table.column("slide") == slide) & (table.column("patch") == patch))
    return int(row)


def look(
    store: PatchStore, near: dict[tuple[str, int], tuple[str, int]] | None = None, **settings: float
) -> Finding | None:
    """The finding when each query's nearest is patch 0 of A, but for those that `near` names by (slide, patch)."""
    embeddings = embed(store)
    task = task_of(embeddings)
    rows = np.full((len(task.queries), 1), row_of(embeddings, "A/a", 0))
    for (slide, patch), there in (near or {}).items():
        rows[task.queries.rows == row_of(embeddings, slide, patch)] = row_of(embeddings, *there)
    similarities = np.full(rows.shape, 0.9, np.float32)
    return find_duplicates(task, rows, similarities, LeakageConfig(**settings), store, store)


def test_a_turned_and_saved_copy_is_found_and_named(copied: PatchStore) -> None:
    found = look(copied, {("Z/z", 1): ("A/a", 3)})
    assert found is not None
    [pair] = found.pairs
    assert LeakageConfig().detail < pair.agreement < 1
    embeddings = embed(copied)
    assert pair == DuplicatePair(
        query=PatchName(patient="Z", slide="Z/z", patch="1", row=row_of(embeddings, "Z/z", 1)),
        bank=PatchName(patient="A", slide="A/a", patch="3", row=row_of(embeddings, "A/a", 3)),
        agreement=pair.agreement,
    )
    assert found.kind == "leak"
    assert found.sentence == (
        "1 test patch is a near-duplicate of a reference patch of another patient (10 % of all 10): patients 'Z' "
        "and 'A' share 1 picture (patch 1 of slide 'Z/z' is patch 3 of slide 'A/a'). The detail of these "
        f"pictures, without outline and brightness, correlates to at least {pair.agreement:.2f} with 99.9 % certainty; "
        f"{NEVER}. Check whether a slide was scanned or saved twice, and list both under one patient."
    )


def test_smooth_tiles_with_one_corner_are_no_alarm(tmp_path: Path) -> None:
    """An honest cohort of eyes: the tiles of all patients have one outline and one light, and detail of their own."""
    files = {f"{patient}/{patient.lower()}/0.png": eye(seed) for seed, patient in enumerate("ABYZ")}
    store = make_store(tmp_path, files)
    embeddings = embed(store)
    for reference in task_of(embeddings).bank.rows:
        rows = np.full((2, 1), reference)
        found = find_duplicates(
            task_of(embeddings), rows, np.ones(rows.shape, np.float32), LeakageConfig(), store, store
        )
        assert found is None or found.kind == "note"


def test_a_shifted_copy_is_found(tmp_path: Path) -> None:
    wide = tissue(7, 60)
    store = stored(tmp_path, {"A/a/0.png": wide[:48, :48], "Z/z/0.png": saved_again(wide[4:52, 3:51])})
    found = look(store)
    assert found is not None
    assert found.sentence.startswith("1 test patch is a near-duplicate")


def test_too_little_detail_is_said_and_equal_pixels_are_found(tmp_path: Path) -> None:
    dim = np.full((48, 48, 3), 130, np.uint8)
    dim[20:24, 30:37] += 2
    other = dim[::-1].copy()
    store = stored(tmp_path, {"A/a/0.png": dim, "Z/z/0.png": other, "Y/y/0.png": np.full_like(dim, 9)})
    assert look(store) == Finding(
        kind="note",
        sentence="No near-duplicates were found among the reference patches of other patients, but 10 of 10 pairs show "
        "so little detail that a copy which was saved or scanned again may not be recognised.",
    )
    assert look(store, {(f"{one}/{one.lower()}", n): ("B/b", 1) for one in "YZ" for n in range(1, PATCHES)}) == Finding(
        kind="note",
        sentence="No near-duplicates were found among the reference patches of other patients, but 2 of 10 pairs show "
        "so little detail that a copy which was saved or scanned again may not be recognised.",
    )
    equal = stored(tmp_path / "equal", {"A/a/0.png": dim, "Z/z/0.png": dim})
    found = look(equal, {(f"{one}/{one.lower()}", n): ("B/b", 1) for one in "YZ" for n in range(1, PATCHES)})
    assert found is not None
    assert [pair.agreement for pair in found.pairs] == [1]
    assert "'A/a'). Their pixels are equal. 1 further pair had too little detail to tell. Check" in found.sentence
    white = np.full_like(dim, 255)
    assert "near-duplicates were found" in str(look(stored(tmp_path / "w", {"A/a/0.png": white, "Z/z/0.png": white})))


def test_as_many_as_may_be_are_a_warning(copied: PatchStore) -> None:
    for most, kind in ((0.1, "warning"), (0.09, "leak")):
        found = look(copied, {("Z/z", 1): ("A/a", 3)}, max_duplicates=most)
        assert found is not None
        assert found.kind == kind


def test_embeddings_alone_prove_nothing(plain: PatchStore, copied: PatchStore) -> None:
    # every query is said to be as near as can be to a patch of the bank that it is not
    assert look(plain) is None
    assert look(copied, {("Z/z", 1): ("A/a", 2)}) is None


def test_an_encoder_that_finds_all_alike_raises_no_alarm(plain: PatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_MOST", 4)
    embeddings = embed(plain)
    task = task_of(embeddings)
    rows = np.tile(task.bank.rows, (len(task.queries), 1))
    similarities = np.ones(rows.shape, np.float32) - np.float32(1e-6) * noise(0, len(rows), 1)[:, :1, 0]
    assert find_duplicates(task, rows, similarities, LeakageConfig(), plain, plain) is None


def test_glass_is_like_glass_and_no_duplicate(tmp_path: Path) -> None:
    changed = {
        "Y/y/0.png": glass(1),
        "Y/y/1.png": glass(1),
        "A/a/0.png": glass(2),
        "A/a/1.png": np.full_like(glass(1), 9),
    }
    small = [np.asarray(Image.fromarray(glass(seed)).resize((16, 16)), float) for seed in (1, 2)]
    assert np.corrcoef(*(picture.ravel() for picture in small))[0, 1] > 0.97
    found = look(stored(tmp_path, changed), {("Y/y", 1): ("A/a", 1)})
    assert found is None or found.kind == "note"


def test_the_nearest_of_another_patient_is_looked_at(copied: PatchStore) -> None:
    """The bank has patches of Z too; those of its own patient are passed over."""
    embeddings = embed(copied)
    everyone = side_of(embeddings, (*BANK, *QUERIES))
    task = replace(task_of(embeddings), bank=everyone)
    count = len(task.queries)
    own = task.queries.rows
    rows = np.stack(
        [own, np.full(count, row_of(embeddings, "B/b", 0)), np.full(count, row_of(embeddings, "A/a", 3))], axis=1
    )
    nearness = np.tile(np.array([1.0, 0.5, 0.6], np.float32), (count, 1))
    found = find_duplicates(task, rows, nearness, LeakageConfig(), copied, copied)
    assert found is not None
    assert found.sentence.startswith("1 test patch is a near-duplicate")
    assert find_duplicates(task, rows[:, :1], nearness[:, :1], LeakageConfig(), copied, copied) is None
    rows[:, 2] = -1  # none
    assert find_duplicates(task, rows, nearness, LeakageConfig(), copied, copied) is None
    pairs = duplicates._choose_pairs(task, rows[:, 2:], nearness[:, 2:], np.random.default_rng(0))
    assert len(pairs.queries) == pairs.candidates == 0


def test_patients_are_compared_by_name_between_stores(copied: PatchStore, tmp_path: Path) -> None:
    """The same name has another code in the other store."""
    changed = {f"{patient}/{patient.lower()}/{n}.png": tissue(100 + n) for patient in "0C" for n in range(2)}
    other = stored(tmp_path, changed)
    queries, bank = embed(copied), embed(other)
    assert bank.table.codes("patient")[1].index("A") != queries.table.codes("patient")[1].index("A")
    task = replace(task_of(queries, bank), queries=side_of(queries, ("A", "Z")))
    rows = np.full((len(task.queries), 1), row_of(bank, "A/a", 3))
    found = find_duplicates(task, rows, rows * np.float32(0), LeakageConfig(), copied, other)
    assert found is not None
    assert found.sentence.startswith("1 test patch is a near-duplicate")  # patch 3 of A itself is A's own
    assert "patch 1 of slide 'Z/z'" in found.sentence


@pytest.mark.parametrize("most", [14, 20, 33, 1000])
def test_what_is_looked_at_counts_for_the_rest(third: PatchStore, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A third of 60 queries are copies, however many are looked at; embeddings rank them first, or all alike."""
    monkeypatch.setattr(duplicates, "_MOST", most)
    task = task_of(embed(third))
    rows = task.bank.rows[:, None]
    ranked = np.where(np.arange(60) % 3 == 0, 0.99, 0.5).astype(np.float32)[:, None]
    for nearness, seeds in ((ranked, 1), (np.full_like(ranked, 0.99), 40 if most < 60 else 1)):
        shares = []
        for seed in range(seeds):
            found = find_duplicates(task, rows, nearness, LeakageConfig(), third, third, seed)
            assert found is not None
            shares.append(float(found.sentence.split("(")[1].removeprefix("about ").split(" %")[0]))
            assert (f"estimated from {most} of 60 pairs" in found.sentence) == (most < 60)
            assert found.kind == "leak"
        assert np.mean(shares) == pytest.approx(100 / 3, abs=7 if most < 60 else 0.5)


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> PatchStore:
    """Every third patch of Z is that of A with the same number; not to be changed."""
    files = {f"A/a/{n:02}.png": tissue(n, 24) for n in range(60)}
    files |= {f"Z/z/{n:02}.png": tissue(n if n % 3 == 0 else 100 + n, 24) for n in range(60)}
    return make_store(tmp_path_factory.mktemp("third"), files)


def test_the_most_alike_are_looked_at_first(copied: PatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_MOST", 2)
    embeddings = embed(copied)
    task = task_of(embeddings)
    rows = np.full((len(task.queries), 1), row_of(embeddings, "A/a", 3))
    nearness = np.linspace(0.1, 0.2, len(rows), dtype=np.float32)[:, None]
    nearness[task.queries.rows == row_of(embeddings, "Z/z", 1)] = 0.21
    found = find_duplicates(task, rows, nearness, LeakageConfig(), copied, copied)
    assert found is not None
    assert "(about 10 % of all 10, estimated from 2 of 10 pairs)" in found.sentence  # counts for itself alone


def test_the_rest_is_drawn_at_even_steps(plain: PatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_MOST", 4)
    task = task_of(embed(plain))
    rows = np.full((len(task.queries), 1), task.bank.rows[0])
    nearness = np.linspace(0.9, 0.1, 10, dtype=np.float32)[:, None]
    pairs = duplicates._choose_pairs(task, rows, nearness, np.random.default_rng(0))
    # two of the most alike, then the middle of the next four and of the last four
    np.testing.assert_array_equal(pairs.queries, task.queries.rows[[0, 1, 4, 8]])


def test_ties_are_spread_over_all_queries(third: PatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_MOST", 24)
    task = task_of(embed(third))
    rows = task.bank.rows[:, None]
    chosen = []
    for seed in (0, 0, 1):
        # apart by the rounding of float32 only
        nearness = np.linspace(1, 1 - 1e-6, 60, dtype=np.float32)[:, None]
        pairs = duplicates._choose_pairs(task, rows, nearness, np.random.default_rng(seed))
        assert (pairs.sure, pairs.candidates) == (12, 60)
        assert len(set(pairs.queries)) == 24
        places = pairs.queries - task.queries.rows[0]
        assert (np.bincount(places // 20, minlength=3) >= 3).all()
        assert (np.bincount(places[:12] // 20, minlength=3) >= 1).all()
        np.testing.assert_array_equal(pairs.bank, task.bank.rows[places])
        chosen.append(pairs.queries.tolist())
    assert chosen[0] == chosen[1] != chosen[2]


def test_more_than_a_few_are_counted(tmp_path: Path) -> None:
    store = stored(tmp_path, {f"Z/z/{n}.png": pictures()[f"B/b/{n}.png"] for n in range(PATCHES)})
    found = look(store, {("Z/z", n): ("B/b", n) for n in range(PATCHES)})
    assert found is not None
    assert found.sentence.startswith(
        "5 test patches are near-duplicates of reference patches of other patients (50 % of"
    )
    assert (
        "(50 % of all 10): patients 'Z' and 'B' share 5 pictures (patch 0 of slide 'Z/z' is patch 0" in found.sentence
    )
    assert found.sentence.count(" is patch ") == 1
    assert len(found.pairs) == 5
    copies = {
        f"{one}/{one.lower()}/{n}.png": pictures()[f"{other}/{other.lower()}/{n}.png"]
        for one, other, n in (("Z", "A", 0), ("Z", "B", 1), ("Y", "A", 2), ("Y", "B", 3), ("Y", "B", 4))
    }
    found = look(
        stored(tmp_path / "four", copies),
        {
            (name[:3], int(name[4])): (f"{other}/{other.lower()}", int(name[4]))
            for name, other in zip(copies, "ABABB", strict=True)
        },
    )
    assert found is not None
    assert found.sentence.count(" is patch ") == 3
    assert "; the same is true of 1 other pair of patients. Their pixels are equal." in found.sentence
    assert [(pair.query.patient, pair.bank.patient) for pair in found.pairs][:4].count(("Y", "B")) == 1


def test_names_of_any_kind_are_quoted(tmp_path: Path) -> None:
    odd = "<script>'\n"
    files = {"A/a/0.png": tissue(0), f"{odd}/z/0.png": tissue(0)}
    store = make_store(tmp_path, files)
    embeddings = embed(store)
    task = replace(task_of(embeddings), queries=side_of(embeddings, (odd,)))
    rows = task.bank.rows[:, None]
    found = find_duplicates(task, rows, rows * np.float32(0), LeakageConfig(), store, store)
    assert found is not None
    assert f"(100 % of all 1): patients {odd!r} and 'A' share" in found.sentence
    assert "\n" not in found.sentence


def unseen(why: str) -> Finding:
    start = "Test patches were not checked for near-duplicates among the reference patches of other patients: "
    return Finding(kind="note", sentence=f"{start}{why}.")


def test_without_pictures_nobody_has_looked(copied: PatchStore, plain: PatchStore) -> None:
    embeddings = embed(copied)
    task = task_of(embeddings)
    rows = np.full((len(task.queries), 1), row_of(embeddings, "A/a", 3))
    nearness = np.ones(rows.shape, np.float32)

    def found(ours: PatchStore | None, theirs: PatchStore | None) -> Finding | None:
        return find_duplicates(task, rows, nearness, LeakageConfig(), ours, theirs)

    assert found(None, copied) == unseen("the store 'store' is not there, or has changed")
    assert found(copied, None) == found(None, copied)
    assert found(copied, plain) == unseen(
        f"store {plain.path} has changed since made was made from it. Embed it again to see its pictures"
    )
    kept_none = find_duplicates(task, rows[:, :0], nearness[:, :0], LeakageConfig(), copied, copied)
    assert kept_none == unseen("no nearest neighbours were kept; set knn.keep=8")


def test_patches_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    store = stored(tmp_path, {"Z/z/1.png": pictures()["A/a/3.png"]})
    embeddings = embed(store)
    near = {("Z/z", 1): ("A/a", 3)}
    damage(store.path, row_of(embeddings, "Y/y", 0))
    found = look(PatchStore.load(store.path), near)
    assert found is not None
    assert "(about 11 % of all 10, estimated from 9 of 10 pairs)" in found.sentence
    damage(store.path, row_of(embeddings, "Z/z", 1))
    assert look(PatchStore.load(store.path), near) is None
    damage(store.path, row_of(embeddings, "A/a", 0), row_of(embeddings, "A/a", 3))
    assert look(PatchStore.load(store.path), near) == unseen("none of the patches could be read")


def test_rows_of_a_sample_are_found_in_the_store(plain: PatchStore) -> None:
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(plain))[:9]
    embeddings = embed(plain, chosen)
    np.testing.assert_array_equal(find_rows_in_store(embeddings, np.arange(9), plain), chosen)
    np.testing.assert_array_equal(find_rows_in_store(embeddings, np.array([7, 2, 7]), plain), chosen[[7, 2, 7]])
    assert len(find_rows_in_store(embeddings, np.zeros(0, np.int64), plain)) == 0


def test_rows_as_two_loops_find_them(plain: PatchStore) -> None:
    chosen = np.random.default_rng(1).permutation(len(plain))
    embeddings = embed(plain, chosen)
    ours, theirs = (
        list(zip(table.column("shard"), table.column("row"), strict=True)) for table in (embeddings.table, plain.table)
    )
    expected = [next(place for place, there in enumerate(theirs) if there == here) for here in ours]
    np.testing.assert_array_equal(find_rows_in_store(embeddings, np.arange(len(chosen)), plain), expected)


def test_a_changed_store_is_refused(plain: PatchStore, copied: PatchStore, tmp_path: Path) -> None:
    embeddings = embed(plain)
    with pytest.raises(UserError, match="has changed since made was made from it"):
        find_rows_in_store(embeddings, np.arange(2), copied)
    smaller = PatchStore(plain.artefact, plain.info, plain.table.select(np.array([0, 2, 5])))
    assert find_rows_in_store(embeddings, np.array([5, 0, 2]), smaller).tolist() == [2, 0, 1]
    with pytest.raises(UserError, match="does not hold 3 of the patches of made"):
        find_rows_in_store(embeddings, np.array([1, 2, 3, 19]), smaller)
