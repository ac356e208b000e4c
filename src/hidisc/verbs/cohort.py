"""`hidisc cohort`: a folder of slides -> a draft of the table that `hidisc prepare` reads."""

from collections.abc import Sequence
from pathlib import Path

from hidisc.ground.callbacks import Say, ignore
from hidisc.ground.errors import UserError
from hidisc.ground.files import make_folder, write_atomic
from hidisc.ground.paths import AnyPath
from hidisc.ground.text import count
from hidisc.slides.draft import SUFFIXES, Draft, NamePattern, draft_rows
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
    files = sum(path.suffix.lower() in SUFFIXES for path in folder.rglob("*"))
    with show_count("opening", files, "files") as done:
        draft = draft_rows(folder, names, done)
    _say_some("left out", draft.left_out, "more file", say)
    if not draft.rows:
        raise UserError(f"{folder} holds no slide that can be read ({' '.join(sorted(SUFFIXES))}). Give another one.")
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
