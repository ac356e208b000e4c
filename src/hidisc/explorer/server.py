"""The server of the explorer: it answers requests that have its token from the session, and nothing else.

- It listens on 127.0.0.1 alone, unless told otherwise. Every request must have the token, in the address once and then
  in a cookie, and its Host and Origin must be those of this server, so that no other page can send it.
- The body of a request is read after these checks only, and no more bytes than the request may have.
- The names and the records of `answers.py` say which requests there are; no part of a request becomes a path.
- The page may load nothing from elsewhere and run no script but its own files (content security policy).
"""

import asyncio
import hmac
import json
import re
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets, is_valid_ip
from tornado.web import Application, RequestHandler, stream_request_body

from hidisc.explorer.answers import CHANGE, READ, Answer, find_request_type
from hidisc.explorer.regions import MOST_LETTERS
from hidisc.explorer.session import Session
from hidisc.ground.errors import UserError
from hidisc.ground.machine import count_cores
from hidisc.ground.stop import StopRequest

LOOPBACK = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".csv": "text/csv; charset=utf-8",
    ".geojson": "application/geo+json",
    "": "application/json",
}
_PAGE = {path.name: path for path in Path(__file__).parent.iterdir() if path.suffix in (".html", ".css", ".js")}
_MOST_BYTES = 2**20
"""Bytes of the largest body of a request."""
_MOST_BYTES_OF = {"/regions": 2 * MOST_LETTERS}
"""Bytes of the largest body of a request that sends a file."""
_PAUSE_S = 0.2


class Server:
    """A server that listens as soon as it is made; `run` answers until Ctrl-C or until it is idle."""

    def __init__(self, session: Session, port: int = 0, host: str = LOOPBACK) -> None:
        try:
            sockets = bind_sockets(port, host)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"--port {port} of {host!r} cannot be used ({reason}). Leave --port out for a free one, and --host out "
                "to listen on this machine alone."
            ) from error
        self.port = int(sockets[0].getsockname()[1])
        addresses = [ip_address(each.getsockname()[0]) for each in sockets]
        self.is_local = all(address.is_loopback for address in addresses)
        """Whether only this machine can reach it."""
        self._is_everywhere = any(address.is_unspecified for address in addresses)
        self._names = {host.lower(), *map(str, addresses)}
        if self.is_local or self._is_everywhere:
            self._names.add("localhost")
        if self._is_everywhere:
            host = socket.gethostname()
            self._names |= {host.lower(), socket.getfqdn().lower()}
        self._host = f"[{host}]" if ":" in host else host
        self.token = secrets.token_urlsafe(24)
        self._sockets, self._session, self._last = sockets, session, time.monotonic()
        self._threads = ThreadPoolExecutor(max(2, count_cores()))

    @property
    def address(self) -> str:
        """The address to open in the browser; whoever has this address can see the cohort."""
        return f"http://{self._host}:{self.port}/?token={self.token}"

    def run(self, stop_after_min: float | None = None, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Answer until Ctrl-C or SIGTERM, until `is_stopped`, or until there was no request for so many minutes."""
        with StopRequest() as stop:
            asyncio.run(self._serve(stop_after_min, lambda: stop.received is not None or is_stopped()))

    async def _serve(self, stop_after_min: float | None, is_stopped: Callable[[], bool]) -> None:
        routes = [
            (f"/{re.escape(name)}", _Request, {"server": self, "answer": answer})
            for name, answer in (READ | CHANGE).items()
        ]
        files = [(f"/{re.escape(name)}", _PageFile, {"server": self, "path": path}) for name, path in _PAGE.items()]
        home = (r"/", _HomePage, {"server": self, "path": _PAGE["page.html"]})
        application = Application(
            [home, *files, *routes],
            default_handler_class=_NotFound,
            default_handler_args={"server": self},
            log_function=lambda _: None,
        )
        server = HTTPServer(application, max_body_size=_MOST_BYTES, max_buffer_size=4 * _MOST_BYTES)
        server.add_sockets(self._sockets)
        while not is_stopped() and not self._is_idle(stop_after_min):
            await asyncio.sleep(_PAUSE_S)
        server.stop()
        await server.close_all_connections()
        self._threads.shutdown(cancel_futures=True)

    def _is_idle(self, stop_after_min: float | None) -> bool:
        return stop_after_min is not None and time.monotonic() - self._last >= 60 * stop_after_min

    async def answer(self, answer: Callable[[Session, Any], Answer], details: dict[str, Any]) -> Answer:
        """Answer a request with these details; a thread does the work."""
        request = find_request_type(answer).model_validate(details)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(answer, self._session, request))

    def admits(self, handler: "_Handler") -> bool:
        """Whether a request has the token and is meant for this server; the time of such a request is kept."""
        request = handler.request
        given = handler.get_query_argument("token", None) or handler.get_cookie(self.cookie) or ""
        is_ours, origin = self._is_named(request.host), request.headers.get("Origin")
        is_ours = is_ours and (origin is None or origin == f"http://{request.host}")
        if request.method == "POST":  # a form of another page cannot send JSON without a preflight request
            is_ours = is_ours and request.headers.get("Content-Type") == "application/json"
        is_known = is_ours and hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())
        if is_known:
            self._last = time.monotonic()
        return is_known

    def _is_named(self, host: str) -> bool:
        """Whether the Host header of a request is a name or an address of this server."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        # Another site can point its own host name at this server (DNS rebinding), so the Host header must be ours.
        # No site can do the same with an address, so any address is accepted where the server listens at all of them.
        return port == self.port and (name in self._names or (self._is_everywhere and is_valid_ip(name)))

    @property
    def cookie(self) -> str:
        """The name of the cookie; cookies are shared by all ports of a host, so the name has the port in it."""
        return f"hidisc-{self.port}"


class _Handler(RequestHandler):
    """A request that is answered only if it has the token."""

    def initialize(self, server: Server, path: Path | None = None, answer: Callable[..., Answer] | None = None) -> None:
        self.server, self.path, self.answer = server, path, answer

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        if not self.server.admits(self):
            self.refuse(403, "Open the address that `hidisc explore` printed: it has the key to this page.")

    def refuse(self, code: int, sentence: str) -> None:
        """Answer with a sentence."""
        self.set_status(code)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(sentence)

    def write_error(self, status_code: int, **_: Any) -> None:
        self.refuse(status_code, "This cannot be answered.")


class _NotFound(_Handler):
    def get(self) -> None:
        self.refuse(404, "There is nothing here.")

    post = get


class _PageFile(_Handler):
    """A file of the page."""

    def get(self) -> None:
        assert self.path is not None
        self.set_header("Content-Type", TYPES[self.path.suffix])
        self.finish(self.path.read_bytes())


class _HomePage(_PageFile):
    """The page; the token of the address becomes a cookie, so that the token does not stay in the history."""

    def get(self) -> None:
        if self.get_query_argument("token", None) is None:
            super().get()
            return
        self.set_cookie(self.server.cookie, self.server.token, httponly=True, samesite="Strict", path="/")
        self.redirect("/")


@stream_request_body
class _Request(_Handler):
    """A request that has an answer in `answers.py`."""

    def prepare(self) -> None:
        super().prepare()
        self.body = bytearray()
        most = _MOST_BYTES_OF.get(self.request.path)
        if most and not self._finished and isinstance(self.request.connection, HTTP1Connection):
            self.request.connection.set_max_body_size(most)

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

    async def get(self) -> None:
        if self.request.path[1:] not in READ:
            self.refuse(405, "This is asked with POST.")
            return
        details = {name: self.get_query_argument(name) for name in self.request.query_arguments if name != "v"}
        await self._answer(details)

    async def post(self) -> None:
        if self.request.path[1:] not in CHANGE:
            self.refuse(405, "This is asked with GET.")
            return
        try:
            details = json.loads(self.body)
        except (ValueError, RecursionError):
            details = None
        await self._answer(details if isinstance(details, dict) else {"": None})

    async def _answer(self, details: dict[str, Any]) -> None:
        assert self.answer is not None
        try:
            answer = await self.server.answer(self.answer, details)
        except ValidationError as error:
            self.refuse(400, f"This question is not understood: {error.errors()[0]['msg']}.")
        except UserError as error:
            self.refuse(400, str(error))
        except OSError as error:
            self.refuse(500, f"{error.strerror or error}: the disk cannot be read or written.")
        else:
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        suffix = Path(self.request.path).suffix
        self.set_header("Content-Type", TYPES[suffix])
        if suffix == ".jpg":  # the page asks with a number of this session, so that none is of another cohort
            self.set_header("Cache-Control", "private, max-age=86400")
        if suffix == ".csv":
            self.set_header("Content-Disposition", f'attachment; filename="{self.request.path[1:]}"')
        self.finish(json.dumps(answer) if isinstance(answer, dict) else answer)
