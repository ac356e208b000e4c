"""Everything wrong with a cohort is said at once, with the row and what to do."""

import csv
import io
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hidisc.ground.errors import UserError
from hidisc.ground.files import hash_file
from hidisc.settings.config import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides import cohort
from hidisc.slides.cohort import Cohort
from hidisc.slides.slide import plausible_mpp

Write = Callable[..., Path]
HEAD = "patient,slide,path"


def problems(csv_path: Path, **options: str) -> list[str]:
    """The problems Cohort.load lists, without the heading."""
    with pytest.raises(UserError) as caught:
        Cohort.load(csv_path, **options)
    head, *lines = str(caught.value).split("\n  ")
    assert head == f"{csv_path} has {len(lines)} problem{'s' if len(lines) > 1 else ''}:"
    return lines


def test_a_full_row_and_a_bare_one(write_cohort: Write, tmp_path: Path) -> None:
    path = write_cohort(
        ["Patient;Slide;Path;Label;MPP;Site;Split", "P1;S1;deep/a.svs;LUAD;0,25;Ulm;train", "P2;S2;b.svs;;;;test"],
        ["deep/a.svs", "b.svs"],
    )
    first, second = Cohort.load(path).slides
    assert (first.patient, first.slide, first.path) == ("P1", "S1", tmp_path / "deep/a.svs")
    assert (first.label, first.mpp, first.site, first.split, first.row) == ("LUAD", 0.25, "Ulm", "train", 2)
    assert (second.label, second.mpp, second.site, second.split, second.row) == (None, None, None, "test", 3)


def test_absolute_paths(write_cohort: Write, tmp_path: Path) -> None:
    path = write_cohort([HEAD, f"P1,S1,{tmp_path / 'a.svs'}"], ["a.svs"])
    assert Cohort.load(path).slides[0].path == tmp_path / "a.svs"


def test_windows_separators(write_cohort: Write, tmp_path: Path) -> None:
    path = write_cohort([HEAD, r"P1,S1,slides\a.svs"], ["slides/a.svs"])
    assert Cohort.load(path).slides[0].path == tmp_path / "slides/a.svs"


@pytest.mark.parametrize("on_disk", ["NFC", "NFD"])
@pytest.mark.parametrize("in_csv", ["NFC", "NFD"])
def test_accents_in_file_names_from_macos(write_cohort: Write, on_disk: str, in_csv: str) -> None:
    name = unicodedata.normalize(on_disk, "Größe.svs")
    path = write_cohort([HEAD, f"P1,S1,{unicodedata.normalize(in_csv, name)}"], [name])
    assert Cohort.load(path).slides[0].path.name == name


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "a/b",
        "患者 7",
        "=1+1",
        "@SUM(A1)",
        'it\'s "S"',
        ".",
        "..",
        "-rf",
        "CON",
        "x" * 5000,
        "%s{0}",
    ],
)
def test_hostile_ids_are_only_ids(write_cohort: Write, name: str) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([HEAD.split(","), [name, name, "a.svs"]])
    row = Cohort.load(write_cohort(text.getvalue(), ["a.svs"])).slides[0]
    assert (row.patient, row.slide) == (name, name)


def test_missing_file(write_cohort: Write, tmp_path: Path) -> None:
    assert problems(write_cohort([HEAD, "P1,S1,none.svs"])) == [
        f"cohort.csv row 2: file 'none.svs' of slide 'S1' does not exist. Paths are relative to the CSV ({tmp_path}). "
        "Correct the path or remove the row."
    ]


def test_a_moved_csv_is_one_sentence(write_cohort: Write, tmp_path: Path) -> None:
    """Not a list of every file: they are all missing for one reason."""
    path = write_cohort([HEAD, ",S0,", *(f"P{n},S{n},slides/{n}.svs" for n in range(60))])
    with pytest.raises(UserError) as caught:
        Cohort.load(path)
    assert str(caught.value) == (
        f"{path}: none of the 60 files exists. Paths are relative to the folder of the CSV ({tmp_path}); the first one "
        f"tried is {tmp_path}/slides/0.svs. Move the CSV back to where its paths start, or correct the column `path`."
    )


@pytest.mark.parametrize("there", ["7.svs", "7.svs/inside.svs"])
def test_one_file_or_folder_that_is_there_makes_the_others_single_problems(write_cohort: Write, there: str) -> None:
    path = write_cohort([HEAD, *(f"P{n},S{n},{n}.svs" for n in range(9))], [there])
    assert len(problems(path)) == (8 if there == "7.svs" else 9)


TWINS = "are treated as two, but differ only in case, spaces, hyphens or the form of their letters. If they are one"


def test_names_that_people_take_for_one_are_warned_of(write_cohort: Write) -> None:
    path = write_cohort(
        [
            f"{HEAD},label,site,split",
            "P1,S1,a.svs,Glioma,Ulm,train",
            "p1,s1,b.svs,glioma,ULM,Train",
            "P\u00a01,S 3,c.svs,Glioma,Ulm,train",
            "P 1,S\u200b1,d.svs,Glioma,Ulm,train",
        ],
        ["a.svs", "b.svs", "c.svs", "d.svs"],
    )
    loaded = Cohort.load(path)
    assert len({row.patient for row in loaded.slides}) == 4
    assert loaded.warnings == (
        f"cohort.csv: patients 'P1' (row 2) and 'p1' (row 3) {TWINS} patient, write them alike.",
        f"cohort.csv: slides 'S1' (row 2) and 's1' (row 3) {TWINS} slide, write them alike.",
        f"cohort.csv: labels 'Glioma' (row 2) and 'glioma' (row 3) {TWINS} label, write them alike.",
        f"cohort.csv: sites 'Ulm' (row 2) and 'ULM' (row 3) {TWINS} site, write them alike.",
        f"cohort.csv: splits 'train' (row 2) and 'Train' (row 3) {TWINS} split, write them alike.",
        rf"cohort.csv: patients 'P1' (row 2) and 'P\xa01' (row 4) {TWINS} patient, write them alike.",
        f"cohort.csv: patients 'P1' (row 2) and 'P 1' (row 5) {TWINS} patient, write them alike.",
        rf"cohort.csv: slides 'S1' (row 2) and 'S\u200b1' (row 5) {TWINS} slide, write them alike.",
    )


def test_a_note_that_may_hold_a_row_is_warned_of(write_cohort: Write) -> None:
    path = write_cohort(f'{HEAD},note\nP1,S1,a.svs,"x\nP2,S2,b.svs,y"\n', ["a.svs"])
    assert Cohort.load(path).warnings[0].startswith("cohort.csv: row 2: the cell of column 'note' has several lines")


@pytest.mark.parametrize("name", ["x" * 300 + ".svs", "\\" + "x" * 300, "a.svs/b.svs"])
def test_names_no_file_can_have(write_cohort: Write, name: str) -> None:
    (said,) = problems(write_cohort([HEAD, f"P1,S1,{name}"], ["a.svs"]))
    assert "does not exist" in said


def test_folder_as_path(write_cohort: Write) -> None:
    (said,) = problems(write_cohort([HEAD, "P1,S1,deep"], ["deep/a.svs"]))
    assert said.startswith("cohort.csv row 2: file 'deep' of slide 'S1' is a folder. Paths are relative to the CSV")


def test_empty_file(write_cohort: Write, tmp_path: Path) -> None:
    (tmp_path / "a.svs").touch()
    (tmp_path / "b.svs").touch()
    assert problems(write_cohort([HEAD, "P1,S1,a.svs", "P2,S2,b.svs"])) == [
        "cohort.csv row 2: file 'a.svs' is empty (0 bytes). Copy it again or remove the row.",
        "cohort.csv row 3: file 'b.svs' is empty (0 bytes). Copy it again or remove the row.",
    ]


def test_empty_cells(write_cohort: Write) -> None:
    assert problems(write_cohort([HEAD, ",S1,a.svs", "P1,,"], ["a.svs"])) == [
        "cohort.csv row 2: patient empty. Fill in or remove the row.",
        "cohort.csv row 3: slide and path empty. Fill in or remove the row.",
    ]


def test_slide_twice(write_cohort: Write) -> None:
    assert problems(write_cohort([HEAD, "P1,S1,a.svs", "P1,S1,b.svs"], ["a.svs", "b.svs"])) == [
        "cohort.csv row 3: slide 'S1' was listed in row 2 already. Remove one of them."
    ]


def test_slide_under_two_patients(write_cohort: Write) -> None:
    assert problems(write_cohort([HEAD, "P9,S1,a.svs", "P12,S1,b.svs"], ["a.svs", "b.svs"])) == [
        "cohort.csv row 3: slide 'S1' is listed under patients 'P9' (row 2) and 'P12'. "
        "A slide belongs to one patient. Fix one of them."
    ]


def test_same_content_under_two_patients(write_cohort: Write, tmp_path: Path) -> None:
    path = write_cohort([HEAD, "P1,S1,a.svs", "P1,S2,b.svs", "P2,S3,c.svs"], ["a.svs", "b.svs"])
    (tmp_path / "c.svs").write_bytes((tmp_path / "a.svs").read_bytes())
    assert problems(path) == [
        "cohort.csv row 4: slide 'S3' of patient 'P2' is the same file content as slide 'S1' of patient 'P1' (row 2). "
        "One of the two paths or patients is wrong. Fix one of the rows."
    ]


def test_same_content_within_a_patient_is_a_warning(write_cohort: Write) -> None:
    loaded = Cohort.load(write_cohort([HEAD, "P1,S1,a.svs", "P1,S2,a.svs"], ["a.svs"]))
    assert loaded.warnings == (
        "cohort.csv: rows 2 and 3: slides 'S1' and 'S2' are the same file content; patient 'P1' counts it twice.",
    )


def test_equal_sizes_and_ends_are_not_equal_content(write_cohort: Write, tmp_path: Path) -> None:
    """Files of one scanner can agree in size, header and trailer; only the middle tells them apart."""
    path = write_cohort([HEAD, "P1,S1,a.svs", "P2,S2,b.svs"])
    ends = bytes(70_000)
    for name, middle in (("a.svs", b"one"), ("b.svs", b"two")):
        (tmp_path / name).write_bytes(ends + middle + ends)
    assert Cohort.load(path).warnings == ()


def test_files_of_different_size_are_never_read(write_cohort: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terabyte of slides must cost a `stat` each, not a night."""
    monkeypatch.setattr(cohort, "sample_file", lambda path: pytest.fail(f"{path} was read"))
    path = write_cohort([HEAD, "P1,S1,a.svs", "P2,S2,longer.svs"], ["a.svs", "longer.svs"])
    assert len(Cohort.load(path).slides) == 2


def test_two_labels_in_a_patient(write_cohort: Write) -> None:
    path = write_cohort([f"{HEAD},label", "P1,S1,a.svs,LUAD", "P1,S2,b.svs,LUSC"], ["a.svs", "b.svs"])
    assert problems(path) == [
        "cohort.csv row 3: patient 'P1' has label 'LUSC', but 'LUAD' in row 2. A patient has one label. "
        "Fix one of the rows, or --set label_level=slide."
    ]
    assert [row.label for row in Cohort.load(path, label_level="slide").slides] == ["LUAD", "LUSC"]


def test_two_splits_in_a_patient(write_cohort: Write) -> None:
    path = write_cohort([f"{HEAD},split", "P1,S1,a.svs,train", "P1,S2,b.svs,test"], ["a.svs", "b.svs"])
    assert problems(path, label_level="slide") == [
        "cohort.csv row 3: patient 'P1' is in split 'test', but in 'train' in row 2. "
        "A patient is in one split only. Fix one of the rows."
    ]


@pytest.mark.parametrize("mpp", ["40x", "0", "-0.5", "nan", "inf", "0.5um", "1.234,5", "250"])
def test_bad_mpp(write_cohort: Write, mpp: str) -> None:
    assert problems(write_cohort([f"{HEAD},mpp", f'P1,S1,a.svs,"{mpp}"'], ["a.svs"])) == [
        f"cohort.csv row 2: mpp {mpp!r} is not a number of micrometres per pixel (usually 0.2 to 1). "
        "Correct it, or leave it empty to use the file's own."
    ]


@pytest.mark.parametrize(("mpp", "value"), [("0.2528", 0.2528), ("0,2528", 0.2528), (" 1 ", 1.0), ("5e-1", 0.5)])
def test_good_mpp(write_cohort: Write, mpp: str, value: float) -> None:
    assert Cohort.load(write_cohort([f"{HEAD},mpp", f'P1,S1,a.svs,"{mpp}"'], ["a.svs"])).slides[0].mpp == value


@pytest.mark.parametrize(
    ("mpp", "is_scale"), [(0.009, False), (0.01, True), (0.015, True), (15.0, True), (17.0, False), (20.0, False)]
)
def test_cohort_file_and_user_may_say_the_same_scales(write_cohort: Write, mpp: float, is_scale: bool) -> None:
    """Nobody's word passes where another's would be refused; 20 is a magnification."""

    def is_taken(say: Callable[[], object]) -> bool:
        try:
            return say() is not None
        except UserError:
            return False

    path = write_cohort([f"{HEAD},mpp", f"P1,S1,a.svs,{mpp}"], ["a.svs"])
    assert is_taken(lambda: Cohort.load(path).slides[0].mpp) is is_scale
    assert is_taken(lambda: plausible_mpp(mpp, mpp)) is is_scale
    assert is_taken(lambda: load_config(PrepareConfig, None, [f"assume_mpp={mpp}"])) is is_scale


def test_further_columns_are_the_users_own(write_cohort: Write) -> None:
    path = write_cohort([f"{HEAD},Scanner,stain", "P1,S1,a.svs,GT450,HE", "P2,S2,b.svs,gt450,"], ["a.svs", "b.svs"])
    loaded = Cohort.load(path)
    assert [row.more for row in loaded.slides] == [
        {"scanner": "GT450", "stain": "HE"},
        {"scanner": "gt450", "stain": None},
    ]
    assert loaded.warnings == (
        f"cohort.csv: scanners 'GT450' (row 2) and 'gt450' (row 3) {TWINS} scanner, write them alike.",
    )


def test_columns_that_are_not_kept_or_may_be_misspelt_are_a_warning(write_cohort: Write) -> None:
    head = f"{HEAD},row,lable,site,doubt,file_mpp"
    loaded = Cohort.load(write_cohort([head, "P1,S1,a.svs,7,glioma,Ulm,none,0.5"], ["a.svs"]))
    assert loaded.slides[0].more == {"lable": "glioma"}
    assert loaded.warnings == (
        "cohort.csv: column 'row' is one that hidisc writes itself, and is not kept. Rename it to keep it.",
        "cohort.csv: column 'lable' is kept as a column of your own. If it is meant as 'label', rename it.",
    )


def test_a_split_given_for_some_rows_only(write_cohort: Write) -> None:
    path = write_cohort(
        [f"{HEAD},split", "P1,S1,a.svs,train", "P2,S2,b.svs,", "P3,S3,c.svs,"], ["a.svs", "b.svs", "c.svs"]
    )
    with pytest.raises(
        UserError, match=r"cohort.csv row 3: split is empty, here and in 1 more row, but not in the others"
    ):
        Cohort.load(path)


def test_all_problems_come_at_once(write_cohort: Write) -> None:
    path = write_cohort(
        [
            f"{HEAD},label,mpp,split",
            "P1,S1,a.svs,x,0.5,train",
            "P1,S1,none.svs,y,0.5,test",
            "P2,S1,a.svs,x,40x,train",
            ",S4,a.svs,x,,",
        ],
        ["a.svs"],
    )
    said = problems(path)
    for row, word in [
        (3, "does not exist"),
        (3, "has label"),
        (3, "is in split"),
        (3, "was listed in row 2"),
        (4, "mpp '40x'"),
        (4, "is listed under patients"),
        (4, "is the same file content"),
        (5, "patient empty"),
    ]:
        assert [line for line in said if line.startswith(f"cohort.csv row {row}:") and word in line], (row, word)
    assert len(said) == 8


def test_a_long_list_of_problems_is_cut(write_cohort: Write) -> None:
    path = write_cohort([HEAD, "P,S,a.svs", *(f"P{n},S{n},{n}.svs" for n in range(60))], ["a.svs"])
    with pytest.raises(UserError) as caught:
        Cohort.load(path)
    lines = str(caught.value).split("\n  ")
    assert lines[0].endswith("has 60 problems:")
    assert len(lines) == 52
    assert lines[-1] == "... and 10 more."


def test_a_list_of_long_problems_is_cut_sooner(write_cohort: Write) -> None:
    missing = (f"P{n},{'S' * 900}{n},{n}.svs" for n in range(60))
    path = write_cohort([HEAD, "P,S,there.svs", *missing], ["there.svs"])
    with pytest.raises(UserError) as caught:
        Cohort.load(path)
    lines = str(caught.value).split("\n  ")
    assert lines[0].endswith("has 60 problems:")
    assert len(str(caught.value)) < 21_000
    assert lines[-1] == f"... and {60 - len(lines[1:-1])} more."


def test_mrxs_stubs_that_are_alike_are_told_apart_by_their_index(write_cohort: Write, tmp_path: Path) -> None:
    path = write_cohort([HEAD, "P1,S1,a.mrxs", "P2,S2,b.mrxs"])
    for name in "ab":
        (tmp_path / f"{name}.mrxs").write_bytes(b"the same empty stub")
        (tmp_path / name).mkdir()
        (tmp_path / name / "Slidedat.ini").write_text(f"SLIDE_ID = {name}")
    assert len(Cohort.load(path).slides) == 2
    (tmp_path / "b" / "Slidedat.ini").write_text("SLIDE_ID = a")
    with pytest.raises(UserError, match="is the same file content as slide 'S1' of patient 'P1'"):
        Cohort.load(path)


def test_hash_names_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert hash_file(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


NAMES = (
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Z", "Cf", "M", "Lm"]), min_size=1, max_size=8)
    .map(lambda text: unicodedata.normalize("NFC", text))
    .filter(lambda text: not text.startswith("'"))  # what `format_csv` puts before a formula is taken off again
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    slides=st.dictionaries(NAMES, NAMES, min_size=1, max_size=6),
    mpp=st.floats(0.01, 15),
    delimiter=st.sampled_from(",;\t"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_any_sane_cohort_comes_back(
    tmp_path: Path, slides: dict[str, str], mpp: float, delimiter: str, encoding: str
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(["slide", "patient", "path", "mpp"])
    for number, (slide, patient) in enumerate(slides.items()):
        (tmp_path / f"{number}.svs").write_text(f"content {number}")
        writer.writerow([slide, patient, f"{number}.svs", mpp])
    (tmp_path / "cohort.csv").write_bytes(text.getvalue().encode(encoding))
    loaded = Cohort.load(tmp_path / "cohort.csv")
    assert {row.slide: row.patient for row in loaded.slides} == slides
    assert [row.path.name for row in loaded.slides] == [f"{number}.svs" for number in range(len(slides))]
    assert {row.mpp for row in loaded.slides} == {mpp}
