"""`hidisc cohort`, `hidisc prepare` and `hidisc import`: slides, patches or volumes -> a PatchStore."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hidisc.artefacts.artefact import CONFIG
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, hash_file, make_folder, write_atomic
from hidisc.ground.progress import Say, ignore
from hidisc.ground.text import count
from hidisc.patches.annotations import load_annotations
from hidisc.patches.commit import StorePlan
from hidisc.patches.cut import CutTask
from hidisc.patches.pack import PackTask, Source
from hidisc.patches.people import People
from hidisc.patches.record import SlideTask, slide_folder
from hidisc.patches.store import SlideEntry
from hidisc.patches.volume import ScanTask, VolumeSource
from hidisc.settings.config import load_config
from hidisc.settings.prepare import ImportConfig, PrepareConfig, VolumesConfig
from hidisc.slides.cohort import Cohort, SlideRow, find_problems, refuse
from hidisc.slides.draft import Draft, NamePattern, draft_rows
from hidisc.slides.reader import list_suffixes
from hidisc.slides.readers.picture import read_picture
from hidisc.slides.stain import REFERENCE, Stains, stains_of_reference
from hidisc.verbs.build import Built, build_store
from hidisc.verbs.progress import show_count

_SHOWN = 20


def draft_cohort(folder: AnyPath, out: AnyPath, pattern: str | None = None, *, say: Say = ignore) -> Draft:
    """Write a draft of `cohort.csv` from the slides below a folder; what is doubtful is said, nothing overwritten."""
    folder, out = Path(folder), Path(out)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder. Give the folder that holds the slides.")
    if out.exists():
        raise UserError(f"{out} is there already and is not overwritten. Give another --out.")
    if out.suffix.lower() != ".csv":
        raise UserError(f"--out {out} is no CSV file. Give a name that ends in .csv.")
    names = NamePattern(pattern) if pattern else None
    files = sum(path.suffix.lower() in list_suffixes() for path in folder.rglob("*"))
    with show_count("opening", files, "files") as done:
        draft = draft_rows(folder, names, done)
    _say_some("left out", draft.left_out, "more file", say)
    if not draft.rows:
        suffixes = " ".join(sorted(list_suffixes()))
        raise UserError(f"{folder} holds no slide that can be read ({suffixes}). Give another one.")
    doubts = sorted(draft.count_doubts().items(), key=lambda doubt: -doubt[1])
    _say_some("doubtful", [f"{count(slides, 'slide')}: {doubt}" for doubt, slides in doubts], "more doubt", say)
    make_folder(out.parent)
    write_atomic(out, draft.to_csv(out.parent).encode())
    return draft


def _say_some(what: str, lines: Sequence[str], more: str, say: Say) -> None:
    """Say the first lines one by one, and of the others how many there are."""
    for line in lines[:_SHOWN]:
        say(f"{what}: {line}")
    if len(lines) > _SHOWN:
        say(f"{what}: ... and {count(len(lines) - _SHOWN, more)}")


def prepare(
    cohort_csv: AnyPath,
    out: AnyPath,
    config: PrepareConfig | None = None,
    *,
    patients_csv: AnyPath | None = None,
    refilter: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    say: Say = ignore,
) -> Built:
    """Cut every slide of a cohort into patches; slides that are there already are not read again.

    `workers` processes on this machine (default: one per core, 0: this process), or those of a Dask `scheduler`.
    Slides that fail are listed in the result and in `failures.csv`; the others are finished all the same.
    `patients_csv`: labels, splits and further columns, one row per patient.
    """
    config, out = config or PrepareConfig(), Path(out)
    if refilter and not (out / CONFIG).exists():
        raise UserError(f"{out} holds no store to refilter. Run without --refilter first.")
    _refuse_folder(Path(cohort_csv))
    cohort = _describe_patients(Cohort.load(cohort_csv, config.label_level), patients_csv)
    annotations, doubts = load_annotations(config.annotations, cohort.slides)
    for warning in (*cohort.warnings, *doubts):
        say(f"warning: {warning}")
    reference = _reference(config)
    tasks = [CutTask(row, out.resolve() / slide_folder(row.slide), config, reference) for row in cohort.slides]
    built = build_store(
        out,
        "prepare",
        cohort.slides,
        tasks,
        StorePlan(config, annotations=annotations),
        inputs={} if reference is REFERENCE else {"stain.reference": hash_file(Path(config.stain.reference))},
        taken_over=("filter", "annotations") if refilter else (),
        hint=" A changed filter and changed annotations need no reading again: add --refilter.",
        workers=workers,
        scheduler=scheduler,
        say=say,
    )
    empty = built.summary()["empty_slides"]
    if empty:
        has, they = ("has", "it is") if empty == 1 else ("have", "they are")
        say(
            f"note: {count(empty, 'slide')} {has} no patch: {they} smaller than one patch, or everything was dropped. "
            f"{out / 'pictures'} shows why.{_suggest_smaller(config.grid.size_px)}"
        )
    return built


def _describe_patients(cohort: Cohort, patients_csv: AnyPath | None) -> Cohort:
    """The cohort with what a CSV of patients says of its slides."""
    described, said = People(patients_csv).describe([(row, None) for row in cohort.slides])
    slides = tuple(row for row, _ in described)
    refuse(cohort.path, find_problems(slides))
    return replace(cohort, slides=slides, warnings=(*cohort.warnings, *said))


def _refuse_folder(path: Path) -> None:
    """Refuse a folder in the place of the table that says whose slides they are."""
    if not path.is_dir():
        return
    tables = sorted([*path.glob("*.csv"), *path.glob("*.xlsx")])
    if tables:
        raise UserError(f"{path} is a folder. Did you mean the table {tables[0]}?")
    raise UserError(
        f"{path} is a folder, and `hidisc prepare` needs a table that says which patient each slide belongs to. "
        f"`hidisc cohort {path} --out cohort.csv` drafts it from the names of the files."
    )


def _suggest_smaller(size_px: int) -> str:
    """How to cut smaller patches, where there is a way."""
    small = load_config(PrepareConfig, "small-regions").grid.size_px
    if size_px > small:
        return f" --recipe small-regions cuts patches of {small} px."
    return f" Smaller patches fit into more slides: --set grid.size_px={size_px // 2}." if size_px >= 32 else ""


def _reference(config: PrepareConfig) -> Stains:
    """The stains to normalise to: the published ones or those of a reference picture."""
    name = config.stain.reference
    if name == "published" or config.stain.method == "none":
        return REFERENCE
    if not Path(name).is_file():
        raise UserError(
            f"stain.reference {name!r} is not a file. Give a picture of well-stained tissue, or `published`."
        )
    return stains_of_reference(read_picture(Path(name)), name)


def import_patches(
    source: Source,
    out: AnyPath,
    config: ImportConfig | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    say: Say = ignore,
) -> Built:
    """Pack every slide of a source; slides that are there already are not read again.

    Sources: `find_opensrh`, `find_folder` and `find_table` of `patches.folders`, or one's own.
    """
    config, out = config or ImportConfig(), Path(out)
    if config.mpp is not None and any("mpp" in row.columns for row, _ in source.slides):
        raise UserError(f"{source.root} has a column mpp, so mpp={config.mpp:g} says it twice. Leave one of them out.")
    tasks = [
        PackTask(row.slide, out.resolve() / slide_folder(row.slide), tuple(path.resolve() for path in paths), config)
        for row, paths in source.slides
    ]
    rows = [row for row, _ in source.slides]
    return _build_from(source, out, rows, tasks, StorePlan(config, source.input), workers, scheduler, say)


def import_volumes(
    source: VolumeSource,
    out: AnyPath,
    config: VolumesConfig | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    say: Say = ignore,
) -> Built:
    """Cut every volume of a source into slices; volumes that are there already are not read again.

    Sources: `patches.nifti.find_nifti` and `patches.dicom.find_dicom`, with the same settings, or one's own.
    """
    config, out = config or VolumesConfig(), Path(out)
    key = source.key_file
    if key is not None and key.resolve().is_relative_to(out.resolve()):
        raise UserError(f"--pseudonyms {key} lies in the store, which would then say who is who. Keep it elsewhere.")
    tasks = [
        ScanTask(
            row.slide,
            out.resolve() / slide_folder(row.slide),
            files,
            config,
            Path(row.slide) if source.is_private else files.paths[0],
        )
        for row, files in source.scans
    ]
    rows = [row for row, _ in source.scans]
    built = _build_from(source, out, rows, tasks, StorePlan(config), workers, scheduler, say)
    failed = {failure.slide for failure in built.info.failures}
    for row, files in source.scans:
        if source.is_private and row.slide in failed:  # said, never stored
            say(f"note: scan {row.slide!r}, which failed, is read from {files.paths[0]}")
    return built


def _warn_of_copies(built: Built, say: Say) -> None:
    """Say which slides have the same content: one person would be counted as two, or one slide twice."""
    first: dict[str, SlideEntry] = {}
    copies: list[str] = []
    for slide in built.info.slides:
        before = first.setdefault(slide.checksum, slide)
        both = f"warning: slides {before.slide!r} and {slide.slide!r}"
        if before.patient != slide.patient:
            copies.append(f"{both} of different patients have the same values. Leave one of the patients out.")
        elif before is not slide:
            copies.append(f"{both} have the same values; patient {slide.patient!r} counts them twice.")
    for sentence in copies[:_SHOWN]:
        say(sentence)
    if len(copies) > _SHOWN:
        say(f"warning: ... and {count(len(copies) - _SHOWN, 'more pair')} of slides with the same values.")


def _build_from(
    source: Source | VolumeSource,
    out: Path,
    rows: Sequence[SlideRow],
    tasks: Sequence[SlideTask],
    plan: StorePlan,
    workers: int | None,
    scheduler: str | None,
    say: Say,
) -> Built:
    """The store of an import, with what there is to say of its source and of slides without patches."""
    if source.root.is_dir() and out.resolve().is_relative_to(source.root.resolve()):
        raise UserError(f"--out {out} lies inside {source.root}, which is read. Give a folder outside of it.")
    for warning in source.warnings[:20]:
        say(f"warning: {warning}")
    if len(source.warnings) > 20:
        say(f"warning: ... and {len(source.warnings) - 20} more.")
    built = build_store(out, "import", rows, tasks, plan, workers=workers, scheduler=scheduler, say=say)
    _warn_of_copies(built, say)
    empty = built.summary()["empty_slides"]
    if empty:
        have = "has no patch: all of its patches were" if empty == 1 else "have no patch: all of their patches were"
        say(f"note: {count(empty, 'slide')} {have} dropped by the filter settings. {out / 'pictures'} shows them.")
    return built
