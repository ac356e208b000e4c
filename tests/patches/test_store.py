"""A store gives back the pixels that went in, to any process, and says what is wrong with it."""

import gc
import json
import multiprocessing as mp
import os
import pickle
import shutil
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hidisc.artefacts.artefact import MANIFEST, make, verify
from hidisc.artefacts.inputs import ChangedInputError
from hidisc.ground.errors import UserError
from hidisc.patches.folders import find_folder
from hidisc.patches.record import RECORD, SlideRecord
from hidisc.patches.store import PATCHES, STORE, PatchError, PatchStore
from hidisc.settings.prepare import ImportConfig
from hidisc.verbs.prepare import import_patches
from tests.finished import refinish
from tests.patches.pictures import Pictures, make_store, pictures_of

PICTURES = pictures_of("P1/A", "P1/B", "P2/A", "P3/A", patches=5)
FLIPPED = pictures_of("P/S", patches=4)
WORKERS = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four slides; not to be changed."""
    return make_store(tmp_path_factory.mktemp("made"), PICTURES).path


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy of the store to damage."""
    return shutil.copytree(made, tmp_path / "store")


def source_of(store: PatchStore, index: int, pictures: Pictures = PICTURES) -> np.ndarray:
    """The picture a row was made from."""
    slide, name = (store.table.column(column)[index] for column in ("slide", "name"))
    return pictures[f"{slide}/{name}.png"]


def flip(path: Path, place: int = -1) -> None:
    """Change one byte of a file, in its middle unless a place is given."""
    data = bytearray(path.read_bytes())
    data[place if place >= 0 else len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def slide_folder(store: Path, slide: str) -> Path:
    """The folder of a slide of a store."""
    return next(store / entry.folder for entry in PatchStore.load(store).info.slides if entry.slide == slide)


@pytest.mark.parametrize("codec", ["png", "raw"])
def test_read_gives_the_source_pixels(tmp_path: Path, codec: str) -> None:
    store = make_store(tmp_path, PICTURES, pixels={"codec": codec})
    assert len(store) == len(PICTURES) == 20
    for index in np.random.default_rng(0).permutation(len(store)):
        np.testing.assert_array_equal(store.read(index), source_of(store, index))


def test_jpeg_patches_look_like_their_source(tmp_path: Path) -> None:
    y, x = np.mgrid[:32, :32] * 6
    pictures = {"P1/S/0.png": np.stack([x, y, x], axis=-1).astype(np.uint8)}
    store = make_store(tmp_path, pictures, pixels={"codec": "jpeg", "quality": 95})
    assert np.abs(store.read(0).astype(int) - pictures["P1/S/0.png"]).max() <= 8


def test_read_many_is_read_one_by_one(made: Path) -> None:
    store = PatchStore.load(made)
    rows = [7, 0, 7, 19]
    many = store.read_many(rows)
    assert many.shape == (4, 16, 16, 3)
    assert many.dtype == np.uint8
    for place, index in enumerate(rows):
        np.testing.assert_array_equal(many[place], store.read(index))
    assert store.read_many(np.array([], np.int64)).shape == (0, 16, 16, 3)


def test_a_row_that_is_not_there(made: Path) -> None:
    with pytest.raises(IndexError):
        PatchStore.load(made).read(20)


def test_more_shards_than_may_be_open(made: Path) -> None:
    store = PatchStore.load(made)
    store._most_open = 2
    for index in np.random.default_rng(1).integers(0, len(store), 100):
        np.testing.assert_array_equal(store.read(index), source_of(store, index))
        assert len(store._open) <= 2


def test_pixels_outlive_the_shard_they_came_from(tmp_path: Path) -> None:
    store = make_store(tmp_path, PICTURES, pixels={"codec": "raw"})  # raw pixels are the memory map itself
    store._most_open = 1
    first = store.read(0)
    for index in range(len(store)):
        store.read(index)
    gc.collect()
    np.testing.assert_array_equal(first, source_of(store, 0))


def checksums(store: PatchStore, seed: int) -> dict[str, int]:
    """Checksums of patches read at random, by name (at module level, so that spawned workers find it)."""
    names = store.table.column("slide") + store.table.column("name")
    rows = np.random.default_rng(seed).integers(0, len(store), 60)
    return {names[row]: zlib.crc32(store.read(row).tobytes()) for row in rows}


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.whole)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_are_sent_a_store(made: Path, start: str) -> None:
    store = PatchStore.load(made)
    with mp.get_context(start).Pool(WORKERS) as pool:
        there = pool.starmap(checksums, [(store, seed) for seed in range(WORKERS)])
    assert there == [checksums(store, seed) for seed in range(WORKERS)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_inherit_an_opened_store(made: Path) -> None:
    fork = mp.get_context("fork")
    store, answers = PatchStore.load(made), fork.Queue()
    store.read(0)  # this shard is open, the others and the columns of names are opened by each worker
    processes = [fork.Process(target=lambda n=seed: answers.put((n, checksums(store, n)))) for seed in range(WORKERS)]
    for process in processes:
        process.start()
    there = dict(answers.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert there == {seed: checksums(store, seed) for seed in range(WORKERS)}


def test_it_pickles_by_path(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.parent)
    data = pickle.dumps(PatchStore.load(Path(made.name)))
    assert len(data) < 500
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(pickle.loads(data).read(3), PatchStore.load(made).read(3))


def test_a_pickled_store_is_refused_where_it_is_another_by_then(tmp_path: Path) -> None:
    data = pickle.dumps(make_store(tmp_path, PICTURES))
    shutil.rmtree(tmp_path / "store")
    make_store(tmp_path, pictures_of("P1/A", "P1/B", "P2/A", "P3/A", patches=4))
    with pytest.raises(ChangedInputError) as caught:
        pickle.loads(data)
    assert str(caught.value) == (
        f"the store {tmp_path / 'store'} is no longer what it was when the work that reads it was begun. Put it back "
        "as it was to go on, or give a new --out. What is finished is kept."
    )


@pytest.mark.parametrize("opened_before", [False, True], ids=["first read", "read again"])
@pytest.mark.parametrize("is_gone", [False, True], ids=["another", "gone"])
def test_a_store_that_changes_under_its_reader_is_refused(tmp_path: Path, opened_before: bool, is_gone: bool) -> None:
    """Its patches are not left out as damaged ones, of which others take the place."""
    store = make_store(tmp_path, PICTURES)
    store._most_open = 1
    last = len(store) - 1
    for index in (last, 0) if opened_before else (0,):  # the shard of the last one is closed again
        store.read(index)
    shutil.rmtree(tmp_path / "store")
    if not is_gone:
        shutil.rmtree(tmp_path / "patches")
        make_store(tmp_path, {path: pixels[::-1] for path, pixels in PICTURES.items()})
    with pytest.raises(ChangedInputError, match="is no longer what it was"):
        store.read(last)


def test_imported_slides_have_no_thumbnail(made: Path) -> None:
    store = PatchStore.load(made)
    assert [store.thumbnail(slide) for slide in store.info.slides] == [None] * 4


# ---- what cannot be opened


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        PatchStore.load(path)
    return str(caught.value)


def test_unfinished(own: Path) -> None:
    (own / MANIFEST).unlink()
    assert refusal(own) == f"store {own} is not finished. Run the same `hidisc import` again; it goes on."


@pytest.mark.parametrize("there", [True, False])
def test_not_a_store(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "elsewhere"
    if there:
        path.mkdir()
        (path / "thesis.docx").write_text("")
    what = "is not a store. Make one" if there else "does not exist. Make it"
    assert refusal(path) == f"{path} {what} with `hidisc prepare` or `hidisc import`."


def test_a_store_of_hidisc_0_1(own: Path) -> None:
    (own / MANIFEST).unlink()
    config = (own / "config.yaml").read_text().replace("format: hidisc-2\n", "")
    (own / "config.yaml").write_text(config)
    assert refusal(own) == (
        f"store {own} is of hidisc 0.2 or older, and folders of these versions are not read. Run `hidisc import` with "
        "a new --out to make it anew."
    )


def test_a_store_of_hidisc_0_2(own: Path) -> None:
    """It is finished, and config.yaml lacks the settings that were added in 0.3."""
    config = yaml.safe_load((own / "config.yaml").read_text())
    del config["level_names"]
    (own / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    refinish(own)
    assert "is of hidisc 0.2 or older" in refusal(own)
    with pytest.raises(UserError, match=r"is of hidisc 0\.2 or older"), make(own, "import", ImportConfig()):
        pass


@pytest.mark.parametrize("name", [STORE, PATCHES, "dropped.parquet", "failures.csv", "config.yaml"])
def test_any_change_to_a_small_file_is_found_at_once(own: Path, name: str) -> None:
    flip(own / name)
    assert refusal(own) == (
        f"store {own} is damaged: {name} has changed (its checksum differs). Run the same `hidisc import` again: it "
        "repairs that."
    )


@pytest.mark.parametrize("place", range(0, 1000, 97))
def test_a_damaged_manifest(own: Path, place: int) -> None:
    flip(own / MANIFEST, place)
    assert refusal(own).startswith(f"store {own} is damaged: artefact.json: its checksum differs. Run the same")


def test_a_truncated_table(own: Path) -> None:
    whole = (own / PATCHES).read_bytes()
    (own / PATCHES).write_bytes(whole[:-100])
    assert refusal(own) == (
        f"store {own} is damaged: patches.parquet has {len(whole) - 100:,} bytes instead of {len(whole):,}. "
        "Run the same `hidisc import` again: it repairs that."
    )


def test_a_missing_table(own: Path) -> None:
    (own / "dropped.parquet").unlink()
    assert refusal(own) == (
        f"store {own} is damaged: dropped.parquet is missing. Run the same `hidisc import` again: it repairs that."
    )


# ---- what cannot be read


def damage_patch(own: Path, row: int) -> Path:
    """Overwrite the start of one patch of the first shard with zeros."""
    store = PatchStore.load(own)
    shard = own / store.info.shards[0]
    data = shard.read_bytes()
    start = data.index(bytes(store._opened(0)[row]))
    shard.write_bytes(data[:start] + bytes(40) + data[start + 40 :])
    return shard


def test_a_damaged_patch_is_named(own: Path) -> None:
    shard = damage_patch(own, 2)
    store = PatchStore.load(own)
    with pytest.raises(PatchError) as caught:
        store.read(2)
    sentence = str(caught.value)
    assert sentence.startswith(f"patch 2 of {shard} cannot be decoded (")
    assert sentence.endswith(f"). Run `hidisc doctor {own}` to see what is damaged.")
    np.testing.assert_array_equal(store.read(3), source_of(store, 3))  # its neighbours are well


@pytest.mark.parametrize("left", [None, 0, 1000])
def test_a_missing_or_truncated_shard_is_named(own: Path, left: int | None) -> None:
    store = PatchStore.load(own)
    shard = own / store.info.shards[1]
    data = shard.read_bytes()
    shard.unlink()
    if left is not None:
        shard.write_bytes(data[:left])
    with pytest.raises(PatchError, match=r"^patch 0 of .*patches-0\.arrow cannot be decoded"):
        store.read(5)


def test_a_whole_shard_of_another_store_is_named(own: Path, tmp_path: Path) -> None:
    name = shard_of(own)
    other = make_store(tmp_path / "other", {path: pixels // 2 for path, pixels in pictures_of("P/S").items()})
    shutil.copy(other.path / other.info.shards[0], own / name)
    with pytest.raises(PatchError, match=rf"^patch 0 of .*{name} cannot be decoded \(.* bytes instead of "):
        PatchStore.load(own).read(0)


def raw_store(folder: Path, darker: int = 1) -> PatchStore:
    """A store of two slides; those of two stores have shards of exactly the same size."""
    pictures = {path: pixels // darker for path, pixels in pictures_of("P/A", "P/B").items()}
    return make_store(folder, pictures, pixels={"codec": "raw"})


@pytest.mark.parametrize("from_other_store", [True, False])
def test_a_shard_of_the_same_size_that_is_not_the_slides_own_is_named_and_repaired(
    tmp_path: Path, from_other_store: bool
) -> None:
    store = raw_store(tmp_path / "one")
    other = raw_store(tmp_path / "two", darker=2) if from_other_store else store
    shard, exchanged = store.path / store.info.shards[0], other.path / other.info.shards[0 if from_other_store else 1]
    before = shard.read_bytes()
    shutil.copy(exchanged, shard)
    assert shard.stat().st_size == len(before)
    with pytest.raises(PatchError) as caught:
        PatchStore.load(store.path).read(0)
    assert str(caught.value) == (
        f"patch 0 of {shard} cannot be decoded (patches-0.arrow belongs to another slide or store). "
        f"Run `hidisc doctor {store.path}` to see what is damaged."
    )
    built = import_patches(
        find_folder(tmp_path / "one/patches"), store.path, ImportConfig(pixels={"codec": "raw"}), workers=0
    )
    assert built.worked == 1
    assert shard.read_bytes() == before


def test_a_shard_that_names_no_owner_is_refused(tmp_path: Path) -> None:
    """As hidisc 0.2 wrote them."""
    store = raw_store(tmp_path)
    folder, _, name = store.info.shards[0].rpartition("/")
    path = store.path / folder / name
    rows = pa.ipc.open_file(path.read_bytes()).read_all().replace_schema_metadata(None)
    with pa.ipc.new_file(str(path), rows.schema) as writer:
        writer.write_table(rows)
    with pytest.raises(ValueError, match=f"^{name} belongs to another slide or store$"):
        SlideRecord.load(path.parent).open_shard(path.parent, name)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@pytest.mark.parametrize("codec", ["png", "raw"])
def test_any_flipped_bit_gives_the_right_pixels_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, codec: str, place: float, bit: int
) -> None:
    base = tmp_path_factory.getbasetemp() / f"flipped-{codec}"
    if not base.exists():
        make_store(base, FLIPPED, pixels={"codec": codec})
        shutil.copy(base / "store" / shard_of(base / "store"), base / "whole.arrow")
    data = bytearray((base / "whole.arrow").read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    (base / "store" / shard_of(base / "store")).write_bytes(data)
    store = PatchStore.load(base / "store")
    for index in range(len(store)):
        with suppress(PatchError):  # anything else, a crash of the process included, fails
            np.testing.assert_array_equal(store.read(index), source_of(store, index, FLIPPED))


def shard_of(store: Path) -> str:
    """The path of a store's first shard, relative to it."""
    return json.loads((store / STORE).read_text())["shards"][0]


# ---- what doctor finds


def test_a_whole_store_has_no_problems(made: Path) -> None:
    assert verify(made) == []


def test_doctor_finds_a_flipped_byte(own: Path) -> None:
    flip(own / shard_of(own))
    assert verify(own) == [f"{shard_of(own)} has changed (its checksum differs)"]


def test_doctor_finds_a_missing_shard(own: Path) -> None:
    (own / shard_of(own)).unlink()
    assert verify(own) == [f"{shard_of(own)} is missing"]


def test_doctor_finds_a_truncated_table(own: Path) -> None:
    size = (own / PATCHES).stat().st_size
    os.truncate(own / PATCHES, size - 7)
    assert verify(own) == [f"patches.parquet has {size - 7:,} bytes instead of {size:,}"]


def test_doctor_finds_a_changed_slide_record(own: Path) -> None:
    folder = slide_folder(own, "P2/A")
    record = folder / RECORD
    record.write_text(record.read_text().replace('"uint8"', '"uint9"'))
    assert verify(own) == [f"shards/{folder.name}/slide.json has changed (its checksum differs)"]


def test_doctor_finds_changed_scores(own: Path) -> None:
    folder = slide_folder(own, "P1/B")
    flip(folder / "boxes.parquet")
    assert verify(own) == [f"shards/{folder.name}/boxes.parquet has changed (its checksum differs)"]


def test_doctor_finds_everything_at_once(own: Path) -> None:
    flip(own / shard_of(own))
    (slide_folder(own, "P3/A") / RECORD).unlink()
    (own / "dropped.parquet").unlink()
    assert len(verify(own)) == 3


def test_what_is_no_store_is_not_called_an_unfinished_one(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "cohort.csv"
    run.mkdir()
    (run / "config.yaml").write_text("kind: train\nseed: 0\n")
    file.write_text("patient,slide,path\n")
    for path in (run, file):
        with pytest.raises(UserError, match="is not a store"):
            PatchStore.load(path)
    (run / "config.yaml").write_text("kind: prepare\nformat: hidisc-2\nannotations: {}\nseed: 0\n")
    with pytest.raises(UserError, match=r"is not finished\. Run the same `hidisc prepare` again; it goes on"):
        PatchStore.load(run)
