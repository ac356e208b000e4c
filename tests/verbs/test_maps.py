"""`hidisc train EMBEDDINGS` and `hidisc embed EMBEDDINGS run`: maps of vectors, what they have seen, and resumption."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from hidisc.benchmarking.benchmark import benchmark
from hidisc.benchmarking.cells import SuiteCell, plan_cells
from hidisc.embeddings.embeddings import Embeddings
from hidisc.embeddings.model import open_model
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Progress
from hidisc.models.card import MAP_CARD, MAP_WEIGHTS
from hidisc.models.linear_maps import measure_moments, whiten
from hidisc.models.vector_map import VectorMap
from hidisc.patches.store import PatchStore
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import load_config
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.train import TrainConfig
from hidisc.training.checkpoint import list_checkpoints, read_checkpoint
from hidisc.training.run import Run
from hidisc.training.vectors import VectorViews, begin_map
from hidisc.verbs import train as train_verb
from hidisc.verbs.doctor import find_damage
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.export import export
from hidisc.verbs.train import open_source, train
from tests.evaluation.made import make_embeddings
from tests.finished import refinish
from tests.training.stores import Stopped, losses, make_store
from tests.training.stores import train as train_pixels

DIM = 16
RECIPES = {
    "centre": (),
    "whiten": (),
    "whiten-within": (),
    "linear-hidisc": ("map.keep=3",),
    "hidisc-adapter": ("optim.steps=6", "batch.images=64", "log.every=1", "checkpoint.every=2"),
}
FEW = EvaluateConfig.model_validate({"probes": ["knn"], "knn": {"k": 5}, "bootstrap": {"resamples": 20}})


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    """Vectors of an encoder that has seen nobody."""
    return make_embeddings(tmp_path_factory.mktemp("start") / "embeddings", dim=DIM, learned=False)


def config_of(recipe: str, *changes: str) -> TrainConfig:
    return load_config(TrainConfig, recipe, [*RECIPES[recipe], *changes])


def learn(start: Embeddings, out: Path, recipe: str, *changes: str, said: list[str] | None = None) -> Run:
    tell = (said if said is not None else []).append
    run = train(start.path, out, config_of(recipe, *changes), device="cpu", devices=1, say=tell)
    assert run is not None
    return run


def put_behind(start: Embeddings, run: Path, out: Path, **settings: object) -> Embeddings:
    made = embed(start.path, run, out, EmbedConfig.model_validate(settings), device="cpu", devices=1, shown=False)
    assert made is not None
    return made


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_map_is_trained_embedded_and_judged(recipe: str, start: Embeddings, tmp_path: Path) -> None:
    run = learn(start, tmp_path / "run", recipe)
    assert set(run.info.patients) == {
        name for name, split in zip(*_columns(start, "patient", "split"), strict=True) if split == "train"
    }
    made = put_behind(start, run.path, tmp_path / "mapped")
    width = {"centre": DIM, "hidisc-adapter": DIM, "linear-hidisc": 3}.get(recipe, DIM)
    assert made.vectors.shape == (len(start), width)
    assert made.info.model.history.patients == run.info.patients
    scores = evaluate(made.path, tmp_path / "scores", FEW)
    assert scores.info.model.name == "run"
    assert not [finding for finding in scores.info.leakage if finding.kind == "leak"]
    assert [find_damage(path) for path in (run.path, made.path)] == [[], []]


def _columns(embeddings: Embeddings, *names: str) -> list[list[str]]:
    return [embeddings.table.column(name).tolist() for name in names]


def test_the_map_of_a_run_is_that_of_the_equations(start: Embeddings, tmp_path: Path) -> None:
    run = learn(start, tmp_path / "run", "whiten-within", "map.shrinkage=0.2")
    made = put_behind(start, run.path, tmp_path / "mapped")
    rows = start.table.in_splits(("train",), "", start.path)
    tree = Hierarchy().grow(start.table, rows)
    expected = whiten(measure_moments(start.vectors, tree, ""), DIM, 0.2, 1, "").apply(start.vectors)
    np.testing.assert_allclose(made.vectors, expected, rtol=1e-4, atol=1e-4)


def test_test_patients_change_no_number_of_a_map(start: Embeddings, tmp_path: Path) -> None:
    """A map is fitted on the splits that it learns from: vectors of the others may be anything."""
    other = make_embeddings(tmp_path / "other", dim=DIM, learned=False)
    vectors = np.array(other.vectors)
    vectors[other.table.in_splits(("test",), "", other.path)] *= 100
    np.save(other.path / "embeddings.npy", vectors)
    refinish(other.path)
    for recipe in RECIPES:
        one, two = (
            learn(made, tmp_path / f"{recipe}-{made.path.name}", recipe)
            for made in (start, Embeddings.load(other.path))
        )
        assert (one.path / MAP_WEIGHTS).read_bytes() == (two.path / MAP_WEIGHTS).read_bytes(), recipe


@pytest.mark.parametrize("recipe", ["whiten-within", "hidisc-adapter"])
def test_a_map_that_has_seen_test_patients_is_refused_by_evaluate(
    recipe: str, start: Embeddings, tmp_path: Path
) -> None:
    run = learn(start, tmp_path / "run", recipe, "data.splits=[train, test]")
    made = put_behind(start, run.path, tmp_path / "mapped")
    with pytest.raises(UserError, match="9 test patients are among the patients that 'run' was trained on"):
        evaluate(made.path, tmp_path / "scores", FEW)
    folds = FEW.model_copy(update={"folds": FEW.folds.model_copy(update={"number": 3})})
    honest = put_behind(start, learn(start, tmp_path / "half", recipe).path, tmp_path / "honest")
    with pytest.raises(UserError, match="so folds of its embeddings cannot judge it"):
        evaluate(honest.path, tmp_path / "folds", folds)


def test_what_encoder_and_map_have_seen_is_what_the_vectors_have_seen(tmp_path: Path) -> None:
    start = make_embeddings(tmp_path / "start", dim=DIM, learned=True)
    run = learn(start, tmp_path / "run", "centre", "data.splits=[test]")
    made = put_behind(start, run.path, tmp_path / "mapped")
    everyone = set(start.table.column("patient"))
    assert set(run.info.patients) < everyone
    assert set(made.info.model.history.patients) == everyone
    unknown = make_embeddings(tmp_path / "unknown", dim=DIM, learned=None)
    twice = put_behind(unknown, learn(unknown, tmp_path / "run-2", "centre").path, tmp_path / "mapped-2")
    assert not twice.info.model.history.is_complete


def test_maps_follow_each_other(start: Embeddings, tmp_path: Path) -> None:
    first = put_behind(start, learn(start, tmp_path / "one", "whiten").path, tmp_path / "first")
    second = put_behind(first, learn(first, tmp_path / "two", "whiten-within").path, tmp_path / "second")
    assert second.info.model.checksum not in (first.info.model.checksum, start.info.model.checksum)
    assert (second.path / (second.info.start or "")).resolve() == first.path.resolve()
    with pytest.raises(UserError, match=r"two is for vectors of 'one', and .*embeddings was made by 'made', another"):
        put_behind(start, tmp_path / "two", tmp_path / "third")


def test_a_sample_of_the_rows_can_be_mapped(start: Embeddings, tmp_path: Path) -> None:
    run = learn(start, tmp_path / "run", "centre")
    whole = put_behind(start, run.path, tmp_path / "whole")
    some = put_behind(start, run.path, tmp_path / "some", splits=["test"], per_slide=3, dtype="float16")
    assert len(some) == 9 * 2 * 3
    assert some.vectors.dtype == np.float16
    place = {key: row for row, key in enumerate(zip(*_columns(whole, "slide", "patch"), strict=True))}
    rows = [place[key] for key in zip(*_columns(some, "slide", "patch"), strict=True)]
    np.testing.assert_allclose(some.vectors, whole.vectors[rows], atol=1e-2)


# The adapter


@pytest.mark.parametrize("layers", [1, 2])
def test_an_adapter_changes_no_bit_before_it_has_learned(layers: int, start: Embeddings) -> None:
    source = open_source(start.path)
    made = begin_map(source, np.arange(len(start)), config_of("hidisc-adapter", f"map.layers={layers}").map)
    x = torch.from_numpy(np.array(start.vectors))
    assert made.features(x).detach().numpy().tobytes() == x.numpy().tobytes()


@pytest.mark.parametrize("layers", [1, 2])
def test_an_adapter_learns_what_patients_have_in_common(layers: int, start: Embeddings, tmp_path: Path) -> None:
    changes = ("optim.steps=60", "optim.learning_rate=0.003", f"map.layers={layers}", "map.hidden_dim=32")
    run = learn(start, tmp_path / "run", "hidisc-adapter", *changes)
    rows = run.metrics()
    assert rows[-1]["loss"] < 0.95 * rows[0]["loss"]
    assert VectorMap.load(run.path).card.layers == layers


def test_views_replace_numbers_by_their_mean_and_add_noise() -> None:
    config = load_config(TrainConfig, "hidisc-adapter", ["map.dropout=0.25", "map.noise=0.5", "batch.views=4"])
    make = VectorViews(config, torch.full((50,), 7.0), torch.tensor([2.0]))
    vectors = torch.zeros(200, 50)
    (views,) = make(vectors, torch.Generator().manual_seed(0))
    assert views.shape == (200, 4, 50)
    dropped = views == 7
    assert abs(float(dropped.float().mean()) - 0.25) < 0.01
    assert abs(float(views[~dropped].std()) - 1.0) < 0.02, "half of the vectors' deviation"
    assert not torch.equal(views[:, 0], views[:, 1])
    (again,) = make(vectors, torch.Generator().manual_seed(0))
    assert torch.equal(views, again)


def test_an_adapter_resumes_to_the_last_bit(start: Embeddings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learn(start, tmp_path / "whole", "hidisc-adapter").path

    class Ends(Progress):
        done = 0

        def advance(self, count: int = 1) -> None:
            self.done += count
            if count and self.done == 5:
                raise Stopped

    @contextmanager
    def show(*_: object):
        yield Ends()

    with monkeypatch.context() as patch:
        patch.setattr(train_verb, "show_training", show)
        with pytest.raises(Stopped):
            learn(start, tmp_path / "cut", "hidisc-adapter")
    said: list[str] = []
    cut = learn(start, tmp_path / "cut", "hidisc-adapter", said=said).path
    assert any("going on after step 4" in sentence for sentence in said)
    assert (cut / MAP_WEIGHTS).read_bytes() == (whole / MAP_WEIGHTS).read_bytes()
    assert losses(cut) == losses(whole)
    ends = [read_checkpoint(list_checkpoints(path)[-1])[1] for path in (cut, whole)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


# Bad input


def test_wrong_inputs_are_refused_in_a_sentence(start: Embeddings, tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with pytest.raises(UserError, match=r"map.kind = 'whiten' learns from vectors, and .*store holds pictures. Give"):
        train(store, tmp_path / "a", config_of("whiten"), device="cpu")
    with pytest.raises(UserError, match=r"embeddings holds vectors, from which a map is learned. Give a recipe for"):
        train(start.path, tmp_path / "a", load_config(TrainConfig, "hidisc-patient"), device="cpu")
    pixels = train_pixels(store, tmp_path / "pixels", "optim.steps=1")
    with pytest.raises(UserError, match=r"pixels has learned from pictures, and .*embeddings holds vectors"):
        put_behind(start, pixels.path, tmp_path / "a")
    run = learn(start, tmp_path / "run", "whiten")
    with pytest.raises(UserError, match=r"run is a map of vectors, and .*store holds pictures. Embed them with an"):
        embed(store, run.path, tmp_path / "a", device="cpu")
    with pytest.raises(UserError, match=r"run is a map of vectors, and this needs an encoder of pictures"):
        export(run.path, tmp_path / "a", to="onnx")
    with pytest.raises(UserError, match=r"run' is a folder without an encoder"):
        train_pixels(store, tmp_path / "a", f"model.weights={run.path}")
    with pytest.raises(UserError, match=r"timm:test_resnet is no map of vectors, and .*embeddings holds vectors"):
        put_behind(start, Path("timm:test_resnet"), tmp_path / "a")
    with pytest.raises(UserError, match=r"run is a run and .*embeddings is embeddings: the two are swapped"):
        embed(run.path, start.path, tmp_path / "a", device="cpu")
    with pytest.raises(UserError, match=r"model.\* and tta are for encoders of pictures"):
        put_behind(start, run.path, tmp_path / "a", tta="flips")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("recipe", "change", "sentence"),
    [
        ("whiten-within", "optim.steps=5", "optim.steps is set, and map.kind = 'whiten-within' has no use for it"),
        ("hidisc-adapter", "map.dim=5", "map.dim is set, and map.kind = 'adapter' has no use for it"),
        ("hidisc-adapter", "model.backbone=resnet18", "model.backbone is set, and map.kind = 'adapter' has no use"),
        ("whiten", "objective.temperature=1", "objective.temperature is set, and map.kind = 'whiten' has no use for"),
        ("whiten-within", "map.level=plate", "map.level = 'plate' is none of patient, slide. Give one of these, or"),
        ("whiten-within", "map.level=patch", "map.level = 'patch' is none of patient, slide"),
        ("whiten-within", "map.dim=17", "map.dim = 17, and the vectors of .*embeddings have 16 numbers"),
        ("hidisc-adapter", "objective={name: supervised}", "objective.name = 'supervised' learns from pictures only"),
    ],
)
def test_settings_that_fit_no_map_are_refused(
    recipe: str, change: str, sentence: str, start: Embeddings, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        learn(start, tmp_path / "run", recipe, change)


def test_the_user_is_told_where_two_levels_are_one(tmp_path: Path) -> None:
    start = make_embeddings(tmp_path / "start", dim=DIM, slides=1, learned=False)
    said: list[str] = []
    learn(start, tmp_path / "run", "whiten-within", "map.level=patient", said=said)
    assert any("every patient has one slide" in sentence for sentence in said)


def test_slides_of_one_vector_each_are_refused(tmp_path: Path) -> None:
    start = make_embeddings(tmp_path / "start", dim=DIM, patches=1, patients=20, learned=False)
    with pytest.raises(UserError, match="no unit has two vectors to learn from"):
        learn(start, tmp_path / "run", "whiten-within")
    assert learn(start, tmp_path / "of-patients", "whiten-within", "map.level=patient").info.steps == 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_vectors_that_are_not_finite_are_refused(recipe: str, tmp_path: Path) -> None:
    start = make_embeddings(tmp_path / "start", dim=DIM, learned=False)
    vectors = np.array(start.vectors)
    vectors[np.flatnonzero(start.table.in_splits(("train",), "", start.path))[3], 2] = np.nan
    np.save(start.path / "embeddings.npy", vectors)
    refinish(start.path)
    with pytest.raises(UserError, match="NaN or infinity"):
        learn(Embeddings.load(start.path), tmp_path / "run", recipe)


def test_a_damaged_map_is_refused(start: Embeddings, tmp_path: Path) -> None:
    run = learn(start, tmp_path / "run", "centre")
    weights = (run.path / MAP_WEIGHTS).read_bytes()
    (run.path / MAP_WEIGHTS).write_bytes(weights[:-4] + b"\0\0\0\1")
    with pytest.raises(UserError, match=r"is not the file that map.json beside it speaks of. Copy both files from one"):
        VectorMap.load(run.path)
    (run.path / MAP_WEIGHTS).write_bytes(weights)
    card = (run.path / MAP_CARD).read_bytes()
    (run.path / MAP_CARD).write_bytes(card.replace(b'"takes": 16', b'"takes": 17'))
    with pytest.raises(UserError, match=r"map.json is damaged"):
        VectorMap.load(run.path)


# Several views of a picture, embedded


def test_the_mean_over_flips_and_turns_is_that_of_eight_pictures(tmp_path: Path) -> None:
    store = PatchStore.load(make_store(tmp_path))
    plain, turned = (open_model("timm:test_resnet", store, EmbedConfig(tta=tta)) for tta in (None, "flips"))
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    pictures = x.permute(0, 2, 3, 1).numpy()
    with torch.inference_mode():
        one_by_one = []
        for mirrored in (pictures, pictures[:, :, ::-1]):
            for quarters in range(4):
                view = np.rot90(mirrored, quarters, axes=(1, 2)).copy()
                one_by_one.append(plain.net(torch.from_numpy(view).permute(0, 3, 1, 2)))
        expected, found = torch.stack(one_by_one).mean(dim=0), turned.net(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(turned.net(x.rot90(1, (2, 3))), found)
    assert plain.card.checksum != turned.card.checksum, "vectors of the one cannot be compared with those of the other"
    assert plain.card.group != turned.card.group


# Folds


SUITE = """
title: Maps
rows:
  - {name: As they are, recipe: centre, encoder: start}
  - {name: Whitened, recipe: centre, encoder: start, map: whiten-within}
  - {name: Linear, recipe: linear-hidisc, changes: [map.keep=4]}
  - {name: Adapter, recipe: hidisc-adapter, changes: [optim.steps=2, batch.images=64]}
seeds: 2
folds: {number: 3}
evaluate: {knn: {k: 5}, probes: [knn], bootstrap: {resamples: 20}}
claims: [{text: better, better: Whitened, than: As they are}]
small: {recipe: ''}
"""


def plan(suite: Path, out: Path, source: Path) -> list[SuiteCell]:
    config = load_config(SuiteConfig, str(suite))
    opened = Embeddings.load(source) if (source / "embeddings.json").exists() else PatchStore.load(source)
    return plan_cells(config, config.small, out, {"": opened})


def test_each_fold_has_a_map_of_its_own(start: Embeddings, tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    out = tmp_path / "out"
    done = benchmark(load_config(SuiteConfig, str(tmp_path / "suite.yaml")), start.path, out, workers=1, device="cpu")
    assert (done.done, done.failed) == (2 * (1 + 3 + 3 + 3 + 3), 0)  # with the floor `Whitened within slides`
    everyone, maps = set(start.table.column("patient")), 0
    for cell in plan(tmp_path / "suite.yaml", out, start.path):
        judged = set(Scores.load(cell.scores(cell.points[-1])).predictions("knn", "patient").clusters)
        runs = [path for path in (cell.run, cell.map_run(cell.points[-1])) if path.exists()]
        assert len(runs) == (cell.row.name != "As they are")
        for run in runs:
            maps += 1
            assert set(Run.load(run).info.patients) == everyone - judged, cell.name
        assert judged == everyone if not runs else judged < everyone
    assert maps == 24
    table = (out / "tables" / "floors.md").read_text()
    assert all(name in table for name in ("As they are", "Whitened within slides", "Linear", "Adapter"))
    assert "Colour" not in table
    groups = {Scores.load(path).info.model.group for path in (out / "pooled").iterdir()}
    assert len(groups) == 3, "seeds of a row are one method, two rows are not; the floor is the same as `Whitened`"


def test_a_map_behind_starting_weights_is_learned_without_the_fold(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    row = "{name: Whitened, recipe: simclr+laptop, encoder: start, map: whiten-within}"
    (tmp_path / "suite.yaml").write_text(
        f"title: Start\nrows: [{row}]\nseeds: 1\nfolds: {{number: 2}}\nfloors: false\nsmall: {{recipe: ''}}\n"
        "evaluate: {knn: {k: 5}, probes: [knn], bootstrap: {resamples: 20}}\n"
    )
    out = tmp_path / "out"
    done = benchmark(load_config(SuiteConfig, str(tmp_path / "suite.yaml")), store, out, workers=1, device="cpu")
    assert (done.done, done.failed) == (2, 0)
    everyone = set(PatchStore.load(store).table.column("patient"))
    for cell in plan(tmp_path / "suite.yaml", out, store):
        scores = Scores.load(cell.scores(cell.points[-1]))
        judged = set(scores.predictions("knn", "patient").clusters)
        learned = set(Run.load(cell.map_run(cell.points[-1])).info.patients)
        assert learned == everyone - judged
        assert scores.info.model.objective == "whiten-within"


def test_a_suite_of_encoders_says_what_to_do_with_vectors(start: Embeddings, tmp_path: Path) -> None:
    config = load_config(SuiteConfig, "weak", ["seeds=1", "rows=[{name: SimCLR, recipe: simclr}]", "claims=[]"])
    done = benchmark(config, start.path, tmp_path / "out", workers=1, device="cpu")
    assert done.failed == 1
    (reason,) = (path.read_text() for path in (tmp_path / "out").rglob("failed.txt"))
    assert "holds vectors, from which a map is learned. Give a recipe for vectors: --recipe whiten-within" in reason
