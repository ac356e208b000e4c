"""Several scales as a lab uses them: prepare, import, learn from places, judge scale by scale."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hidisc.embeddings.embeddings import Embeddings
from hidisc.explorer.session import open_session
from hidisc.ground.errors import UserError
from hidisc.patches.cut import CutTask
from hidisc.patches.folders import find_table
from hidisc.patches.store import PatchError, PatchStore
from hidisc.patches.table import PatchTable, names_column
from hidisc.settings.config import load_config
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import GridConfig, ImportConfig, PrepareConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.grid import read_beyond
from hidisc.slides.reader import open_slide
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.export import export_wsinfer
from hidisc.verbs.export_vectors import export_bags
from hidisc.verbs.prepare import import_patches, prepare
from tests.evaluation.made import make_embeddings
from tests.patches.pictures import noise, write_pictures
from tests.training.stores import train

EXACT = ("grid.size_px=32", "pixels.codec=raw", "stain.method=none")
THREE = (*EXACT, "grid.mpp=[0.5, 1.0, 2.0]")


def config(*changes: str) -> PrepareConfig:
    return load_config(PrepareConfig, None, changes)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight patients of four diagnoses, with two slides of six squares."""
    folder = tmp_path_factory.mktemp("drawn")
    return draw_cohort(folder, patients=8, slides=2, fields=6, field_px=32, seed=3)


@pytest.fixture(scope="module")
def store(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> PatchStore:
    out = tmp_path_factory.mktemp("three") / "store"
    prepare(cohort, out, config(*THREE), workers=0)
    return PatchStore.load(out)


def patches_of(store: PatchStore) -> dict[tuple[str, str, float], bytes]:
    """Pixels by slide, place and scale."""
    table = store.table
    names = zip(*(table.column(name) for name in ("slide", "place", "mpp")), strict=True)
    return {(*name, float(mpp)): store.read(row).tobytes() for row, (*name, mpp) in enumerate(names)}


# Preparing


def test_every_place_has_a_patch_at_every_scale(store: PatchStore, cohort: Path, tmp_path: Path) -> None:
    prepare(cohort, tmp_path / "one", config(*EXACT), workers=0)
    one = PatchStore.load(tmp_path / "one")
    assert (store.info.mpp, store.scales, one.scales) == (None, (0.5, 1.0, 2.0), (0.5,))
    finest = np.flatnonzero(store.table.column("mpp") == 0.5)
    assert len(store) == 3 * len(one)
    assert [store.read(row).tobytes() for row in finest] == [one.read(row).tobytes() for row in range(len(one))]
    for name in ("slide", "x", "y", "tissue_fraction", "pixel_std"):
        np.testing.assert_array_equal(store.table.column(name)[finest], one.table.column(name))
    places = list(zip(store.table.column("slide"), store.table.column("place"), strict=True))
    assert all(len({places[row + scale] for scale in range(3)}) == 1 for row in finest), "scales are neighbours"


def test_a_coarse_patch_shows_the_slide_around_its_place(store: PatchStore, cohort: Path) -> None:
    with cohort.open() as file:
        paths = {row["slide"]: cohort.parent / row["path"] for row in csv.DictReader(file)}
    slide_of, x, y, mpp = (store.table.column(name) for name in ("slide", "x", "y", "mpp"))
    for row in range(0, len(store), 7):
        with open_slide(paths[slide_of[row]]) as slide:
            seen = read_beyond(slide, float(x[row]), float(y[row]), 32, mpp[row] / 0.5)
        assert np.abs(store.read(row).astype(int) - seen).max() <= 1, "cells are resampled one by one"
    finest = np.flatnonzero(mpp == 0.5)
    for axis in (x, y):
        centres = [axis[finest + scale] + 16 * 2**scale for scale in range(3)]
        assert all(np.abs(centre - centres[0]).max() <= 2**scale for scale, centre in enumerate(centres))


def test_cells_are_stored_once(store: PatchStore) -> None:
    sizes = [sum((store.path / shard).stat().st_size for shard in store.info.shards[scale::3]) for scale in range(3)]
    assert sizes[1] < 0.8 * sizes[0], "2 x 3 squares have 3 x 4 cells at half the scale; patches would have 24"
    assert sizes[2] < 0.5 * sizes[0], "5 x 6 of a 16th each"


def test_refiltering_adds_what_is_missing_at_all_scales(store: PatchStore, cohort: Path, tmp_path: Path) -> None:
    threshold = float(np.median(store.table.column("pixel_std")))
    prepare(cohort, tmp_path / "few", config(*THREE, f"filter.min_pixel_std={threshold}"), workers=0)
    few = patches_of(PatchStore.load(tmp_path / "few"))
    assert 0 < len(few) < len(store)
    prepare(cohort, tmp_path / "few", config(*THREE), workers=0, refilter=True)
    assert patches_of(PatchStore.load(tmp_path / "few")) == patches_of(store)


def test_what_reaches_beyond_the_slide_can_be_dropped(store: PatchStore, cohort: Path, tmp_path: Path) -> None:
    prepare(cohort, tmp_path / "drop", config(*THREE, "grid.beyond_edge=drop"), workers=0)
    dropped = PatchStore.load(tmp_path / "drop")
    x, y, mpp = (store.table.column(name) for name in ("x", "y", "mpp"))
    width, height = (getattr(store.record(store.info.slides[0]), side) for side in ("width", "height"))
    extent = 32 * mpp / 0.5
    inside = (x >= 0) & (y >= 0) & (x + extent <= width) & (y + extent <= height)
    keys = [key for key, is_inside in zip(patches_of(store), inside, strict=True) if is_inside]
    assert 0 < len(keys) < len(store)
    assert patches_of(dropped) == {key: patches_of(store)[key] for key in keys}


def test_stains_of_each_patch_are_those_of_the_whole_patch(cohort: Path, tmp_path: Path) -> None:
    few = cohort.parent / "few.csv"
    few.write_text("\n".join(cohort.read_text().splitlines()[:3]) + "\n")
    changes = ("grid.size_px=32", "grid.mpp=[0.5, 1.0]", "stain.mode=patch", "pixels.codec=raw")
    prepare(few, tmp_path / "store", config(*changes, "split.fractions={train: 1, test: 1}"), workers=0)
    opened = PatchStore.load(tmp_path / "store")
    assert {opened._opened(shard).per_side for shard in range(len(opened.info.shards))} == {1}
    assert opened.read(1).shape == (32, 32, 3)


def test_one_scale_depends_on_what_it_always_did(tmp_path: Path) -> None:
    def facts(*changes: str) -> str:
        return CutTask(SlideRow("P", "S", tmp_path), tmp_path, config(*changes)).settings

    assert facts() == facts("grid.mpp=[0.5]") == facts("grid.beyond_edge=drop")
    assert facts() == "2e50f586bcb366bfe4127501963b5b9f701ff66ad1f2d9412d600d23da08a322", (
        "slides of older stores are not read again"
    )
    assert len({facts(), facts(*THREE), facts(*THREE, "grid.beyond_edge=drop")}) == 3


def test_scales_are_put_in_order_and_checked() -> None:
    assert GridConfig(mpp=(2.0, 0.5)).scales == (0.5, 2.0)
    for wrong in ("[0.5, 0.5]", "[]", "0", "[0.5, -1]", "[0.5, a]", "x"):
        with pytest.raises(UserError, match=r"grid.mpp.*above 0 and at most 100, or several different ones"):
            config(f"grid.mpp={wrong}")


def test_a_damaged_cell_is_named(cohort: Path, tmp_path: Path) -> None:
    prepare(cohort, tmp_path / "store", config(*THREE), workers=0)
    opened = PatchStore.load(tmp_path / "store")
    path = tmp_path / "store" / opened.info.shards[1]
    cell = bytes(opened._opened(1)[0])
    path.write_bytes(path.read_bytes().replace(cell, b"damaged!" + cell[8:]))
    with pytest.raises(PatchError, match=r"patch 0 of .*scale-1.arrow cannot be decoded \(its checksum differs\)"):
        PatchStore.load(tmp_path / "store").read(1)


# Importing


def write_table(folder: Path, *rows: str) -> Path:
    names = [row.split(",")[2] for row in rows]
    write_pictures(folder, {name: noise(number) for number, name in enumerate(names)})
    (folder / "table.csv").write_text("\n".join(["patient,slide,path,label,place,mpp", *rows]) + "\n")
    return folder / "table.csv"


def test_a_table_can_have_places_and_scales(tmp_path: Path) -> None:
    rows = [f"P{p},A,{p}-{s}-{m}.png,{'ab'[p % 2]},{s},{m}" for p in range(4) for s in "xy" for m in (0.5, 2.0)]
    table = write_table(tmp_path, *rows)
    import_patches(find_table(table), tmp_path / "store", workers=0)
    opened = PatchStore.load(tmp_path / "store")
    assert opened.scales == (0.5, 2.0)
    assert opened.table.column("mpp").tolist() == [0.5, 2.0] * 8
    assert opened.table.column("place").tolist() == ["x", "x", "y", "y"] * 4
    with pytest.raises(UserError, match=r"has a column mpp, so mpp=0.5 says it twice"):
        import_patches(find_table(table), tmp_path / "other", ImportConfig(mpp=0.5), workers=0)


def test_a_table_with_half_of_its_scales_is_refused(tmp_path: Path) -> None:
    table = write_table(tmp_path, "P,A,0.png,a,x,0.5", "P,A,1.png,a,x,")
    with pytest.raises(UserError, match=r"row 3: mpp is empty, and other rows have it. Fill it in all 1 rows"):
        find_table(table)


# Learning and judging


@pytest.fixture(scope="module")
def embeddings(store: PatchStore, tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    folder = tmp_path_factory.mktemp("learned")
    levels = ("batch.levels=[patient, slide, place, patch]", "batch.draw={slide: 2, place: 1, patch: 2}")
    run = train(store.path, folder / "run", *levels, "optim.steps=2", "batch.images=16")
    assert run.card.mpp is None, "it has learned at several"
    assert run.metrics()[-1]["place"] > 0
    return embed(store.path, run.path, folder / "embeddings", EmbedConfig(), device="cpu", devices=1)


def judge(embeddings: Embeddings, out: Path, **changes: object):
    settings = {"probes": ("knn",), "bootstrap": {"resamples": 10}, "audit": False, **changes}
    return evaluate(embeddings.path, out, EvaluateConfig.model_validate(settings))


def test_each_scale_is_judged_by_itself(embeddings: Embeddings, tmp_path: Path) -> None:
    scores = judge(embeddings, tmp_path / "all")
    info = scores.info
    assert info.scales == [0.5, 1.0, 2.0]
    patches = info.list_levels()[0].units
    assert [info.list_levels(scale=scale)[0].units for scale in info.scales] == [patches // 3] * 3
    floor = info.list_levels(subject="colour", scale=0.5)
    assert [row.level for row in floor] == ["patch", "slide", "patient"]
    alone = embed(embeddings.path / embeddings.info.store, embeddings.path / embeddings.info.model.source,
                  tmp_path / "one", EmbedConfig(mpp=(2.0,)), device="cpu", devices=1)  # fmt: skip
    judged = judge(alone, tmp_path / "two")
    assert judged.info.scales == []
    assert judged.info.list_levels()[0].confusion == info.list_levels(scale=2.0)[0].confusion
    coarsest = scores.predictions("knn", "patch", scale=2.0)
    assert coarsest.units["mpp"].tolist() == [2.0] * (patches // 3)


def test_scales_are_pooled_over_folds(embeddings: Embeddings, tmp_path: Path) -> None:
    untrained = embed(embeddings.path / embeddings.info.store, "timm:test_resnet", tmp_path / "untrained",
                      EmbedConfig(), device="cpu", devices=1)  # fmt: skip
    scores = judge(untrained, tmp_path / "folds", folds={"number": 2})
    patients = [scores.info.find("patient", scale=scale) for scale in scores.info.scales]
    assert [row.units for row in patients if row is not None] == [8, 8, 8], "every patient once"


def test_what_takes_one_scale_says_so(embeddings: Embeddings, store: PatchStore, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has patches of 0.5, 1, 2 um/px, and a bag takes those of the finest scale"):
        export_bags(embeddings.path, tmp_path / "bags")
    run, scores = embeddings.path / embeddings.info.model.source, judge(embeddings, tmp_path / "scores")
    with pytest.raises(
        UserError, match=r"WSInfer feeds patches of one scale \(mpp\), and .*store has 0.5, 1, 2. Train"
    ):
        export_wsinfer(run, tmp_path / "qupath", scores.path)
    assert not (tmp_path / "qupath").exists()
    with pytest.raises(UserError, match="has patches of several scales, and the explorer shows one"):
        open_session(store.path, [], None, lambda _: None)
    with pytest.raises(UserError, match=r"mpp: .* has no patches of 3 um/px. It has 0.5, 1, 2."):
        embed(store.path, "timm:test_resnet", tmp_path / "no", EmbedConfig(mpp=(3.0,)), device="cpu", devices=1)


def test_places_without_a_scale_are_of_one_scale(tmp_path: Path) -> None:
    """A column `place` of the user's own says nothing of scales."""
    made = make_embeddings(tmp_path / "embeddings")
    arrow, total = made.table.arrow, len(made)
    arrow = arrow.set_column(arrow.column_names.index("mpp"), "mpp", pa.nulls(total, pa.float32()))
    arrow = arrow.append_column("place", names_column(["liver"], [total]))
    replace(made, table=PatchTable(arrow)).refuse_coarse(None, "a bag")
