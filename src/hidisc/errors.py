"""The errors that the command line knows: what a user can mend, and what another process says already."""


class UserError(Exception):
    """Something the user can fix: thing - value - what is valid - what to do, in one sentence each."""


class ReportedElsewhereError(Exception):
    """This process ends with `code` and in silence: the first process of the run says why."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code
