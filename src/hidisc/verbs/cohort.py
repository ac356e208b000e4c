"""`hidisc cohort`: a folder of slides -> a draft of the table that `hidisc prepare` reads."""

from pathlib import Path

from hidisc.ground.errors import UserError
from hidisc.ground.files import make_folder, write_atomic
from hidisc.ground.paths import AnyPath
from hidisc.ground.text import count
from hidisc.slides.draft import SUFFIXES, Draft, NamePattern, draft_rows
from hidisc.verbs.build import Say
from hidisc.verbs.progress import show_count

_SHOWN = 20


def draft_cohort(folder: AnyPath, out: AnyPath, pattern: str | None = None, *, say: Say = lambda _: None) -> Draft:
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
    for reason in draft.left_out[:_SHOWN]:
        say(f"left out: {reason}")
    if len(draft.left_out) > _SHOWN:
        say(f"left out: ... and {count(len(draft.left_out) - _SHOWN, 'more file')}")
    if not draft.rows:
        raise UserError(f"{folder} holds no slide that can be read ({' '.join(sorted(SUFFIXES))}). Give another one.")
    doubts = sorted(draft.count_doubts().items(), key=lambda doubt: -doubt[1])
    for doubt, slides in doubts[:_SHOWN]:
        say(f"doubtful: {count(slides, 'slide')}: {doubt}")
    if len(doubts) > _SHOWN:
        say(f"doubtful: ... and {count(len(doubts) - _SHOWN, 'more doubt')}")
    make_folder(out.parent)
    write_atomic(out, draft.to_csv(out.parent).encode())
    return draft
