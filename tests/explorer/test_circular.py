"""Names that follow an encoder's own embeddings cannot judge it: refused, or allowed by word and marked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hidisc.embeddings.embeddings import EMBEDDINGS, Embeddings, EmbeddingsInfo
from hidisc.embeddings.given_names import labels_file, load_labels
from hidisc.evaluation.scores import Scores
from hidisc.explorer import answers
from hidisc.explorer.labels import LabelSets
from hidisc.explorer.requests import NameRequest
from hidisc.explorer.session import Session, open_session
from hidisc.ground.columns import load_columns, save_columns
from hidisc.ground.errors import UserError
from hidisc.settings.audit import AuditConfig
from hidisc.settings.config import load_config
from hidisc.settings.train import TrainConfig
from hidisc.verbs.audit import audit
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.report import report
from hidisc.verbs.train import train
from tests.commands import Forks
from tests.evaluation.made import make_embeddings
from tests.explorer.conftest import JUDGING, Made
from tests.finished import refinish
from tests.training.stores import TINY

MINE = JUDGING.model_copy(update={"label": "mine"})
REFUSED = "were given to an outline on the map of the embeddings, and these embeddings are of .* Give --allow-circular"


@pytest.fixture
def random(tmp_path: Path) -> Embeddings:
    """Embeddings of random numbers."""
    return make_embeddings(tmp_path / "embeddings", patients=4)


def name_halves(random: Embeddings, given_by: str | None, encoder: str | None) -> None:
    """Name all patches by their class, in one way."""
    sets = LabelSets(random.path, random.table, random.info.slides, lambda _: None)
    is_first = random.table.column("label") == "a"
    sets.give("mine", "first", np.flatnonzero(is_first), given_by=given_by, encoder=encoder)
    sets.give("mine", "other", np.flatnonzero(~is_first), given_by=given_by, encoder=encoder)


def find_kinds(scores: Scores) -> list[str]:
    """The kinds of what was found about names; that the store is not there is another finding."""
    return [finding.kind for finding in scores.info.leakage if "names of patches" in finding.sentence]


def test_names_from_the_map_of_an_encoder_do_not_judge_it(random: Embeddings, tmp_path: Path) -> None:
    name_halves(random, "map", random.info.model.checksum)
    with pytest.raises(UserError, match=REFUSED):
        evaluate(random.path, tmp_path / "scores", MINE, device="cpu")
    assert not (tmp_path / "scores").exists()
    allowed = MINE.model_copy(update={"leakage": MINE.leakage.model_copy(update={"allow_circular": True})})
    scores = evaluate(random.path, tmp_path / "scores", allowed, device="cpu")
    assert find_kinds(scores) == ["circular"]
    assert "BY NAMES THAT FOLLOW IT" in scores.verdict()
    assert any("the names follow what is judged" in warning for warning in scores.info.warnings)
    page = report([scores.path], tmp_path / "report.html").read_text()
    assert "the names follow what is judged" in page


def test_folds_are_refused_too(random: Embeddings, tmp_path: Path) -> None:
    name_halves(random, "similarity", random.info.model.checksum)
    rewrite(random, history=random.info.model.history.model_copy(update={"slides": ()}))
    folds = MINE.model_copy(update={"folds": MINE.folds.model_copy(update={"number": 2})})
    with pytest.raises(UserError, match="were given to a list of patches that the embeddings chose"):
        evaluate(random.path, tmp_path / "scores", folds, device="cpu")


def test_an_encoder_made_from_it_is_not_judged_either(random: Embeddings, tmp_path: Path) -> None:
    name_halves(random, "map", "sha-start")
    assert find_kinds(evaluate(random.path, tmp_path / "before", MINE, device="cpu")) == ["note"]
    rewrite(random, history=random.info.model.history.after("sha-start"))
    with pytest.raises(UserError, match="which started from that encoder"):
        evaluate(random.path, tmp_path / "after", MINE, device="cpu")


def test_a_map_of_the_named_vectors_is_not_judged_either(random: Embeddings, tmp_path: Path) -> None:
    name_halves(random, "map", random.info.model.checksum)
    config, home = load_config(TrainConfig, "centre", []), random.path.parent
    train(random.path, home / "centre", config, device="cpu", devices=1)
    mapped = embed(random.path, home / "centre", home / "centred", device="cpu", devices=1, shown=False)
    assert mapped is not None
    with pytest.raises(UserError, match="which started from that encoder"):
        evaluate(mapped.path, tmp_path / "scores", MINE, device="cpu")


@pytest.mark.parametrize("way", ["slide", "patch", "imported"])
def test_names_from_slides_judge_any_encoder(random: Embeddings, tmp_path: Path, way: str) -> None:
    name_halves(random, way, None)
    assert find_kinds(evaluate(random.path, tmp_path / "scores", MINE, device="cpu")) == []


def test_names_of_reference_patients_alone_may_follow_the_map(random: Embeddings, tmp_path: Path) -> None:
    name_halves(random, "slide", None)
    sets = LabelSets(random.path, random.table, random.info.slides, lambda _: None)
    rows = np.flatnonzero((random.table.column("split") == "train") & (random.table.column("label") == "a"))
    sets.give("mine", "first", rows, given_by="map", encoder=random.info.model.checksum)
    assert find_kinds(evaluate(random.path, tmp_path / "scores", MINE, device="cpu")) == []


def test_names_of_older_files_are_said_to_be_of_unknown_origin(random: Embeddings, tmp_path: Path) -> None:
    name_halves(random, "map", random.info.model.checksum)
    path = labels_file(random.path, "mine")
    save_columns(
        path, {name: values for name, values in load_columns(path).items() if name not in ("given_by", "encoder")}
    )
    scores = evaluate(random.path, tmp_path / "scores", MINE, device="cpu")
    assert find_kinds(scores) == ["note"]
    assert any(
        finding.sentence.startswith("It is not known how 120 of the 120 names of patches were given")
        for finding in scores.info.leakage
    )
    LabelSets(random.path, random.table, random.info.slides, lambda _: None).give(
        "mine", "new", np.array([0]), given_by="slide"
    )
    names = load_labels(path, random.table, random.info.slides)
    assert (names.given_by[0], set(names.given_by[1:])) == ("slide", {None})


def test_an_audit_says_what_its_names_follow(random: Embeddings, tmp_path: Path) -> None:
    name_halves(random, "map", random.info.model.checksum)
    config = AuditConfig.model_validate(
        {"label": "mine", "bootstrap": {"resamples": 20, "interval": 0.99}, "columns": ["site"]}
    )
    audited = audit([random.path], tmp_path / "audit", config)
    assert audited.info.encoders[0].classes == ("first", "other")
    assert any("the names follow what is judged" in note for note in audited.info.encoders[0].notes)
    name_halves(random, "slide", None)
    with pytest.raises(UserError, match=r"the content of the labels of .*embeddings has changed"):
        audit([random.path], tmp_path / "audit", config)


def give(session: Session, **region: Any) -> tuple[dict[str, Any], tuple[Any, Any]]:
    """Name a region; the answer, and how the file says its names were given, and from which encoder."""
    request = {"set": "ways", "label": "x", "region": region}
    answer = answers.give_name(session, NameRequest.model_validate(request))
    path = labels_file(session.embeddings.path if session.embeddings else session.store.path, "ways")
    names = load_labels(path, session.store.table, session.slides)
    row = int(np.flatnonzero(names.labels == "x")[0])
    found = names.given_by[row], names.encoders[row]
    path.unlink()
    return answer, found


def test_the_explorer_records_how_names_are_given(made: Made) -> None:
    session = made.open()
    assert session.embeddings is not None
    encoder, shown = session.embeddings.info.model.checksum, session.show(0)
    box = {"slide": 0, "box": (0, 0, shown.width, shown.height)}
    square = ((-1, -1), (2, -1), (2, 2), (-1, 2))
    for region, expected in (
        ({"polygon": square}, ("map", encoder)),
        ({"polygon": square, "by": "label", "only": "0"}, ("map", encoder)),
        (box, ("slide", None)),
        ({**box, "by": "label"}, ("slide", None)),
        ({**box, "by": "computed:cluster"}, ("painted", encoder)),
        ({"rows": (3,)}, ("patch", None)),
        ({"rows": (3, 4)}, ("similarity", encoder)),
    ):
        answer, found = give(made.open(), **region)
        assert found == expected
        assert any("would be circular" in remark for remark in answer["remarks"]) == (expected[1] is not None)


def rewrite(random: Embeddings, **changes: Any) -> None:
    """Change what finished embeddings say of their encoder."""
    path = random.path / EMBEDDINGS
    info = EmbeddingsInfo.model_validate_json(path.read_text())
    path.write_text(info.model_copy(update={"model": info.model.model_copy(update=changes)}).model_dump_json())
    refinish(random.path)


def test_a_run_that_was_trained_from_the_named_encoder_is_not_judged(made: Made, tmp_path: Path) -> None:
    for name, more in (("first", []), ("second", [f"model.weights={tmp_path / 'first'}"])):
        config = load_config(TrainConfig, None, [*TINY, "optim.steps=1", *more])
        train(made.store, tmp_path / name, config, device="cpu", devices=1)
        embed(made.store, tmp_path / name, tmp_path / f"of-{name}", device="cpu", devices=1, shown=False)
    session = open_session(made.store, [tmp_path / "of-first"], None, lambda _: None)
    middle = float(np.median(session.places[:, 0]))
    for label, left, right in (("left", -1, middle), ("right", middle, 2)):
        polygon = ((left, -1), (right, -1), (right, 2), (left, 2))
        request = {"set": "mine", "label": label, "region": {"polygon": polygon}}
        answers.give_name(session, NameRequest.model_validate(request))
    for name, sentence in (
        ("first", "are of 'first': the names follow"),
        ("second", "which started from that encoder"),
    ):
        with pytest.raises(UserError, match=sentence):
            evaluate(tmp_path / f"of-{name}", tmp_path / "scores", MINE, device="cpu")


@pytest.mark.whole
def test_the_command_allows_it_by_an_option_of_its_own(random: Embeddings, forks: Forks, tmp_path: Path) -> None:
    name_halves(random, "map", random.info.model.checksum)
    words = ["probes=[knn]", "knn.k=3", "bootstrap.resamples=20", "floor=false", "audit=false", "label=mine"]
    settings = [word for setting in words for word in ("--set", setting)]
    command = ["evaluate", str(random.path), "--out", str(tmp_path / "scores"), *settings]
    refused = forks.run(*command, "--allow-leakage")
    assert refused.code == 2
    assert "Give --allow-circular to evaluate anyway" in refused.said
    assert "BY NAMES THAT FOLLOW IT" in forks.run(*command, "--allow-circular").result
