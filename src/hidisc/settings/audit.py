"""Settings of `hidisc audit`."""

from typing import Annotated, ClassVar

from pydantic import Field

from hidisc.settings.config import Config, Pace
from hidisc.settings.evaluate import BootstrapConfig


class AuditConfig(Config):
    """Settings of `hidisc audit`."""

    recipes: ClassVar[str] = "evaluate"
    label: str = "label"
    """Column of the patch table that the encoder is meant to tell."""
    columns: tuple[str, ...] | None = None
    """Columns to audit, `colour` among them; null takes site, scanner, batch, date and the like, and colour."""
    splits: tuple[str, ...] | None = None
    """Splits whose patients are audited; null takes all of them."""
    bins: int = Field(3, ge=2, le=10)
    """Number of equally large groups into which dates, and the colours of slides, are divided."""
    k: int = Field(20, ge=1)
    """Number of nearest patches of other patients that are compared with a patch, or vote on its label."""
    queries: int = Field(5_000, ge=1)
    """Most patches whose neighbours are searched among all patches, sampled evenly over patients."""
    patches: int = Field(4_000, ge=10, le=20_000)
    """Most patches, sampled evenly over patients, for the probe and the accuracies; memory grows with its square."""
    memory_gb: Annotated[float, Pace()] = Field(2.0, gt=0)
    """Most memory in GB that the search for neighbours takes beside the embedding files."""
    bootstrap: BootstrapConfig = BootstrapConfig(interval=0.99)
    seed: int = Field(0, ge=0)
    """Seed of the sampled patches, of the folds, of the reference patients drawn and of the bootstrap resamples."""
