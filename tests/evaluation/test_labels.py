"""Missing labels are reported: classes without reference or test patients, patches without a label."""

from pathlib import Path

import pytest

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.labels import check_labels
from hidisc.evaluation.task import choose_task
from hidisc.settings.evaluate import EvaluateConfig
from tests.evaluation.made import make_embeddings, relabel


@pytest.fixture
def made(tmp_path: Path) -> Embeddings:
    """3 test and 3 reference patients of each of five classes, with 2 slides of 5 patches each."""
    return make_embeddings(tmp_path / "e", classes=tuple("abcde"), patches=5)


def check(made: Embeddings, **settings: object) -> list[tuple[str, str]]:
    task = choose_task(made, made, EvaluateConfig.model_validate(settings))
    return [(finding.kind, finding.sentence) for finding in check_labels(task)]


def test_whole_labels_have_nothing_to_mind(made: Embeddings) -> None:
    assert check(made) == []


def test_a_class_without_reference_patients_cannot_be_recognised(made: Embeddings) -> None:
    moved = relabel(made, lambda _, split, label: "a" if (split, label) == ("train", "b") else label)
    assert check(moved) == [
        ("warning", "No reference patient has label 'b', so none of its 3 test patients can be recognised.")
    ]


def test_the_only_test_patient_of_a_class_that_cannot_be_recognised(made: Embeddings) -> None:
    moved = relabel(made, lambda patient, _, label: "rare" if patient == "a-0" else label)
    assert check(moved) == [
        ("warning", "No reference patient has label 'rare', so its only test patient cannot be recognised.")
    ]


def test_several_classes_without_reference_patients_are_one_sentence(made: Embeddings) -> None:
    moved = relabel(made, lambda _, split, label: "a" if split == "train" else label)
    assert check(moved) == [
        (
            "warning",
            "No reference patient has any of the labels 'b', 'c', 'd' and 1 more, so none of their 12 test patients "
            "can be recognised.",
        )
    ]


def test_a_patient_of_two_such_classes_is_counted_once(made: Embeddings) -> None:
    calls: list[str] = []

    def alternate(patient: str, _: str, label: str) -> str:
        calls.append(patient)
        return f"rare {len(calls) % 2}" if patient in ("a-0", "b-1") else label

    assert check(relabel(made, alternate)) == [
        (
            "warning",
            "No reference patient has any of the labels 'rare 0', 'rare 1', so none of their 2 test patients can be "
            "recognised.",
        )
    ]


def test_a_class_without_test_patients_is_a_note(made: Embeddings) -> None:
    moved = relabel(made, lambda _, split, label: "a" if (split, label) == ("test", "b") else label)
    assert check(moved) == [("note", "No test patient has label 'b', so how well it is recognised is unknown.")]
    moved = relabel(made, lambda _, split, label: "a" if split == "test" and label in "bc" else label)
    assert check(moved) == [
        ("note", "No test patient has any of the labels 'b', 'c', so how well they are recognised is unknown.")
    ]


def test_patches_left_out_are_counted(made: Embeddings) -> None:
    moved = relabel(made, lambda patient, _, label: None if patient in ("a-0", "b-4") else label)
    assert check(moved, classes=("a", "b", "c", "d")) == [
        (
            "note",
            "40 of 150 patches of the reference patients were left out: they have no label, or none of the classes.",
        ),
        ("note", "40 of 150 patches of the test patients were left out: they have no label, or none of the classes."),
    ]
    calls: list[str] = []

    def lose_one(patient: str, _: str, label: str) -> str | None:
        calls.append(patient)
        return None if len(calls) == 1 else label

    alone = make_embeddings(made.path.parent / "alone")
    assert check(relabel(alone, lose_one)) == [
        ("note", "1 of 180 patches of the test patients was left out: it has no label, or none of the classes.")
    ]


def test_other_hierarchies_speak_of_what_they_have(made: Embeddings) -> None:
    moved = relabel(made, lambda _, split, label: "a" if (split, label) == ("train", "b") else label)
    assert check(moved, levels=["site", "patient", "patch"])[0][1].endswith(
        "none of its 3 test patients can be recognised."
    )
    assert check(moved, levels=["slide", "patch"]) == [
        ("warning", "No reference slide has label 'b', so none of its 6 test slides can be recognised.")
    ]
