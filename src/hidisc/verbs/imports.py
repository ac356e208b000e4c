"""`hidisc import`: patches that exist as files, or volumes -> a PatchStore."""

from collections.abc import Sequence
from pathlib import Path

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath
from hidisc.ground.progress import Say, ignore
from hidisc.ground.text import count
from hidisc.patches.commit import StorePlan
from hidisc.patches.pack import PackTask, Source
from hidisc.patches.record import SlideTask, slide_folder
from hidisc.patches.store import SlideEntry
from hidisc.patches.volume import ScanTask, VolumeSource
from hidisc.settings.prepare import ImportConfig, VolumesConfig
from hidisc.slides.cohort import SlideRow
from hidisc.verbs.build import Built, build_store


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

    Sources: `patches.opensrh.find_opensrh`, `patches.folders.find_folder` and `find_table`, or one's own.
    """
    config, out = config or ImportConfig(), Path(out)
    if config.mpp is not None and any("mpp" in row.columns for row, _ in source.slides):
        raise UserError(f"{source.root} has a column mpp, so mpp={config.mpp:g} says it twice. Leave one of them out.")
    tasks = [
        PackTask(row.slide, out.resolve() / slide_folder(row.slide), tuple(path.resolve() for path in paths), config)
        for row, paths in source.slides
    ]
    rows = [row for row, _ in source.slides]
    return _build(source, out, rows, tasks, StorePlan(config, source.input), workers, scheduler, say)


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
            source.root if source.is_private else files.paths[0],
        )
        for row, files in source.scans
    ]
    rows = [row for row, _ in source.scans]
    built = _build(source, out, rows, tasks, StorePlan(config), workers, scheduler, say)
    failed = {failure.slide for failure in built.info.failures}
    for row, files in source.scans:
        if source.is_private and row.slide in failed:  # said, never stored
            say(f"note: scan {row.slide!r}, which failed, is read from {files.paths[0]}")
    _warn_of_copies(built, say)
    return built


def _warn_of_copies(built: Built, say: Say) -> None:
    """Say which scans of different patients have the same values: one person would be counted as two."""
    first: dict[str, SlideEntry] = {}
    for scan in built.info.slides:
        before = first.setdefault(scan.checksum, scan)
        if before.patient != scan.patient:
            say(
                f"warning: slides {before.slide!r} and {scan.slide!r} of different patients have the same values. "
                "Leave one of the patients out."
            )


def _build(
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
    empty = built.summary()["empty_slides"]
    if empty:
        have = "has no patch: all of its patches were" if empty == 1 else "have no patch: all of their patches were"
        say(f"note: {count(empty, 'slide')} {have} dropped by the filter settings. {out / 'pictures'} shows them.")
    return built
