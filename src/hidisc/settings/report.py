"""Settings of `hidisc report`."""

from pydantic import Field

from hidisc.settings.config import Config


class ReportConfig(Config):
    """Settings of `hidisc report`."""

    title: str = "How good is the encoder?"
    """At the top of the page."""
    points: int = Field(3000, ge=10)
    """Patches on the map (t-SNE), drawn at random of the queries."""
    perplexity: float = Field(30.0, gt=1)
    """Of the map: about how many neighbours a patch minds."""
    picture_px: int = Field(48, ge=16, le=256)
    """Side of the pictures shown when a point is touched; the page grows with it."""
    sheet_rows: int = Field(6, ge=0, le=50)
    """Patches on the sheet of nearest neighbours, of the right ones and of the wrong ones each."""
    seed: int = Field(0, ge=0)
    """Of the points drawn and of the map."""
