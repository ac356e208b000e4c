"""Settings of `hidisc embed`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from hidisc.settings.config import Config, Pace


class ForeignConfig(Config):
    """What to feed an encoder of others; null takes what came with it, else the patches as they are."""

    weights: str | None = None
    """Weights of `timm:NAME`: null for random ones, `hub` for the hub's safetensors, or a .safetensors file."""
    options: dict[str, Any] = {}
    """Further arguments of `timm:NAME`: --set 'model.options={global_pool: max}'."""
    size_px: int | None = Field(None, ge=8, le=4096)
    """Side in pixels of the pictures that the encoder takes; patches are resized to it."""
    mean: tuple[float, ...] | None = None
    """Values, one per channel, that are subtracted from pixels in [0, 1]."""
    std: tuple[float, ...] | None = None
    """Values, one per channel, by which pixels are divided after `mean` was subtracted."""


class EmbedConfig(Config):
    """Settings of `hidisc embed`."""

    recipes: ClassVar[str] = "embed"
    splits: tuple[str, ...] | None = None
    """Splits of the store to embed; null embeds all of them."""
    mpp: tuple[float, ...] | None = None
    """Scales of a store of several (micrometres per pixel) to embed; null embeds all of them."""
    per_slide: int | None = Field(None, ge=1)
    """Number of patches that are drawn from each slide (the paper: 400 for TCGA); null embeds all."""
    seed: int = Field(0, ge=0)
    """Seed of the patches drawn, and of the weights of a random `timm:` encoder."""
    dtype: Literal["float32", "float16"] = "float32"
    """Number format of the stored embeddings; float16 halves the file and keeps three digits."""
    precision: Annotated[Literal["32", "bf16", "16"], BeforeValidator(str)] = "32"
    """Arithmetic of the encoder: 32-bit, or mixed precision with bfloat16 (bf16) or float16 (16)."""
    batch: int = Field(256, ge=1)
    """Number of patches that are read and embedded together; a CPU embeds them 64 at a time."""
    threads: Annotated[int | None, Pace()] = Field(None, ge=1, le=64)
    """Threads that read and decode patches ahead; null means one per core, at most 8."""
    prefetch: Annotated[int, Pace()] = Field(4, ge=1, le=64)
    """Batches that are read ahead; memory grows with it."""
    max_bad_share: Annotated[float, Pace()] = Field(0.01, ge=0, le=1)
    """Share of unreadable patches (they are left out and counted) beyond which embedding stops."""
    tta: Literal["flips"] | None = None
    """`flips` embeds each patch in its eight flips and quarter turns and keeps the mean; null embeds it as it is."""
    model: ForeignConfig = ForeignConfig()
