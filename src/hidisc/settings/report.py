"""Settings of `hidisc report`."""

from pydantic import Field

from hidisc.settings.config import Config


class ReportConfig(Config):
    """Settings of `hidisc report`."""

    title: str = "How good is the encoder?"
    """Title at the top of the page."""
    points: int = Field(3000, ge=10)
    """Number of patches on the map (t-SNE), sampled at random from the test patches."""
    perplexity: float = Field(30.0, gt=1)
    """Perplexity of t-SNE, roughly the number of neighbours that each patch takes into account."""
    picture_px: int = Field(48, ge=16, le=256)
    """Side in pixels of the pictures shown when a point is touched; the page grows with it."""
    sheet_rows: int = Field(6, ge=0, le=50)
    """Number of correctly, and of wrongly, classified patches shown with their nearest neighbours."""
    seed: int = Field(0, ge=0)
    """Seed of the sampled patches and of the map."""
