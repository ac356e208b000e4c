"""Tables say the numbers of the scores, mark what the paper would mark, and no name breaks a format."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.compare import compare
from hidisc.evaluation.metrics import Value
from hidisc.evaluation.scores import SCORES, Diagnostic, Scores, ScoresInfo
from hidisc.ground.errors import UserError
from hidisc.reporting.evaluated import EvaluatedModel, compare_with_first, gather
from hidisc.reporting.table import DASH, NumberCell, NumberRow, Table, find_best, lay_rows, make_cell, write_tables
from hidisc.reporting.tables import (
    by_class_table,
    comparison_table,
    counts_table,
    diagnostics_table,
    list_reasons,
    metrics_table,
)
from hidisc.settings.evaluate import BootstrapConfig, EvaluateConfig
from tests.evaluation.made import make_embeddings
from tests.finished import refinish
from tests.reporting.judged import LEAK, make_scores, with_metric

MANY = ("accuracy", "mca", "auroc", "auprc")
"""Metrics of more than two classes, in the order in which `evaluation/classes.py` declares them."""
TWO = ("accuracy", "mca", "sensitivity", "specificity", "auroc", "auprc")
"""Metrics of two classes, as in the paper's extended TCGA table."""
HOSTILE = [
    "$x_1$",
    "<script>alert(1)</script>",
    "a|b",
    "[x](y)",
    "a\nb",
    "a\rb",
    '"; DROP',
    r"\end{table}",
    "50 % & #1 ~^{}",
    "*",
]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    return make_embeddings(tmp_path_factory.mktemp("three") / "e", patients=6, slides=2, patches=4)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    return make_embeddings(tmp_path_factory.mktemp("two") / "e", classes=("mut", "wt"), patients=8, slides=2, patches=4)


def judge(folder: Path, embeddings: Embeddings, seeds: int = 3) -> list[EvaluatedModel]:
    """`many`: several seeds; `one`: a single one, worse; `sup`: learned from labels, best."""
    for seed in range(seeds):
        make_scores(folder / f"many{seed}", embeddings, name="many", group="many", seed=seed)
    make_scores(folder / "one", embeddings, name="one", group="one", seed=7, accuracy=0.5)
    make_scores(folder / "sup", embeddings, name="sup", group="sup", accuracy=0.95, labels_used=("supervised",))
    return gather([*(folder / f"many{seed}" for seed in range(seeds)), folder / "one", folder / "sup"])


def change(scores: Scores, **fields: object) -> Scores:
    """Write scores.json anew with other fields."""
    info = ScoresInfo.model_validate(scores.info.model_dump() | fields)
    (scores.path / SCORES).write_text(info.model_dump_json())
    refinish(scores.path)
    return Scores.load(scores.path)


def change_metric(scores: Scores, level: str, metric: str, value: Value) -> Scores:
    """Put another value into the first probe."""
    chosen = scores.info.find(level)
    judged = [with_metric(row, metric, value) if row == chosen else row for row in scores.info.judged]
    return change(scores, judged=tuple(row.model_dump() for row in judged))


def compared(models: list[EvaluatedModel], level: str, config: BootstrapConfig, seed: int = 0) -> Table:
    """The table of comparisons by the nearest neighbours."""
    return comparison_table(compare_with_first(models, "knn", level, config, seed))


def values_of(model: EvaluatedModel, probe: str, level: str, metric: str) -> list[float]:
    levels = [scores.info.find(level, probe) for scores in model.scores]
    return [level.metrics[metric].value for level in levels if level]  # type: ignore[misc]


# ---- the layout: a row per level and method


def test_more_than_two_classes_have_the_metrics_of_the_papers_srh_table(tmp_path: Path, three: Embeddings) -> None:
    models = judge(tmp_path, three)
    table = metrics_table(models, "knn")
    assert table.columns == ("Level", "Method", "Accuracy", "MCA", "AUROC", "AUPRC")
    levels = ("patch", "slide", "patient")
    assert [row[:2] for row in table.rows] == [
        (level.capitalize(), name) for level in levels for name in ("many", "one", "sup †")
    ]
    for block, level in enumerate(levels):
        for place, metric in enumerate(MANY, 2):
            many = values_of(models[0], "knn", level, metric)
            mean = sum(many) / 3
            sd = (sum((value - mean) ** 2 for value in many) / 2) ** 0.5
            assert table.rows[3 * block][place] == f"{100 * mean:.1f} ({100 * sd:.1f})"
            (one,) = values_of(models[1], "knn", level, metric)
            low, high = max(0.0, one - 0.04), min(1.0, one + 0.04)
            assert table.rows[3 * block + 1][place] == f"{100 * one:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def test_two_classes_have_the_layout_of_the_papers_tcga_table(tmp_path: Path, two: Embeddings) -> None:
    models = judge(tmp_path, two, seeds=2)
    table = metrics_table(models, "linear")
    assert table.columns == ("Level", "Method", "Accuracy", "MCA", "Sensitivity", "Specificity", "AUROC", "AUPRC")
    assert (table.lead, table.blocks) == (2, {0: 3, 3: 3, 6: 3})
    assert [row[:2] for row in table.rows] == [
        (level, name) for level in ("Patch", "Slide", "Patient") for name in ("many", "one", "sup †")
    ]
    for block, level in enumerate(("patch", "slide", "patient")):
        for place, metric in enumerate(TWO, 2):
            a, b = values_of(models[0], "linear", level, metric)
            assert table.rows[3 * block][place] == f"{50 * (a + b):.1f} ({100 * abs(a - b) / 2**0.5:.1f})"
    assert any("are about 'wt'" in note for note in table.notes)


def test_the_numbers_are_those_of_the_predictions(tmp_path: Path, three: Embeddings) -> None:
    (model,) = judge(tmp_path, three, seeds=0)[:1]
    found = model.scores[0].predictions("knn", "patch")
    shown = metrics_table([model], "knn").rows[0][2]
    assert shown.startswith(f"{100 * (found.truth == found.predicted).mean():.1f} [")


def test_an_opinion_has_the_levels_it_has(tmp_path: Path, three: Embeddings) -> None:
    models = judge(tmp_path, three, seeds=1)
    assert list(dict.fromkeys(row[0] for row in metrics_table(models, "mil").rows)) == ["Slide", "Patient"]
    with pytest.raises(UserError, match="nothing here was evaluated by the probe 'forest', so there is no table of it"):
        metrics_table(models, "forest")


def test_a_subject_that_was_not_asked_has_dashes(tmp_path: Path, three: Embeddings) -> None:
    make_scores(tmp_path / "a", three, name="a", group="a")
    make_scores(tmp_path / "b", three, name="b", group="b", probes=("knn",))
    table = metrics_table(gather([tmp_path / "a", tmp_path / "b"]), "linear")
    assert {cell for row in table.rows if row[1] == "b" for cell in row[2:]} == {DASH}
    assert any(note.startswith(f"{DASH} undefined: Patch Accuracy of b, ") for note in table.notes)
    assert any(note.endswith(": not judged.") for note in table.notes)


# ---- cells


def test_mean_and_sample_standard_deviation_by_hand() -> None:
    cell = make_cell([Value(value=0.1), Value(value=0.2), Value(value=0.6)])
    assert cell.text == "30.0 (26.5)"  # sqrt((0.04 + 0.01 + 0.09) / 2)
    assert cell.value == pytest.approx(0.3)
    assert (cell.low, cell.high) == (pytest.approx(0.3 - 0.07**0.5), pytest.approx(0.3 + 0.07**0.5))
    assert make_cell([Value(value=0.5), Value(value=0.5)]).text == "50.0 (0.0)"


def test_one_evaluation_has_its_interval_or_none() -> None:
    cell = make_cell([Value(value=0.874, low=0.812, high=0.92)])
    assert (cell.text, cell.low, cell.high) == ("87.4 [81.2, 92.0]", 0.812, 0.92)
    assert make_cell([Value(value=1.0, why="no interval: resamples=0")]).text == "100.0"
    assert make_cell([Value(value=1.0, why="no interval: resamples=0")]).why == "no interval: resamples=0"


def test_one_undefined_value_makes_the_cell_undefined() -> None:
    cell = make_cell([Value(value=0.5), Value(value=None, why="one class only")])
    assert (cell.text, cell.value, cell.why) == (DASH, None, "one class only")
    assert make_cell([]).text == DASH


@pytest.mark.parametrize("metric", MANY)
@pytest.mark.parametrize("level", ["patch", "slide", "patient"])
def test_every_undefined_cell_is_a_dash_with_its_reason(
    level: str, metric: str, tmp_path: Path, three: Embeddings
) -> None:
    scores = make_scores(tmp_path / "s", three, probes=("knn",))
    change_metric(scores, level, metric, Value(value=None, why="the moon is full."))
    table = metrics_table(gather([tmp_path / "s"]), "knn")
    title = {"accuracy": "Accuracy", "mca": "MCA", "auprc": "AUPRC", "auroc": "AUROC"}[metric]
    undefined = {(row[0], number) for row in table.rows for number, cell in enumerate(row) if cell == DASH}
    assert undefined == {(level.capitalize(), 2 + MANY.index(metric))}
    assert f"{DASH} undefined: {level.capitalize()} {title} of made: the moon is full." in table.notes


def test_what_to_note_about_a_defined_number_is_said(tmp_path: Path, three: Embeddings) -> None:
    scores = make_scores(tmp_path / "s", three, probes=("knn",))
    change_metric(scores, "patient", "mca", Value(value=0.5, low=0.4, high=0.6, why="in 166 resamples it is undefined"))
    table = metrics_table(gather([tmp_path / "s"]), "knn")
    assert "Note: In 166 resamples it is undefined (Patient MCA of made)." in table.notes


def test_notes_that_differ_in_a_count_are_one() -> None:
    why = "In {} of the 2,000 bootstrap resamples of patients this metric is undefined (a class is missing)"
    numbers = [("A", False, why.format("1,393")), ("B", False, why.format("174")), ("C", False, "")]
    assert list_reasons(numbers) == [f"Note: {why.format('174 to 1,393')} (A, B)."]
    names = [("A", False, "see 'p1' and \"2\""), ("B", False, "see 'p2' and \"2\""), ("C", False, "see x-1, 3")]
    assert len(list_reasons(names)) == 3  # numbers within names are no counts
    undefined = [("A", True, "there are 3"), ("B", True, "there are 4")]
    assert list_reasons(undefined) == [f"{DASH} undefined: A: there are 3.", f"{DASH} undefined: B: there are 4."]
    many = list_reasons((f"n{number}", False, "why") for number in range(9))
    assert many == ["Note: Why (several numbers)."]
    undefined = list_reasons((f"n{number}", True, "why") for number in range(9))
    assert undefined == [f"{DASH} undefined: n0, n1, n2 and 6 more: why."]


def test_few_units_are_said(tmp_path: Path, three: Embeddings) -> None:
    few = make_embeddings(tmp_path / "e", classes=("a", "b"), patients=4, slides=1, patches=4)
    make_scores(tmp_path / "s", few, probes=("knn",))
    models = gather([tmp_path / "s"])
    said = "An interval over fewer than 6 says little, even a narrow one such as [0.0, 0.0]."
    assert f"Few units: the patient level is of 4 patients. {said}" in metrics_table(models, "knn").notes
    table = by_class_table(models, "knn", "patient")
    assert [row[0] for row in table.rows] == ["a (2 patients)", "b (2 patients)"]
    assert f"Few units: 'a' is of 2 patients, 'b' is of 2 patients. {said}" in table.notes
    make_scores(tmp_path / "many", three)
    enough = metrics_table(gather([tmp_path / "many"]), "knn")
    assert not any(note.startswith("Few units") for note in enough.notes)


# ---- bold


def row_of(mean: float, sd: float) -> NumberRow:
    """A cell as three seeds with this mean and standard deviation would give."""
    return one_cell(make_cell([Value(value=max(0.0, (mean + step * sd) / 100)) for step in (-1, 0, 1)]))


def one_cell(cell: NumberCell, competes: bool = True) -> NumberRow:
    return NumberRow(("level", "method"), [cell], competes)


@pytest.mark.parametrize(
    ("column", "bold"),
    [  # the paper's extended SRH table, without its supervised row: numbers and which of them are bold
        ("81.0 0.1, 80.3 1.9, 83.5 0.1, 82.1 0.3, 80.8 0.0, 86.9 0.2, 87.4 0.1", {6}),
        ("82.1 0.3, 81.4 1.8, 84.3 0.4, 83.4 0.8, 82.3 0.2, 88.1 0.5, 88.5 0.2", {5, 6}),
        ("76.1 0.3, 75.1 2.6, 79.9 0.8, 77.8 1.0, 76.4 0.2, 85.5 0.3, 86.2 0.2", {6}),
        ("87.8 0.2, 86.0 3.5, 90.5 0.3, 87.4 0.5, 88.3 0.2, 91.9 0.6, 92.8 0.2", {6}),
        ("78.4 0.6, 77.0 4.0, 82.7 1.0, 78.7 1.9, 77.9 0.3, 87.0 1.4, 86.4 0.6", {5, 6}),
        ("73.9 0.2, 73.6 2.7, 78.2 0.2, 76.0 0.4, 73.5 0.1, 83.2 0.2, 83.5 0.2", {5, 6}),
        ("87.8 0.2, 85.9 3.2, 90.8 0.3, 88.0 0.4, 88.6 0.2, 90.4 1.4, 92.3 1.1", {5, 6}),
        ("83.0 0.3, 77.2 0.7, 84.1 0.3, 80.8 0.3, 82.7 0.2, 85.5 0.4, 85.1 0.2", {5, 6}),  # TCGA, slides
        ("85.3 0.3, 81.9 0.5, 84.6 0.5, 82.8 0.6, 85.3 0.3, 84.4 0.3, 84.1 0.3", {0, 2, 4}),
    ],
)
def test_bold_is_what_the_paper_prints_bold(column: str, bold: set[int]) -> None:
    rows = [row_of(*map(float, cell.split())) for cell in column.split(", ")]
    assert find_best(rows) == {(row, 0) for row in bold}


def test_intervals_are_bold_when_they_overlap_the_best_and_not_all_do() -> None:
    cells = [(0.80, 0.75, 0.90), (0.70, 0.60, 0.75), (0.69, 0.60, 0.7499), (0.76, 0.74, 0.77)]
    rows = [one_cell(make_cell([Value(value=value, low=low, high=high)])) for value, low, high in cells]
    assert find_best(rows) == {(0, 0), (1, 0), (3, 0)}
    assert find_best([rows[0], rows[1], rows[3]]) == set()  # all overlap: nothing differs, and nothing is bold
    worse = one_cell(rows[2].cells[0], competes=False)
    assert find_best([rows[0], rows[1], worse]) == set()  # what does not compete is no competitor


def test_only_what_differs_is_bold_in_a_table(tmp_path: Path, three: Embeddings) -> None:
    for name in "ab":
        make_scores(tmp_path / name, three, name=name, group=name, seed=0, accuracy=0.8)
    table = metrics_table(gather([tmp_path / "a", tmp_path / "b"]), "knn")
    assert table.bold == frozenset()
    assert (
        "Bold: the best value, and every value whose error range (the interval, or mean ± standard deviation) overlaps "
        "that of the best; where all of them overlap, nothing is bold." in table.notes
    )


def test_encoders_that_learned_from_labels_do_not_compete(tmp_path: Path, three: Embeddings) -> None:
    models = judge(tmp_path, three)
    table = metrics_table(models, "knn")
    assert table.bold
    assert {row % 3 for row, _ in table.bold} <= {0, 1}
    assert (0, 2) in table.bold
    assert (1, 2) not in table.bold  # 0.5 against 0.8
    assert any(note.startswith("Bold: the best value, and every value whose error range") for note in table.notes)
    assert "† learned from labels, so it is never bold: sup (supervised)." in table.notes
    alone = metrics_table([models[0], models[2]], "knn")
    assert alone.bold == frozenset()  # one competitor alone is not the best
    assert not any(note.startswith("Bold") for note in alone.notes)


def test_bold_is_per_block_or_group() -> None:
    cells = [make_cell([Value(value=value)]) for value in (0.9, 0.8, 0.3, 0.4)]
    names = [("Patch", "a"), ("Patch", "b"), ("Slide", "a"), ("Slide", "b")]
    rows = [NumberRow(name, [cell]) for name, cell in zip(names, cells, strict=True)]
    assert lay_rows("t", ("Level", "Method", "x"), rows, ()).bold == {(0, 2), (3, 2)}
    grouped = [NumberRow(name, [cell], group=name[1]) for name, cell in zip(names, cells, strict=True)]
    assert lay_rows("t", ("Level", "Method", "x"), grouped, ()).bold == {(0, 2), (1, 2)}
    assert find_best([]) == set()
    assert find_best([one_cell(cells[0]), one_cell(make_cell([]))]) == set()  # undefined ones are no competition


# ---- what is said beside the numbers


def test_leaks_are_printed_on_every_table(tmp_path: Path, two: Embeddings) -> None:
    make_scores(tmp_path / "a", two, name="a", group="a")
    make_scores(tmp_path / "b", two, name="b", group="b", leak=True)
    models = gather([tmp_path / "a", tmp_path / "b"])
    tables = [
        metrics_table(models, "knn"),
        by_class_table(models, "knn", "patient"),
        diagnostics_table(models),
        compared(models, "slide", BootstrapConfig(resamples=20)),
    ]
    for table in tables:
        assert table.notes[0] == f"Warning: b: {LEAK}"
        texts = (table.to_csv(), table.to_markdown(), table.to_latex("x"))
        assert all("are in the bank and in the queries." in text for text in texts)
    assert counts_table(models[1]).notes[0] == f"Warning: {LEAK}"
    assert counts_table(models[0]).notes == ()
    make_scores(tmp_path / "c", two, name="c", group="c", leak=True)
    everyone = gather([tmp_path / "b", tmp_path / "c"])
    assert metrics_table(everyone, "knn").notes[0] == f"Warning: {LEAK}"  # of all: no names


def test_notes_say_what_stands_in_brackets(tmp_path: Path, three: Embeddings) -> None:
    notes = metrics_table(judge(tmp_path, three), "knn").notes
    assert notes[0] == (
        "In percent. many: Mean (standard deviation of the sample, n - 1) over 3 evaluations: training seeds 0, 1, 2."
    )
    assert notes[1] == (
        "one, sup: One evaluation; in brackets the 95 % interval over 2,000 bootstrap resamples of patients."
    )
    assert any("AUROC and AUPRC are means over the classes" in note for note in notes)
    assert "knn was made up." in notes  # the probe's own remarks
    for seed in range(4):
        make_scores(tmp_path / f"drawn{seed}", three, seed=seed // 2, sampling_seed=seed % 2, per_slide=4)
    (drawn,) = gather([tmp_path / f"drawn{seed}" for seed in range(4)])
    assert "training seeds 0, 1; sampling seeds 0, 1." in metrics_table([drawn], "knn").notes[0]
    bare = EvaluateConfig(bootstrap=BootstrapConfig(resamples=0))
    make_scores(tmp_path / "bare", three, config=bare)
    notes = metrics_table(gather([tmp_path / "bare"]), "knn").notes
    assert notes[0] == "In percent. One evaluation, without an interval."


def test_units_left_out_and_other_tests_are_said(tmp_path: Path, three: Embeddings) -> None:
    scores = make_scores(tmp_path / "a", three, name="a", group="a", probes=("knn",))
    left_out = {"slide": 2, "patient": 1, "patch": 0}
    judged = [row.model_copy(update={"left_out": left_out[row.level]}) for row in scores.info.judged]
    change(scores, judged=tuple(row.model_dump() for row in judged))
    other = make_embeddings(tmp_path / "other", patients=8, slides=1, patches=4)
    make_scores(tmp_path / "b", other, name="b", group="b")
    notes = metrics_table(gather([tmp_path / "a", tmp_path / "b"]), "knn").notes
    assert "a: 2 slides with patches of several labels left out." in notes
    assert "a: 1 patient with patches of several labels left out." in notes
    assert (
        "The rows were not all judged by the same patients, so that they cannot be compared with each other." in notes
    )


# ---- the other tables


def test_counts_are_of_reference_and_test_patients(tmp_path: Path, three: Embeddings) -> None:
    make_scores(tmp_path / "s", three)
    table = counts_table(gather([tmp_path / "s"])[0])
    assert table.columns == ("Class", "Split", "Patients", "Slides", "Patches")
    column = {name: three.table.column(name) for name in ("label", "split", "patient", "slide")}
    splits = {"Reference patients (train)": "train", "Test patients (test)": "test"}
    for label, title, *cells in table.rows:
        wanted = (label, splits[title])
        rows = [row for row in range(len(three)) if (column["label"][row], column["split"][row]) == wanted]
        slow = [len({column["patient"][row] for row in rows}), len({column["slide"][row] for row in rows}), len(rows)]
        assert [int(cell) for cell in cells] == slow
    assert [row[:2] for row in table.rows] == [(label, title) for label in "abc" for title in splits]
    assert table.blocks == {0: 2, 2: 2, 4: 2}


def test_large_counts_have_commas_and_other_counts_are_said(tmp_path: Path, three: Embeddings) -> None:
    first = make_scores(tmp_path / "s0", three, seed=0)
    make_scores(tmp_path / "s1", three, seed=1)
    counts = [count.model_copy(update={"units": {**count.units, "patch": 1_234_567}}) for count in first.info.counts]
    change(first, counts=tuple(count.model_dump() for count in counts))
    table = counts_table(gather([tmp_path / "s0", tmp_path / "s1"])[0])
    assert table.rows[0][4] == "1,234,567"
    assert table.notes == ("Of 2 evaluations, which differ in their counts, the first is shown.",)


def test_counts_of_embeddings_that_were_not_evaluated(three: Embeddings) -> None:
    table = counts_table(gather([three.path])[0])
    assert table.columns == ("Class", "Split", "Patients", "Slides", "Patches")
    assert table.rows == tuple((label, split, "3", "6", "24") for label in "abc" for split in ("test", "train"))
    assert table.notes == ("Embedded, not evaluated: run `hidisc evaluate`.",)


def test_classes_against_the_rest_by_block(tmp_path: Path, three: Embeddings) -> None:
    models = judge(tmp_path, three, seeds=2)
    table = by_class_table(models, "knn", "slide")
    assert table.columns == ("Class", "Method", "Sensitivity", "Specificity", "AUROC", "AUPRC")
    assert table.blocks == {0: 3, 3: 3, 6: 3}
    assert [row[0] for row in table.rows[::3]] == ["a (6 slides)", "b (6 slides)", "c (6 slides)"]
    level = models[1].scores[0].info.find("slide")
    assert level is not None
    for block, label in enumerate("abc"):
        value = level.by_class[label]["auprc"]
        shown = f"{100 * value.value:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"  # type: ignore[operator]
        assert table.rows[3 * block + 1][5] == shown
    for row, column in table.bold:
        assert row % 3 != 2
        assert column >= 2


def test_a_class_without_units_is_undefined_with_its_reason(tmp_path: Path, three: Embeddings) -> None:
    config = EvaluateConfig(classes=("a", "b", "c"))
    scores = make_scores(tmp_path / "s", three, config=config)
    judged = []
    for row in scores.info.judged:
        gone = {name: Value(value=None, why=f"no {row.level} is 'c'") for name in row.by_class["c"]}
        judged.append(row.model_copy(update={"by_class": row.by_class | {"c": gone}}).model_dump())
    change(scores, judged=tuple(judged))
    table = by_class_table(gather([tmp_path / "s"]), "knn", "patient")
    assert table.rows[2][2:] == (DASH,) * 4
    names = ", ".join(f"c (3 patients) {name} of made" for name in ("Sensitivity", "Specificity", "AUROC", "AUPRC"))
    assert f"{DASH} undefined: {names}: no patient is 'c'." in table.notes


def test_diagnostics_by_block_with_their_meaning(tmp_path: Path, three: Embeddings) -> None:
    models = judge(tmp_path, three)
    extra = Diagnostic(name="only here", value=0.123456, meaning="A long sentence that says what this number means.")
    scores = models[1].scores[0]
    change(scores, diagnostics=tuple(item.model_dump() for item in (*scores.info.diagnostics, extra)))
    table = diagnostics_table(gather([scores.path for model in models for scores in model.scores]))
    assert table.columns == ("Property", "Method", "Value", "By chance", "What it means")
    assert table.blocks == {0: 3, 3: 3, 6: 1}
    assert table.rows[0] == (
        "effective rank",
        "many",
        "8.25 (1)",
        "16",
        "7 of 16 directions are used.",
    )  # 7.25 + 0, 1, 2
    assert table.rows[1][2] == "14.2"
    assert table.rows[3][2:4] == (DASH, "0.5")
    assert table.rows[6] == ("only here", "one", "0.123", DASH, extra.meaning)
    assert any(
        note.startswith("Of several evaluations: mean (standard deviation of the sample") for note in table.notes
    )
    assert (
        table.to_markdown().splitlines()[3].split("|")[-2].strip() == "---"
    )  # words at the left, numbers at the right
    assert table.to_markdown().splitlines()[3].split("|")[3].strip() == "---:"
    assert "p{0.4\\textwidth}" in table.to_latex("x")


def test_comparison_is_that_of_compare(tmp_path: Path, three: Embeddings) -> None:
    models = judge(tmp_path, three, seeds=2)
    config = BootstrapConfig(resamples=200)
    table = compared(models, "patch", config, seed=3)
    assert table.columns == ("Method", "Metric", "Difference", "95 % interval", "Share")
    assert table.title == "Nearest neighbours, patch level: better than many?"
    assert table.blocks == {0: 4, 4: 4}
    sides = [[[scores.predictions("knn", "patch")] for scores in model.scores] for model in models]
    for block, side in enumerate(sides[1:]):
        found = compare(side, sides[0], config, 3)
        for row, metric in enumerate(MANY, 4 * block):
            gap = found[metric]
            assert gap.low is not None
            assert gap.high is not None
            shown = (f"{100 * gap.value:+.1f}", f"[{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]")  # type: ignore[operator]
            assert table.rows[row][2:] == (*shown, f"{100 * gap.share:.1f}")  # type: ignore[operator]
            assert ((row, 2) in table.bold) == (gap.low > 0 or gap.high < 0)
    assert (0, 2) in table.bold  # 0.5 against 0.8
    assert "one: judged by the same 9 patients as many; 1 and 2 trainings." in table.notes


def test_no_difference_is_zero_without_a_sign(tmp_path: Path, three: Embeddings) -> None:
    for name in "ab":
        make_scores(tmp_path / name, three, name=name, group=name, seed=0)
    models = gather([tmp_path / "a", tmp_path / "b"])
    table = compared(models, "patient", BootstrapConfig(resamples=20))
    assert {row[2:] for row in table.rows} == {("0.0", "[0.0, 0.0]", "50.0")}
    assert table.bold == frozenset()
    bare = compared(models, "patient", BootstrapConfig(resamples=0))
    assert {row[2:] for row in bare.rows} == {("0.0", DASH, DASH)}
    assert any(note.startswith("Note: No interval: resamples=0 (") for note in bare.notes)


def test_what_cannot_be_compared_is_said(tmp_path: Path, three: Embeddings) -> None:
    make_scores(tmp_path / "a", three, name="a", group="a")
    strangers = make_scores(tmp_path / "b", three, name="b", group="b")
    found = strangers.predictions("knn", "patient")
    units = {"patient": np.array([f"other {name}" for name in found.units["patient"]], object)}
    replace(found, units=units).save(tmp_path / "b" / "predictions_patient.parquet")
    refinish(tmp_path / "b")
    models = gather([tmp_path / "a", tmp_path / "b"])
    table = compared(models, "patient", BootstrapConfig(resamples=20))
    assert table.rows == ()
    assert any(note.startswith("b is not compared: no patient is in all") for note in table.notes)
    with pytest.raises(UserError, match="nothing here has been evaluated by the probe 'mil' at the patch level"):
        compare_with_first(models, "mil", "patch", BootstrapConfig(), 0)
    assert table.to_latex("x")
    assert table.to_markdown()


# ---- formats


def plain(rows: list[tuple[str, ...]], **fields: object) -> Table:
    columns = tuple(f"c{number}" for number in range(len(rows[0])))
    return Table("A title", columns, tuple(rows), **fields)  # type: ignore[arg-type]


def latex_rows(text: str) -> list[list[str]]:
    """Cells of the body, by the rules of LaTeX: `&` parts cells unless escaped, `\\\\` ends a row."""
    body = text.split("}\\hline\n", 1)[1].split("    \\end{tabular}")[0]
    rows = [re.sub(r"(\\hline)+$", "", line.strip()) for line in body.splitlines()]
    assert all(row.endswith("\\\\") for row in rows)
    return [re.split(r"(?<!\\)&", row[:-2]) for row in rows]


def braces_balance(text: str) -> bool:
    depth = 0
    for brace in re.sub(r"\\[{}]", "", text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def test_csv_reads_back_whatever_the_names() -> None:
    rows = [(name, "1.0") for name in HOSTILE]
    table = plain(rows, notes=("One.", "Two."))
    head, *body = csv.reader(io.StringIO(table.to_csv()))
    assert head == ["c0", "c1", "Notes"]
    assert body == [[name, "1.0", "One. Two."] for name in HOSTILE]
    assert next(csv.reader(io.StringIO(plain(rows).to_csv()))) == ["c0", "c1"]


def test_a_name_in_a_csv_is_no_formula() -> None:
    table = Table("t", ("c0", "=G"), (("=1+1", "-1.5 [-2.0, +0.1]"), ("@x", "+3.0")), ("-Note",))
    head, *body = csv.reader(io.StringIO(table.to_csv()))
    assert head == ["c0", "'=G", "Notes"]
    assert body == [["'=1+1", "-1.5 [-2.0, +0.1]", "'-Note"], ["'@x", "+3.0", "'-Note"]]


def test_markdown_has_as_many_cells_whatever_the_names() -> None:
    table = plain([(name, name) for name in HOSTILE], notes=tuple(HOSTILE), bold=frozenset({(0, 1)}))
    lines = table.to_markdown().splitlines()
    assert lines[:4] == ["**A title**", "", "| c0 | c1 |", "| --- | ---: |"]
    for line in lines[4 : 4 + len(HOSTILE)]:
        assert len(re.split(r"(?<!\\)\|", line)) == 4
    assert lines[4] == r"| \$x\_1\$ | **\$x\_1\$** |"
    assert lines[5].count("&lt;script&gt;") == 2
    assert r"[x]\(y)" in lines[7]  # no link
    text = "\n".join(lines)
    assert "<script" not in text
    assert lines[-len(HOSTILE)].startswith("- ")


def test_latex_is_balanced_and_has_as_many_cells_whatever_the_names() -> None:
    rows = [(name, name, name) for name in HOSTILE]
    for table in (plain(rows, notes=tuple(HOSTILE)), plain(rows, lead=2, bold=frozenset({(2, 2)}))):
        text = table.to_latex("name")
        assert braces_balance(text)
        assert text.count("\\begin{table*}") == text.count("\\end{table*}") == 1
        assert "\\label{tab:name}" in text
        found = latex_rows(text)
        body = found[-len(HOSTILE) :]
        assert all(len(row) == 3 for row in body)
        assert not re.search(r"(?<!\\)[#$_%]", text.replace("% needs", ""))
        for row in body:
            assert row[0].strip()[:1] not in ("[", "*")  # behind \\ they would be arguments
    assert body[2][2].strip() == "\\textbf{a\\textbar{}b}"


def test_latex_has_the_papers_rules(tmp_path: Path, three: Embeddings, two: Embeddings) -> None:
    many = metrics_table(judge(tmp_path / "three", three), "knn").to_latex("metrics")
    assert "\\begin{tabular}{c|c|cccc}\\hline" in many
    names, *rows = latex_rows(many)
    assert [len(row) for row in (names, *rows)] == [6] * 10
    assert "sup \\dag{}" in many
    tcga = metrics_table(judge(tmp_path / "two", two), "knn").to_latex("metrics")
    assert tcga.startswith("% needs \\usepackage{multirow}\n")
    assert "\\begin{tabular}{c|c|cccccc}\\hline" in tcga
    names, *rows = latex_rows(tcga)
    assert [len(row) for row in (names, *rows)] == [8] * 10
    assert [row[0].strip() for row in rows] == [
        cell for level in ("Patch", "Slide", "Patient") for cell in (f"\\multirow{{3}}{{*}}{{{level}}}", "", "")
    ]
    assert tcga.count("\\\\\\hline\\hline\n") == 2  # between blocks, not behind the last
    assert braces_balance(tcga)
    assert braces_balance(many)


def test_blocks_are_named_once_for_people_and_always_for_machines(tmp_path: Path, two: Embeddings) -> None:
    table = metrics_table(judge(tmp_path, two), "knn")
    firsts = [line.split("|")[1].strip() for line in table.to_markdown().splitlines()[4:13]]
    assert firsts == ["Patch", "", "", "Slide", "", "", "Patient", "", ""]
    levels = [row[0] for row in csv.reader(io.StringIO(table.to_csv()))][1:]
    assert levels == ["Patch"] * 3 + ["Slide"] * 3 + ["Patient"] * 3


def test_hostile_names_go_through_every_table(tmp_path: Path) -> None:
    names = ["<b>|$", 'x"_&']
    embeddings = make_embeddings(tmp_path / "e", classes=names, patients=4, slides=1, patches=3)
    for number, name in enumerate(["\\input{x}", "a\nb"]):
        make_scores(tmp_path / f"s{number}", embeddings, name=name, group=name, seed=number)
    models = gather([tmp_path / "s0", tmp_path / "s1"])
    tables = {
        "counts": counts_table(models[0]),
        "metrics": metrics_table(models, "knn"),
        "classes": by_class_table(models, "knn", "patient"),
        "diagnostics": diagnostics_table(models),
        "comparison": compared(models, "patient", BootstrapConfig(resamples=20)),
    }
    write_tables(tables, tmp_path / "tables")
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(
        f"{name}.{suffix}" for name in tables for suffix in ("csv", "md", "tex")
    )
    for name, table in tables.items():
        text = (tmp_path / "tables" / f"{name}.tex").read_text()
        assert braces_balance(text)
        assert "\\input" not in text
        assert f"\\label{{tab:{name}}}" in text
        assert all(len(row) == len(table.columns) for row in latex_rows(text)[-len(table.rows) :])
        assert "<b>" not in (tmp_path / "tables" / f"{name}.md").read_text()
        with (tmp_path / "tables" / f"{name}.csv").open(newline="") as file:
            assert [tuple(row[: len(table.columns)]) for row in csv.reader(file)][1:] == list(table.rows)
