"""`hidisc evaluate`: from embeddings to a verdict; leakage is refused, and what was allowed is said."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hidisc.artefacts.artefact import MANIFEST
from hidisc.auditing.measure import run_audit
from hidisc.embeddings.embeddings import EMBEDDINGS, Embeddings
from hidisc.evaluation.classes import METRICS
from hidisc.evaluation.scores import NEIGHBOURS, SCORES, Finding, Scores
from hidisc.ground.errors import UserError
from hidisc.models.card import WEIGHTS
from hidisc.reporting.evaluated import gather
from hidisc.reporting.verdict import find_verdict
from hidisc.settings.audit import AuditConfig
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.training.run import Run
from hidisc.verbs.doctor import find_damage, what_to_do
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.export import export
from tests.commands import Forks, signal_at
from tests.evaluation.made import make_embeddings, measure, relabel
from tests.finished import refinish
from tests.said import Said
from tests.training.stores import TEST, make_store, train

QUICK = {"bootstrap": {"resamples": 50}, "mil": {"epochs": 2}, "linear": {"iterations": 20}, "knn": {"k": 20}}


def config(**settings: object) -> EvaluateConfig:
    return EvaluateConfig.model_validate({**QUICK, **settings})


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    return make_embeddings(tmp_path_factory.mktemp("made") / "e", signal=2)


@pytest.fixture(scope="module")
def scores(made: Embeddings, tmp_path_factory: pytest.TempPathFactory) -> Scores:
    return evaluate(made.path, tmp_path_factory.mktemp("scores") / "s", config())


def test_the_audit_is_run_where_there_are_sites(made: Embeddings, scores: Scores, tmp_path: Path) -> None:
    (sentence,) = scores.info.audit
    alone = run_audit(made, AuditConfig(columns=("site",)))
    assert sentence == alone.columns[0].sentence
    assert sentence in find_verdict(gather([scores.path])[0]).properties
    without = evaluate(made.path, tmp_path / "s", config(audit=False, probes=["knn"]))
    assert without.info.audit == ()


def test_alignment_takes_out_what_a_site_adds(made: Embeddings, tmp_path: Path) -> None:
    shifted = tmp_path / "e"
    shutil.copytree(made.path, shifted)
    site = made.table.column("site") == "site 1"
    np.save(shifted / "embeddings.npy", made.vectors + 40 * site[:, None].astype(np.float32))
    refinish(shifted)
    alone, aligned = (
        evaluate(shifted, tmp_path / name, config(probes=["linear"], align=align, audit=False))
        for name, align in (("alone", None), ("aligned", "site"))
    )
    truth = evaluate(made.path, tmp_path / "truth", config(probes=["linear"], align="site", audit=False))
    assert evaluate(shifted, tmp_path / "audited", config(probes=["knn"], align="site")).info.audit == ()
    one, other = (scores.predictions("linear", "patch").scores for scores in (aligned, truth))
    assert np.allclose(one, other, atol=0.05)
    assert not np.allclose(alone.predictions("linear", "patch").scores, other, atol=0.05)
    with pytest.raises(UserError, match=r"align = 'nowhere': .* has no such column of names; it has patient, slide"):
        evaluate(made.path, tmp_path / "no", config(align="nowhere"))


def test_values_that_no_reference_patient_has_stay_as_they_are(made: Embeddings, tmp_path: Path) -> None:
    said: list[str] = []
    settings = config(probes=["knn"], align="patient", audit=False)  # no test patient is a reference patient
    evaluate(made.path, tmp_path / "s", settings, progress=Said(said))
    (note,) = [sentence for sentence in said if "are not aligned" in sentence]
    assert note.startswith("note: no reference patient has patient 'a-0', 'a-1', ")
    with pytest.raises(UserError, match="align: the reference patients have 1 value of that column"):
        evaluate(made.path, tmp_path / "no", config(align="split"))


def test_three_probes_at_every_level(scores: Scores) -> None:
    found = {probe: [row.level for row in scores.info.list_levels(probe)] for probe in scores.info.probes}
    assert found == {
        "knn": ["patch", "slide", "patient"],
        "linear": ["patch", "slide", "patient"],
        "mil": ["slide", "patient"],
    }
    for probe in scores.info.probes:
        for level in scores.info.list_levels(probe):
            assert set(level.metrics) == set(METRICS)
            accuracy = level.metrics["accuracy"]
            assert accuracy.value is not None
            assert accuracy.low is not None
            assert accuracy.high is not None
            assert 0.5 < accuracy.value <= 1
            assert accuracy.low <= accuracy.value <= accuracy.high
            predictions = scores.predictions(probe, level.level)
            assert len(predictions) == level.units
            assert measure(predictions, 2).metrics["auroc"].value == pytest.approx(level.metrics["auroc"].value)
            assert np.sum(level.confusion) == level.units


def test_what_was_judged_is_written_down(scores: Scores, made: Embeddings) -> None:
    info = scores.info
    assert (info.endpoint.classes, info.endpoint.positive_class, info.levels) == (
        ("a", "b", "c"),
        "c",
        ("patient", "slide", "patch"),
    )
    assert {(count.part, count.label): count.units for count in info.counts}["bank", "a"] == {
        "patient": 3,
        "slide": 6,
        "patch": 60,
    }
    assert (scores.path / info.embeddings).resolve() == made.path.resolve()
    assert str(made.path.parent) not in (scores.path / SCORES).read_text()
    assert info.config["knn"]["k"] == 20
    assert info.diagnostics
    near = scores.neighbours()
    assert near is not None
    assert near[0].shape == near[1].shape == (180, 8)


def test_the_verdict_in_a_line(scores: Scores) -> None:
    accuracy = scores.info.list_levels()[-1].metrics["accuracy"]
    assert accuracy.value is not None
    assert scores.verdict().startswith(f"made, knn: patient accuracy {100 * accuracy.value:.1f} [")
    assert "slide accuracy" in scores.verdict()


def test_the_same_question_gives_the_same_folder(scores: Scores, made: Embeddings) -> None:
    again = evaluate(made.path, scores.path.with_name("again"), config())
    assert contents(again.path) == contents(scores.path)


def test_an_unfinished_one_is_finished_and_a_finished_one_stays(
    scores: Scores, made: Embeddings, tmp_path: Path
) -> None:
    out = scores.path.with_name("unfinished")
    shutil.copytree(scores.path, out)
    (out / MANIFEST).unlink()
    (out / SCORES).unlink()
    with pytest.raises(UserError, match=r"unfinished are not finished\. Run the same `hidisc evaluate` again"):
        Scores.load(out)
    evaluate(made.path, out, config())
    assert contents(out) == contents(scores.path)
    with pytest.raises(UserError, match=r"begun with other settings \(knn\.k: 20 -> 5\)"):
        evaluate(made.path, out, config(knn={"k": 5}))
    with pytest.raises(UserError, match=r"nothing does not exist\. Make it with `hidisc evaluate`"):
        Scores.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    "name", [SCORES, "predictions_patch.parquet", "linear/predictions_slide.parquet", NEIGHBOURS, "config.yaml"]
)
def test_a_lost_or_changed_file_is_found_and_made_again(scores: Scores, made: Embeddings, name: str) -> None:
    out = scores.path.with_name(f"damaged-{len(list(scores.path.parent.iterdir()))}")
    shutil.copytree(scores.path, out)
    data = bytearray((out / name).read_bytes())
    data[len(data) // 2] ^= 1
    for damage in (bytes(data), None):
        (out / name).unlink() if damage is None else (out / name).write_bytes(damage)
        with pytest.raises(UserError, match=rf"are damaged: {name} (is missing|has changed)"):
            Scores.load(out)
        said: list[str] = []
        evaluate(made.path, out, config(), progress=Said(said))
        if name != "config.yaml":  # which is written again before anything else
            assert said[0].startswith(f"note: {out} is damaged ({name} ")
        assert contents(out) == contents(scores.path)


def test_one_probe_without_intervals(made: Embeddings, tmp_path: Path) -> None:
    found = evaluate(made.path, tmp_path / "s", config(probes=["linear"], bootstrap={"resamples": 0}))
    assert sorted(path.name for path in found.path.glob("predictions_*")) == [
        "predictions_patch.parquet",
        "predictions_patient.csv",
        "predictions_patient.parquet",
        "predictions_slide.csv",
        "predictions_slide.parquet",
    ]
    accuracy = found.info.list_levels()[0].metrics["accuracy"]
    assert accuracy.value is not None
    assert accuracy.low is None
    assert "[" not in found.verdict()


def test_the_second_softmax_is_of_the_neighbours_alone(scores: Scores, made: Embeddings, tmp_path: Path) -> None:
    again = evaluate(made.path, tmp_path / "s", config(knn={"k": 20, "second_softmax": True}))
    for level in ("slide", "patient"):
        votes, changed = (found.predictions("knn", level).scores for found in (scores, again))
        assert not np.allclose(votes, changed)
        for name in ("linear", "mil"):
            same, found = (one.predictions(name, level).scores for one in (scores, again))
            assert np.array_equal(same, found), name


def test_a_class_that_the_reference_patients_lack(tmp_path: Path) -> None:
    """Patients of the class are always taken for something else: the number alone would look like a bad encoder."""
    lacking = relabel(
        make_embeddings(tmp_path / "e", signal=2),
        lambda patient, split, label: None if patient == "a-4" else "a" if (split, label) == ("train", "c") else label,
    )
    said: list[str] = []
    found = evaluate(lacking.path, tmp_path / "s", config(), progress=Said(said))
    warning = "No reference patient has label 'c', so none of its 3 test patients can be recognised."
    note = "20 of 180 patches of the reference patients were left out: they have no label, or none of the classes."
    patients = found.predictions("knn", "patient")
    assert not (patients.predicted == found.info.endpoint.classes.index("c")).any()
    assert found.info.labels == (Finding(kind="warning", sentence=warning), Finding(kind="note", sentence=note))
    assert found.info.unlabelled == {"bank": 20, "queries": 0}
    assert found.info.warnings == (warning,)
    assert f"warning: {warning}" in said
    assert f"note: {note}" in said
    assert found.verdict().endswith(f". Warning: {warning}")
    assert evaluate(lacking.path, tmp_path / "s", config()).verdict() == found.verdict()  # of a finished one as well


def test_whole_labels_are_not_spoken_of(scores: Scores) -> None:
    assert (scores.info.labels, scores.info.unlabelled) == ((), {"bank": 0, "queries": 0})
    assert "Warning" not in scores.verdict()


def test_other_levels(made: Embeddings, tmp_path: Path) -> None:
    found = evaluate(made.path, tmp_path / "s", config(levels=["patient", "patch"]))
    assert [level.level for level in found.info.list_levels()] == ["patch", "patient"]
    assert [level.level for level in found.info.list_levels("mil")] == ["patient"]  # bags are patients then


def with_seen(made: Embeddings, folder: Path) -> Path:
    """The same embeddings by an encoder that has seen one of the queries' slides."""
    shutil.copytree(made.path, folder)
    record = json.loads((folder / EMBEDDINGS).read_text())
    record["model"]["history"]["slides"].append(record["slides"][0])
    (folder / EMBEDDINGS).write_text(json.dumps(record))
    refinish(folder)
    return folder


def test_a_query_the_encoder_has_learned_from(made: Embeddings, tmp_path: Path) -> None:
    seen = with_seen(made, tmp_path / "e")
    with pytest.raises(UserError, match="--allow-leakage") as caught:
        evaluate(seen, tmp_path / "s", config())
    assert "'a-0'" in str(caught.value)
    assert not (tmp_path / "s").exists()  # nothing is begun
    said: list[str] = []
    allowed = evaluate(seen, tmp_path / "s", config(leakage={"allow": True}), progress=Said(said))
    assert any(line.startswith("leak: ") for line in said)
    assert any(finding.kind == "leak" for finding in allowed.info.leakage)
    assert allowed.info.warnings
    assert "knn DESPITE LEAKAGE:" in allowed.verdict()


def test_bank_and_queries_that_share_patients(made: Embeddings, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--allow-leakage"):
        evaluate(made.path, tmp_path / "s", config(queries=["test", "train"]))


def test_a_bank_from_elsewhere(made: Embeddings, tmp_path: Path) -> None:
    """External validation: labels of one hospital, patients of another, one encoder."""
    other = make_embeddings(tmp_path / "other", signal=2, test=0, learned=False)
    record = json.loads((other.path / EMBEDDINGS).read_text())
    for slide in record["slides"]:
        slide.update(patient="X" + slide["patient"], checksum="X" + slide["checksum"])
    (other.path / EMBEDDINGS).write_text(json.dumps(record))
    refinish(other.path)
    with pytest.raises(UserError, match="--allow-leakage"):  # the table still has the same patients
        evaluate(made.path, tmp_path / "s", config(), bank=other.path)
    found = evaluate(made.path, tmp_path / "s", config(leakage={"allow": True}), bank=other.path)
    assert (found.path / found.info.bank).resolve() == other.path.resolve()
    assert {count.units["patient"] for count in found.info.counts if count.part == "bank"} == {6}


@pytest.mark.whole
def test_through_the_command_line(made: Embeddings, forks: Forks, tmp_path: Path) -> None:
    settings = ["bootstrap.resamples=20", "mil.epochs=1", "knn.k=20"]
    words = [word for setting in settings for word in ("--set", setting)]
    command = ["evaluate", str(made.path), "--out", str(tmp_path / "s"), *words]
    done = forks.run(*command)
    assert done.result == f"{tmp_path / 's'}: {Scores.load(tmp_path / 's').verdict()}\n"
    again = forks.run(*command, "--json")
    assert json.loads(again.result)["endpoint"]["classes"] == ["a", "b", "c"]
    leaky = ["evaluate", str(with_seen(made, tmp_path / "e")), "--out", str(tmp_path / "t"), *words]
    refused = forks.run(*leaky)
    assert refused.code == 2
    assert "--allow-leakage" in refused.said
    allowed = forks.run(*leaky, "--allow-leakage")
    assert "DESPITE LEAKAGE" in allowed.result


@pytest.mark.whole
def test_kill_before_and_after_the_verdict_is_written(made: Embeddings, forks: Forks, tmp_path: Path) -> None:
    command = ["evaluate", str(made.path), "--set", "bootstrap.resamples=20", "--set", "mil.epochs=1"]
    out, whole = tmp_path / "s", tmp_path / "whole"
    assert forks.run(*command, "--out", str(whole)).code == 0
    for step in ("file.written", "file.renamed"):
        ended = forks.run(*command, "--out", str(out), at=signal_at(step, 1, SCORES))
        assert ended.code == -signal.SIGKILL
        assert (out / SCORES).exists() == (step == "file.renamed")
    assert forks.run(*command, "--out", str(out)).code == 0
    assert contents(out) == contents(whole)


def test_doctor_knows_every_artefact(made: Embeddings, scores: Scores, tmp_path: Path) -> None:
    assert find_damage(scores.path) == []
    broken = tmp_path / "s"
    shutil.copytree(scores.path, broken)
    (broken / "linear" / "predictions_slide.parquet").write_bytes(b"nothing")
    shutil.copy(broken / "predictions_patient.parquet", broken / "predictions_slide.parquet")
    (broken / "mil" / "predictions_patient.parquet").unlink()
    first, second, third = find_damage(broken)
    assert first.startswith("linear/predictions_slide.parquet has 7 bytes instead of ")
    assert second == "mil/predictions_patient.parquet is missing"
    assert third.startswith("predictions_slide.parquet has ")
    assert what_to_do(broken) == "run the same `hidisc evaluate` again: what is damaged is made again"


# ---- leakage through the weights a training started from


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """A store, and a run that has learned from its test patients, by their labels."""
    folder = tmp_path_factory.mktemp("leaky")
    store = make_store(folder)
    run = train(store, folder / "a", "data.splits=[test]", "objective={name: supcon}", "optim.steps=1")
    return store, run


def verdict_on(store: Path, encoder: str, out: Path, **settings: object) -> Scores:
    """Embed with an encoder and judge it by the test patients."""
    out.mkdir()
    embed(store, encoder, out / "e", EmbedConfig.model_validate(settings), device="cpu", devices=1)
    return evaluate(out / "e", out / "s", config())


def assert_leaks(store: Path, encoder: str, out: Path, **settings: object) -> None:
    with pytest.raises(UserError, match=r"2 test patients are among the patients that .* was trained on") as caught:
        verdict_on(store, encoder, out, **settings)
    assert all(f"'{patient}'" in str(caught.value) for patient in TEST)


@pytest.mark.parametrize("way", ["encoder", "timm export"])
def test_a_training_that_started_from_weights_that_saw_the_test_patients_leaks(
    leaky: tuple[Path, Run], tmp_path: Path, way: str
) -> None:
    store, run = leaky
    weights = run.path / WEIGHTS
    if way == "timm export":
        weights = export(run.path, tmp_path / "timm", "timm")[0]
    second = train(store, tmp_path / "b", f"model.weights={weights}", "optim.steps=1")
    assert_leaks(store, str(second.path), tmp_path / "judged")
    third = train(store, tmp_path / "c", f"model.weights={second.path / WEIGHTS}", "optim.steps=1")
    assert_leaks(store, str(third.path), tmp_path / "again")


@pytest.mark.parametrize("form", ["timm", "onnx", "torchscript"])
def test_an_exported_encoder_that_saw_the_test_patients_leaks(
    leaky: tuple[Path, Run], tmp_path: Path, form: Any
) -> None:
    store, run = leaky
    export(run.path, tmp_path / form, form)
    assert_leaks(store, str(tmp_path / form), tmp_path / "judged")


@pytest.mark.parametrize("way", ["encoder", "timm export"])
def test_weights_given_to_a_timm_name_that_saw_the_test_patients_leak(
    leaky: tuple[Path, Run], tmp_path: Path, way: str
) -> None:
    store, run = leaky
    weights = run.path / WEIGHTS
    if way == "timm export":
        weights = export(run.path, tmp_path / "timm", "timm")[0]
    assert_leaks(store, "timm:test_resnet", tmp_path / "judged", model={"weights": str(weights), "size_px": 32})


def test_weights_without_a_past_are_not_known_on_the_verdict_line_and_page(
    leaky: tuple[Path, Run], tmp_path: Path
) -> None:
    store, run = leaky
    bare = Path(shutil.copy(run.path / WEIGHTS, tmp_path / "bare.safetensors"))
    second = train(store, tmp_path / "b", f"model.weights={bare}", "optim.steps=1")
    scores = verdict_on(store, str(second.path), tmp_path / "judged")
    assert " % (what it has seen before is not known). " in scores.verdict()
    verdict = find_verdict(gather([scores.path])[0])
    assert verdict.trust[0] == ("It is not known what this encoder was trained on, so it may have seen these patients.")
    assert not any("none of these" in sentence for sentence in verdict.trust)
