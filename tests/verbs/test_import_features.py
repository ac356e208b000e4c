"""Features of other tools become embeddings, with the vectors, places and patients of the files and the table."""

from pathlib import Path

import numpy as np
import pytest

from hidisc import Embeddings, FeaturesConfig, evaluate, import_features, split_patients
from hidisc.artefacts.artefact import verify
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import SplitConfig
from tests.embeddings.others import (
    DIM,
    LEVEL0,
    PATCH,
    Cohort,
    make_cohort,
    write_clam,
    write_stamp,
    write_table,
    write_trident,
)


def check(made: Embeddings, cohort: Cohort, rows: list[dict[str, str]], dtype: str = "float32") -> None:
    """Every slide has the vectors of its file, in their order, and what its row of the table says."""
    table, at = made.table, 0
    assert (made.info.dtype, made.info.dim, made.info.store) == (dtype, DIM, None)
    for row in rows:
        features, _ = cohort[row["slide"]]
        part = slice(at, at + len(features))
        np.testing.assert_array_equal(made.vectors[part], features.astype(dtype))
        for name, value in row.items():
            assert set(table.column(name)[part]) == {value}, name
        assert table.column("patch")[part].tolist() == list(range(len(features)))
        at += len(features)
    assert at == len(made) == len(table) == made.info.rows
    assert not made.info.model.history.is_complete
    assert verify(made.path) == []


def places(made: Embeddings) -> list[list[int]]:
    return np.stack([made.table.column("x"), made.table.column("y")], axis=1).tolist()


@pytest.mark.parametrize("batched", [False, True])
def test_trident(tmp_path: Path, batched: bool) -> None:
    cohort, rows = make_cohort()
    source, table = write_trident(tmp_path / "job", cohort, batched=batched), write_table(tmp_path / "t.csv", rows)
    made = import_features(source, table, tmp_path / "out")
    check(made, cohort, rows)
    assert places(made) == [corner for _, corners in cohort.values() for corner in corners.tolist()]
    assert made.info.model.name == "uni_v1"
    geometry = made.info.geometries[0]
    assert (geometry.size_px, geometry.extent, geometry.mpp, geometry.width) == (PATCH, LEVEL0, None, 6000)
    assert np.isnan(made.table.column("mpp")).all()  # a magnification is no scale


def test_the_scale_of_the_slide_stands_in_the_table(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=4)
    table = write_table(tmp_path / "t.csv", [{**row, "mpp": "0.25"} for row in rows])
    trident = import_features(write_trident(tmp_path / "job", cohort), table, tmp_path / "trident")
    assert set(trident.table.column("mpp")) == {0.5}
    stamp = import_features(write_stamp(tmp_path / "stamp", cohort), table, tmp_path / "out")
    assert places(stamp) == places(trident)
    assert set(stamp.table.column("mpp").round(4)) == {np.float32(LEVEL0 * 0.25 / 224).round(4)}
    assert stamp.info.geometries[0].extent == LEVEL0


def test_clam_with_places_and_without(tmp_path: Path) -> None:
    cohort, rows = make_cohort()
    source, table = write_clam(tmp_path / "clam", cohort), write_table(tmp_path / "t.csv", rows)
    made = import_features(source, table, tmp_path / "out")  # of the two folders, the one with places
    check(made, cohort, rows)
    assert places(made) == [corner for _, corners in cohort.values() for corner in corners.tolist()]
    tensors = import_features(source / "pt_files", table, tmp_path / "tensors", name="resnet50")
    check(tensors, cohort, rows)
    assert set(map(tuple, places(tensors))) == {(-1, -1)}
    assert tensors.info.model.name == "resnet50"


def test_stamp_keeps_half_precision_and_micrometres(tmp_path: Path) -> None:
    cohort, rows = make_cohort()
    said: list[str] = []
    source, table = write_stamp(tmp_path / "stamp", cohort), write_table(tmp_path / "t.csv", rows)
    made = import_features(source, table, tmp_path / "out", say=said.append)
    check(made, cohort, rows, "float16")
    assert made.info.model.name == "virchow2"
    assert places(made) == [np.round(corner * 0.25).tolist() for _, corners in cohort.values() for corner in corners]
    assert made.info.geometries[0].mpp == 1
    assert sum("what the encoder has seen is not known" in line for line in said) == 1
    assert "in micrometres alone of 16 slides" in "\n".join(said)


def test_patients_are_split_as_prepare_does(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=20, slides=1)
    source, table = write_trident(tmp_path / "job", cohort), write_table(tmp_path / "t.csv", rows)
    for number, config in enumerate((SplitConfig(), SplitConfig(folds=4))):
        made = import_features(source, table, tmp_path / str(number), FeaturesConfig(split=config))
        splits = dict(zip(made.table.column("patient"), made.table.column("split"), strict=True))
        assert splits == split_patients({row["patient"]: row["label"] for row in rows}, config, 0)
    given = write_table(tmp_path / "split.csv", [{**row, "split": f"part {row['label']}"} for row in rows])
    made = import_features(source, given, tmp_path / "given")
    assert set(zip(made.table.column("label"), made.table.column("split"), strict=True)) == {
        ("benign", "part benign"),
        ("malignant", "part malignant"),
    }


def test_evaluation_says_once_that_there_are_no_pictures(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=12)
    source, table = write_trident(tmp_path / "job", cohort), write_table(tmp_path / "t.csv", rows)
    import_features(source, table, tmp_path / "emb")
    scores = evaluate(tmp_path / "emb", tmp_path / "scores", EvaluateConfig(probes=("knn",)))
    assert scores.info.floors == ()
    assert "what it has seen before is not known" in scores.verdict()
