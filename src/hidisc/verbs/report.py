"""`hidisc report`: Embeddings and Scores -> one page to read, with its figures and tables beside it."""

from collections.abc import Sequence
from pathlib import Path

from hidisc.artefacts.artefact import CONFIG, MANIFEST, make, open_artefact, read_kind
from hidisc.ground.errors import UserError
from hidisc.ground.files import LOCK, AnyPath, full_disk_said, relate, write_atomic
from hidisc.ground.progress import Say, ignore
from hidisc.reporting.compose import compose
from hidisc.reporting.evaluated import gather
from hidisc.settings.report import ReportConfig

_OWN = (LOCK, CONFIG, MANIFEST)
"""Files of the life cycle."""


def report(paths: Sequence[AnyPath], out: AnyPath, config: ReportConfig | None = None, say: Say = ignore) -> Path:
    """Write the page `out`, last, and `STEM_files/` beside it with every figure and table; a finished one stays."""
    config, out = config or ReportConfig(), Path(out)
    judged = [Path(path) for path in paths]
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out} is not a page. Give a name that ends in .html.")
    files, page = out.with_name(f"{out.stem}_files"), f"../{out.name}"
    if out.exists() and read_kind(files) != "report":
        raise UserError(f"{out} is there already and is not overwritten. Give another --out, or delete it.")
    models = gather(judged)
    inputs = {relate(path, files): _checksum(path) for path in judged}
    with (
        full_disk_said("What it is made from is as it was"),
        make(files, "report", config, inputs) as work,
    ):
        if out.exists() and page in (work.find_problems() or {}):
            raise UserError(f"{out} has been changed since it was written. Delete it to have it made anew.")
        if not work.is_finished(say):
            write_atomic(out, compose(models, files, config, say).encode("utf-8", "replace"))
            made = sorted(path for path in files.rglob("*") if path.is_file() and path.name not in _OWN)
            work.finish([page, *(path.relative_to(files).as_posix() for path in made)])
    return out


def _checksum(path: Path) -> str:
    """Of what makes scores or embeddings whole, which names all the rest of them."""
    return open_artefact(path, "evaluate", "embed", check=()).checksum
