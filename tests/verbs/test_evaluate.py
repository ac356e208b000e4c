"""`hidisc evaluate`: from embeddings to a verdict; leakage is refused, and what was allowed is said."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings.embeddings import EMBEDDINGS, Embeddings
from hidisc.errors import UserError
from hidisc.evaluation.metrics import measure
from hidisc.evaluation.scores import METRICS, SCORES, Scores
from hidisc.settings.judging import EvaluateConfig
from hidisc.verbs.doctor import verify, what_to_do
from hidisc.verbs.evaluate import evaluate
from tests.commands import Forks, signal_at
from tests.evaluation.made import make_embeddings

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


def test_three_opinions_at_every_level(scores: Scores) -> None:
    found = {opinion.name: [level.level for level in opinion.levels] for opinion in scores.info.opinions}
    assert found == {
        "knn": ["patch", "slide", "patient"],
        "linear": ["patch", "slide", "patient"],
        "mil": ["slide", "patient"],
    }
    for opinion in scores.info.opinions:
        for level in opinion.levels:
            assert set(level.metrics) == set(METRICS)
            accuracy = level.metrics["accuracy"]
            assert accuracy.value is not None
            assert accuracy.low is not None
            assert accuracy.high is not None
            assert 0.5 < accuracy.value <= 1
            assert accuracy.low <= accuracy.value <= accuracy.high
            predictions = scores.predictions(opinion.name, level.level)
            assert len(predictions) == level.units
            assert measure(predictions, 2).metrics["auroc"].value == pytest.approx(level.metrics["auroc"].value)
            assert np.sum(level.confusion) == level.units


def test_what_was_judged_is_written_down(scores: Scores, made: Embeddings) -> None:
    info = scores.info
    assert (info.classes, info.positive, info.levels) == (("a", "b", "c"), "c", ("patient", "slide", "patch"))
    assert {(count.side, count.label): count.units for count in info.counts}["bank", "a"] == {
        "patient": 3,
        "slide": 6,
        "patch": 60,
    }
    assert Path(info.embeddings) == made.path.absolute()
    assert info.config["knn"]["k"] == 20
    assert info.diagnostics
    near = scores.neighbours()
    assert near is not None
    assert near[0].shape == near[1].shape == (180, 8)


def test_the_verdict_in_a_line(scores: Scores) -> None:
    accuracy = scores.info.opinions[0].levels[-1].metrics["accuracy"]
    assert accuracy.value is not None
    assert scores.verdict().startswith(f"made, knn: patient accuracy {100 * accuracy.value:.1f} [")
    assert "slide accuracy" in scores.verdict()


def test_the_same_question_gives_the_same_folder(scores: Scores, made: Embeddings, tmp_path: Path) -> None:
    again = evaluate(made.path, tmp_path / "s", config())
    assert contents(again.path) == contents(scores.path)


def test_an_unfinished_one_is_finished_and_a_finished_one_stays(
    scores: Scores, made: Embeddings, tmp_path: Path
) -> None:
    out = tmp_path / "s"
    shutil.copytree(scores.path, out)
    (out / SCORES).unlink()
    with pytest.raises(UserError, match=r"s are not finished\. Run the same `hidisc evaluate` again\."):
        Scores.load(out)
    evaluate(made.path, out, config())
    assert contents(out) == contents(scores.path)
    with pytest.raises(UserError, match=r"begun with other settings \(knn\.k: 20 -> 5\)"):
        evaluate(made.path, out, config(knn={"k": 5}))
    with pytest.raises(UserError, match=r"nothing holds no scores \(no scores\.json\)\. Make them with `hidisc eval"):
        Scores.load(tmp_path / "nothing")
    (out / SCORES).write_text("{}")
    with pytest.raises(UserError, match=r"scores\.json is damaged or of another version of hidisc"):
        Scores.load(out)


def test_one_opinion_without_intervals(made: Embeddings, tmp_path: Path) -> None:
    found = evaluate(made.path, tmp_path / "s", config(opinions=["linear"], bootstrap={"resamples": 0}))
    assert sorted(path.name for path in found.path.glob("predictions_*")) == [
        "predictions_patch.parquet",
        "predictions_patient.parquet",
        "predictions_slide.parquet",
    ]
    accuracy = found.info.opinions[0].levels[0].metrics["accuracy"]
    assert accuracy.value is not None
    assert accuracy.low is None
    assert "[" not in found.verdict()


def test_other_levels(made: Embeddings, tmp_path: Path) -> None:
    found = evaluate(made.path, tmp_path / "s", config(levels=["patient", "patch"]))
    assert [level.level for level in found.info.opinions[0].levels] == ["patch", "patient"]
    assert [level.level for level in found.info.opinions[2].levels] == ["patient"]  # bags are patients then


def with_seen(made: Embeddings, folder: Path) -> Path:
    """The same embeddings by an encoder that has seen one of the queries' slides."""
    shutil.copytree(made.path, folder)
    record = json.loads((folder / EMBEDDINGS).read_text())
    record["model"]["learned_from"].append(record["slides"][0])
    (folder / EMBEDDINGS).write_text(json.dumps(record))
    return folder


def test_a_query_the_encoder_has_learned_from(made: Embeddings, tmp_path: Path) -> None:
    seen = with_seen(made, tmp_path / "e")
    with pytest.raises(UserError, match="--allow-leakage") as caught:
        evaluate(seen, tmp_path / "s", config())
    assert "'a-0'" in str(caught.value)
    assert not (tmp_path / "s").exists()  # nothing is begun
    said: list[str] = []
    allowed = evaluate(seen, tmp_path / "s", config(leakage={"allow": True}), say=said.append)
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
    with pytest.raises(UserError, match="--allow-leakage"):  # the table still has the same patients
        evaluate(made.path, tmp_path / "s", config(), bank=other.path)
    found = evaluate(made.path, tmp_path / "s", config(leakage={"allow": True}), bank=other.path)
    assert Path(found.info.bank) == other.path.absolute()
    assert {count.units["patient"] for count in found.info.counts if count.side == "bank"} == {6}


@pytest.mark.whole
def test_through_the_command_line(made: Embeddings, forks: Forks, tmp_path: Path) -> None:
    settings = ["bootstrap.resamples=20", "mil.epochs=1", "knn.k=20"]
    words = [word for setting in settings for word in ("--set", setting)]
    command = ["evaluate", str(made.path), "--out", str(tmp_path / "s"), *words]
    done = forks.run(*command)
    assert done.result == f"{tmp_path / 's'}: {Scores.load(tmp_path / 's').verdict()}\n"
    again = forks.run(*command, "--json")
    assert json.loads(again.result)["classes"] == ["a", "b", "c"]
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
    assert verify(scores.path) == []
    broken = tmp_path / "s"
    shutil.copytree(scores.path, broken)
    (broken / "linear" / "predictions_slide.parquet").write_bytes(b"nothing")
    shutil.copy(broken / "predictions_patient.parquet", broken / "predictions_slide.parquet")
    (broken / "mil" / "predictions_patient.parquet").unlink()
    first, second, third = verify(broken)
    assert first == "the knn predictions of level slide have 9 rows instead of 18"
    assert "linear/predictions_slide.parquet is damaged (" in second
    assert third.endswith("mil/predictions_patient.parquet is missing. Run the command that makes its folder again.")
    assert what_to_do(broken) == f"delete {broken} and run the command that makes it again"
