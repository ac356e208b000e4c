"""Chromium without a window, that says what went wrong on a page and what it asked the network for."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Watched:
    """A page and what happened on it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    """Of the console and of scripts, and dialogues that opened."""
    requests: list[str] = field(default_factory=list)
    """Addresses that were asked for, but for the file itself and what it holds."""


@contextmanager
def open_browser(*flags: str) -> Iterator[Any]:
    """A browser with an empty profile, and more flags; skips the test where there is none."""
    if CHROMIUM is None:
        pytest.skip("needs chromium (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=[*_FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(
    browser: Any, path: Path | str, width: int = 1280, height: int = 900, **settings: Any
) -> Iterator[Watched]:
    """The page in a file or at an address, at a width and height in px; `settings`: of a playwright context."""
    context = browser.new_context(viewport={"width": width, "height": height}, **settings)
    watched = Watched(context.new_page())
    page = watched.page
    page.on("console", lambda line: watched.errors.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: watched.errors.append(str(error)))
    page.on("dialog", lambda dialog: (watched.errors.append(f"dialogue: {dialog.message}"), dialog.dismiss()))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:")) else watched.requests.append(request.url),
    )
    page.goto(path if isinstance(path, str) else path.absolute().as_uri())
    try:
        yield watched
    finally:
        context.close()


def wait_for_drawing(page: Any) -> None:
    """Wait until what the last event changed is drawn: scripts draw in the next frame, observers in the one after."""
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
    )
