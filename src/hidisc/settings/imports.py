"""Settings of `hidisc import`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hidisc.settings.config import Config, TakenOver
from hidisc.settings.level_names import LevelNames
from hidisc.settings.prepare import FilterConfig, PixelsConfig, SplitConfig


class ImportConfig(Config):
    """Settings of `hidisc import`: patches that exist already as files."""

    filter: Annotated[FilterConfig, TakenOver()] = FilterConfig(min_pixel_std=0)
    pixels: PixelsConfig = PixelsConfig(codec="zstd")
    split: Annotated[SplitConfig, TakenOver()] = SplitConfig()
    level_names: Annotated[LevelNames, TakenOver()] = LevelNames()
    label_level: Annotated[Literal["patient", "slide", "patch"], TakenOver()] = "patient"
    """Level that has one label: `slide` or `patch` allows labels to differ within a patient or a slide."""
    resize_px: int | None = Field(None, ge=8, le=4096)
    """Side in pixels to which every patch is resized; null requires that all have the same size already."""
    mpp: float | None = Field(None, gt=0)
    """Micrometres per pixel of the patches, if known; it is only recorded."""
    seed: Annotated[int, TakenOver()] = Field(0, ge=0)
    """Seed of the split."""


class VolumesConfig(Config):
    """Settings of `hidisc import nifti` and `hidisc import dicom`: volumes that are cut into slices."""

    size_px: int = Field(128, ge=8, le=4096)
    """Side of a stored slice in pixels."""
    pixel_mm: float | None = Field(None, gt=0)
    """Millimetres per pixel of stored slices, around the middle of the volume or mask; null fits all of it in."""
    axis: Literal["coarsest", "sagittal", "coronal", "axial"] = "coarsest"
    """Direction of slices; `coarsest` takes the one whose neighbours are furthest apart, axial if all are equal."""
    percentiles: tuple[float, float] = (0.5, 99.5)
    """Percentiles of a volume's values that become black and white; what lies beyond is clipped."""
    window: tuple[float, float] | None = None
    """Values that become black and white instead, such as [-160, 240] for CT in Hounsfield units."""
    bits: Literal[8, 16] = 8
    """Bits of a stored pixel."""
    mask: str | None = None
    """Name of a volume's mask beside it, such as '{name}_gt'; slices are cut around it. null: there are no masks."""
    margin_mm: float = Field(10.0, ge=0)
    """Millimetres that are kept around the mask."""
    frames: bool = False
    """Whether each frame of a volume with a time axis becomes a scan; otherwise such volumes are refused."""
    filter: Annotated[FilterConfig, TakenOver()] = FilterConfig(min_pixel_std=5)
    pixels: PixelsConfig = PixelsConfig(codec="zstd")
    split: Annotated[SplitConfig, TakenOver()] = SplitConfig()
    level_names: Annotated[LevelNames, TakenOver()] = LevelNames(slide="scan", patch="slice")
    seed: Annotated[int, TakenOver()] = Field(0, ge=0)
    """Seed of the split."""

    @model_validator(mode="after")
    def _can_be_used(self) -> "VolumesConfig":
        low, high = self.percentiles
        if not 0 <= low < high <= 100:
            raise ValueError("percentiles are two rising numbers from 0 to 100: --set 'percentiles=[0.5, 99.5]'")
        if self.window is not None and self.window[0] >= self.window[1]:
            raise ValueError("window is two rising values: --set 'window=[-160, 240]'")
        if self.mask is not None and ("{name}" not in self.mask or "/" in self.mask):
            raise ValueError("mask is the name of a file beside the volume, with {name}: --set 'mask={name}_gt'")
        if self.bits == 16 and self.pixels.codec == "jpeg":
            raise ValueError("JPEG holds 8 bits: --set bits=8, or --set pixels.codec=zstd")
        return self
