"""Settings of `hidisc prepare` and `hidisc import`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hidisc.settings.config import Config, TakenOver

PLAUSIBLE_MPP = (0.01, 15.0)
"""Micrometres per pixel of a scan, whoever says it: cohort, file or user.

What lies outside is a slip of the pen (nanometres, a magnification of 20) or a print resolution left in the file (72
dpi is 353), and no microscope's scale.
"""


class GridConfig(Config):
    """Which squares are cut out of a slide."""

    mpp: float = Field(0.5, gt=0, le=100)
    """Micrometres a pixel of the stored patches; 0.5 is the paper's 20x."""
    size_px: int = Field(300, ge=8, le=4096)
    """Side of a patch."""
    stride_px: int | None = Field(None, ge=1)
    """Step from one patch to the next; null: the size, so that patches touch and do not overlap."""
    allow_upsampling: bool = False
    """Cut slides whose finest level is coarser than `mpp` (by more than 10 %) by inventing pixels."""


class TissueConfig(Config):
    """Where on the thumbnail there is tissue."""

    thumbnail_mpp: float = Field(8.0, gt=0)
    """Micrometres a pixel of the stored thumbnail; small pictures get a finer one, about 1,024 px wide."""
    min_density: float = Field(0.02, ge=0)
    """Optical density below which a thumbnail pixel is always glass."""
    max_density: float = Field(0.06, ge=0)
    """Optical density above which it is always tissue; Otsu's threshold decides between the two."""
    skip_glass: bool = True
    """Do not read squares without a trace of tissue on the thumbnail; false reads and scores every square."""


class FilterConfig(Config):
    """Which squares are kept; changed afterwards with `--refilter`."""

    min_pixel_std: float = Field(10.0, ge=0)
    """The paper's heuristic: standard deviation of pixel values (0-255 scale, mean of channels) of a kept patch."""
    min_tissue_fraction: float = Field(0.0, ge=0, le=1)
    """Share of a kept patch that the tissue mask covers; 0 leaves the decision to the standard deviation."""
    run: str | None = None
    """A run of `hidisc train --recipe supervised` that predicts a label for every patch, as the paper has for SRH."""
    drop_labels: tuple[str, ...] = ()
    """Patches for which the run predicts one of these (such as nondiagnostic) are dropped."""

    @model_validator(mode="after")
    def _labels_need_a_run(self) -> "FilterConfig":
        if bool(self.run) != bool(self.drop_labels):
            raise ValueError(
                "run and drop_labels go together: --set filter.run=RUN --set 'filter.drop_labels=[nondiagnostic]'"
            )
        return self


class StainConfig(Config):
    """Stain normalisation of 8-bit RGB."""

    method: Literal["macenko", "none"] = "macenko"
    """Macenko's normalisation as in the paper, or none (SRH, fluorescence, imported patches)."""
    mode: Literal["slide", "patch"] = "slide"
    """Stains estimated once a slide from sampled tissue, or for every patch on its own."""
    reference: str = "published"
    """`published`: the fixed reference stains; or the path of a reference picture to look like."""
    sample_patches: int = Field(64, ge=1, le=512)
    """Patches a slide whose pixels the estimate is made from."""


class PixelsConfig(Config):
    """How a patch is stored."""

    codec: Literal["jpeg", "png", "raw"] = "jpeg"
    """jpeg (8 bits, 1 or 3 channels, 4:4:4), png (lossless) or raw (largest, quickest to read)."""
    quality: int = Field(90, ge=1, le=100)
    """JPEG quality."""


class SplitConfig(Config):
    """Which patients are held out; used where the cohort gives no `split` column."""

    fractions: dict[str, float] = {"train": 0.8, "test": 0.2}
    """Name of each side and its share of the patients, stratified by label."""
    folds: int | None = Field(None, ge=2)
    """Instead of `fractions`: this many equal sides called fold-1, fold-2, ..."""
    keep_sites: bool = False
    """All patients of a site on the same side, so that a test patient comes from an unseen site."""

    @model_validator(mode="after")
    def _shares_are_shares(self) -> "SplitConfig":
        shares = self.fractions.values()
        if len(shares) < 2 or min(shares) < 0 or sum(shares) <= 0:
            raise ValueError(
                "fractions must name every side, two or more, with shares of at least 0 that add up to more than 0: "
                "--set 'split.fractions={train: 0.7, test: 0.3}'"
            )
        return self


class PrepareConfig(Config):
    """Settings of `hidisc prepare`."""

    grid: GridConfig = GridConfig()
    tissue: TissueConfig = TissueConfig()
    filter: FilterConfig = FilterConfig()
    stain: StainConfig = StainConfig()
    pixels: PixelsConfig = PixelsConfig()
    split: Annotated[SplitConfig, TakenOver()] = SplitConfig()
    label_level: Annotated[Literal["patient", "slide"], TakenOver()] = "patient"
    """`slide` allows the slides of a patient to have different labels."""
    assume_mpp: Annotated[float | None, TakenOver()] = Field(None, ge=PLAUSIBLE_MPP[0], le=PLAUSIBLE_MPP[1])
    """Micrometres a pixel of slides whose file and cohort row do not say; null: they are refused."""
    seed: int = Field(0, ge=0)
    """Of the split and of the patches that stains are estimated from."""
