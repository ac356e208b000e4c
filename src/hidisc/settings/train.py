"""Settings of `hidisc train`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from hidisc.settings.config import Config, Pace


class DataConfig(Config):
    """Which patches are learned from and how they are read."""

    renamed: ClassVar[Mapping[str, str]] = {"ahead": "prefetch"}
    splits: tuple[str, ...] = ("train",)
    """Sides of the store to learn from; patients of the others are never seen."""
    threads: Annotated[int | None, Pace()] = Field(None, ge=1, le=64)
    """Threads that read and decode ahead of training; null: one a core, at most 8."""
    prefetch: Annotated[int, Pace()] = Field(4, ge=1, le=64)
    """Batches read ahead; memory grows with it, one batch of stored patches each."""
    max_bad_share: Annotated[float, Pace()] = Field(0.01, ge=0, le=1)
    """Share of unreadable patches (each is replaced by another of its slide) beyond which training stops."""


class BatchConfig(Config):
    """What a batch is made of: the paper's n, n_s, n_p and n_a."""

    levels: tuple[str, ...] = ("patient", "slide", "patch")
    """The hierarchy from coarse to fine: columns of the patch table, the last one the patch itself."""
    images: int = Field(512, ge=2)
    """Images a step over all devices, views included; gives the number of patients."""
    draw: dict[str, int] = {"slide": 2, "patch": 2}
    """How many are drawn of each level below the first, from each one above; levels not named draw 1."""
    views: int = Field(2, ge=1, le=64)
    """Random views of each patch."""
    balance: bool = False
    """Draw patients of all labels equally often; the run then records that labels were used."""


Op = Literal[
    "flips",
    "noise",
    "jitter",
    "autocontrast",
    "solarize",
    "sharpness",
    "blur",
    "erasing",
    "affine",
    "crop",
    "stain",
]
STRONG: tuple[Op, ...] = tuple(op for op in get_args(Op) if op != "stain")
"""The paper's ten, in its order."""
Share = Annotated[float, Field(ge=0, le=1)]


class ViewsConfig(Config):
    """Random augmentations; defaults are the paper's strong ones. Every parameter is drawn anew for every view."""

    ops: tuple[Op, ...] = STRONG
    """Applied in this order; `[flips]` is the paper's weak augmentation, `stain` jitters H&E stains (ours)."""
    probability: float = Field(0.3, ge=0, le=1)
    """With which each is applied, independently; horizontal and vertical flips are two draws."""
    noise_sigma: tuple[float, float] = (0.1, 0.1)
    """Range of the standard deviation of added noise; pixels lie between 0 and 1."""
    brightness: float = Field(0.4, ge=0, le=1)
    """Colour jitter: factors from 1 - value to 1 + value; torchvision's defaults of 0 would jitter nothing."""
    contrast: float = Field(0.4, ge=0, le=1)
    """As brightness."""
    saturation: float = Field(0.4, ge=0, le=1)
    """As brightness; pictures of three colour channels only."""
    hue: float = Field(0.1, ge=0, le=0.5)
    """Turns of the colour circle, up to this much either way; pictures of three colour channels only."""
    solarize_threshold: Share = 0.2
    """Pixels at least this bright are inverted."""
    sharpness_factor: float = Field(2.0, ge=0)
    """1 is the picture itself, 2 twice as sharp."""
    blur_kernel_px: int = Field(5, ge=1, le=63)
    """Side of the Gaussian blur's kernel, odd."""
    blur_sigma: float = Field(1.0, gt=0)
    """Of the Gaussian blur."""
    erase_scale: tuple[Share, Share] = (0.02, 0.33)
    """Range of the erased share of the picture."""
    erase_ratio: tuple[float, float] = (0.3, 3.3)
    """Range of the erased rectangle's height : width."""
    affine_degrees: float = Field(10.0, ge=0, le=180)
    """Largest rotation either way."""
    affine_translate: tuple[Share, Share] = (0.1, 0.3)
    """Largest shift either way, as a share of width and of height."""
    crop_scale: tuple[Share, Share] = (0.08, 1.0)
    """Range of the share of the picture that a random crop keeps before it is resized."""
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    """Range of the crop's width : height."""
    stain_sigma: float = Field(0.2, ge=0, le=1)
    """Stain jitter: the amount of each stain times 1 - value to 1 + value."""
    stain_bias: float = Field(0.05, ge=0, le=1)
    """Stain jitter: and up to this much optical density of it added or taken away."""

    @model_validator(mode="after")
    def _ranges_are_ranges(self) -> "ViewsConfig":
        for name in ("noise_sigma", "erase_scale", "erase_ratio", "crop_scale", "crop_ratio"):
            low, high = getattr(self, name)
            positive = low > 0 or name == "noise_sigma"
            if not positive or low < 0 or low > high:
                raise ValueError(f"{name} must be a range [low, high] above 0: --set 'views.{name}=[0.1, 0.5]'")
        if self.blur_kernel_px % 2 == 0:
            raise ValueError(f"blur_kernel_px must be odd, not {self.blur_kernel_px}")
        if len(set(self.ops)) != len(self.ops):
            raise ValueError("ops names one operation twice; name each once")
        return self


class HeadConfig(Config):
    """The projection between the embedding that is kept and the loss."""

    layers: int = Field(1, ge=1, le=8)
    """Linear layers; 1 is the paper's."""
    hidden_dim: int = Field(2048, ge=1)
    """Width between layers."""
    dim: int = Field(128, ge=1)
    """Width of what the loss sees."""
    norm: bool = True
    """Batch normalisation after each hidden layer."""
    norm_last: bool = False
    """And after the last one, as SimSiam has it."""


class ModelConfig(Config):
    """The encoder."""

    backbone: str = "resnet50"
    """Any timm name, or `hf-hub:owner/name`."""
    options: dict[str, Any] = {}
    """Further arguments of the timm model: --set 'model.options={drop_path_rate: 0.1}'."""
    weights: str | None = None
    """Where the backbone starts: null random, `hub` the safetensors of the hub, or a .safetensors file."""
    head: HeadConfig = HeadConfig()


class OptimConfig(Config):
    """AdamW, linear warm-up, cosine decay; counted in steps."""

    steps: int = Field(100_000, ge=1)
    """Optimiser steps."""
    learning_rate: float = Field(1e-3, gt=0)
    """At the end of the warm-up."""
    warmup: float = Field(0.1, ge=0, le=1)
    """Share of the steps over which the learning rate rises from 0."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's."""
    clip: float | None = Field(None, gt=0)
    """Largest gradient norm; null: not clipped."""
    accumulate: int = Field(1, ge=1)
    """Batches whose gradients are averaged in one step; each is contrasted within itself."""


class ComputeConfig(Config):
    """How the arithmetic is done."""

    precision: Annotated[Literal["32", "bf16", "16"], BeforeValidator(str)] = "32"
    """32-bit, or mixed with bfloat16 or float16; losses are always 32-bit."""
    channels_last: bool = True
    """Memory layout; measured quicker, also on CPUs."""
    compile: bool = False
    """torch.compile of the encoder: minutes to begin, then 10-20 % quicker."""
    sync_batchnorm: bool = False
    """Batch statistics over all devices."""


class LogConfig(Config):
    """What is written down on the way."""

    every: int = Field(50, ge=1)
    """Steps between rows of metrics.csv."""
    to: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Further loggers, when installed."""
    min_rank: float = Field(1.05, ge=0)
    """Effective rank of the embeddings below which a run, after its warm-up, is stopped as collapsed; 0: never."""


class CheckpointConfig(Config):
    """What a killed run resumes from."""

    every: int = Field(1000, ge=1)
    """Steps between checkpoints."""
    keep: int = Field(2, ge=1)
    """How many of the newest stay."""
    at: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Further steps whose checkpoint is written and kept for good."""


class MonitorConfig(Config):
    """A look at how well nearest neighbours tell the labels while training; changes nothing in it."""

    every: int | None = Field(None, ge=1)
    """Steps between looks; null: none."""
    split: str | None = None
    """Split whose labels are guessed, from those learned from: neither one of those nor the one of the final test."""
    patches: int = Field(1000, ge=1)
    """Patches of each side."""
    k: int = Field(20, ge=1)
    """Neighbours."""

    @model_validator(mode="after")
    def _says_whose_labels(self) -> "MonitorConfig":
        if self.every is not None and self.split is None:
            raise ValueError(
                f"every = {self.every} needs a split to watch, neither learned from nor the final test. Prepare one "
                "with --set 'split.fractions={train: 0.7, val: 0.1, test: 0.2}' and add --set monitor.split=val"
            )
        return self


class TrainConfig(Config):
    """Settings of `hidisc train`."""

    recipes: ClassVar[str] = "train"
    data: DataConfig = DataConfig()
    batch: BatchConfig = BatchConfig()
    views: ViewsConfig = ViewsConfig()
    model: ModelConfig = ModelConfig()
    objective: dict[str, Any] = {"name": "hidisc"}
    """Its name, a file of `objectives/`, and that file's settings."""
    optim: OptimConfig = OptimConfig()
    compute: ComputeConfig = ComputeConfig()
    log: Annotated[LogConfig, Pace()] = LogConfig()
    checkpoint: Annotated[CheckpointConfig, Pace()] = CheckpointConfig()
    monitor: MonitorConfig = MonitorConfig()
    seed: int = Field(0, ge=0)
    """Of the weights, the batches and the views."""

    @model_validator(mode="after")
    def _reaches_its_checkpoints(self) -> "TrainConfig":
        beyond = [step for step in self.checkpoint.at if step > self.optim.steps]
        if beyond:
            raise ValueError(
                f"checkpoint.at = {list(self.checkpoint.at)} has step {beyond[0]:,}, but the training ends with "
                f"optim.steps = {self.optim.steps:,}. Leave it out, or train longer"
            )
        return self
