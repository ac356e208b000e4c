"""`make docs`: every public name has its place on the pages, every link leads somewhere, and no network is needed."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import hidisc

pytestmark = pytest.mark.whole
PROJECT = Path(__file__).parents[1]
SOURCE = Path(hidisc.__file__).parent


class Page(HTMLParser):
    """The anchors of a page, its links, and the files it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value or "")
            elif name == "href" and tag == "a":
                self.links.add(value or "")
            elif name == "src" or (name == "href" and tag == "link"):
                self.loads.add(value or "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as `make docs` writes them; in a process of its own, for pdoc looks into the loaded package."""
    pytest.importorskip("pdoc")
    out = tmp_path_factory.mktemp("docs")
    command = re.search(
        r"^docs:.*\n\t\$\(BIN\)/python (\S+) build/docs$", (PROJECT / "Makefile").read_text(), re.MULTILINE
    )
    assert command
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:pdoc", PROJECT / command[1], out], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return out


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in folder.rglob("*.html")}


def test_every_public_name_is_on_the_first_page(folder: Path, pages: dict[Path, Page]) -> None:
    assert "url=./hidisc.html" in (folder / "index.html").read_text()
    first = pages[folder / "hidisc.html"]
    assert set(hidisc.__all__) <= first.anchors
    assert {f"#{name}" for name in hidisc.__all__} <= first.links  # from the list of names, and from the margin
    assert "PatchStore.load" in first.anchors


def test_every_module_has_a_page(folder: Path, pages: dict[Path, Page]) -> None:
    modules = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.parent != SOURCE]
    expected = {
        folder / "hidisc" / (path.parent if path.stem == "__init__" else path.with_suffix("")) for path in modules
    }
    assert {path.with_suffix("") for path in pages} == {folder / "index", folder / "hidisc", *expected}
    for name in hidisc.__all__:
        module = getattr(hidisc, name).__module__
        assert name in pages[folder / f"{module.replace('.', '/')}.html"].anchors


def test_every_link_leads_somewhere(folder: Path, pages: dict[Path, Page]) -> None:
    broken, checked = [], 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            checked += 1
            if target not in pages or (parts.fragment and unquote(parts.fragment) not in pages[target].anchors):
                broken.append(f"{path.relative_to(folder)}: {link}")
    assert broken == []
    assert checked > 1000


def test_nothing_is_loaded_from_elsewhere_and_nothing_of_this_machine_is_shown(
    folder: Path, pages: dict[Path, Page]
) -> None:
    for path, page in pages.items():
        assert not [address for address in page.loads if urlsplit(address).scheme not in ("", "data")], path
        text = path.read_text()
        assert " at 0x" not in text, path
        assert str(PROJECT) not in text, path
