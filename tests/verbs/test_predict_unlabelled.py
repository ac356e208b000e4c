"""Patients without a label are predicted from the reference patients of scores, and are never judged."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hidisc import Embeddings, Scores, UserError, evaluate, import_features, predict_unlabelled
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import EvaluateConfig
from tests.commands import Forks
from tests.embeddings.others import make_cohort, write_table, write_trident
from tests.evaluation.made import relabel

QUICK = ["knn.k=20", "bootstrap.resamples=20", "mil.epochs=3"]


def setting(*changes: str) -> EvaluateConfig:
    return load_config(EvaluateConfig, None, [*QUICK, *changes])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`known`: 12 labelled patients; `new`: 5 others without a label, `told`: the same with it; `scores` of `known`."""
    folder = tmp_path_factory.mktemp("lab")
    cohort, rows = make_cohort(patients=12)
    import_features(write_trident(folder / "a", cohort), write_table(folder / "a.csv", rows), folder / "known")
    cohort, rows = make_cohort(patients=5, seed=1, prefix="N")
    files = write_trident(folder / "b", cohort)
    table = write_table(folder / "b.csv", [{"patient": row["patient"], "slide": row["slide"]} for row in rows])
    import_features(files, table, folder / "new")
    told = write_table(folder / "c.csv", [{**row, "split": "test"} for row in rows])
    import_features(files, told, folder / "told")
    evaluate(folder / "known", folder / "scores", setting())
    return folder


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open(encoding="utf-8")))


def test_predictions_are_those_of_an_evaluation_that_knows_the_labels(lab: Path, tmp_path: Path) -> None:
    made = predict_unlabelled(lab / "new", lab / "scores", tmp_path / "table.csv")
    judged = evaluate(lab / "told", tmp_path / "scores", setting("audit=false"), bank=lab / "known")
    rows = read(tmp_path / "table.csv")
    assert [row["patient"] for row in rows] == [f"N{number:02}" for number in range(5)]
    assert {(row["slides"], row["patches"]) for row in rows} == {("2", "18")}
    for probe in ("knn", "linear", "mil"):
        truth = judged.predictions(probe, "patient")
        at = {name: number for number, name in enumerate(truth.units["patient"].tolist())}
        for row in rows:
            of_patient = truth.scores[at[row["patient"]]]
            for code, name in enumerate(truth.classes):
                column = f"score: {name}" if probe == "knn" else f"{probe}: {name}"
                assert float(row[column]) == pytest.approx(of_patient[code], abs=6e-5)
            named = row["predicted" if probe == "knn" else f"{probe}: predicted"]
            assert named == truth.classes[of_patient.argmax()]
    assert sum(made.predicted.values()) == 5
    assert "5 patients without a label predicted from" in made.result().sentence


def test_the_reference_patients_are_named(lab: Path, tmp_path: Path) -> None:
    predict_unlabelled(lab / "new", lab / "scores", tmp_path / "table.csv")
    known = Embeddings.load(lab / "known")
    whose, splits, labels = (known.table.column(name) for name in ("patient", "split", "label"))
    expected = {label: sorted(set(whose[(splits == "train") & (labels == label)])) for label in ("benign", "malignant")}
    info = json.loads((tmp_path / "table.json").read_text())
    assert {label: sorted(names) for label, names in info["reference"].items()} == expected
    assert info["checksums"]["the scores"] == Scores.load(lab / "scores").artefact.checksum
    vectors, new = np.asarray(known.vectors, np.float64), Embeddings.load(lab / "new")
    bank = np.flatnonzero(splits == "train")
    unit = vectors[bank] / np.linalg.norm(vectors[bank], axis=1, keepdims=True)
    for row in read(tmp_path / "table.csv"):
        own = np.asarray(new.vectors[new.table.column("patient") == row["patient"]], np.float64)
        nearness = (own / np.linalg.norm(own, axis=1, keepdims=True)) @ unit.T
        nearest = np.argsort(-nearness, axis=1)[:, : EvaluateConfig().knn.keep]
        names, counts = np.unique(whose[bank][nearest], return_counts=True)
        first = row["nearest reference patients"].split(" (")[0]
        assert counts[list(names).index(first)] == counts.max()
        assert f"{first} ({100 * counts.max() / counts.sum():.0f} %)" in row["nearest reference patients"]


def test_of_the_same_embeddings_those_without_a_label_are_predicted_and_nobody_else(lab: Path, tmp_path: Path) -> None:
    shutil.copytree(lab / "known", tmp_path / "known")
    without = {"P03", "P08"}
    relabel(Embeddings.load(tmp_path / "known"), lambda patient, _, label: None if patient in without else label)
    for name, changes in (("split", []), ("folds", ["folds.number=3"])):
        evaluate(tmp_path / "known", tmp_path / name, setting("probes=[knn]", *changes))
        predict_unlabelled(tmp_path / "known", tmp_path / name, tmp_path / f"{name}.csv")
        assert {row["patient"] for row in read(tmp_path / f"{name}.csv")} == without
        reference = json.loads((tmp_path / f"{name}.json").read_text())["reference"]
        named = {patient for patients in reference.values() for patient in patients}
        assert not named & without
        assert name == "split" or len(named) == 10  # every patient with a label


def other_encoder(lab: Path, folder: Path) -> tuple[Path, Path]:
    cohort, rows = make_cohort(patients=3, prefix="N")
    files = write_trident(folder / "job", cohort, encoder="conch_v1")
    table = write_table(folder / "t.csv", [{"patient": row["patient"], "slide": row["slide"]} for row in rows])
    import_features(files, table, folder / "other")
    return folder / "other", lab / "scores"


def changed_reference(lab: Path, folder: Path) -> tuple[Path, Path]:
    for name in ("known", "scores"):
        shutil.copytree(lab / name, folder / name)
    relabel(Embeddings.load(folder / "known"), lambda patient, _, label: "benign" if patient == "P01" else label)
    return lab / "new", folder / "scores"


def a_reference_patient(lab: Path, folder: Path) -> tuple[Path, Path]:
    cohort, rows = make_cohort(patients=12, seed=5)
    files = write_trident(folder / "job", cohort)
    table = write_table(folder / "t.csv", [{"patient": row["patient"], "slide": row["slide"]} for row in rows])
    import_features(files, table, folder / "same")
    return folder / "same", lab / "scores"


def a_reference_slide(lab: Path, folder: Path) -> tuple[Path, Path]:
    cohort, rows = make_cohort(patients=12)
    files = write_trident(folder / "job", cohort)
    table = [{"patient": f"copy of {row['patient']}", "slide": row["slide"]} for row in rows]
    for row in rows:  # byte for byte the files of the reference
        shutil.copy(next((lab / "a").rglob(f"{row['slide']}.h5")), files / f"{row['slide']}.h5")
    import_features(files, write_table(folder / "t.csv", table), folder / "same")
    return folder / "same", lab / "scores"


def everybody_labelled(lab: Path, folder: Path) -> tuple[Path, Path]:
    return lab / "told", lab / "scores"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (other_encoder, "was made by another encoder .'conch_v1'. than the reference patients of .* .'uni_v1'.. Embed"),
        (changed_reference, "the bank .*known are not those that .*scores was made from. Put those back, or eval"),
        (a_reference_patient, "patients without a label here are among the reference patients of .*scores"),
        (a_reference_slide, r"slide 'P\d\d-S0' of patient 'copy of P\d\d' is the same file as slide 'P\d\d-S0' of"),
        (everybody_labelled, "all patients of .*told have a label, and `hidisc predict` is for those who have none"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    lab: Path, tmp_path: Path, make: Callable[[Path, Path], tuple[Path, Path]], sentence: str
) -> None:
    embeddings, scores = make(lab, tmp_path)
    with pytest.raises(UserError, match=sentence):
        predict_unlabelled(embeddings, scores, tmp_path / "table.csv")
    assert not (tmp_path / "table.csv").exists()
    assert not (tmp_path / "table.json").exists()


def test_scores_that_predict_no_patient_are_refused(tmp_path: Path) -> None:
    """Where all slides have patches of both labels, the attention probe has no bag to learn from."""
    rng, rows = np.random.default_rng(0), 40
    columns = {
        "patient": np.repeat([f"P{number}" for number in range(4)], 10),
        "slide": np.repeat([f"S{number}" for number in range(4)], 10),
        "split": np.repeat(["train", "test"], 20),
        "label": np.tile(["a", "b"], 20),
    }
    for name, changes in (("known", {}), ("new", {"label": pa.nulls(rows, pa.string())})):
        if changes:
            changes |= {key: np.char.add("new ", columns[key]) for key in ("patient", "slide")}
        table = pa.table({**columns, **changes, "features": list(rng.normal(size=(rows, 6)).astype(np.float32))})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        import_features(tmp_path / f"{name}.parquet", None, tmp_path / name, name="made")
    evaluate(tmp_path / "known", tmp_path / "scores", setting("probes=[mil]"))
    with pytest.raises(UserError, match=r"no probe of .*scores predicts a patient. Evaluate with probes=.knn. as well"):
        predict_unlabelled(tmp_path / "new", tmp_path / "scores", tmp_path / "table.csv")


def test_the_command_overwrites_nothing(lab: Path, tmp_path: Path, forks: Forks) -> None:
    words = ("predict", lab / "new", "--by", lab / "scores", "--out", tmp_path / "table.csv")
    first = forks.run(*words, folder=tmp_path)
    assert first.code == 0, first.said
    assert "5 patients without a label predicted from" in first.result
    before = (tmp_path / "table.csv").read_bytes()
    again = forks.run(*words, folder=tmp_path)
    assert (again.code, (tmp_path / "table.csv").read_bytes()) == (2, before)
    assert "is there already and is not overwritten" in again.said
    wrong = forks.run(*words[:-1], tmp_path / "table", folder=tmp_path)
    assert "is not a table. Give a name that ends in .csv." in wrong.said
