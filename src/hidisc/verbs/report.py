"""`hidisc report`: Embeddings and Scores -> one page to read, with its figures and tables beside it."""

from collections.abc import Sequence
from pathlib import Path

from hidisc.embeddings.embeddings import EMBEDDINGS
from hidisc.errors import UserError
from hidisc.evaluation.scores import SCORES
from hidisc.paths import AnyPath
from hidisc.reporting.compose import Say, compose
from hidisc.reporting.page import render
from hidisc.reporting.subject import gather
from hidisc.runs import begin, full_disk_said, hold, read_kind, write_atomic
from hidisc.settings.judging import ReportConfig
from hidisc.slides.cohort import hash_file


class _Record(ReportConfig):
    """What must be the same for a finished page to be the one asked for, or an unfinished one to be written over."""

    inputs: dict[str, str]
    """Where, and the checksum of the file that makes it whole."""


def report(
    paths: Sequence[AnyPath], out: AnyPath, config: ReportConfig | None = None, say: Say = lambda _: None
) -> Path:
    """Write the page `out`, last, and `STEM_files/` beside it with every figure and table; a finished one stays."""
    config, out = config or ReportConfig(), Path(out)
    judged = [Path(path) for path in paths]
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out} is not a page. Give a name that ends in .html.")
    files = out.with_name(f"{out.stem}_files")
    if out.exists() and read_kind(files) != "report":
        raise UserError(f"{out} is there already and is not overwritten. Give another --out, or delete it.")
    subjects = gather(judged)
    with hold(files), full_disk_said("What it is made from is as it was"):
        inputs = {str(path.absolute()): _checksum(path) for path in judged}
        begin(files, "report", _Record(**config.model_dump(), inputs=inputs))
        if not out.exists():
            page = compose(subjects, files, config, say)
            write_atomic(out, render(page).encode("utf-8", "replace"))
    return out


def _checksum(path: Path) -> str:
    """Of what makes scores or embeddings whole, which names all the rest of them."""
    return next(hash_file(path / name) for name in (SCORES, EMBEDDINGS) if (path / name).is_file())
