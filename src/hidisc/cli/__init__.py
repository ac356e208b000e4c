"""The `hidisc` command: parses, calls a verb, prints one line of result; everything else goes to stderr.

Exit codes: 0 done, 1 something failed, 2 the user can fix it (one clear sentence). `commands` and `tools`:
every command; `options`: what commands share.
"""

import errno
import os
import sys
import time
import traceback
from typing import Annotated

import typer

import hidisc.cli.commands
import hidisc.cli.tools  # noqa: F401 - these two declare every command
from hidisc.cli.options import app, option, refuse_settings_as_options, say
from hidisc.ground.errors import ReportedElsewhereError, UserError


def _show_version(wanted: bool) -> None:
    if wanted:
        from hidisc.ground.machine import versions

        typer.echo(f"hidisc {versions('hidisc')['hidisc']}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, option("Show the traceback of an error.", "--debug")] = False,
    version: Annotated[bool, option("Show the version.", "--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Options of all verbs; `main` reads `--debug` itself, for it must be known when anything goes wrong."""


def _outlive_first() -> None:
    """Let the first process say the reason: Lightning and torchrun kill it if one of the others ends before it.

    Lightning's is the parent of the others; torchrun ends the others itself; SLURM, by default, does neither.
    """
    seconds = 90.0 if "LOCAL_RANK" in os.environ else 5.0
    parent, until = os.getppid(), time.monotonic() + seconds
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.05)


def _explain(error: Exception) -> int:
    """Say in one sentence what went wrong, unless another process says it; the exit code."""
    if isinstance(error, ReportedElsewhereError):
        _outlive_first()
        return error.code
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        error = UserError(f"the path {str(error.filename)[:60]}... is too long for this disk. Give a shorter name.")
    if not isinstance(error, UserError):
        say(f"hidisc: {type(error).__name__}: {error} (run `hidisc --debug ...` for the traceback)")
        return 1
    if os.environ.get("LOCAL_RANK", "0") == "0":  # the processes of the other devices say the same
        say(f"hidisc: {error}")
    else:
        _outlive_first()
    return 2


def main() -> None:
    """Run the command line; errors become one sentence and an exit code."""
    try:
        if any(word.startswith("--") for word in sys.argv[2:]):
            refuse_settings_as_options(sys.argv[1:])
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - the last door: one line for people, all of it with --debug
        if "--debug" in sys.argv:
            traceback.print_exc()
        sys.exit(_explain(error))
