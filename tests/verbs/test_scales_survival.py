"""Stores of several scales survive what stores of one scale do, and what is made of them shows the right squares."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import anndata
import distributed
import h5py
import numpy as np
import pytest
from PIL import Image
from shapely.geometry import box, shape

from hidisc.artefacts.artefact import verify
from hidisc.embeddings.embeddings import Embeddings
from hidisc.ground.errors import UserError
from hidisc.patches.record import RECORD
from hidisc.patches.store import DROPPED, PATCHES, STORE, PatchStore
from hidisc.reporting import prepared
from hidisc.reporting import prepared as contact_sheet
from hidisc.reporting.prepared import COUNTS
from hidisc.settings.config import load_config
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs import report as verb
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.explore import save_page
from hidisc.verbs.export_vectors import H5AD, export_anndata, export_bags, export_geojson
from hidisc.verbs.prepare import prepare
from hidisc.verbs.report import heatmap
from tests.commands import Forks, signal_at
from tests.schedulers import start_scheduler, start_worker
from tests.verbs.test_prepare import config, contents, one_slide, rows_of, write_rows

pytestmark = pytest.mark.whole
SCALES = "grid.mpp=[0.5, 1.0, 2.0]"
SETTINGS = ("grid.size_px=16", SCALES, "tissue.skip_glass=false", "filter.min_pixel_std=0")
"""With 16 px, patches of 1.0 um/px are made of cells, and those of 2.0, whose cells would be too small, are whole."""
FEW = (*SETTINGS[:-1], "filter.min_pixel_std=25")
SLIDES = 4


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_cohort(tmp_path_factory.mktemp("drawn"), patients=SLIDES, slides=1, fields=2, seed=5)


@pytest.fixture
def own_cohort(cohort: Path, tmp_path: Path) -> Path:
    """A copy whose files a test may change."""
    shutil.copytree(cohort.parent, tmp_path / "own")
    return tmp_path / "own" / cohort.name


@pytest.fixture(scope="module")
def uninterrupted(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that nothing interrupts."""
    out = tmp_path_factory.mktemp("whole") / "store"
    prepare(cohort, out, config(*SETTINGS), workers=0)
    store = PatchStore.load(out)
    assert {store._opened(shard).per_side for shard in range(len(store.info.shards))} == {1, 2}
    return out


@pytest.fixture(scope="module")
def refiltered(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store of some places, and the same with the others added by a looser filter."""
    few, all_places = (tmp_path_factory.mktemp("refiltered") / name for name in ("few", "all"))
    prepare(cohort, few, config(*FEW), workers=0)
    shutil.copytree(few, all_places)
    prepare(cohort, all_places, config(*SETTINGS), workers=0, refilter=True)
    assert 0 < len(PatchStore.load(few)) < len(PatchStore.load(all_places))
    return few, all_places


def command(cohort: Path, out: Path, *more: str, workers: int = 0, settings: tuple[str, ...] = SETTINGS) -> list[str]:
    words = [word for setting in settings for word in ("--set", setting)]
    return ["prepare", str(cohort), "--out", str(out), "--workers", str(workers), *words, *more]


def finished_slides(out: Path) -> int:
    return len(list(out.glob(f"shards/[!.]*/{RECORD}")))


# Killed


KILLS = (
    ("folder.written", 1, "*", 0),
    ("folder.renamed", 1, "*", 1),
    ("slide.done", 1, "*", 2),
    ("folder.written", 2, "*", 3),
    ("file.written", 1, PATCHES, 4),
    ("file.renamed", 1, PATCHES, 4),
    ("file.written", 1, DROPPED, 4),
    ("file.renamed", 1, STORE, 4),
    ("file.written", 1, "P00*.jpg", 4),
    ("file.renamed", 1, COUNTS, 4),
)
"""Steps at which the same command is killed, one after the other, and the slides that are finished then."""
FEW_KILLS = (("folder.written", 2, "*", 1), ("file.written", 1, PATCHES, 4))


@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.slow)], ids=["few", "every step"])
def test_kill_at_a_step_then_the_same_command(
    cohort: Path, uninterrupted: Path, forks: Forks, tmp_path: Path, kills: tuple[tuple[str, int, str, int], ...]
) -> None:
    out = tmp_path / "store"
    for step, number, file, finished in kills:
        ended = forks.run(*command(cohort, out), at=signal_at(step, number, file))
        assert ended.code == -signal.SIGKILL, (step, file)
        assert finished_slides(out) == finished
    assert forks.run(*command(cohort, out)).code == 0
    assert contents(out) == contents(uninterrupted)


@pytest.mark.slow  # test_survival.py does it with one scale
def test_kill_everyone_while_workers_are_at_slides(
    cohort: Path, uninterrupted: Path, forks: Forks, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    for step in ("folder.written", "slide.done"):
        ended = forks.run(*command(cohort, out, workers=2), at=signal_at(step, 1, to="group"))
        assert ended.code == -signal.SIGKILL
        assert not (out / STORE).exists()
    assert forks.run(*command(cohort, out, workers=2)).code == 0
    assert contents(out) == contents(uninterrupted)


SHARDS = ("patches-1.scale-2.arrow", "patches-1.scale-1.arrow", "patches-1.arrow", RECORD)
REFILTER_KILLS = tuple((step, file) for file in SHARDS for step in ("file.written", "file.renamed"))


@pytest.mark.parametrize(
    "kills",
    [REFILTER_KILLS[1::4], pytest.param(REFILTER_KILLS, marks=pytest.mark.slow)],
    ids=["few", "every step"],
)
def test_kill_while_a_looser_filter_adds_places(
    cohort: Path, refiltered: tuple[Path, Path], forks: Forks, tmp_path: Path, kills: tuple[tuple[str, str], ...]
) -> None:
    few, all_places = refiltered
    out = tmp_path / "store"
    shutil.copytree(few, out)
    for step, file in kills:
        ended = forks.run(*command(cohort, out, "--refilter"), at=signal_at(step, 1, file))
        assert ended.code == -signal.SIGKILL, (step, file)
        with pytest.raises(UserError, match="is not finished"):
            PatchStore.load(out)
    assert forks.run(*command(cohort, out, "--refilter")).code == 0
    assert contents(out) == contents(all_places)
    assert verify(out) == []


def test_a_refiltered_store_has_the_patches_of_one_that_was_not(
    refiltered: tuple[Path, Path], uninterrupted: Path
) -> None:
    grown, whole = (PatchStore.load(path) for path in (refiltered[1], uninterrupted))
    for name in ("slide", "patch", "x", "y", "mpp", "place"):
        np.testing.assert_array_equal(grown.table.column(name), whole.table.column(name))
    rows = range(len(whole))
    assert [grown.read(row).tobytes() for row in rows] == [whole.read(row).tobytes() for row in rows]


# On a scheduler


@pytest.mark.parametrize("is_killed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_scheduler_makes_the_same_store_also_when_a_worker_dies(
    cohort: Path, uninterrupted: Path, forks: Forks, tmp_path: Path, is_killed: bool
) -> None:
    out = tmp_path / "store"
    with start_scheduler(forks, tmp_path) as address:
        victim = start_worker(forks, address, tmp_path, at=signal_at("folder.written", 1) if is_killed else "")
        start_worker(forks, address, tmp_path)
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2)
        ended = forks.run(*command(cohort, out), "--scheduler", address)
        assert ended.code == 0, ended.said
        assert not is_killed or victim.ended().code == -signal.SIGKILL, "the worker was to die half-way"
    assert contents(out) == contents(uninterrupted)


# Changed


@pytest.mark.parametrize("mpp", ["[0.5, 1.0]", "[0.5, 1.0, 4.0]", "0.5"])
@pytest.mark.parametrize("is_finished", [True, False])
def test_other_scales_are_refused_and_nothing_is_mixed(
    cohort: Path, uninterrupted: Path, forks: Forks, tmp_path: Path, mpp: str, is_finished: bool
) -> None:
    out = tmp_path / "store"
    if is_finished:
        shutil.copytree(uninterrupted, out)
    else:
        forks.run(*command(cohort, out), at=signal_at("slide.done", 1))
    before = contents(out)
    for refilter in (False, True) if is_finished else (False,):
        with pytest.raises(UserError, match=r"grid.mpp: \[0.5, 1.0, 2.0\] -> .*new --out"):
            prepare(cohort, out, config(*SETTINGS, f"grid.mpp={mpp}"), workers=0, refilter=refilter)
    assert contents(out) == before


def test_one_scale_does_not_become_several(cohort: Path, tmp_path: Path) -> None:
    settings = [setting for setting in SETTINGS if setting != SCALES]
    prepare(cohort, tmp_path / "store", config(*settings), workers=0)
    before = contents(tmp_path / "store")
    with pytest.raises(UserError, match=r"grid.mpp: 0.5 -> \[0.5, 1.0, 2.0\]"):
        prepare(cohort, tmp_path / "store", config(*SETTINGS), workers=0)
    assert contents(tmp_path / "store") == before


def test_a_corrected_scale_cuts_that_slide_anew_at_all_scales(own_cohort: Path, tmp_path: Path) -> None:
    out, rows, said = tmp_path / "store", rows_of(own_cohort), list[str]()
    prepare(own_cohort, out, config(*SETTINGS), workers=0)
    write_rows(own_cohort, [{**rows[0], "mpp": "0.25"}, *({**row, "mpp": "0.5"} for row in rows[1:])])
    prepare(own_cohort, out, config(*SETTINGS), workers=0, say=said.append)
    assert f"slide {rows[0]['slide']!r} is read again: mpp: 0.5 -> 0.25" in said
    assert not any("is read again" in text and rows[1]["slide"] in text for text in said)
    prepare(own_cohort, tmp_path / "anew", config(*SETTINGS), workers=0)
    assert contents(out) == contents(tmp_path / "anew")


def test_a_changed_slide_is_refused(own_cohort: Path, tmp_path: Path) -> None:
    out, row = tmp_path / "store", rows_of(own_cohort)[0]
    prepare(own_cohort, out, config(*SETTINGS), workers=0)
    before, path = contents(out), own_cohort.parent / row["path"]
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(UserError, match=rf"{row['slide']}.* has changed since the store was made"):
        prepare(own_cohort, out, config(*SETTINGS), workers=0)
    assert contents(out) == before


def test_a_slide_more_leaves_the_others_as_they_are(
    own_cohort: Path, uninterrupted: Path, forks: Forks, tmp_path: Path
) -> None:
    out, rows = tmp_path / "store", rows_of(own_cohort)
    rows = [{**row, "split": split} for row, split in zip(rows, ("train", "test") * 2, strict=True)]
    write_rows(own_cohort, rows[:-1])
    prepare(own_cohort, out, config(*SETTINGS), workers=0)
    shards = {path.name: path.stat().st_mtime_ns for path in out.glob("shards/*")}
    write_rows(own_cohort, rows)
    assert forks.run(*command(own_cohort, out), at=signal_at("folder.written", 1)).code == -signal.SIGKILL
    ended = forks.run(*command(own_cohort, out))
    assert ended.said.startswith(f"{SLIDES - 1} of {SLIDES} slides are in {out} already; 1 to read")
    assert shards.items() <= {path.name: path.stat().st_mtime_ns for path in out.glob("shards/*")}.items()
    prepare(own_cohort, tmp_path / "anew", config(*SETTINGS), workers=0)
    assert contents(out) == contents(tmp_path / "anew")


# Damaged


@pytest.mark.parametrize("shard", ["patches-0.arrow", "patches-0.scale-1.arrow", "patches-0.scale-2.arrow"])
def test_doctor_finds_a_shard_that_was_cut_short_and_prepare_repairs_it(
    cohort: Path, uninterrupted: Path, forks: Forks, tmp_path: Path, shard: str
) -> None:
    out = tmp_path / "store"
    shutil.copytree(uninterrupted, out)
    path = sorted(out.glob(f"shards/*/{shard}"))[0]
    path.write_bytes(path.read_bytes()[:-100])
    name = str(path.relative_to(out))
    assert [problem for problem in verify(out) if name in problem]
    ended = forks.run("doctor", out)
    assert (ended.code, f"damaged: {name}" in ended.said) == (1, True)
    ended = forks.run(*command(cohort, out))
    assert "is read again: a file of it is damaged" in ended.said
    assert contents(out) == contents(uninterrupted)
    assert forks.run("doctor", out).result == f"{out}: all files are as written\n"


# What is made of it


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`store` of three scales, and embeddings and scores of all of them, of the finest and of the coarsest."""
    folder = tmp_path_factory.mktemp("judged")
    cohort = draw_cohort(folder, patients=4, slides=2, fields=6, field_px=32, seed=3)
    half = "split.fractions={train: 0.5, test: 0.5}"
    prepare(cohort, folder / "store", config("grid.size_px=32", SCALES, half), workers=0)
    settings = load_config(EvaluateConfig, None, ["knn.k=3", "probes=[knn]", "bootstrap.resamples=10", "audit=false"])
    for name, mpp in (("all", None), ("fine", (0.5,)), ("coarse", (2.0,))):
        embed(folder / "store", "colour", folder / name, EmbedConfig(mpp=mpp), device="cpu", devices=1, shown=False)
        evaluate(folder / name, folder / f"scores-{name}", settings, device="cpu")
    return folder


def find_corners(table: Embeddings, slide: str) -> set[tuple[int, int]]:
    """Of the finest patches of a slide."""
    of = {name: table.table.column(name) for name in ("slide", "mpp", "x", "y")}
    rows = np.flatnonzero((of["slide"] == slide) & np.isclose(of["mpp"], 0.5))
    return {(int(of["x"][row]), int(of["y"][row])) for row in rows}


def test_pictures_show_places_at_their_size(judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(prepared, "draw_boxes", lambda *given: (drawn.append(given), Image.fromarray(given[0]))[1])
    shutil.copytree(judged / "store", tmp_path / "store")
    prepared.draw_store(tmp_path / "store")
    store = Embeddings.load(judged / "all")
    total = 0
    for (_, _, kept, dropped, extent), slide in zip(drawn, PatchStore.load(judged / "store").info.slides, strict=True):
        assert extent == 32
        assert dropped is None or len(dropped) == slide.dropped // 3
        assert {tuple(corner) for corner in kept.tolist()} == find_corners(store, slide.slide)
        total += len(kept)
    assert total == len(PatchStore.load(judged / "store")) // 3


def test_a_slide_without_stains_is_marked_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captions: list[str] = []
    add = contact_sheet.add_caption

    def note(image: Image.Image, text: str, **how: Any) -> Image.Image:
        captions.extend([text, *(words for words, _ in how.get("right", ()))])
        return add(image, text, **how)

    monkeypatch.setattr(contact_sheet, "add_caption", note)
    grey = np.random.default_rng(0).integers(90, 200, (96, 96, 1), np.uint8).repeat(3, axis=2)
    built = prepare(
        one_slide(tmp_path / "slide", grey), tmp_path / "store", config("grid.size_px=32", SCALES), workers=0
    )
    assert (len(PatchStore.load(built.out)), built.sentence()[-17:]) == (27, "0 patches dropped")
    assert "stain not estimated" in captions


def test_a_heatmap_paints_the_finest_and_says_so(judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}
    draw, paint = verb.draw_heatmap, verb.paint
    monkeypatch.setattr(verb, "draw_heatmap", lambda *given: (seen.update(captions=given[3]), draw(*given))[1])
    monkeypatch.setattr(
        verb, "paint", lambda *given: (seen.update(corners=given[2], extent=given[3]), paint(*given))[1]
    )
    embeddings = Embeddings.load(judged / "all")
    is_test = embeddings.table.column("split") == "test"
    slide = embeddings.table.column("slide")[np.flatnonzero(is_test)[0]]
    corners = find_corners(embeddings, slide)
    heatmap(judged / "store", judged / "scores-all", slide, tmp_path / "all.png")
    assert seen["extent"] == 32
    assert {tuple(corner) for corner in np.asarray(seen["corners"]).tolist()} == corners
    assert f"knn, {3 * len(corners)} patches of all scales; painted are those of 0.5 um/px" in str(seen["captions"])
    heatmap(judged / "store", judged / "scores-fine", slide, tmp_path / "fine.png")
    assert f"knn, {len(corners)} patches'" in str(seen["captions"])
    with pytest.raises(UserError, match=r"has no patches of the finest scale of .*store, 0.5 um/px, of slide .*Embed"):
        heatmap(judged / "store", judged / "scores-coarse", slide, tmp_path / "coarse.png")
    assert not (tmp_path / "coarse.png").exists()


def test_geojson_has_the_boxes_of_the_finest(judged: Path, tmp_path: Path) -> None:
    for name in ("all", "scores-all"):
        export_geojson(judged / name, tmp_path / name)
        for file in (tmp_path / name).glob("*.geojson"):
            boxes = {shape(feature["geometry"]).bounds for feature in json.loads(file.read_bytes())["features"]}
            corners = find_corners(Embeddings.load(judged / "all"), file.stem)
            assert boxes == {box(x, y, x + 32, y + 32).bounds for x, y in corners}
    for name in ("coarse", "scores-coarse"):
        with pytest.raises(UserError, match=r"coarse has no patches of the finest scale, 0.5 um/px. Embed these"):
            export_geojson(judged / name, tmp_path / f"no-{name}")


def test_bags_and_anndata_take_the_finest_alone(judged: Path, tmp_path: Path) -> None:
    fine = Embeddings.load(judged / "fine")
    assert export_bags(judged / "fine", tmp_path / "bags") == 8
    for file in (tmp_path / "bags/h5_files").iterdir():
        with h5py.File(file) as opened:
            assert opened["coords"].attrs["patch_size_level0"] == 32
            assert {tuple(corner) for corner in opened["coords"][:].tolist()} == find_corners(fine, file.stem)
    export_anndata(judged / "fine", tmp_path / "table")
    data = anndata.read_h5ad(tmp_path / "table" / H5AD)
    corners = np.stack([fine.table.column(axis) for axis in ("x", "y")], axis=1)
    np.testing.assert_array_equal(data.obsm["spatial"], corners + 16)
    for name, scales in (("all", "0.5, 1, 2"), ("coarse", "2")):
        for export, reader in ((export_bags, "a bag"), (export_anndata, "AnnData")):
            sentence = (
                rf"has patches of {scales} um/px, and {reader} takes those of the finest scale alone.*mpp=\[0.5\]"
            )
            with pytest.raises(UserError, match=sentence):
                export(judged / name, tmp_path / "no")
            assert not (tmp_path / "no").exists()


def test_the_explorer_says_that_it_shows_one_scale(judged: Path, tmp_path: Path) -> None:
    for name in ("all", "fine"):
        with pytest.raises(
            UserError, match=r"store has patches of several scales, and the explorer shows one. Prepare"
        ):
            save_page(judged / "store", [judged / name], "P001", tmp_path / "taken")
    assert not (tmp_path / "taken").exists()
