"""`make docs`: pages on the Python API, built from the docstrings with pdoc; they need no network."""

import sys
from pathlib import Path

import pdoc
import pdoc.render
from typer.models import ArgumentInfo, OptionInfo

import hidisc
from hidisc.settings.config import Pace, TakenOver


def build(out: Path) -> None:
    """Write `out/index.html` and one page per module: the package with its public names, and every folder of it."""
    for name in hidisc.__all__:
        setattr(hidisc, name, getattr(hidisc, name))  # pdoc sees only what has been loaded
    folders = {path.parent.name for path in Path(hidisc.__file__).parent.glob("*/__init__.py")}
    hidisc.__all__ += sorted(folders - {*hidisc.__all__})  # what is not listed there gets no page
    for mark in (Pace, TakenOver, ArgumentInfo, OptionInfo):
        mark.__repr__ = lambda self: type(self).__name__  # else types show an address in memory
    pdoc.render.configure(docformat="markdown", show_source=False)
    pdoc.pdoc("hidisc", output_directory=out)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
