"""The one kind of error a user can mend; the command line prints it as a sentence and exits with code 2."""


class UserError(Exception):
    """Something the user can fix: thing - value - what is valid - what to do, in one sentence each."""
