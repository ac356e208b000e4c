"""Reports without PDF files, for tests that are about something else."""

import pytest

from hidisc.reporting import figures


def skip_pdf(patch: pytest.MonkeyPatch) -> None:
    """Have figures written as PNG and SVG, and empty PDF files: choosing their fonts' glyphs takes half of the time."""
    render = figures.render
    patch.setattr(figures, "render", lambda figure, suffix: b"" if suffix == "pdf" else render(figure, suffix))
