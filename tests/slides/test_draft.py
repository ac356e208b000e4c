"""A draft says what names and files say, guesses nothing, and names every doubt."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from hidisc.ground.errors import UserError
from hidisc.slides.draft import NO_FIT, NO_PATIENT, NO_SCALE, SAME_NAME, Draft, NamePattern, draft_rows


def draw(root: Path, *names: str, mpp: float | None = 0.5) -> Path:
    """Small TIFFs that say their scale, or PNGs that do not, each with pixels of its own."""
    rng = np.random.default_rng(0)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (40, 60, 3), np.uint8)
        if path.suffix == ".png":
            Image.fromarray(pixels).save(path)
        else:
            per_cm = None if mpp is None else (1e4 / mpp, 1e4 / mpp)
            tifffile.imwrite(path, pixels, tile=(16, 16), resolution=per_cm, resolutionunit="CENTIMETER")
    return root


def draft(root: Path, pattern: str | None = None) -> Draft:
    return draft_rows(root, NamePattern(pattern) if pattern else None)


def told(drafted: Draft, *columns: str) -> list[tuple[str | None, ...]]:
    return [tuple(row.names.get(column) for column in columns) for row in drafted.rows]


def test_size_scale_and_reader_are_those_of_the_file(tmp_path: Path) -> None:
    row = draft(draw(tmp_path, "A_1.tif"), "{patient}_{slide}").rows[0]
    assert (row.names["patient"], row.names["slide"], row.doubts) == ("A", "1", [])
    assert (row.width, row.height, row.mpp) == (60, 40, pytest.approx(0.5, rel=1e-3))


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("{patient}_{slide}", "P1_A.tif", {"patient": "P1", "slide": "A"}),
        ("{patient}/{slide}", "lab/P1/A_1.tif", {"patient": "P1", "slide": "A_1"}),
        ("{site}/{patient}/*", "lab/Ulm/P1/A.tif", {"site": "Ulm", "patient": "P1", "slide": "A"}),
        ("Case{patient} {block}-{stain}", "Case7 B-HE.tif", {"patient": "7", "block": "B", "stain": "HE"}),
        ("{patient}.*", "P1.more.tif", {"patient": "P1", "slide": "P1.more"}),
        ("{patient}", "P1.ome.tif", {"patient": "P1", "slide": "P1"}),
    ],
)
def test_a_pattern_reads_names_and_folders(tmp_path: Path, pattern: str, name: str, found: dict[str, str]) -> None:
    drafted = draft(draw(tmp_path, name), pattern)
    assert {*drafted.rows[0].doubts} <= {NO_SCALE}  # which tifffile does not write into an OME-TIFF
    assert drafted.rows[0].names.items() >= found.items()


def test_columns_of_the_pattern_stand_before_those_for_people(tmp_path: Path) -> None:
    drafted = draft(draw(tmp_path, "P1_HE_2.tif"), "{patient}_{stain}_{slide}")
    assert drafted.columns == (
        *("patient", "slide", "path", "label", "mpp", "site", "split", "stain"),
        *("file_mpp", "file_size_px", "file_reader", "doubt"),
    )


@pytest.mark.parametrize(
    ("pattern", "name", "doubt"),
    [
        (None, "slide7.tif", NO_PATIENT),
        ("{patient}_{slide}", "P1.tif", NO_FIT),
        ("{patient}/{slide}", "P1.tif", NO_FIT),
        (
            "{patient}_{slide}",
            "P_1_A.tif",
            "the pattern fits the name in two ways ('P', '1_A' or 'P_1', 'A'): fill in patient",
        ),
    ],
)
def test_whose_slide_is_never_guessed(tmp_path: Path, pattern: str | None, name: str, doubt: str) -> None:
    row = draft(draw(tmp_path, name), pattern).rows[0]
    assert row.names.get("patient") is None
    assert row.doubts == [doubt]


def test_tcga_barcodes_are_known(tmp_path: Path) -> None:
    names = ("TCGA-55-1594-01Z-00-DX1.tif", "tcga-cr-7395 x.tif", "TCGA-55-15940-01Z.tif")
    drafted = draft(draw(tmp_path, *names))
    assert told(drafted, "patient", "site", "slide") == [
        ("TCGA-55-1594", "55", "TCGA-55-1594-01Z-00-DX1"),
        (None, None, "TCGA-55-15940-01Z"),
        ("TCGA-CR-7395", "CR", "tcga-cr-7395 x"),
    ]
    assert [row.doubts for row in drafted.rows] == [[], [NO_PATIENT], []]


def test_a_scale_that_no_one_says_is_a_doubt(tmp_path: Path) -> None:
    drafted = draft(draw(tmp_path, "A_1.png", "A_2.tif", mpp=None), "{patient}_{slide}")
    assert drafted.count_doubts() == {NO_SCALE: 2}
    assert draft(tmp_path, "{patient}_{mpp}").count_doubts() == {}  # the name says it


def test_slides_have_names_of_their_own(tmp_path: Path) -> None:
    """What the pattern calls a slide if that tells all apart, else the file's name, else its path."""
    pattern = "{patient}_{slide}"
    assert told(draft(draw(tmp_path / "a", "P1_1.tif", "P2_2.tif"), pattern), "slide") == [("1",), ("2",)]
    assert told(draft(draw(tmp_path / "b", "P1_1.tif", "P2_1.tif"), pattern), "slide") == [("P1_1",), ("P2_1",)]
    same = draft(draw(tmp_path / "c", "P1_1.tif", "more/P1_1.tif", "P1_2.tif"), pattern)
    assert told(same, "slide") == [("P1_1.tif",), ("P1_2.tif",), ("more/P1_1.tif",)]
    assert [row.doubts for row in same.rows] == [[SAME_NAME], [], [SAME_NAME]]


def test_names_of_patients_that_are_nearly_the_same_are_marked(tmp_path: Path) -> None:
    drafted = draft(draw(tmp_path, "P 1_a.tif", "p-1_b.tif", "P2_c.tif"), "{patient}_{slide}")
    doubt = "patients 'P 1' and 'p-1' may be one: write them alike"
    assert [row.doubts for row in drafted.rows] == [[doubt], [], [doubt]]


def test_what_is_no_slide_is_left_out_with_a_reason(tmp_path: Path) -> None:
    draw(tmp_path, "P1_1.tif", ".hidden/P2_1.tif")
    (tmp_path / "broken.svs").write_bytes(b"nothing like a slide")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "README").write_text("x")
    (tmp_path / "linked").symlink_to(tmp_path / ".hidden")
    drafted = draft(tmp_path, "{patient}_{slide}")
    assert told(drafted, "patient") == [("P1",)]
    link, others, broken = drafted.left_out
    assert link == "linked: a link to a folder, which is not entered"
    assert others == "2 files that cannot be slides ('README', '.txt')"
    assert broken.startswith("broken.svs: cannot be read: not a picture or slide format known here.")


def test_the_pixels_of_an_mrxs_slide_are_no_slides(tmp_path: Path) -> None:
    draw(tmp_path, "P1_1/Data0001.tif")
    (tmp_path / "P1_1.mrxs").write_bytes(b"a stub")
    drafted = draft(tmp_path)
    assert drafted.rows == ()
    assert [reason.split(":")[0] for reason in drafted.left_out] == ["P1_1.mrxs"]


@pytest.mark.parametrize(
    ("pattern", "wrong"),
    [
        ("{slide}", "does not say where the name of the patient is"),
        ("{Patient}_x", "has braces that name no column (small letters, digits and _)"),
        ("{patient}_{", "has braces that name no column (small letters, digits and _)"),
        ("{patient}_{row}", "has {row}, a column that hidisc writes itself"),
        ("{patient}_{doubt}", "has {doubt}, a column that hidisc writes itself"),
        ("{patient}_{patient}", "has a column twice"),
        ("{patient}{slide}", "has two columns with nothing between them"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(pattern: str, wrong: str) -> None:
    with pytest.raises(UserError) as caught:
        NamePattern(pattern)
    assert str(caught.value) == (
        f"--pattern {pattern!r} {wrong}. Write column names in braces and what stands between them, such as "
        "'{patient}_{slide}' for names of files, or '{patient}/{slide}' for folders of patients."
    )
