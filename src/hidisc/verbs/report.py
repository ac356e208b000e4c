"""`hidisc report`: Embeddings and Scores -> one page to read, with its figures and tables beside it."""

from collections.abc import Sequence
from pathlib import Path

from hidisc.errors import UserError
from hidisc.reporting.compose import Say, compose
from hidisc.reporting.page import render
from hidisc.reporting.subject import gather
from hidisc.runs import begin, full_disk_said, hold, write_atomic
from hidisc.settings.judging import ReportConfig


class _Record(ReportConfig):
    """What must be the same for the files of an unfinished report to be written over."""

    inputs: tuple[str, ...]


def report(paths: Sequence[Path], out: Path, config: ReportConfig | None = None, say: Say = lambda _: None) -> Path:
    """Write the page `out`, last, and `STEM_files/` beside it with every figure and table."""
    config = config or ReportConfig()
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out} is not a page. Give a name that ends in .html.")
    if out.exists():
        raise UserError(f"{out} is there already and is not overwritten. Give another --out, or delete it.")
    subjects = gather(paths)
    files = out.with_name(f"{out.stem}_files")
    with hold(files), full_disk_said("What it is made from is as it was"):
        begin(files, "report", _Record(**config.model_dump(), inputs=tuple(str(path.absolute()) for path in paths)))
        page = compose(subjects, files, config, say)
        write_atomic(out, render(page).encode("utf-8", "replace"))
    return out
