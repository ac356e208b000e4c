"""`hidisc import`: patches that exist as files -> a PatchStore."""

from pathlib import Path

from hidisc.ground.errors import UserError
from hidisc.ground.paths import AnyPath
from hidisc.ground.text import count
from hidisc.patches.commit import Recipe
from hidisc.patches.pack import PackTask
from hidisc.patches.record import slide_folder
from hidisc.patches.sources import Source
from hidisc.settings.imports import ImportConfig
from hidisc.verbs.build import Built, Say, build_store


def import_patches(
    source: Source,
    out: AnyPath,
    config: ImportConfig | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    say: Say = lambda _: None,
) -> Built:
    """Pack every slide of a source; slides that are there already are not read again.

    Sources: `patches.opensrh.find_opensrh`, `patches.folders.find_folder` and `find_table`, or one's own.
    """
    config, out = config or ImportConfig(), Path(out)
    if source.root.is_dir() and out.resolve().is_relative_to(source.root.resolve()):
        raise UserError(f"--out {out} lies inside {source.root}, which is read. Give a folder outside of it.")
    if config.mpp is not None and any("mpp" in row.columns for row, _ in source.slides):
        raise UserError(f"{source.root} has a column mpp, so mpp={config.mpp:g} says it twice. Leave one of them out.")
    for warning in source.warnings[:20]:
        say(f"warning: {warning}")
    if len(source.warnings) > 20:
        say(f"warning: ... and {len(source.warnings) - 20} more.")
    tasks = [
        PackTask(row.slide, out.resolve() / slide_folder(row.slide), tuple(path.resolve() for path in paths), config)
        for row, paths in source.slides
    ]
    built = build_store(
        out,
        "import",
        config,
        [row for row, _ in source.slides],
        tasks,
        Recipe(config.filter, config.pixels, config.split, config.seed, config.mpp, source.input),
        workers=workers,
        scheduler=scheduler,
        say=say,
    )
    empty = built.summary()["empty_slides"]
    if empty:
        have = "has no patch: all of its patches were" if empty == 1 else "have no patch: all of their patches were"
        say(f"note: {count(empty, 'slide')} {have} dropped by the filter settings. {out / 'pictures'} shows them.")
    return built
