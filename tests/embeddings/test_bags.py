"""Bags are read back the way CLAM, TRIDENT and STAMP read theirs, for any name of a slide and after any crash."""

import csv
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from hidisc.embeddings import bags
from hidisc.embeddings.bags import EVERYTHING, FEATURES, SLIDES, STAMP, TENSORS, write_bags
from hidisc.embeddings.embeddings import EMBEDDINGS, PATCHES, VECTORS, Embeddings, EmbeddingsInfo, ModelCard
from hidisc.ground.errors import UserError
from hidisc.ground.files import PART, FileEntry
from hidisc.ground.spreadsheet import unguard_cell
from hidisc.models.card import UNKNOWN
from hidisc.patches.record import SlideRecord, folder_name
from hidisc.patches.store import STORE, PatchStore, SlideEntry, StoreInfo
from hidisc.patches.table import SCHEMA, PatchTable
from tests.finished import finish, refinish

DIM, SIZE = 5, 64
MPP0, DOWNSAMPLE = 0.25, 2.0
Slides = Sequence[tuple[str, str, str | None, int]]
"""(patient, slide, label, patches) each."""


class Made:
    """Embeddings of a few slides and the store they came from."""

    def __init__(
        self,
        folder: Path,
        slides: Slides,
        *,
        imported: bool = False,
        mpp: float | None = MPP0,
        dtype: str = "float32",
        store: bool = True,
        more: dict[str, list[Any]] | None = None,
    ) -> None:
        rng = np.random.default_rng(0)
        rows: dict[str, list[Any]] = {field.name: [] for field in SCHEMA}
        for number, (patient, slide, label, patches) in enumerate(slides):
            for patch in range(patches):
                known = {"patient": patient, "slide": slide, "label": label, "patch": patch, "row": patch}
                known |= {"x": None if imported else 128 * patch + number, "y": None if imported else 128 * number}
                known |= {"mpp": mpp, "site": "Ä", "split": "train", "shard": number}
                known |= {"tissue_fraction": 1.0, "pixel_std": 3.0, "is_blank": False}
                for name, value in known.items():
                    rows[name].append(value)
        schema = SCHEMA
        for name in more or {}:
            schema = schema.append(pa.field(name, pa.dictionary(pa.int32(), pa.string())))
        self.table = PatchTable(pa.table({**rows, **(more or {})}, schema=schema))
        self.vectors: NDArray[Any] = rng.normal(size=(len(self.table), DIM)).astype(dtype)
        self.store = folder / "store"
        if store:
            self._write_store(slides, imported, mpp)
        self.embeddings = self._write_embeddings(folder / "emb", dtype)

    def _write_store(self, slides: Slides, imported: bool, mpp: float | None) -> None:
        entries = []
        for number, (patient, slide, _, patches) in enumerate(slides):
            record = SlideRecord(
                slide=slide,
                checksum="c",
                sample="s",
                settings="t",
                reader="made",
                width=None if imported else 10_000,
                height=None if imported else 9_000,
                mpp=mpp,
                downsample=None if imported else DOWNSAMPLE,
                size_px=SIZE,
                channels=3,
                dtype="uint8",
                boxes=patches,
                files=(FileEntry(path="0", bytes=1, sha256="s", crc32=0),) * 2,
            )
            folder = self.store / str(number)
            folder.mkdir(parents=True)
            record.save(folder)
            entries.append(
                SlideEntry(
                    patient=patient,
                    slide=slide,
                    folder=str(number),
                    checksum="c",
                    kept=patches,
                    dropped=0,
                )
            )
        self.table.save(self.store / PATCHES)
        info = StoreInfo(
            size_px=SIZE,
            mpp=mpp,
            channels=3,
            dtype="uint8",
            codec="jpeg",
            input="unit",
            shards=(),
            slides=tuple(entries),
            failures=(),
        )
        (self.store / STORE).write_text(info.model_dump_json())
        finish(self.store, "prepare")

    def _write_embeddings(self, folder: Path, dtype: str) -> Embeddings:
        folder.mkdir()
        self.table.save(folder / PATCHES)
        np.save(folder / VECTORS, self.vectors)
        store_checksum = PatchStore.load(self.store).checksum if self.store.exists() else "gone"
        info = EmbeddingsInfo(
            rows=len(self.vectors),
            dim=DIM,
            dtype=dtype,
            model=ModelCard(
                name="mine", kind="timm", source="timm:x", checksum="c", group="c", size_px=32, history=UNKNOWN
            ),
            store="../store",
            store_checksum=store_checksum,
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

    def of(self, slide: str) -> NDArray[Any]:
        """Vectors of a slide, float32."""
        return self.vectors[self.table.column("slide") == slide].astype(np.float32)


PLAIN = [("P1", "S1", "a", 3), ("P2", "S2.x-1", "b", 1), ("P1", "S3", "a", 4)]
"""Patient P1's slides are not next to each other."""


def list_slides(out: Path) -> list[dict[str, str]]:
    with (out / SLIDES).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_as_clam(out: Path) -> dict[str, tuple[NDArray[Any], NDArray[Any], str, str]]:
    """A CSV of case_id, slide_id and label; the file of a slide is h5_files/SLIDE_ID.h5 under the data folder."""
    found = {}
    for row in list_slides(out):
        with h5py.File(out / "h5_files" / f"{row['slide_id']}.h5", "r") as file:
            found[row["slide"]] = (file["features"][:], file["coords"][:], row["case_id"], row["label"])
    return found


def read_as_trident(path: Path) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
    """All of `features` and `coords`, and the attributes of `coords` as a dictionary."""
    with h5py.File(path, "r") as file:
        return file["features"][:], file["coords"][:], dict(file["coords"].attrs)


def read_as_stamp(path: Path) -> tuple[NDArray[Any], NDArray[Any], float, int]:
    """`feats`, coordinates in um, the tile's side in um and px; a file without `tile_size_um` is refused."""
    with h5py.File(path, "r") as file:
        assert "feats" in file
        assert file.attrs["feat_type"] == "tile"
        assert "stamp_version" not in file.attrs  # a later version than the reader's is refused
        if "tile_size" in file.attrs or not file.attrs.get("tile_size_um"):
            raise RuntimeError("unable to infer coordinates")
        size_um, size_px = float(file.attrs["tile_size_um"]), int(file.attrs["tile_size_px"])
        return file["feats"][:], file["coords"][:], size_um, size_px


def group_as_stamp(out: Path) -> dict[str, list[str]]:
    """Files by patient, of neighbouring rows only; a later group of the same patient replaces the earlier one."""
    rows = list_slides(out)
    assert all(row["file"].endswith(".h5") for row in rows)
    assert len({row["file"] for row in rows}) == len(rows)
    grouped = groupby(rows, lambda row: row["case_id"])
    return {patient: [row["file"] for row in of_patient] for patient, of_patient in grouped}


def test_clam_reads_the_bags(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN)
    assert write_bags(made.embeddings, tmp_path / "bags") == 3
    found = read_as_clam(tmp_path / "bags")
    assert {slide: bag[2:] for slide, bag in found.items()} == {
        "S1": ("P1", "a"),
        "S2.x-1": ("P2", "b"),
        "S3": ("P1", "a"),
    }
    for slide, (features, coords, *_) in found.items():
        assert features.dtype == np.float32
        assert np.array_equal(features, made.of(slide))
        rows = made.table.column("slide") == slide
        assert np.array_equal(coords[:, 0], made.table.column("x")[rows])
        assert np.array_equal(coords[:, 1], made.table.column("y")[rows])
        assert np.issubdtype(coords.dtype, np.integer)


def test_clam_reads_the_tensors_that_it_asks_for_by_default(tmp_path: Path) -> None:
    """With `use_h5=False`: `torch.load(os.path.join(data_dir, 'pt_files', f'{slide_id}.pt'), weights_only=True)`."""
    made = Made(tmp_path, PLAIN, dtype="float16")
    write_bags(made.embeddings, tmp_path / "bags")
    for slide in read_as_clam(tmp_path / "bags"):
        features = torch.load(tmp_path / "bags" / TENSORS / f"{slide}.pt", weights_only=True)
        assert features.dtype == torch.float32
        assert np.array_equal(features.numpy(), made.of(slide))
    assert len(list((tmp_path / "bags" / TENSORS).iterdir())) == 3


@pytest.mark.parametrize(("mpp", "magnification"), [(0.2528, 40), (0.5021, 20), (0.19448, 51), (12.0, 1)])
def test_magnifications_are_whole_numbers(tmp_path: Path, mpp: float, magnification: int) -> None:
    write_bags(Made(tmp_path, PLAIN, mpp=mpp).embeddings, tmp_path / "bags")
    attributes = read_as_trident(tmp_path / "bags" / FEATURES / "S1.h5")[2]
    for name in ("level0_magnification", "target_magnification"):
        assert isinstance(attributes[name], np.integer)
    assert attributes["level0_magnification"] == magnification


def test_trident_reads_the_bags(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN)
    write_bags(made.embeddings, tmp_path / "bags")
    features, coords, attributes = read_as_trident(tmp_path / "bags" / FEATURES / "S1.h5")
    assert np.array_equal(features, made.of("S1"))
    assert features.ndim == coords.ndim == 2
    assert attributes["patch_size"] == SIZE
    assert attributes["patch_size_level0"] == 128
    assert isinstance(attributes["patch_size_level0"], np.integer)
    assert attributes["level0_magnification"] == 40
    assert attributes["target_magnification"] == 20
    assert attributes["level0_width"] == 10_000
    assert attributes["level0_height"] == 9_000
    assert attributes["name"] == "S1"
    assert attributes["level0_mpp"] == 0.25
    assert attributes["patch_mpp"] == 0.5
    assert "coords_are" not in attributes
    cells = coords // attributes["patch_size_level0"]  # as slide encoders lay their grid
    assert cells[:, 0].tolist() == [0, 1, 2]


def test_stamp_reads_the_bags(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN)
    write_bags(made.embeddings, tmp_path / "bags")
    out = tmp_path / "bags"
    for slide in ("S1", "S2.x-1", "S3"):
        feats, coords_um, size_um, size_px = read_as_stamp(out / STAMP / f"{slide}.h5")
        assert np.array_equal(feats, made.of(slide))
        rows = made.table.column("slide") == slide
        assert np.allclose(coords_um[:, 0], made.table.column("x")[rows] * MPP0)
        assert np.allclose(coords_um[:, 1], made.table.column("y")[rows] * MPP0)
        assert coords_um.dtype == np.float32
        assert (size_um, size_px) == (SIZE * 0.5, SIZE)
    with h5py.File(out / STAMP / "S1.h5", "r") as file:
        assert file.attrs["unit"] == "um"
        assert file.attrs["extractor"] == "mine"
    assert (out / STAMP / "S1.h5").stat().st_size < 10_000  # features are linked, not copied
    assert group_as_stamp(out) == {"P1": ["S1.h5", "S3.h5"], "P2": ["S2.x-1.h5"]}


def test_the_bags_may_be_moved_and_read_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path, PLAIN)
    write_bags(made.embeddings, tmp_path / "bags")
    (tmp_path / "bags").rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert np.array_equal(read_as_stamp(Path("../moved/stamp/S1.h5"))[0], made.of("S1"))
    monkeypatch.chdir(tmp_path / "moved" / "stamp")
    assert np.array_equal(read_as_stamp(Path("S1.h5"))[0], made.of("S1"))


def test_imported_patches_lie_side_by_side(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN, imported=True, mpp=0.5)
    out, said = tmp_path / "bags", list[str]()
    write_bags(made.embeddings, out, said.append)
    _, coords, attributes = read_as_trident(out / FEATURES / "S3.h5")
    assert coords.tolist() == [[0, 0], [64, 0], [128, 0], [192, 0]]
    assert attributes["patch_size_level0"] == attributes["patch_size"] == 64
    assert attributes["coords_are"] == "side by side in one row: where the patches lay is not known"
    assert "level0_width" not in attributes
    _, coords_um, size_um, size_px = read_as_stamp(out / STAMP / "S3.h5")
    assert coords_um.tolist() == [[0, 0], [32, 0], [64, 0], [96, 0]]
    assert (size_um, size_px) == (32, 64)
    with h5py.File(out / STAMP / "S3.h5", "r") as file:
        assert file.attrs["coords_are"] == attributes["coords_are"]
    assert said == []


def test_without_a_pixel_size_there_is_nothing_for_stamp(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN, imported=True, mpp=None)
    out, said = tmp_path / "bags", list[str]()
    assert write_bags(made.embeddings, out, said.append) == 3
    assert list((out / STAMP).iterdir()) == []
    assert said == [
        f"note: 3 of 3 slides have no known um/px, which STAMP asks for, and are not in {out / STAMP}. "
        "Import them with --set mpp=... for that."
    ]
    attributes = read_as_trident(out / FEATURES / "S1.h5")[2]
    assert attributes["patch_size_level0"] == 64
    assert "level0_magnification" not in attributes
    assert "level0_mpp" not in attributes


def test_without_the_store_sizes_are_left_out(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN, store=False)
    out, said = tmp_path / "bags", list[str]()
    write_bags(made.embeddings, out, said.append)
    assert len(said) == 1
    assert said[0].startswith("note: the store 'store' is not there, or has changed. So the size of a patch on the")
    features, coords, attributes = read_as_trident(out / FEATURES / "S1.h5")
    assert np.array_equal(features, made.of("S1"))
    assert coords[:, 0].tolist() == [0, 128, 256]
    assert set(attributes) == {"name", "slide"}
    assert list((out / STAMP).iterdir()) == []


def test_another_store_of_that_name_is_not_believed(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN)
    made.table.select(np.arange(len(made.table))[::-1]).save(made.store / PATCHES)
    refinish(made.store)
    said = list[str]()
    write_bags(made.embeddings, tmp_path / "bags", said.append)
    assert "is not there, or has changed. So" in said[0]
    assert "patch_size" not in read_as_trident(tmp_path / "bags" / FEATURES / "S1.h5")[2]


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN)
    (made.store / "1" / "slide.json").write_text("{")
    with pytest.raises(UserError, match=r"store .*store is damaged: 1/slide\.json has 1 bytes instead of"):
        write_bags(made.embeddings, tmp_path / "bags")


HOSTILE = [
    "a/b",
    "../../etc/passwd",
    "..",
    ".hidden",
    "",
    "con\0trol",
    "line\nbreak",
    '=cmd|"calc"!A1',
    "комета",
    "x" * 300,
    "a b",
    "same",
    "SAME",
    "007",
    "1e5",
    "nan",
    "NA",
    "-1",
    "C:\\x",
    "x.h5",
    folder_name("a/b"),
]


def test_no_name_of_a_slide_escapes_or_collides(tmp_path: Path) -> None:
    made = Made(tmp_path, [(f"P,{number}\n", slide, None, 2) for number, slide in enumerate(HOSTILE)])
    out = tmp_path / "bags"
    assert write_bags(made.embeddings, out) == len(HOSTILE)
    found = {unguard_cell(slide): facts for slide, facts in read_as_clam(out).items()}
    assert set(found) == set(HOSTILE)
    for number, slide in enumerate(HOSTILE):
        assert np.array_equal(found[slide][0], made.of(slide))
        assert found[slide][2:] == (f"P,{number}\n", "")
    files = sorted(path.name for path in (out / FEATURES).iterdir())
    assert len({name.lower() for name in files}) == len(files) == len(HOSTILE)
    assert files == sorted(path.name for path in (out / STAMP).iterdir())
    assert all(path.suffix == ".h5" and path.name.isascii() for path in (out / FEATURES).iterdir())
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock",
        "artefact.json",
        "config.yaml",
        "embeddings.parquet",
        "h5_files",
        "pt_files",
        "slides.csv",
        "stamp",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bags", "emb", "store"]


def test_plain_names_are_kept(tmp_path: Path) -> None:
    plain = ["S1", "TCGA-AB-1234-01Z.0f3c", "12", "0", "NA-12", "_x", "1.2.840.1", "x" * 120]
    made = Made(tmp_path, [("P", slide, "a", 1) for slide in plain])
    write_bags(made.embeddings, tmp_path / "bags")
    assert [row["slide_id"] for row in list_slides(tmp_path / "bags")] == plain


def test_a_csv_reader_that_guesses_types_gives_the_names_back() -> None:
    """'007' read as 7 would be looked for in 7.h5."""
    for name in ("007", "1e5", "1_000", "nan", "inf", "NA", "null", "None", "TRUE", "1.0", "1.50", "-1"):
        assert bags.name_files([name]) == [folder_name(name)]


def test_the_list_holds_no_formula(tmp_path: Path) -> None:
    made = Made(tmp_path, [("=1+1", "@S", "-x", 1), ("-1", "S2", "+1", 1)])
    write_bags(made.embeddings, tmp_path / "bags")
    first, second = list_slides(tmp_path / "bags")
    assert (first["case_id"], first["slide"], first["label"]) == ("'=1+1", "'@S", "'-x")
    assert (second["case_id"], second["slide"], second["label"]) == ("-1", "S2", "+1")
    assert (tmp_path / "bags" / "h5_files" / first["file"]).is_file()
    assert first["file"] == f"{first['slide_id']}.h5"


def test_the_list_says_what_patches_agree_on(tmp_path: Path) -> None:
    made = Made(tmp_path, [("P", "S1", "a", 2), ("P", "S1", "b", 1), ("P", "S2", None, 2), ("P", "S3", "b", 1)])
    said = list[str]()
    write_bags(made.embeddings, tmp_path / "bags", said.append)
    rows = list_slides(tmp_path / "bags")
    assert list(rows[0]) == ["case_id", "slide_id", "label", "site", "split", "file", "patches", "slide"]
    assert [row["label"] for row in rows] == ["", "", "b"]
    assert [row["patches"] for row in rows] == ["3", "2", "1"]
    assert {(row["site"], row["split"]) for row in rows} == {("Ä", "train")}
    assert said == ["note: 1 of 3 slides have patches of several labels; their label in slides.csv is empty."]


def test_rows_of_a_slide_need_not_be_neighbours(tmp_path: Path) -> None:
    made = Made(tmp_path, [("P", "S1", "a", 2), ("P", "S2", "a", 2), ("P", "S1", "a", 2)])
    write_bags(made.embeddings, tmp_path / "bags")
    features, coords, *_ = read_as_clam(tmp_path / "bags")["S1"]
    assert np.array_equal(features, made.of("S1"))
    assert coords[:, 0].tolist() == [0, 128, 2, 130]


@pytest.mark.parametrize("block", [1, 3 * 4 * DIM, 2**25])
def test_everything_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(bags, "_BLOCK_BYTES", block)
    made = Made(tmp_path, PLAIN, imported=True, more={"name": [f"n{number}" for number in range(8)]})
    write_bags(made.embeddings, tmp_path / "bags")
    found = pq.read_table(tmp_path / "bags" / EVERYTHING)
    assert found.column_names == [*SCHEMA.names, "name", "features"]
    assert found.schema.field("features").type == pa.list_(pa.float32(), DIM)
    assert np.array_equal(np.array(found.column("features").to_pylist(), np.float32), made.vectors)
    for name in (*SCHEMA.names, "name"):
        assert found.column(name).to_pylist() == made.table.arrow.column(name).to_pylist()
    assert found.column("x").null_count == 8
    assert np.array_equal(read_as_clam(tmp_path / "bags")["S3"][0], made.of("S3"))


def test_a_column_of_the_users_called_features_is_kept_aside(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN, more={"features": list("abcdefgh")})
    write_bags(made.embeddings, tmp_path / "bags")
    found = pq.read_table(tmp_path / "bags" / EVERYTHING)
    assert found.column("features (table)").to_pylist() == list("abcdefgh")
    assert len(found.column("features")[0]) == DIM


def test_half_precision_is_written_as_float32(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN, dtype="float16")
    write_bags(made.embeddings, tmp_path / "bags")
    features = read_as_clam(tmp_path / "bags")["S1"][0]
    assert features.dtype == np.float32
    assert np.array_equal(features, made.of("S1"))
    column = pq.read_table(tmp_path / "bags" / EVERYTHING).column("features")
    assert np.array_equal(np.array(column.to_pylist(), np.float32), made.vectors.astype(np.float32))


def contents(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("step", ["_describe", "stream_vectors", "_slides_csv", "write_atomic"])
def test_a_killed_export_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    made = Made(tmp_path, PLAIN)
    write_bags(made.embeddings, tmp_path / "whole")
    out, calls = tmp_path / "bags", list[int]()
    true = getattr(bags, step)

    def die(*args: Any) -> Any:
        calls.append(1)
        if step != "_describe" or len(calls) == 2:
            raise Killed
        return true(*args)

    with monkeypatch.context() as patch:
        patch.setattr(bags, step, die)
        with pytest.raises(Killed):
            write_bags(made.embeddings, out)
    assert not (out / SLIDES).exists()
    before = {path: path.stat().st_ino for path in (out / FEATURES).glob("*.h5")}
    assert len(before) == (1 if step == "_describe" else 3)
    assert write_bags(made.embeddings, out) == 3
    assert {path: path.stat().st_ino for path in before} == before  # what was whole was kept
    assert contents(out) == contents(tmp_path / "whole")
    assert not list(out.rglob(f"{PART}*"))


def test_a_cut_file_is_written_again(tmp_path: Path) -> None:
    made = Made(tmp_path, PLAIN)
    out = tmp_path / "bags"
    write_bags(made.embeddings, out)
    whole = contents(out)
    (out / SLIDES).unlink()
    data = (out / FEATURES / "S1.h5").read_bytes()
    (out / FEATURES / "S1.h5").write_bytes(data[: len(data) // 2])
    with h5py.File(out / FEATURES / "S3.h5", "w") as file:
        file["features"] = np.zeros((1, DIM))
        file["coords"] = np.zeros((1, 2))
    write_bags(made.embeddings, out)
    assert contents(out) == whole


def test_a_finished_export_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path, PLAIN)
    out = tmp_path / "bags"
    write_bags(made.embeddings, out)

    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(bags, "_write_bag", fail)
    monkeypatch.setattr(bags, "stream_vectors", fail)
    assert write_bags(made.embeddings, out) == 3


def test_bags_of_other_embeddings_are_not_mixed_in(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    write_bags(Made(tmp_path / "a", PLAIN).embeddings, tmp_path / "bags")
    with pytest.raises(UserError, match=r"bags was begun with other settings \(the content of the embeddings has"):
        write_bags(Made(tmp_path / "b", PLAIN, dtype="float16").embeddings, tmp_path / "bags")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match=r"mine holds something else \(thesis.txt\) and is not overwritten"):
        write_bags(Made(tmp_path / "mine" / "..", PLAIN, store=False).embeddings, tmp_path / "mine")
