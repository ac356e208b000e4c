"""Settings of `hidisc embed`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from hidisc.settings.config import Config, Pace


class ForeignConfig(Config):
    """What to feed an encoder that is not a run of ours; null: what came with it, else the patches as they are."""

    weights: str | None = None
    """Of `timm:NAME`: null random, `hub` the safetensors of the hub, or a .safetensors file."""
    options: dict[str, Any] = {}
    """Further arguments of `timm:NAME`: --set 'model.options={global_pool: max}'."""
    size_px: int | None = Field(None, ge=8, le=4096)
    """Side of the pictures it takes; patches are resized to it."""
    mean: tuple[float, ...] | None = None
    """Subtracted from pixels in [0, 1], a channel each."""
    std: tuple[float, ...] | None = None
    """Pixels are then divided by this, a channel each."""


class EmbedConfig(Config):
    """Settings of `hidisc embed`."""

    recipes: ClassVar[str] = "embed"
    renamed: ClassVar[Mapping[str, str]] = {"ahead": "prefetch"}
    splits: tuple[str, ...] | None = None
    """Sides of the store to embed; null: all."""
    per_slide: int | None = Field(None, ge=1)
    """Patches drawn of each slide, as the paper does for TCGA (400); null: all."""
    seed: int = Field(0, ge=0)
    """Of the patches drawn, and of the weights of a random `timm:` encoder."""
    dtype: Literal["float32", "float16"] = "float32"
    """How embeddings are stored; float16 halves the file and keeps three digits."""
    precision: Annotated[Literal["32", "bf16", "16"], BeforeValidator(str)] = "32"
    """How the encoder computes: 32-bit, or mixed with bfloat16 or float16."""
    batch: int = Field(256, ge=1)
    """Patches at once."""
    threads: Annotated[int | None, Pace()] = Field(None, ge=1, le=64)
    """Threads that read and decode ahead; null: one a core, at most 8."""
    prefetch: Annotated[int, Pace()] = Field(4, ge=1, le=64)
    """Batches read ahead; memory grows with it."""
    max_bad_share: Annotated[float, Pace()] = Field(0.01, ge=0, le=1)
    """Share of unreadable patches (left out, and counted) beyond which embedding stops."""
    model: ForeignConfig = ForeignConfig()
