"""Patches that exist as files: listed by folders, by a table, or as the OpenSRH data set has them."""

import json
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath
from hidisc.ground.spreadsheet import read_sheet
from hidisc.ground.text import count, name_some
from hidisc.patches.pack import PatchFile, Source, group_by_slide
from hidisc.patches.people import People
from hidisc.slides.cohort import find_disagreements, find_half_split, read_row, refuse, refuse_if_all_missing
from hidisc.slides.names import REQUIRED, is_ours, is_text

PICTURE_SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp"}
LabelLevel = Literal["patient", "slide", "patch"]


def find_folder(root: AnyPath, patients_csv: AnyPath | None = None) -> Source:
    """Patches in `root/patient/slide/patch.png`; labels, sites and splits from a CSV of patients, if there is one."""
    root = Path(root)
    if not root.is_dir():
        raise UserError(f"{root} is not a folder. Give the folder that holds one folder per patient.")
    people = People(patients_csv)
    patches, odd, problems = [], [], []
    for path in sorted({*root.rglob("*"), *root.glob("*/*/*")}):  # `rglob` alone does not enter linked folders
        parts = path.relative_to(root).parts
        is_picture = path.suffix.lower() in PICTURE_SUFFIXES and path.is_file()
        if any(part.startswith(".") for part in parts) or not is_picture:
            continue
        if len(parts) != 3:
            odd.append("/".join(parts))
            continue
        if not all(map(is_text, parts)):
            problems.append(f"{'/'.join(parts)!r} has letters that are not UTF-8 in its name. Rename it.")
            continue
        # as a CSV's cells: macOS takes accents apart in file names
        patient, slide, name = (normalize("NFC", part) for part in (*parts[:2], path.stem))
        patches.append(PatchFile(patient, slide, path, name=name))
    refuse(root, problems)
    if not patches:
        raise UserError(f"{root} holds no pictures at patient/slide/patch.png ({', '.join(sorted(PICTURE_SUFFIXES))}).")
    slides, said = people.describe(group_by_slide(patches, "patient"))
    if odd:
        be = "is" if len(odd) == 1 else "are"
        said.append(
            f"{count(len(odd), 'picture')} {be} not at patient/slide/patch and {be} left out: {name_some(odd)}."
        )
    return Source(root, tuple(slides), warnings=tuple(said))


def find_table(table_csv: AnyPath, label_level: LabelLevel = "patient", patients_csv: AnyPath | None = None) -> Source:
    """Patches of a CSV: `patient, slide, path`, optionally `patch, label, mpp, site, split`; other columns are kept.

    What a CSV of patients says is added to it.
    """
    table_csv = Path(table_csv)
    sheet = read_sheet(table_csv, REQUIRED)
    refuse_if_all_missing(sheet)
    own = [name for name in sheet.columns if name not in (*REQUIRED, "patch", "label", "mpp", "site", "split")]
    taken = [name for name in own if is_ours(name) and name != "place"]
    if taken:
        raise UserError(f"{table_csv}: column {taken[0]!r} is one that hidisc writes itself. Rename it.")
    patches: list[PatchFile] = []
    problems: list[str] = []
    seen: dict[Path, int] = {}
    for number, cells in sheet.rows:
        row = read_row(number, cells, table_csv.parent, problems.append, own)
        if row is None:
            continue
        if seen.setdefault(row.path, number) != number:
            problems.append(
                f"row {number}: file {cells['path']!r} was listed in row {seen[row.path]} already. Remove one."
            )
        patches.append(PatchFile(**vars(row), name=cells.get("patch") or row.path.stem))
    problems += [*find_disagreements(patches, label_level), *find_half_split(patches), *_find_half_scales(patches)]
    refuse(table_csv, [f"{table_csv.name} {problem}" for problem in problems])
    slides, said = People(patients_csv).describe(group_by_slide(patches, label_level))
    warnings = [*said, *(f"{table_csv.name}: {warning}" for warning in sheet.warnings)]
    return Source(table_csv, tuple(slides), warnings=tuple(warnings))


def _find_half_scales(patches: list[PatchFile]) -> list[str]:
    """Say which row is the first without an mpp, where others have one."""
    without = [patch.row for patch in patches if patch.mpp is None]
    if not without or len(without) == len(patches):
        return []
    return [
        f"row {without[0]}: mpp is empty, and other rows have it. Fill it in all {len(without):,} rows, or in none."
    ]


META, SPLIT = "meta/opensrh.json", "meta/train_val_split.json"


def find_opensrh(root: AnyPath, patients_csv: AnyPath | None = None) -> Source:
    """The patches of OpenSRH: normal patients give `normal_patches`, all others `tumor_patches`."""
    root = Path(root)
    patients = _read_json(root, META)
    splits = _read_json(root, SPLIT)
    split_of = {str(patient): split for split in ("train", "val") for patient in splits.get(split, [])}
    patches, problems = [], []
    unsplit, bare = [], []
    for patient, study in patients.items():
        try:
            label = str(study["class"])
            slides = study["slides"].items()
            listed = "normal_patches" if label == "normal" else "tumor_patches"
            files = [(slide, path) for slide, lists in slides for path in lists[listed]]
        except KeyError as error:
            problems.append(f"{META}: patient {patient!r} lacks {error}. Download the file again.")
            continue
        except (TypeError, AttributeError):
            problems.append(f"{META}: patient {patient!r} is not `class` and `slides`. Download the file again.")
            continue
        if patient not in split_of:
            unsplit.append(patient)
        if not files:
            bare.append(patient)
        for slide, path in files:
            if not (root / path).is_file():
                problems.append(f"{META}: patch {path!r} does not exist below {root}. Download it again.")
            split = split_of.get(patient)
            patches.append(PatchFile(patient, str(slide), root / path, label, split=split, name=Path(path).stem))
    refuse(root, problems)
    warnings = []
    if unsplit:
        listed = f"{count(len(unsplit), 'patient')} ({name_some(unsplit)})"
        warnings.append(f"{listed}: in neither split of {SPLIT}; the split stays empty.")
    if bare:
        warnings.append(f"{count(len(bare), 'patient')} ({name_some(bare)}): no patches of the class; left out.")
    if not patches:
        raise UserError(f"{root / META} lists no patches. Give the OpenSRH folder that holds `meta`.")
    slides, said = People(patients_csv).describe(group_by_slide(patches, "patient"))
    return Source(root, tuple(slides), "srh", (*said, *warnings), may_lack_split=True)


def _read_json(root: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((root / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{root / name} does not exist. Give the OpenSRH folder that holds `meta`.") from error
    except (ValueError, OSError) as error:
        raise UserError(f"{root / name} cannot be read ({error}). Download it again.") from error
    if not isinstance(found, dict):
        raise UserError(f"{root / name} is not an OpenSRH file: a JSON object is expected. Download it again.")
    return found
