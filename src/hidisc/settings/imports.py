"""Settings of `hidisc import`."""

from typing import Annotated, Literal

from pydantic import Field

from hidisc.settings.config import Config, TakenOver
from hidisc.settings.prepare import FilterConfig, PixelsConfig, SplitConfig


class ImportConfig(Config):
    """Settings of `hidisc import`: patches that exist already as files."""

    filter: Annotated[FilterConfig, TakenOver()] = FilterConfig(min_pixel_std=0)
    pixels: PixelsConfig = PixelsConfig(codec="zstd")
    split: Annotated[SplitConfig, TakenOver()] = SplitConfig()
    label_level: Annotated[Literal["patient", "slide", "patch"], TakenOver()] = "patient"
    """Level that has one label: `slide` or `patch` allows labels to differ within a patient or a slide."""
    resize_px: int | None = Field(None, ge=8, le=4096)
    """Side in pixels to which every patch is resized; null requires that all have the same size already."""
    mpp: float | None = Field(None, gt=0)
    """Micrometres per pixel of the patches, if known; it is only recorded."""
    seed: Annotated[int, TakenOver()] = Field(0, ge=0)
    """Seed of the split."""
