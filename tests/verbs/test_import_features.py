"""Features of other tools become embeddings, with the vectors, places and patients of the files and the table."""

import json
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pytest

from hidisc import (
    Embeddings,
    FeaturesConfig,
    Scores,
    UserError,
    audit,
    evaluate,
    export_anndata,
    export_bags,
    export_geojson,
    import_features,
    report,
    split_patients,
)
from hidisc.artefacts.artefact import verify
from hidisc.ground.progress import Progress
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import SplitConfig
from tests.commands import Forks, signal_at
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
from tests.evaluation.made import make_embeddings


class SaidLines(Progress):
    """Progress that keeps its sentences."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, sentence: str) -> None:
        self.lines.append(sentence)


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


def test_the_same_call_again_does_nothing_and_changed_inputs_are_noticed(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=4)
    source, table = write_trident(tmp_path / "job", cohort), write_table(tmp_path / "t.csv", rows)
    first = import_features(source, table, tmp_path / "out").artefact.checksum
    assert import_features(source, table, tmp_path / "out").artefact.checksum == first
    assert import_features(source, table, tmp_path / "twin").artefact.checksum == first
    with h5py.File(source / "P01-S0.h5", "r+") as file:
        file["coords"][0, 0] += 1  # a few bytes in the middle of the file
    with pytest.raises(UserError, match=r"the content of P01-S0\.h5 has changed"):
        import_features(source, table, tmp_path / "out")
    write_table(tmp_path / "t.csv", [{**row, "site": "Ulm"} for row in rows])
    with pytest.raises(UserError, match="the content of the table has changed"):
        import_features(source, table, tmp_path / "out")
    assert Embeddings.load(tmp_path / "out").artefact.checksum == first


@pytest.mark.parametrize("step", ["block.written", "block.done", "file.written", "file.renamed"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_killed_import_goes_on_and_gives_the_same(tmp_path: Path, forks: Forks, step: str, number: int) -> None:
    cohort, rows = make_cohort(patients=4)
    source, table = write_trident(tmp_path / "job", cohort), write_table(tmp_path / "t.csv", rows)
    script = tmp_path / "small.py"
    script.write_text(
        "from hidisc.verbs import import_features as verb\n"
        "verb._BLOCK_BYTES = 12 * 4 * 13\n"  # blocks of 13 rows go over the ends of slides
        f"verb.import_features({str(source)!r}, {str(table)!r}, 'out', shown=False)\n"
    )
    killed = forks.run(script=script, folder=tmp_path, at=signal_at(step, number))
    assert killed.code == -9
    assert not (tmp_path / "out" / "artefact.json").exists()
    assert forks.run(script=script, folder=tmp_path).code == 0
    made, whole = Embeddings.load(tmp_path / "out"), import_features(source, table, tmp_path / "whole")
    check(made, cohort, rows)
    assert made.artefact.manifest.files == whole.artefact.manifest.files
    assert {path.name for path in made.path.iterdir() if not path.name.startswith(".")} == {
        "artefact.json",
        "config.yaml",
        "embeddings.json",
        "embeddings.npy",
        "patches.parquet",
    }


def test_a_damaged_import_is_repaired(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=4)
    source, table = write_clam(tmp_path / "clam", cohort), write_table(tmp_path / "t.csv", rows)
    made = import_features(source, table, tmp_path / "out")
    vectors = made.path / "embeddings.npy"
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"!")
    with pytest.raises(UserError, match="damaged"):
        Embeddings.load(made.path)
    said: list[str] = []
    check(import_features(source, table, tmp_path / "out", say=said.append), cohort, rows)
    assert any("what is damaged is made again" in line for line in said)


def numbers(scores: Scores) -> list[object]:
    return [(row.key, row.units, row.metrics, row.confusion) for row in scores.info.judged]


@pytest.mark.parametrize("door", ["bags", "tensors", "parquet", "anndata"])
def test_what_we_export_comes_back_with_equal_scores(tmp_path: Path, door: str) -> None:
    if door == "anndata":
        pytest.importorskip("anndata", reason="needs the extra [anndata]")
    original = make_embeddings(tmp_path / "emb")
    if door == "anndata":
        source, table = export_anndata(original.path, tmp_path / "out")[0], None
    else:
        export_bags(original.path, tmp_path / "out")
        folder = {"tensors": "pt_files", "parquet": "embeddings.parquet"}.get(door, "")
        source, table = tmp_path / "out" / folder, tmp_path / "out" / "slides.csv"
    if door == "parquet":
        table = None
    back = import_features(source, table, tmp_path / "back")
    for name in ("patient", "slide", "label", "site", "split"):
        assert back.table.column(name).tolist() == original.table.column(name).tolist()
    np.testing.assert_array_equal(back.vectors, original.vectors)
    config = EvaluateConfig(floor=False)
    before, after = (evaluate(made.path, tmp_path / made.path.name / "scores", config) for made in (original, back))
    assert numbers(before) == numbers(after)


def test_what_we_import_is_exported_and_comes_back(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=6)
    table = write_table(tmp_path / "t.csv", [{**row, "mpp": "0.25"} for row in rows])
    made = import_features(write_trident(tmp_path / "job", cohort), table, tmp_path / "emb")
    export_bags(made.path, tmp_path / "bags")
    for folder, mpp in (("h5_files", 0.5), ("stamp", 0.5)):
        back = import_features(tmp_path / "bags" / folder, tmp_path / "bags" / "slides.csv", tmp_path / folder)
        np.testing.assert_array_equal(back.vectors, made.vectors)
        assert set(back.table.column("mpp")) == {mpp}
    h5 = Embeddings.load(tmp_path / "h5_files")
    assert places(h5) == places(made)
    assert h5.info.geometries[0] == made.info.geometries[0]
    if find_spec("anndata") is not None:
        back = import_features(export_anndata(made.path, tmp_path / "h5ad")[0], None, tmp_path / "from-anndata")
        assert places(back) == places(made)
        assert back.info.geometries[0].extent == LEVEL0
        assert set(back.table.column("mpp")) == {0.5}
    boxes = tmp_path / "boxes"
    assert export_geojson(made.path, boxes) == 12
    ring = json.loads((boxes / "P00-S0.geojson").read_text())["features"][0]["geometry"]["coordinates"][0]
    assert (min(ring), max(ring)) == ([0, 100], [LEVEL0, LEVEL0 + 100])


def test_everything_that_needs_no_pictures_works(tmp_path: Path) -> None:
    """Folds, audit and a page; that there are no pictures is said in one sentence."""
    cohort, rows = make_cohort(patients=12)
    source, table = write_trident(tmp_path / "job", cohort), write_table(tmp_path / "t.csv", rows)
    import_features(source, table, tmp_path / "emb")
    said = SaidLines()
    config = load_config(EvaluateConfig, None, ["folds.number=3", "probes=[knn, linear]", "bootstrap.resamples=50"])
    scores = evaluate(tmp_path / "emb", tmp_path / "scores", config, progress=said)
    assert sum("pictures" in line for line in dict.fromkeys(said.lines)) == 1
    assert "colour" not in {floor.subject for floor in scores.info.floors}
    assert len(scores.info.folds) == 3
    page = report([tmp_path / "scores"], tmp_path / "report.html").read_text()
    assert page.count("imported without pictures of their patches") == 1
    assert "No pictures:" not in page
    assert "not known what this encoder was trained on" in page
    made = audit([tmp_path / "emb"], tmp_path / "audit")
    obstacles = {column.column: column.sentence for column in made.info.encoders[0].columns}
    assert "imported, without pictures of their patches" in obstacles["colour"]


def test_the_command_and_options_of_other_sources(tmp_path: Path, forks: Forks) -> None:
    cohort, rows = make_cohort(patients=4)
    source, table = write_trident(tmp_path / "job", cohort), write_table(tmp_path / "t.csv", rows)
    words = ("import", "features", source, "--table", table, "--out", "emb", "--name", "UNI")
    done = forks.run(*words, folder=tmp_path)
    assert done.code == 0, done.said
    assert done.result.strip() == "emb: 72 patches of 8 slides as 12 numbers each"
    assert Embeddings.load(tmp_path / "emb").info.model.name == "UNI"
    wrong = forks.run("import", "folder", source, "--table", table, "--out", "x", folder=tmp_path)
    assert (wrong.code, "--table and --name go with `import features`" in wrong.said) == (2, True)
    wrong = forks.run("import", "features", source, "--patients", table, "--out", "x", folder=tmp_path)
    assert (wrong.code, "knows patients by --table. Leave --patients and --pseudonyms out" in wrong.said) == (2, True)
    wrong = forks.run("explore", "emb", "--no-browser", "--stop-after", "0", folder=tmp_path)
    assert wrong.code == 0, wrong.said
