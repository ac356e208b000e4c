"""The one kind of error a user can mend; the command line prints it as a sentence and exits with code 2."""


class UserError(Exception):
    """Something the user can fix: thing - value - what is valid - what to do, in one sentence each.

    Names from files and tables become part of it, so letters that a terminal obeys instead of showing them (colours,
    the direction of text) are spelled out.
    """

    def __init__(self, sentence: object = "") -> None:
        super().__init__("".join(map(_spell_out, str(sentence))))


def _spell_out(letter: str) -> str:
    return letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]
