"""`hidisc explore`: a store, and what was made from it, in the browser of this machine; read-only but for labels."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from socket import gethostname

from hidisc.explorer.saved import save_patient
from hidisc.explorer.server import LOOPBACK, Server
from hidisc.explorer.session import open_session
from hidisc.ground.files import AnyPath
from hidisc.ground.progress import Say, ignore


def save_page(
    store: AnyPath,
    others: Sequence[AnyPath],
    patient: str,
    out: AnyPath,
    *,
    cohort: AnyPath | None = None,
    say: Say = ignore,
) -> int:
    """Write one patient as a folder that opens from disk, without a server; how many slides it shows."""
    session = open_session(Path(store), [Path(other) for other in others], Path(cohort) if cohort else None, say)
    return save_patient(session, patient, Path(out))


def explore(
    store: AnyPath,
    others: Sequence[AnyPath] = (),
    *,
    cohort: AnyPath | None = None,
    host: str = LOOPBACK,
    port: int = 0,
    browser: bool = True,
    stop_after_min: float | None = None,
    say: Say = ignore,
    ready: Say = ignore,
) -> None:
    """Show a store, its embeddings and scores (`others`) until Ctrl-C; `ready` is called with the address.

    `cohort`: the CSV that says where the slide files are. `host`: the address or name to listen at.
    `stop_after_min`: end after so many minutes without use.
    """
    session = open_session(Path(store), [Path(other) for other in others], Path(cohort) if cohort else None, say)
    server = Server(session, port, host)
    if not server.is_local:
        say(
            "warning: pictures of patients go over the network unencrypted, and anyone who has the address with its "
            "token sees them; rather leave --host out, and reach the explorer by a tunnel from your desktop: "
            f"ssh -L {server.port}:{LOOPBACK}:{server.port} {gethostname()}"
        )
    ready(server.address)
    if browser and not webbrowser.open(server.address):
        say("note: no browser was found. Open the address above in one.")
    server.run(stop_after_min)
