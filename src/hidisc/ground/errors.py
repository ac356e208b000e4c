"""The errors that the command line knows: those a user can fix, and those another process has reported already."""

import difflib
from pathlib import Path


class UserError(Exception):
    """Something the user can fix: thing - value - what is valid - what to do, in one sentence each.

    Names from files and tables become part of it, so letters that a terminal obeys instead of showing them (colours,
    the direction of text) are spelled out.
    """

    def __init__(self, sentence: object = "") -> None:
        letters = (
            letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in str(sentence)
        )
        super().__init__("".join(letters))


def no_such_path(path: Path, advice: str = "") -> UserError:
    """The error that nothing exists at `path`, with names in its folder that are nearly the same."""
    folder = path.parent
    while not folder.is_dir():  # the first part of the path that is mistyped is the one to correct
        path, folder = folder, folder.parent
    close = difflib.get_close_matches(path.name, sorted(other.name for other in folder.iterdir()), n=2)
    meant = f"Did you mean {' or '.join(str(folder / name) for name in close)}?" if close else advice
    return UserError(f"{path} does not exist. {meant}".rstrip())


class ReportedElsewhereError(Exception):
    """This process ends with `code` and in silence: the first process of the run says why."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code
