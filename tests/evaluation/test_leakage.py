"""Overlap is found by patient and by slide file, whatever they are called, and refused unless it is allowed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.leakage import find_overlap, refuse_leaks, slides_of
from hidisc.evaluation.scores import Finding
from hidisc.evaluation.task import Task, choose_task
from hidisc.ground.errors import UserError
from hidisc.models.card import NOTHING, UNKNOWN, History
from hidisc.patches.record import SlideId
from hidisc.settings.evaluate import EvaluateConfig, LeakageConfig
from tests.evaluation.made import make_embeddings


@pytest.fixture
def made(tmp_path: Path) -> Embeddings:
    """Patients a-0, a-1, b-0 and b-1 are of the test side, a-2, a-3, b-2 and b-3 were learned from."""
    return make_embeddings(tmp_path / "made", classes=("a", "b"), patients=4, patches=3, dim=4)


def change(embeddings: Embeddings, **changes: Any) -> Embeddings:
    return replace(embeddings, info=embeddings.info.model_copy(update=changes))


def change_model(embeddings: Embeddings, **changes: Any) -> Embeddings:
    return change(embeddings, model=embeddings.info.model.model_copy(update=changes))


def saved_again(embeddings: Embeddings, slide: str, other: str) -> Embeddings:
    """The file of `slide` is that of `other`."""
    checksum = {one.slide: one.checksum for one in embeddings.info.slides}[other]
    slides = [
        one.model_copy(update={"checksum": checksum}) if one.slide == slide else one for one in embeddings.info.slides
    ]
    return change(embeddings, slides=tuple(slides))


def task_of(queried: Embeddings, known: Embeddings | None = None, /, **settings: Any) -> Task:
    return choose_task(queried, known or queried, EvaluateConfig(**settings))


def said(findings: Sequence[Finding], kind: str) -> list[str]:
    return [finding.sentence for finding in findings if finding.kind == kind]


def test_patients_apart_and_nothing_found(made):
    assert find_overlap(task_of(made)) == ()


def test_slides_of_a_side_are_those_with_rows(made):
    task = task_of(made)
    names = [slide.slide for slide in slides_of(task.queries)]
    assert names == ["a-0/0", "a-0/1", "a-1/0", "a-1/1", "b-0/0", "b-0/1", "b-1/0", "b-1/1"]
    few = replace(task.queries, rows=task.queries.rows[[0, 1, 3]], labels=task.queries.labels[[0, 1, 3]])
    assert [slide.slide for slide in slides_of(few)] == ["a-0/0", "a-0/1"]
    assert slides_of(few)[0] == SlideId(patient="a-0", slide="a-0/0", checksum="sha-a-0/0")


def test_a_patient_on_both_sides_is_a_leak(made):
    # the encoder has not seen the test side, which is here both bank and queries
    [leak] = find_overlap(task_of(made, bank=("train", "test")))
    assert leak.kind == "leak"
    assert leak.sentence == (
        "4 patients are both among the reference patients and among the test patients ('a-0', 'a-1', 'b-0' and "
        "1 more), so that test patches are classified by patches of the same patient. Split the cohort by "
        "patient, or choose other splits with bank=[...] and queries=[...]."
    )


def test_only_patients_with_rows_on_both_sides_count(made):
    task = task_of(made, bank=("train", "test"))
    bank = task.bank
    keep = (bank.names("patient") != "a-0") & (bank.names("patient") != "b-1")
    bank = replace(bank, rows=bank.rows[keep], labels=bank.labels[keep])
    [leak] = find_overlap(replace(task, bank=bank))
    assert leak.sentence.startswith(
        "2 patients are both among the reference patients and among the test patients ('a-1', 'b-0'), so"
    )


def test_one_slide_of_a_patient_on_each_side_is_a_leak(made):
    task = task_of(made, bank=("test",))
    bank, queries = task.bank, task.queries
    first = bank.names("slide") == "a-0/0"
    second = queries.names("slide") == "a-0/1"
    bank = replace(bank, rows=bank.rows[first], labels=bank.labels[first])
    queries = replace(queries, rows=queries.rows[second], labels=queries.labels[second])
    [leak] = find_overlap(replace(task, bank=bank, queries=queries))
    assert leak.sentence.startswith(
        "1 patient is both among the reference patients and among the test patients ('a-0')"
    )
    assert "in common" not in leak.sentence  # one store: it is the same patient


def test_one_file_under_two_patients_names_is_a_leak(made):
    model = made.info.model.model_copy(update={"history": NOTHING})
    twice = change(saved_again(made, "a-0/0", "b-3/1"), model=model)
    [leak] = find_overlap(task_of(twice))
    assert leak.kind == "leak"
    assert leak.sentence == (
        "1 slide file is listed both under a test patient and under a reference patient of another name ('a-0/0' of "
        "patient 'a-0' is 'b-3/1' of patient 'b-3'). Remove one of each from the cohort, or list both under one "
        "patient."
    )


def test_one_file_under_two_slide_names_of_one_patient_is_the_patients_leak(made, tmp_path):
    other = make_embeddings(tmp_path / "other", classes=("a", "b"), patients=4, patches=3, dim=4)
    slides = [
        one.model_copy(update={"checksum": "sha-a-0/1" if one.slide == "a-0/0" else f"other {one.slide}"})
        for one in other.info.slides
    ]
    other = change(other, slides=tuple(slides), store_checksum="other")
    leaks = said(find_overlap(task_of(made, other, bank=("train", "test"))), "leak")
    assert len(leaks) == 1
    assert leaks[0].startswith("4 patients are both")
    assert "in common" not in leaks[0]  # a file says that it is the same


def test_patients_of_two_stores_may_only_share_a_name(made, tmp_path):
    other = make_embeddings(tmp_path / "other", classes=("a", "b"), patients=4, patches=3, dim=4)
    slides = [one.model_copy(update={"checksum": f"other {one.slide}"}) for one in other.info.slides]
    other = change(other, slides=tuple(slides), store_checksum="other")
    task = task_of(other, made, bank=("test",))
    [leak] = find_overlap(task)
    assert leak.kind == "leak"
    assert (
        " They have no slide file in common: if they are different patients with the same name, rename the patients of "
        "one store. Split" in leak.sentence
    )


def test_an_unknown_checksum_is_like_no_other(made):
    slides = [one.model_copy(update={"checksum": ""}) for one in made.info.slides]
    assert find_overlap(task_of(change(made, slides=tuple(slides)))) == ()
    assert find_overlap(task_of(change(made, slides=()))) == ()
    assert len(find_overlap(task_of(change(made, slides=()), bank=("test",)))) == 1  # patients have names all the same


def test_queries_that_the_encoder_learned_from_are_a_leak(made):
    leaks = said(find_overlap(task_of(made, bank=("test",), queries=("train",))), "leak")
    assert leaks == [
        "4 test patients are among the patients that 'made' was trained on ('a-2', 'a-3', 'b-2' and 1 more), so "
        "that it is evaluated on patients it has seen. Evaluate it on other patients, or train it without these."
    ]


def test_a_bank_that_the_encoder_learned_from_is_none(made):
    assert all(slide.patient[-1] in "23" for slide in made.info.model.history.slides)
    assert find_overlap(task_of(made)) == ()


def test_another_slide_of_a_patient_learned_from_may_be_a_namesake(made):
    learned = (SlideId(patient="b-1", slide="unheard of", checksum="x"),)
    [leak] = find_overlap(task_of(change_model(made, history=History(slides=learned))))
    assert leak.sentence.startswith("1 test patient is among the patients that 'made' was trained on ('b-1'), so")
    assert "They have no slide file in common" in leak.sentence


def test_a_file_learned_from_under_another_name_is_a_leak(made):
    learned = (
        SlideId(patient="Q", slide="R", checksum="sha-b-0/1"),
        SlideId(patient="Q", slide="S", checksum=""),
    )
    assert said(find_overlap(task_of(change_model(made, history=History(slides=learned)))), "leak") == [
        "1 slide file is listed under a test patient, and 'made' was trained on the same under another patient's name "
        "('b-0/1' of patient 'b-0' is 'R' of patient 'Q'). Remove these from the test patients, or train it "
        "without them."
    ]


def test_a_namesake_does_not_hide_a_file_of_someone_else(made):
    learned = (
        SlideId(patient="b-0", slide="namesake", checksum="x"),
        SlideId(patient="Q", slide="R", checksum="sha-b-0/1"),
    )
    leaks = said(find_overlap(task_of(change_model(made, history=History(slides=learned)))), "leak")
    assert len(leaks) == 2


def test_an_encoder_of_unknown_training_is_a_note(made):
    assert find_overlap(task_of(change_model(made, history=UNKNOWN))) == (
        Finding(
            kind="note",
            sentence="It is not known what 'made' was trained on, so it may have seen the test patients.",
        ),
    )


@pytest.mark.parametrize(
    ("used", "sentence"),
    [
        (("objective", "monitor"), "Labels were used in the training of 'made', for: objective."),
        (("class balance", "objective"), "Labels were used in the training of 'made', for: class balance, objective."),
        (("monitor",), "Labels were used to monitor the training of 'made', but it did not learn from them."),
    ],
)
def test_labels_used_are_a_note(made, used, sentence):
    history = made.info.model.history.model_copy(update={"labels_used": used})
    assert find_overlap(task_of(change_model(made, history=history))) == (Finding(kind="note", sentence=sentence),)


def test_names_of_any_kind_are_quoted(tmp_path):
    odd = make_embeddings(
        tmp_path / "odd", classes=("<script>alert(1)</script>", "'\n{0}"), patients=2, patches=2, dim=4, name="a\nb"
    )
    leaks = said(find_overlap(task_of(odd, bank=("test",), queries=("test", "train"))), "leak")
    assert len(leaks) == 2
    assert "'<script>alert(1)</script>-0'" in leaks[0]
    assert '"\'\\n{0}-0"' in leaks[0]
    assert "'a\\nb'" in leaks[1]
    assert not any("\n" in leak for leak in leaks)


@pytest.mark.parametrize("seed", range(8))
def test_as_two_loops_find_it_in_any_order(made, seed):
    """Files at random: the counts are those of looking at every slide against every other."""
    rng = np.random.default_rng(seed)
    checksums = rng.integers(0, 12, len(made.info.slides))
    slides = [
        one.model_copy(update={"checksum": f"{number}"})
        for one, number in zip(made.info.slides, checksums, strict=True)
    ]
    learned = [
        SlideId(
            patient=f"{rng.choice(['a', 'b', 'c'])}-{rng.integers(6)}", slide=str(n), checksum=str(rng.integers(30))
        )
        for n in range(5)
    ]
    asked = [one for one in slides if one.patient[-1] in "01"]
    known = [one for one in slides if one.patient[-1] in "23"]
    expected = []
    for seen in (known, learned):
        expected.append(len({a.patient for a in asked for b in seen if a.patient == b.patient}))
        same = [(a, b) for a in asked for b in seen if a.checksum == b.checksum]
        own = {a.slide for a, b in same if a.patient == b.patient}
        expected.append(len({a.slide for a, b in same} - own))
    found = []
    for order in (np.arange(len(slides)), rng.permutation(len(slides))):
        now = change(made, slides=tuple(slides[place] for place in order))
        now = change_model(now, history=History(slides=tuple(learned[place] for place in rng.permutation(5))))
        findings = find_overlap(task_of(now))
        counts = [int(finding.sentence.split()[0].replace(",", "")) for finding in findings]
        assert counts == [count for count in expected if count]
        found.append(sorted(finding.sentence[:40] for finding in findings))
    assert found[0] == found[1]


def test_leaks_are_refused_with_all_their_sentences():
    findings = [
        Finding(kind="leak", sentence="One."),
        Finding(kind="warning", sentence="Two."),
        Finding(kind="leak", sentence="Three."),
        Finding(kind="note", sentence="Four."),
    ]
    sentence = "^One. Three. Give --allow-leakage to evaluate anyway; every table and page will then say so.$"
    with pytest.raises(UserError, match=sentence):
        refuse_leaks(findings, LeakageConfig())
    refuse_leaks(findings, LeakageConfig(allow=True))
    refuse_leaks(findings[1:2] + findings[3:], LeakageConfig())
    refuse_leaks((), LeakageConfig())
