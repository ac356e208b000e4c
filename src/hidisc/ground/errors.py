"""The errors that the command line knows: what a user can mend, and what another process says already."""


class UserError(Exception):
    """Something the user can fix: thing - value - what is valid - what to do, in one sentence each.

    Names from files and tables become part of it, so letters that a terminal obeys instead of showing them (colours,
    the direction of text) are spelled out.
    """

    def __init__(self, sentence: object = "") -> None:
        super().__init__("".join(map(_spell_out, str(sentence))))


def _spell_out(letter: str) -> str:
    return letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]


class ReportedElsewhereError(Exception):
    """This process ends with `code` and in silence: the first process of the run says why."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code
