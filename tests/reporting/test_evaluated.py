"""Folders become the rows of a report: seeds together, others apart, and what cannot be compared refused."""

from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings.embeddings import EMBEDDINGS, VECTORS, Embeddings
from hidisc.evaluation.scores import SCORES, Scores, ScoresInfo
from hidisc.ground.errors import UserError
from hidisc.reporting.evaluated import EvaluatedModel, compare_models, gather, is_one_test, open_if_unchanged
from hidisc.settings.evaluate import BootstrapConfig, EvaluateConfig, KnnConfig, LeakageConfig
from hidisc.training.log import METRICS
from hidisc.training.run import RUN, RunInfo
from tests.evaluation.made import make_embeddings
from tests.finished import finish, refinish
from tests.reporting.judged import LEAK, make_scores


@pytest.fixture
def embeddings(tmp_path: Path) -> Embeddings:
    return make_embeddings(tmp_path / "embeddings", patients=4, slides=1, patches=4)


def rewrite(scores: Scores, **changes: object) -> None:
    """Change fields of scores.json."""
    info = ScoresInfo.model_validate(scores.info.model_dump() | changes)
    (scores.path / SCORES).write_text(info.model_dump_json())
    refinish(scores.path)


def names_and_counts(models: list[EvaluatedModel]) -> list[tuple[str, int]]:
    return [(model.name, len(model.scores)) for model in models]


# ---- groups


def test_seeds_of_one_training_are_one_subject_in_the_order_given(tmp_path: Path, embeddings: Embeddings) -> None:
    for number, (name, group) in enumerate([("A", "a"), ("B", "b"), ("A", "a"), ("B", "b"), ("A", "a")]):
        make_scores(tmp_path / f"s{number}", embeddings, name=name, group=group, seed=number)
    models = gather([tmp_path / f"s{number}" for number in (1, 0, 2, 3, 4)])
    assert names_and_counts(models) == [("B", 2), ("A", 3)]
    assert [scores.info.model.seed for scores in models[1].scores] == [0, 2, 4]
    assert [found.path.resolve() for found in models[0].embeddings if found] == [embeddings.path] * 2
    assert models[0].info == models[0].scores[0].info


def test_settings_that_do_not_touch_the_numbers_part_nothing(tmp_path: Path, embeddings: Embeddings) -> None:
    make_scores(tmp_path / "s0", embeddings, seed=0)
    make_scores(tmp_path / "s1", embeddings, seed=1, config=EvaluateConfig(knn=KnnConfig(memory_gb=4, keep=2)))
    make_scores(tmp_path / "s2", embeddings, seed=2, config=EvaluateConfig(leakage=LeakageConfig(allow=True)))
    assert names_and_counts(gather([tmp_path / f"s{seed}" for seed in range(3)])) == [("made", 3)]


def test_sampling_seeds_are_one_subject_too(tmp_path: Path, embeddings: Embeddings) -> None:
    for seed in range(2):
        for drawn in range(2):
            make_scores(tmp_path / f"s{seed}{drawn}", embeddings, seed=seed, sampling_seed=drawn, per_slide=4)
    paths = sorted(tmp_path.glob("s*"))
    assert names_and_counts(gather(paths)) == [("made", 4)]


def test_samples_of_patches_are_of_one_training(tmp_path: Path, embeddings: Embeddings) -> None:
    for seed, drawn in ((2, 0), (0, 1), (0, 0), (2, 1), (10, 0)):
        make_scores(tmp_path / f"s{seed}-{drawn}", embeddings, seed=seed, sampling_seed=drawn, per_slide=4)
    (model,) = gather([tmp_path / name for name in ("s10-0", "s2-0", "s0-1", "s0-0", "s2-1")])
    names = [[scores.path.name for scores in training] for training in model.trainings]
    assert names == [["s0-1", "s0-0"], ["s2-0", "s2-1"], ["s10-0"]]


def test_an_encoder_whose_seed_is_not_known_is_one_training(tmp_path: Path, embeddings: Embeddings) -> None:
    for drawn in range(2):
        made = make_scores(tmp_path / f"s{drawn}", embeddings, sampling_seed=drawn, per_slide=4)
        rewrite(made, model=made.info.model.model_copy(update={"seed": None}))
    (model,) = gather([tmp_path / "s0", tmp_path / "s1"])
    assert [len(training) for training in model.trainings] == [2]


def test_the_order_of_folders_does_not_change_a_comparison(tmp_path: Path, embeddings: Embeddings) -> None:
    for seed in range(3):
        make_scores(tmp_path / f"a{seed}", embeddings, name="a", group="a", seed=seed, accuracy=0.9 - 0.3 * seed)
        make_scores(tmp_path / f"b{seed}", embeddings, name="b", group="b", seed=seed + 5, accuracy=0.5)
    config = BootstrapConfig(resamples=100)
    found = []
    for order in ((0, 1, 2), (2, 0, 1)):
        models = gather([tmp_path / f"{name}{seed}" for name in "ab" for seed in order])
        found.append(compare_models(*models, "knn", "patch", config, 0))
    assert found[0] == found[1]
    assert found[0]["accuracy"].trainings == (3, 3)


def test_other_protocols_groups_and_tests_are_other_subjects(tmp_path: Path, embeddings: Embeddings) -> None:
    make_scores(tmp_path / "s0", embeddings)
    make_scores(tmp_path / "s1", embeddings, config=EvaluateConfig(knn=KnnConfig(k=20)))
    make_scores(tmp_path / "s2", embeddings, group="other")
    make_scores(tmp_path / "s3", embeddings, per_slide=4)
    other = make_embeddings(tmp_path / "more", patients=6, slides=1, patches=4)  # one patient of each class more
    make_scores(tmp_path / "s4", other)
    models = gather([tmp_path / f"s{number}" for number in range(5)])
    assert names_and_counts(models) == [("made", 1), *((f"made #{number}", 1) for number in (2, 3, 4, 5))]
    assert is_one_test(models[:4])
    assert not is_one_test(models)
    assert is_one_test([])


def test_numbers_behind_names_avoid_names_there_are(tmp_path: Path, embeddings: Embeddings) -> None:
    for number, name in enumerate(["A", "A", "A #2", "A"]):
        make_scores(tmp_path / f"s{number}", embeddings, name=name, group=f"g{number}", seed=number)
    models = gather([tmp_path / f"s{number}" for number in range(4)])
    assert [model.name for model in models] == ["A", "A #3", "A #2", "A #4"]


# ---- refusals


def test_folders_that_hold_nothing_to_report(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, there in (
        ("empty", "holds neither scores nor embeddings"),
        ("none", "is no folder"),
    ):
        with pytest.raises(UserError) as error:
            gather([tmp_path / name])
        assert str(error.value) == (
            f"{tmp_path / name} {there}, so there is nothing to report. "
            "Give folders made by `hidisc evaluate` or `hidisc embed`."
        )
    for kind, noun in (("evaluate", "scores"), ("embed", "embeddings")):
        for form, fate in (("format: hidisc-2\n", "not finished"), ("", "of hidisc 0.2 or older")):
            (tmp_path / "empty/config.yaml").write_text(f"kind: {kind}\n{form}")
            with pytest.raises(UserError, match=f"^{noun} {tmp_path / 'empty'} are {fate}"):
                gather([tmp_path / "empty"])


def test_scores_that_cannot_stand_in_one_table(tmp_path: Path, embeddings: Embeddings) -> None:
    first = make_scores(tmp_path / "s0", embeddings)
    second = make_scores(tmp_path / "s1", embeddings, group="other")
    endpoint = first.info.endpoint
    fewer = endpoint.model_copy(update={"classes": ("a", "b"), "positive": 0})
    for what, title, names, changed in (
        (
            "classes a, b",
            "classes",
            endpoint.classes,
            {"endpoint": fewer},
        ),
        ("levels patient, patch", "levels", first.info.levels, {"levels": ("patient", "patch")}),
    ):
        rewrite(second, **changed)
        with pytest.raises(UserError) as error:
            gather([tmp_path / "s0", tmp_path / "s1"])
        assert str(error.value) == (
            f"{second.path} has {what}, but {first.path} has {title} {', '.join(names)}, so they "
            "cannot stand in one table. Evaluate them alike, or make two reports."
        )
    # of three classes, nothing is about the positive one
    rewrite(second, levels=first.info.levels, endpoint=endpoint.model_copy(update={"positive": 0}))
    assert len(gather([tmp_path / "s0", tmp_path / "s1"])) == 2


def test_two_classes_must_agree_on_the_positive_one(tmp_path: Path) -> None:
    embeddings = make_embeddings(tmp_path / "two", classes=("mut", "wt"), patients=4, slides=1, patches=4)
    make_scores(tmp_path / "s0", embeddings)
    make_scores(tmp_path / "s1", embeddings, group="other", config=EvaluateConfig(positive="mut"))
    with pytest.raises(UserError, match=r"s1 has positive class mut, but .*s0 has positive class wt"):
        gather([tmp_path / "s0", tmp_path / "s1"])


def test_one_evaluation_is_not_counted_twice(tmp_path: Path, embeddings: Embeddings) -> None:
    make_scores(tmp_path / "s0", embeddings)
    make_scores(tmp_path / "s1", embeddings, sampling_seed=1)  # all patches: nothing is drawn by that seed
    for second in ("s0", "s1"):
        with pytest.raises(UserError) as error:
            gather([tmp_path / "s0", tmp_path / second])
        assert str(error.value) == (
            f"{tmp_path / second} and {tmp_path / 's0'} judge the same encoder by the same patches, which would count "
            "it twice. Give one of them."
        )


# ---- what belongs to a model


def test_embeddings_are_found_from_the_scores_wherever_they_are_called_from(
    tmp_path: Path, embeddings: Embeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = make_scores(tmp_path / "home/s0", embeddings)
    assert scores.info.embeddings == "../../embeddings"
    make_scores(tmp_path / "home/s1", embeddings, recorded="embeddings")
    for cwd in (tmp_path, Path("/")):
        monkeypatch.chdir(cwd)
        found = gather([tmp_path / "home/s0"])[0].embeddings[0]
        assert found is not None
        assert len(found) == len(embeddings)
        assert gather([tmp_path / "home/s1"])[0].embeddings == (None,)  # though it leads there from one of these
    (tmp_path / "moved").mkdir()
    for name in ("home", "embeddings"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    assert gather([tmp_path / "moved/home/s0"])[0].embeddings[0] is not None


def test_embeddings_that_changed_are_not_taken(tmp_path: Path, embeddings: Embeddings) -> None:
    scores = make_scores(tmp_path / "s0", embeddings)
    info = embeddings.info
    file = embeddings.path / EMBEDDINGS
    assert open_if_unchanged(scores.open_embeddings) is not None
    for changed in (
        info.model_copy(update={"model": info.model.model_copy(update={"checksum": "other"})}),
        info.model_copy(update={"per_slide": 3}),
        info.model_copy(update={"seed": 7}),
    ):
        file.write_text(changed.model_dump_json())
        assert open_if_unchanged(scores.open_embeddings) is None  # damaged
        refinish(embeddings.path)
        assert open_if_unchanged(scores.open_embeddings) is None  # whole, and others
    file.write_text(info.model_dump_json())
    refinish(embeddings.path)
    assert open_if_unchanged(scores.open_embeddings) is not None
    data = (embeddings.path / VECTORS).read_bytes()
    (embeddings.path / VECTORS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert open_if_unchanged(scores.open_embeddings) is None


def test_a_bank_and_queries_that_changed_places_are_not_taken(tmp_path: Path, embeddings: Embeddings) -> None:
    bank = make_embeddings(tmp_path / "bank", patients=4, slides=1, patches=4, seed=1)
    scores = make_scores(tmp_path / "s0", embeddings)
    rewrite(scores, bank="../bank")
    finish(
        scores.path, "evaluate", {"the embeddings": embeddings.artefact.checksum, "the bank": bank.artefact.checksum}
    )
    scores = Scores.load(scores.path)

    def find() -> list[Embeddings | None]:
        return [open_if_unchanged(open_it) for open_it in (scores.open_embeddings, scores.open_bank)]

    assert [found.path.resolve() if found else None for found in find()] == [embeddings.path, bank.path]
    bank.path.rename(tmp_path / "aside")
    embeddings.path.rename(bank.path)
    (tmp_path / "aside").rename(embeddings.path)
    assert find() == [None, None]


def test_embeddings_alone_are_a_subject_without_scores(tmp_path: Path, embeddings: Embeddings) -> None:
    make_scores(tmp_path / "s0", embeddings, name="judged")
    other = make_embeddings(tmp_path / "other", patients=4, slides=1, patches=4, name="alone")
    alone, judged = gather([other.path, tmp_path / "s0", embeddings.path])  # the last belongs to the second
    assert (alone.name, alone.scores, judged.name) == ("alone", (), "judged")
    assert alone.info is None
    assert alone.warnings == ()
    assert alone.embeddings[0] is not None
    np.testing.assert_array_equal(alone.embeddings[0].vectors, other.vectors)
    assert [model.name for model in gather([other.path, other.path])] == ["alone"]


def test_warnings_and_labels_of_all_evaluations(tmp_path: Path, embeddings: Embeddings) -> None:
    make_scores(tmp_path / "s0", embeddings, seed=0, labels_used=("monitor",))
    make_scores(tmp_path / "s1", embeddings, seed=1, leak=True, labels_used=("supervised", "monitor"))
    make_scores(tmp_path / "s2", embeddings, seed=2, leak=True)
    first, second, third = (tmp_path / f"s{seed}" for seed in range(3))
    (whole,) = gather([first, second, third])
    assert whole.warnings == (LEAK,)
    assert whole.labels_used == ("supervised",)
    assert gather([first])[0].warnings == ()
    assert gather([first])[0].labels_used == ()


def test_the_training_curve_is_that_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = make_embeddings(tmp_path / "embeddings", patients=4, slides=1, patches=4, name="mine")
    make_scores(tmp_path / "s0", embeddings)
    monkeypatch.chdir(tmp_path)
    assert gather([Path("s0")])[0].run_metrics is None  # the run is gone
    run = tmp_path / "runs/mine"
    run.mkdir(parents=True)
    info = RunInfo(
        objective="hidisc",
        backbone="test_resnet",
        seed=0,
        steps=2,
        images=8,
        seconds=1.0,
        devices="cpu",
        store="sha",
        splits=("train",),
        patients=("a-3",),
        slides=1,
        patches=4,
        labels_used=(),
        bad_patches=0,
        versions={},
    )
    (run / RUN).write_text(info.model_dump_json())
    assert gather([Path("s0")])[0].run_metrics is None  # it is not finished
    finish(run, "train")
    assert gather([Path("s0")])[0].run_metrics is None  # it says nothing
    (run / METRICS).write_text("step,loss\n1,2.5\n2,1.5\n")
    refinish(run)
    rows = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 1.5}]
    assert gather([Path("s0")])[0].run_metrics == rows
    assert gather([embeddings.path])[0].run_metrics == rows
    foreign = make_scores(tmp_path / "s1", embeddings, seed=1)
    rewrite(foreign, model=foreign.info.model.model_copy(update={"kind": "timm"}).model_dump())
    assert gather([Path("s1")])[0].run_metrics is None
