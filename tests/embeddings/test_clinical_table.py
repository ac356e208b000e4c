"""Each feature file finds its row of the table; what has no partner is listed both ways, and doubts are said."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hidisc import Embeddings, UserError, import_features
from tests.embeddings.others import Cohort, make_cohort, write_clam, write_table

BARCODES = ("TCGA-AA-0001", "TCGA-AA-0002", "TCGA-BB-0003", "TCGA-BB-0004")


def rename(cohort: Cohort, names: Sequence[str]) -> Cohort:
    return dict(zip(names, cohort.values(), strict=True))


def run(folder: Path, cohort: Cohort, rows: Sequence[Mapping[str, str]], said: list[str]) -> Embeddings:
    source = write_clam(folder / "clam", cohort) / "h5_files"
    return import_features(source, write_table(folder / "t.csv", rows), folder / "out", say=said.append, shown=False)


def owners(made: Embeddings) -> dict[str, str]:
    return dict(zip(made.table.column("slide"), made.table.column("patient"), strict=True))


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("slide", "{}"),
        ("slide", "{}.svs"),
        ("slide", "slides/{}.ndpi"),
        ("filename", "{}.h5"),
        ("slide_id", "{}"),
    ],
)
def test_a_slide_is_named_as_labs_name_it(tmp_path: Path, column: str, name: str) -> None:
    cohort, rows = make_cohort(patients=4, slides=1)
    table = [{"case_id": row["patient"], column: name.format(row["slide"]), "label": row["label"]} for row in rows]
    made = run(tmp_path, cohort, table, [])
    expected = {(name.format(row["slide"]) if column == "slide" else row["slide"]): row["patient"] for row in rows}
    assert owners(made) == expected


def test_tcga_barcodes_name_patients_of_a_table_without_slides(tmp_path: Path) -> None:
    cohort, _ = make_cohort(patients=4, slides=1)
    names = [f"{patient}-01Z-00-DX1.0F3C-{number}" for number, patient in enumerate(BARCODES)]
    rows = [{"patient": patient, "label": "ab"[number % 2]} for number, patient in enumerate(BARCODES[:3])]
    rows.append({"patient": "TCGA-ZZ-9999", "label": "a"})
    said: list[str] = []
    made = run(tmp_path, rename(cohort, names), rows, said)
    assert owners(made) == dict(zip(names[:3], BARCODES[:3], strict=True))
    assert f"1 feature file of {tmp_path / 'clam/h5_files'} without a row in t.csv, left out: '{names[3]}'." in said[0]
    assert "1 patient of t.csv without a file in" in said[1]
    assert "'TCGA-ZZ-9999'" in said[1]


def test_tcga_slides_are_found_without_their_long_ending(tmp_path: Path) -> None:
    cohort, _ = make_cohort(patients=4, slides=1)
    names = [f"{patient}-01Z-00-DX1" for patient in BARCODES]
    rows = [{"patient": name[:12], "slide": name, "label": "ab"[number % 2]} for number, name in enumerate(names)]
    made = run(tmp_path, rename(cohort, [f"{name}.0F3C-11AA" for name in names]), rows, [])
    assert owners(made) == dict(zip(names, BARCODES, strict=True))


def test_a_table_that_names_slides_is_not_helped_by_barcodes(tmp_path: Path) -> None:
    """A slide that somebody has left out of the table is not let in again because its patient is there."""
    cohort, _ = make_cohort(patients=2, slides=1)
    names = [f"{BARCODES[0]}-01Z-00-DX1", f"{BARCODES[0]}-01Z-00-DX2"]
    said: list[str] = []
    made = run(tmp_path, rename(cohort, names), [{"patient": BARCODES[0], "slide": names[0], "label": "a"}], said)
    assert set(owners(made)) == {names[0]}
    assert names[1] in said[0]


def test_what_has_no_partner_is_listed_both_ways(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=4, slides=1)
    kept = {name: cohort[name] for name in ("P00-S0", "P01-S0", "P02-S0")}
    said: list[str] = []
    made = run(tmp_path, kept, [rows[0], rows[1], rows[3]], said)
    assert set(owners(made)) == {"P00-S0", "P01-S0"}
    assert [line for line in said if line.startswith("note: 1 ")] == [
        f"note: 1 feature file of {tmp_path / 'clam/h5_files'} without a row in t.csv, left out: 'P02-S0'.",
        f"note: 1 slide of t.csv without a file in {tmp_path / 'clam/h5_files'}, left out: 'P03-S0'.",
    ]


def test_a_table_without_the_slides_is_refused(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=2, slides=1)
    other = [{**row, "slide": f"scan {number}"} for number, row in enumerate(rows)]
    with pytest.raises(
        UserError, match=r"none of its slides has a feature file in .*The table has 'scan 0', 'scan 1'; "
    ):
        run(tmp_path, cohort, other, [])
    with pytest.raises(UserError, match="none of its patients has a feature file"):
        run(tmp_path / "b", cohort, [{"patient": "x", "label": "a"}], [])


def test_columns_that_are_missing_are_named(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=2, slides=1)
    with pytest.raises(
        UserError, match=r"column 'patient' is missing. Its columns are slide, label; a patient per row"
    ):
        run(tmp_path, cohort, [{"slide": row["slide"], "label": row["label"]} for row in rows], [])
    with pytest.raises(UserError, match=r"does not say whose slides these are. Give the table that does: --table"):
        import_features(tmp_path / "clam", None, tmp_path / "out")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UserError, match=r"is empty. It needs a header row with patient, slide and one row per slide"):
        import_features(tmp_path / "clam", tmp_path / "empty.csv", tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({1: {"slide": "P00-S0"}}, "row 3: slide 'P00-S0' is listed under patients 'P00' .row 2. and 'P01'. A slide"),
        ({1: {"patient": "P00"}}, "row 3: patient 'P00' has label 'malignant', but 'benign' in row 2"),
        ({1: {"split": "train"}}, "row 2: split is empty, here and in 2 more rows, but not in the others"),
        ({1: {"patient": ""}}, "row 3: patient empty. Fill in or remove the row"),
        ({1: {"slide": ""}}, "row 3: slide empty. Fill in or remove the row"),
        ({1: {"mpp": "40"}}, "row 3: mpp '40' is not a number of micrometres per pixel"),
    ],
)
def test_the_checks_of_a_cohort_are_made(tmp_path: Path, changes: dict[int, dict[str, str]], sentence: str) -> None:
    cohort, rows = make_cohort(patients=4, slides=1)
    table = [{**row, "split": "", "mpp": "", **changes.get(number, {})} for number, row in enumerate(rows)]
    with pytest.raises(UserError, match=sentence):
        run(tmp_path, cohort, table, [])


def test_patients_under_two_names_are_doubted_and_their_files_refused(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=4, slides=1)
    alike = [{**row, "patient": row["patient"].replace("P03", "p01")} for row in rows]
    said: list[str] = []
    run(tmp_path, cohort, alike, said)
    assert any("patients 'P01' (row 3) and 'p01' (row 5) are treated as two" in line for line in said)
    copied = dict(cohort)
    copied["P03-S0"] = copied["P01-S0"]
    with pytest.raises(UserError, match=r"are the same file content, under patients 'P01' and 'P03'. One of the two"):
        run(tmp_path / "b", copied, rows, [])
    again: list[str] = []
    same = [{**row, "patient": row["patient"].replace("P03", "P01")} for row in rows]
    run(tmp_path / "c", copied, same, again)
    assert any("are the same file content; patient 'P01' counts it twice" in line for line in again)


def test_a_file_that_two_rows_may_mean_is_not_guessed(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=2, slides=1)
    table = [{**rows[0], "slide": "P00-S0.svs"}, {**rows[1], "slide": "P00-S0.ndpi"}]
    with pytest.raises(UserError, match=r"has several rows for the feature file P00-S0\.h5. Write its name without"):
        run(tmp_path, cohort, table, [])


def test_a_table_of_patients_has_each_once_and_each_slide_one_file(tmp_path: Path) -> None:
    cohort, _ = make_cohort(patients=2, slides=1)
    named = rename(cohort, [f"{patient}-01Z" for patient in BARCODES[:2]])
    rows = [{"patient": patient, "label": "a"} for patient in BARCODES[:2]]
    twice = [*rows, {"patient": BARCODES[0], "label": "b"}]
    with pytest.raises(UserError, match=r"row 4: patient 'TCGA-AA-0001' was listed in row 2 already. Remove one of"):
        run(tmp_path, named, twice, [])
    source = tmp_path / "clam" / "h5_files"
    (source / "again").mkdir()
    shutil.copy(source / f"{BARCODES[0]}-01Z.h5", source / "again")
    with pytest.raises(UserError, match=r"slide 'TCGA-AA-0001-01Z' has two feature files: \S+ and \S+. Leave one of"):
        import_features(source, write_table(tmp_path / "t.csv", rows), tmp_path / "out", shown=False)


def test_further_columns_are_kept(tmp_path: Path) -> None:
    cohort, rows = make_cohort(patients=2, slides=1)
    made = run(tmp_path, cohort, [{**row, "scanner": "A B", "path": "gone.svs"} for row in rows], [])
    assert set(made.table.column("scanner")) == {"A B"}
    assert "path" not in made.table.columns
