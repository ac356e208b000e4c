"""Feature files that cannot be trusted are refused, each in one sentence that names the file; nothing is guessed."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hidisc import Embeddings, UserError, import_features
from hidisc.embeddings.feature_files import find_features
from tests.embeddings.others import DIM, make_cohort, write_clam, write_rows, write_table, write_trident

COHORT, ROWS = make_cohort(patients=4, slides=1)
NAME = "P01-S0"


def change(folder: Path, edit: Callable[[h5py.File], None]) -> Path:
    """TRIDENT's files, of which one was changed."""
    out = write_trident(folder / "job", COHORT)
    with h5py.File(out / f"{NAME}.h5", "r+") as file:
        edit(file)
    return out


def fewer_coords(folder: Path) -> Path:
    return change(folder, lambda file: file["coords"].resize(5, axis=0))


def not_a_number(folder: Path) -> Path:
    def edit(file: h5py.File) -> None:
        file["features"][3, 1] = np.nan

    return change(folder, edit)


def infinite_when_stored(folder: Path) -> Path:
    def edit(file: h5py.File) -> None:
        values = file["features"][:].astype(np.float64)
        del file["features"]
        values[2, 0] = 1e300
        write_rows(file, "features", values)

    return change(folder, edit)


def no_patches(folder: Path) -> Path:
    def edit(file: h5py.File) -> None:
        file["features"].resize(0, axis=0)
        file["coords"].resize(0, axis=0)

    return change(folder, edit)


def no_features(folder: Path) -> Path:
    return change(folder, lambda file: file.__delitem__("features"))


def whole_numbers(folder: Path) -> Path:
    def edit(file: h5py.File) -> None:
        del file["features"]
        write_rows(file, "features", np.ones((9, DIM), np.int64))

    return change(folder, edit)


def other_width(folder: Path) -> Path:
    def edit(file: h5py.File) -> None:
        del file["features"]
        write_rows(file, "features", np.ones((9, DIM + 1), np.float32))

    return change(folder, edit)


def other_shape(folder: Path) -> Path:
    def edit(file: h5py.File) -> None:
        del file["features"]
        write_rows(file, "features", np.ones((2, 9, DIM), np.float32))

    return change(folder, edit)


def other_encoder(folder: Path) -> Path:
    out = write_trident(folder / "job", COHORT)
    more = {f"x{name}": value for name, value in COHORT.items()}
    write_trident(folder / "job", more, encoder="conch_v1")
    return out.parent


def truncated(folder: Path) -> Path:
    out = write_trident(folder / "job", COHORT)
    path = out / f"{NAME}.h5"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return out


def empty(folder: Path) -> Path:
    out = write_trident(folder / "job", COHORT)
    (out / f"{NAME}.h5").write_bytes(b"")
    return out


def two_files(folder: Path) -> Path:
    out = write_trident(folder / "job", COHORT)
    (out / "again").mkdir()
    shutil.copy(out / f"{NAME}.h5", out / "again" / f"{NAME}.h5")
    return out


def coords_alone(folder: Path) -> Path:
    out = write_trident(folder / "job", COHORT)
    for path in out.iterdir():
        with h5py.File(path, "r+") as file:
            del file["features"]
    return out


class Command:
    """What a pickled object may do to whoever unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("open('unpickled', 'w')",)


def pickled(folder: Path) -> Path:
    out = write_clam(folder / "clam", COHORT) / "pt_files"
    (out / f"{NAME}.pt").write_bytes(pickle.dumps(Command()))
    return out


def a_dictionary(folder: Path) -> Path:
    out = write_clam(folder / "clam", COHORT) / "pt_files"
    torch.save({"features": torch.ones(3, DIM)}, out / f"{NAME}.pt")
    return out


def damaged_tensor(folder: Path) -> Path:
    out = write_clam(folder / "clam", COHORT) / "pt_files"
    (out / f"{NAME}.pt").write_bytes((out / f"{NAME}.pt").read_bytes()[:300])
    return out


def pickled_array(folder: Path) -> Path:
    np.save(folder / f"{NAME}.npy", np.array([Command()], object), allow_pickle=True)
    return folder / f"{NAME}.npy"


def nothing(folder: Path) -> Path:
    (folder / "features").mkdir()
    return folder / "features"


def another_file(folder: Path) -> Path:
    (folder / "slide.svs").write_text("pixels")
    return folder / "slide.svs"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (fewer_coords, rf"{NAME}.h5 has 9 rows of features and 5 of coords, so it is not known which patch is which"),
        (not_a_number, rf"{NAME}.h5 has NaN or infinity among the features of slide '{NAME}', first in row 3. Extract"),
        (infinite_when_stored, rf"{NAME}.h5 has NaN or infinity among the features of slide '{NAME}', first in row 2"),
        (no_patches, rf"{NAME}.h5 has 0 patches of slide '{NAME}'. Extract that slide again, or remove the file"),
        (no_features, rf"{NAME}.h5 has no dataset features or feats; it has coords. Give the folder of features"),
        (whole_numbers, rf"{NAME}.h5 holds int64, and features are floating-point numbers"),
        (
            other_width,
            rf"P00-S0.h5 has 12 numbers, \S*{NAME}.h5 has 13 numbers. Import each encoder's features",
        ),
        (other_shape, rf"{NAME}.h5 has features of shape \(2, 9, 12\). Valid are \(N, D\), \(1, N, D\) and"),
        (other_encoder, r"different encoders: \S*h5 has \w+, \S*h5 has \w+. Import each encoder's features"),
        (truncated, rf"{NAME}.h5 is no HDF5 file, or damaged \(.*\). Copy or extract that slide again"),
        (empty, rf"{NAME}.h5 is empty \(0 bytes\). Extract that slide again, or remove the file"),
        (two_files, rf"slide '{NAME}' has two feature files: \S+ and \S+. Leave one of them in the folder"),
        (coords_alone, "has no dataset features or feats; it has coords. Give the folder of features"),
        (pickled, rf"{NAME}.pt holds no plain tensor, or is damaged, and nothing else is unpickled"),
        (a_dictionary, rf"{NAME}.pt holds a dict, and features are a plain tensor \(N, D\). Save the tensor alone"),
        (damaged_tensor, rf"{NAME}.pt holds no plain tensor, or is damaged"),
        (pickled_array, rf"{NAME}.npy is no array of numbers, or damaged"),
        (nothing, "holds no feature files"),
        (another_file, "slide.svs is no feature file. Give one of .h5"),
    ],
)
def test_a_bad_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source, table = make(tmp_path), write_table(tmp_path / "t.csv", ROWS)
    with pytest.raises(UserError, match=sentence):
        import_features(source, table, tmp_path / "out", shown=False)
    assert not (tmp_path / "out" / "artefact.json").exists()
    assert not (tmp_path / "unpickled").exists()


def test_every_bad_file_is_named_at_once(tmp_path: Path) -> None:
    out = write_trident(tmp_path / "job", COHORT)
    names = [f"{name}.h5" for name in COHORT]
    for name in names:
        (out / name).write_bytes(b"")
    with pytest.raises(UserError) as refused:
        find_features(out)
    assert all(name in str(refused.value) for name in names)


def by_list(folder: Path, dtype: str) -> Path:
    columns = {name: [row[name] for row in ROWS for _ in range(9)] for name in ROWS[0]}
    vectors = [vector for row in ROWS for vector in COHORT[row["slide"]][0].astype(dtype)]
    corners = np.concatenate([COHORT[row["slide"]][1] for row in ROWS])
    table = pa.table({**columns, "x": corners[:, 0], "y": corners[:, 1], "feats": vectors})
    pq.write_table(table, folder / "features.parquet", row_group_size=7)  # slides go over the ends of groups
    return folder / "features.parquet"


def by_number(folder: Path, dtype: str) -> Path:
    vectors = np.concatenate([COHORT[row["slide"]][0] for row in ROWS]).astype(dtype)
    columns = {name: [row[name] for row in ROWS for _ in range(9)] for name in ROWS[0]}
    corners = np.concatenate([COHORT[row["slide"]][1] for row in ROWS])
    columns |= {"x": corners[:, 0], "y": corners[:, 1]}
    numbered = {f"f{number}": vectors[:, number] for number in range(DIM)}
    pq.write_table(pa.table({**columns, **numbered}), folder / "features.parquet")
    return folder / "features.parquet"


def by_array(folder: Path, dtype: str) -> Path:
    """The rows of two slides take turns."""
    order = np.concatenate([np.arange(18).reshape(2, 9).T.ravel(), np.arange(18, 36)])
    np.save(folder / "features.npy", np.concatenate([COHORT[row["slide"]][0] for row in ROWS]).astype(dtype)[order])
    corners = np.concatenate([COHORT[row["slide"]][1] for row in ROWS])
    each = [
        {**ROWS[number // 9], "x": str(corners[number, 0]), "y": str(corners[number, 1])} for number in order.tolist()
    ]
    write_table(folder / "features.csv", each)
    return folder / "features.npy"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("make", [by_list, by_number, by_array])
@pytest.mark.parametrize("has_table", [True, False])
def test_files_of_several_slides(
    tmp_path: Path, make: Callable[[Path, str], Path], dtype: str, has_table: bool
) -> None:
    source = make(tmp_path, dtype)
    made = import_features(
        source, write_table(tmp_path / "t.csv", ROWS) if has_table else None, tmp_path / "out", shown=False
    )
    assert made.info.dtype == dtype
    assert len(made) == 36
    for row in ROWS:
        rows = np.flatnonzero(made.table.column("slide") == row["slide"])
        features, corners = COHORT[row["slide"]]
        np.testing.assert_array_equal(made.vectors[rows], features.astype(dtype))
        assert set(made.table.column("patient")[rows]) == {row["patient"]}
        assert set(made.table.column("label")[rows]) == {row["label"]}
        np.testing.assert_array_equal([made.table.column("x")[rows], made.table.column("y")[rows]], corners.T)


def test_a_vector_of_a_whole_slide_is_one_row(tmp_path: Path) -> None:
    """TRIDENT's slide encoders write features (D,) beside the coords of all patches."""
    out = tmp_path / "slide_features_titan"
    out.mkdir()
    for name, (features, corners) in COHORT.items():
        with h5py.File(out / f"{name}.h5", "w") as file:
            file["features"], file["coords"] = features[0], corners
    made = import_features(out, write_table(tmp_path / "t.csv", ROWS), tmp_path / "out", shown=False)
    assert (len(made), made.info.model.name) == (4, "titan")
    np.testing.assert_array_equal(made.vectors, [COHORT[row["slide"]][0][0] for row in ROWS])


def test_bfloat16_and_double_become_single_precision(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", ROWS[:2])
    for kind in (torch.bfloat16, torch.float64):
        folder = tmp_path / str(kind)
        folder.mkdir()
        for row in ROWS[:2]:
            torch.save(torch.from_numpy(COHORT[row["slide"]][0]).to(kind), folder / f"{row['slide']}.pt")
        made = import_features(folder, table, folder / "out", shown=False)
        expected = torch.from_numpy(COHORT[ROWS[0]["slide"]][0]).to(kind).float().numpy()
        np.testing.assert_array_equal(made.vectors[:9], expected)


def test_unbatched_legacy_tensors_are_read(tmp_path: Path) -> None:
    """torch before 1.6 wrote no zip archives."""
    for row in ROWS:
        tensor = torch.from_numpy(COHORT[row["slide"]][0])
        torch.save(tensor, tmp_path / f"{row['slide']}.pt", _use_new_zipfile_serialization=False)
    made = import_features(tmp_path, write_table(tmp_path / "t.csv", ROWS), tmp_path / "out", shown=False)
    assert isinstance(made, Embeddings)
    np.testing.assert_array_equal(made.vectors[:9], COHORT[ROWS[0]["slide"]][0])
