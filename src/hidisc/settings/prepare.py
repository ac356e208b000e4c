"""Settings of `hidisc prepare` and `hidisc import`, for slides, patches, volumes and features."""

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hidisc.settings.config import Config, TakenOver
from hidisc.settings.level_names import LevelNames

PLAUSIBLE_MPP = (0.01, 15.0)
"""Smallest and largest plausible micrometres per pixel of a scan, from the cohort, the file or the user.

A value outside is a typing error (nanometres, a magnification of 20) or a print resolution left in the file (72 dpi is
353).
"""


LEAST_SCALE_RATIO = 1.02
"""Of two scales of a store: nearer ones show the same, and tables, whose numbers are rounded, would mix them."""


class GridConfig(Config):
    """Which squares are cut out of a slide."""

    mpp: float | tuple[float, ...] = 0.5
    """Micrometres per pixel of the stored patches (0.5 is the paper's 20x), or several: [0.5, 1.0, 2.0]."""
    size_px: int = Field(300, ge=8, le=4096)
    """Side of a patch in pixels."""
    stride_px: int | None = Field(None, ge=1)
    """Pixels from one patch to the next; null means the patch size, so that patches touch and do not overlap."""
    allow_upsampling: bool = False
    """Whether slides are cut whose finest level is more than 10 % coarser than `mpp`, by inventing pixels."""
    beyond_edge: Literal["pad", "drop"] = "pad"
    """Whether coarse patches (several mpp) that reach beyond the slide are padded (RGB: white) or left out."""

    @field_validator("mpp", mode="before")
    @classmethod
    def _are_scales(cls, given: Any) -> float | tuple[float, ...]:
        wrong = "mpp is a number above 0 and at most 100, or several different ones: [0.5, 1.0, 2.0]"
        try:
            scales = [float(scale) for scale in (given if isinstance(given, list | tuple) else [given])]
        except (TypeError, ValueError):
            raise ValueError(wrong) from None
        if not scales or len(set(scales)) < len(scales) or not all(0 < scale <= 100 for scale in scales):
            raise ValueError(wrong)
        scales.sort()
        alike = next((pair for pair in pairwise(scales) if pair[1] < pair[0] * LEAST_SCALE_RATIO), None)
        if alike:
            raise ValueError(
                f"mpp: {alike[0]:g} and {alike[1]:g} differ by less than {LEAST_SCALE_RATIO - 1:.0%} and count as one "
                "scale. Leave one of them out"
            )
        return tuple(scales) if len(scales) > 1 else scales[0]

    @property
    def scales(self) -> tuple[float, ...]:
        """Micrometres per pixel, the finest first."""
        return self.mpp if isinstance(self.mpp, tuple) else (self.mpp,)


class TissueConfig(Config):
    """How tissue is found on the thumbnail."""

    thumbnail_mpp: float = Field(8.0, gt=0)
    """Micrometres per pixel of the stored thumbnail; small pictures get a finer one, about 1,024 px wide."""
    min_density: float = Field(0.02, ge=0)
    """Optical density below which a thumbnail pixel is always glass."""
    max_density: float = Field(0.06, ge=0)
    """Optical density above which a thumbnail pixel is always tissue; Otsu's threshold decides in between."""
    skip_glass: bool = True
    """Whether squares without any tissue on the thumbnail are left unread; false reads and scores every square."""


class FilterConfig(Config):
    """Which squares are kept; it can be changed afterwards with `--refilter`."""

    min_pixel_std: float = Field(10.0, ge=0)
    """Least standard deviation of a kept patch's pixel values (0 to 255, mean of the channels), as in the paper."""
    min_tissue_fraction: float = Field(0.0, ge=0, le=1)
    """Least share of a kept patch that the tissue mask covers; 0 leaves the decision to `min_pixel_std`."""
    max_pen_fraction: float = Field(1.0, ge=0, le=1)
    """Largest share of a kept patch that blue, green or black pen ink covers on H&E slides; 1 looks for none."""
    run: str | None = None
    """Folder of a run (`hidisc train --recipe supervised`) that predicts a label for every patch."""
    drop_labels: tuple[str, ...] = ()
    """Labels (such as nondiagnostic): patches for which `run` predicts one of them are dropped."""

    @model_validator(mode="after")
    def _labels_need_a_run(self) -> "FilterConfig":
        if bool(self.run) != bool(self.drop_labels):
            raise ValueError(
                "run and drop_labels go together: --set filter.run=RUN --set 'filter.drop_labels=[nondiagnostic]'"
            )
        return self


class AnnotationsConfig(Config):
    """Regions drawn by hand on slides (GeoJSON of QuPath); they can be changed afterwards with `--refilter`."""

    path: str | None = None
    """Folder with a file SLIDE.geojson per slide, or one file whose objects have a property `slide`."""
    min_share: float = Field(0.5, gt=0, le=1)
    """Least share of a patch that a class covers for the patch to get it in the column `annotation`."""
    exclude: tuple[str, ...] = ()
    """Classes (such as pen, fold or artefact) whose patches are dropped."""
    exclude_share: float = Field(0.1, gt=0, le=1)
    """Least share of a patch that an excluded class covers for the patch to be dropped."""

    @model_validator(mode="after")
    def _classes_need_a_file(self) -> "AnnotationsConfig":
        if self.exclude and self.path is None:
            raise ValueError("exclude needs annotations: --annotations FOLDER --set 'annotations.exclude=[pen]'")
        return self


class StainConfig(Config):
    """Stain normalisation of 8-bit RGB slides."""

    method: Literal["macenko", "none"] = "macenko"
    """Macenko's stain normalisation as in the paper, or none (SRH, fluorescence, imported patches)."""
    mode: Literal["slide", "patch"] = "slide"
    """Whether stains are estimated once per slide from sampled tissue, or for every patch on its own."""
    reference: str = "published"
    """`published` for the fixed reference stains of the public code, or the path of a picture to look like."""
    sample_patches: int = Field(64, ge=1, le=512)
    """Number of patches per slide from which its stains are estimated."""


class PixelsConfig(Config):
    """How a patch is stored."""

    codec: Literal["jpeg", "zstd", "png", "raw"] = "jpeg"
    """Format of patches: jpeg (8 bits, 1 or 3 channels), zstd (lossless, fast), png (lossless) or raw (largest)."""
    quality: int = Field(90, ge=1, le=100)
    """JPEG quality, from 1 to 100."""


class SplitConfig(Config):
    """Which patients are held out; it is used where the cohort gives no `split` column."""

    fractions: dict[str, float] = {"train": 0.8, "test": 0.2}
    """Name of each split and its share of the patients, stratified by label."""
    folds: int | None = Field(None, ge=2)
    """Number of equal splits, named fold-1, fold-2 and so on, that replace `fractions`."""
    keep_sites: bool = False
    """Whether all patients of a site are put into the same split, so that test patients come from unseen sites."""

    @model_validator(mode="after")
    def _shares_are_shares(self) -> "SplitConfig":
        shares = self.fractions.values()
        if len(shares) < 2 or min(shares) < 0 or sum(shares) <= 0:
            raise ValueError(
                "fractions must name every split, two or more, with shares of at least 0 that add up to more than 0: "
                "--set 'split.fractions={train: 0.7, test: 0.3}'"
            )
        return self


class PrepareConfig(Config):
    """Settings of `hidisc prepare`."""

    grid: GridConfig = GridConfig()
    tissue: TissueConfig = TissueConfig()
    filter: FilterConfig = FilterConfig()
    annotations: AnnotationsConfig = AnnotationsConfig()
    stain: StainConfig = StainConfig()
    pixels: PixelsConfig = PixelsConfig()
    split: Annotated[SplitConfig, TakenOver()] = SplitConfig()
    label_level: Annotated[Literal["patient", "slide"], TakenOver()] = "patient"
    """Level that has one label: `slide` allows the slides of a patient to have different labels."""
    assume_mpp: Annotated[float | None, TakenOver()] = Field(None, ge=PLAUSIBLE_MPP[0], le=PLAUSIBLE_MPP[1])
    """Micrometres per pixel of slides whose file and cohort row do not say it; null refuses such slides."""
    seed: int = Field(0, ge=0)
    """Seed of the split and of the patches from which stains are estimated."""


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
    """Percentiles of a volume's values that become black and white; where 90 % are one value, of the other values."""
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


class FeaturesConfig(Config):
    """Settings of `hidisc import features`: vectors of patches that another tool has extracted."""

    split: SplitConfig = SplitConfig()
    level_names: LevelNames = LevelNames()
    label_level: Literal["patient", "slide"] = "patient"
    """Level that has one label: `slide` allows the slides of a patient to have different labels."""
    seed: int = Field(0, ge=0)
    """Seed of the split."""
