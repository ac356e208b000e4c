"""Settings of `hidisc train`."""

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from hidisc.settings.config import Config, Pace


class DataConfig(Config):
    """Which patches are learned from and how they are read."""

    splits: tuple[str, ...] = ("train",)
    """Splits of the store to learn from; patients of the others are never seen."""
    leave_out: tuple[str, ...] = ()
    """Names of patients that are never learned from, whatever their split."""
    mpp: tuple[float, ...] | None = None
    """Scales of a store of several (micrometres per pixel) to learn from; null learns from all of them."""
    threads: Annotated[int | None, Pace()] = Field(None, ge=1, le=64)
    """Threads that read and decode patches ahead of training; null means one per core, at most 8."""
    prefetch: Annotated[int, Pace()] = Field(4, ge=1, le=64)
    """Batches that are read ahead; memory grows by one batch of stored patches each."""
    max_bad_share: Annotated[float, Pace()] = Field(0.01, ge=0, le=1)
    """Share of unreadable patches (each is replaced by another of its slide) beyond which training stops."""


class BatchConfig(Config):
    """What a batch consists of: the paper's n, n_s, n_p and n_a."""

    levels: tuple[str, ...] = ("patient", "slide", "patch")
    """The hierarchy from coarse to fine: columns of the patch table, and the patch itself last."""
    images: int = Field(512, ge=2)
    """Images per step over all devices, views included; it determines the number of patients per batch."""
    draw: dict[str, int] = {"slide": 2, "patch": 2}
    """How many units of each level below the first are drawn from each unit above it; levels not named draw 1."""
    views: int = Field(2, ge=1, le=64)
    """Number of random views of each patch; `views.local.number` come on top of them."""
    balance: bool = False
    """Whether patients of all labels are drawn equally often; the run then records that labels were used."""


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
    "cohort_stain",
]
STRONG: tuple[Op, ...] = tuple(op for op in get_args(Op) if op not in ("stain", "cohort_stain"))
"""The paper's ten, in its order."""
Share = Annotated[float, Field(ge=0, le=1)]


class PartConfig(Config):
    """Views that show a part of a patch."""

    @field_validator("scale", check_fields=False)
    @classmethod
    def _is_range(cls, given: tuple[float, float] | None) -> tuple[float, float] | None:
        if given is not None and not 0 < given[0] <= given[1]:
            raise ValueError("a range is [low, high] above 0, such as [0.4, 1]")
        return given


class GlobalViewsConfig(PartConfig):
    """The views of each patch that `batch.views` counts; by default the whole patch as it is stored."""

    size_px: int | None = Field(None, ge=8, le=4096)
    """Side in pixels of global views; null is that of the patches."""
    scale: tuple[Share, Share] | None = None
    """Range of the share of the patch that a global view shows, drawn for every view; null shows all of it."""
    coarser: tuple[float, float] | None = None
    """Range of how much coarser than its patch a view is, drawn for every view; null: as the patch. Sets size_px."""

    @model_validator(mode="after")
    def _has_one_size(self) -> "GlobalViewsConfig":
        if self.coarser is None:
            return self
        if not 1 <= self.coarser[0] <= self.coarser[1] <= 64:
            raise ValueError("coarser is a range [low, high] from 1 on, such as [1, 2]: finer detail is not stored")
        if self.scale is not None:
            raise ValueError("scale and coarser each say how much of a patch a view shows: leave one of them out")
        return self


class LocalViewsConfig(PartConfig):
    """Further, smaller views of each patch that show a part of it (multi-crop); `batch.images` does not count them."""

    number: int = Field(0, ge=0, le=64)
    """Number of local views of each patch."""
    size_px: int = Field(96, ge=8, le=4096)
    """Side in pixels of local views; a transformer needs model.options={dynamic_img_size: true} for two sizes."""
    scale: tuple[Share, Share] = (0.05, 0.4)
    """Range of the share of the patch that a local view shows, drawn for every view."""


class ViewsConfig(Config):
    """Random augmentations, the paper's strong ones by default; parameters are drawn anew for every view."""

    ops: tuple[Op, ...] = STRONG
    """Operations in this order; `[flips]` is the paper's weak augmentation, `stain` and `cohort_stain` are ours."""
    probability: float = Field(0.3, ge=0, le=1)
    """Probability of each operation, independently; horizontal and vertical flips are drawn separately."""
    noise_sigma: tuple[float, float] = (0.1, 0.1)
    """Range of the standard deviation of the added noise; pixels lie between 0 and 1."""
    brightness: float = Field(0.4, ge=0, le=1)
    """Brightness is multiplied by a factor from 1 - value to 1 + value."""
    contrast: float = Field(0.4, ge=0, le=1)
    """Contrast is multiplied by a factor from 1 - value to 1 + value."""
    saturation: float = Field(0.4, ge=0, le=1)
    """Saturation is multiplied by a factor from 1 - value to 1 + value; pictures in red, green and blue only."""
    hue: float = Field(0.1, ge=0, le=0.5)
    """Hue is shifted by up to this share of the colour circle either way; pictures in red, green and blue only."""
    solarize_threshold: Share = 0.2
    """Brightness from which pixels are inverted by solarize."""
    sharpness_factor: float = Field(2.0, ge=0)
    """Sharpness factor: 1 leaves the picture as it is, 2 is twice as sharp."""
    blur_kernel_px: int = Field(5, ge=1, le=63)
    """Side in pixels of the Gaussian blur's kernel; an odd number."""
    blur_sigma: float = Field(1.0, gt=0)
    """Standard deviation in pixels of the Gaussian blur."""
    erase_scale: tuple[Share, Share] = (0.02, 0.33)
    """Range of the share of the picture that is erased."""
    erase_ratio: tuple[float, float] = (0.3, 3.3)
    """Range of the erased rectangle's height divided by its width."""
    affine_degrees: float = Field(10.0, ge=0, le=180)
    """Largest rotation in degrees, either way."""
    affine_translate: tuple[Share, Share] = (0.1, 0.3)
    """Largest shift either way, as a share of the width and of the height."""
    crop_scale: tuple[Share, Share] = (0.08, 1.0)
    """Range of the share of the picture that a random crop keeps before it is resized."""
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    """Range of the crop's width divided by its height."""
    stain_sigma: float = Field(0.2, ge=0, le=1)
    """Stain jitter: the amount of each stain is multiplied by a factor from 1 - value to 1 + value."""
    stain_bias: float = Field(0.05, ge=0, le=1)
    """Stain jitter: up to this much optical density of each stain is added or removed."""
    global_: GlobalViewsConfig = Field(GlobalViewsConfig(), alias="global")
    local: LocalViewsConfig = LocalViewsConfig()

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
    """The projection head between the embedding that is kept and the loss."""

    layers: int = Field(1, ge=1, le=8)
    """Number of linear layers; the paper has 1."""
    hidden_dim: int = Field(2048, ge=1)
    """Width of the hidden layers."""
    dim: int = Field(128, ge=1)
    """Width of the output, which the loss sees."""
    norm: bool = True
    """Whether each hidden layer is followed by batch normalisation."""
    norm_last: bool = False
    """Whether the last layer is followed by batch normalisation too, as in SimSiam."""


class ModelConfig(Config):
    """The encoder."""

    backbone: str = "resnet50"
    """Name of any timm model, or `hf-hub:owner/name`."""
    options: dict[str, Any] = {}
    """Further arguments of the timm model: --set 'model.options={drop_path_rate: 0.1}'."""
    weights: str | None = None
    """Starting weights of the backbone: null (random), `hub`, a .safetensors file, or a folder with an encoder."""
    mean: tuple[float, ...] | None = None
    """Values, one per channel, subtracted from pixels in [0, 1]; null takes what came with the weights, else 0."""
    std: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Values, one per channel, that pixels are divided by then; null takes what came with the weights, else 1."""
    batch_norm: Literal["learned", "frozen"] = "learned"
    """Whether batch normalisation in the backbone uses the batch's statistics or keeps those of the weights."""
    head: HeadConfig = HeadConfig()

    @model_validator(mode="after")
    def _scale_is_whole(self) -> "ModelConfig":
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std belong together: give both, or neither")
        return self


MapKind = Literal["centre", "whiten", "whiten-within", "linear-hidisc", "adapter"]


class MapConfig(Config):
    """A map of vectors, which is learned from embeddings instead of a store."""

    kind: MapKind | None = None
    """The map: centre, whiten, whiten-within and linear-hidisc are computed, adapter is trained; null: an encoder."""
    dim: int | None = Field(None, ge=1)
    """Principal components that whiten, whiten-within and linear-hidisc keep; null: 256, or as many as vary."""
    keep: int = Field(64, ge=1)
    """Directions that linear-hidisc keeps of these: those in which units differ most."""
    level: str = "slide"
    """Level of batch.levels within whose units whiten-within takes the covariance."""
    shrinkage: float | None = Field(None, ge=0, le=1)
    """Share of the covariance that is replaced by its mean variance; null: as predicts left-out patients best."""
    layers: Literal[1, 2] = 1
    """Number of linear layers of an adapter, which are added to the vector itself."""
    hidden_dim: int = Field(512, ge=1)
    """Width between the two layers of an adapter."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Share of the numbers of a vector that are replaced by their mean in every view for an adapter."""
    noise: float = Field(0.2, ge=0)
    """Standard deviation of the noise in every view for an adapter, as a share of that of the vectors."""


class OptimConfig(Config):
    """AdamW with linear warm-up and cosine decay, counted in steps."""

    steps: int = Field(100_000, ge=1)
    """Number of optimiser steps."""
    learning_rate: float = Field(1e-3, gt=0)
    """Learning rate at the end of the warm-up."""
    warmup: float = Field(0.1, ge=0, le=1)
    """Share of the steps over which the learning rate rises from 0."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW."""
    decay_norms: bool = True
    """Whether weight decay also applies to biases, normalisation layers and position embeddings."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Factor of the learning rate per block of the backbone, from the head down; 1 is one rate for all."""
    freeze_backbone: float = Field(0.0, ge=0, le=1)
    """Share of the steps, at the beginning, in which only what is behind the backbone learns."""
    clip: float | None = Field(None, gt=0)
    """Largest gradient norm; null does not clip gradients."""
    accumulate: int = Field(1, ge=1)
    """Batches whose gradients are averaged in one step; each batch is contrasted within itself."""


class ComputeConfig(Config):
    """How the arithmetic is done."""

    precision: Annotated[Literal["32", "bf16", "16"], BeforeValidator(str)] = "32"
    """32-bit arithmetic, or mixed precision with bfloat16 (bf16) or float16 (16); losses are always 32-bit."""
    channels_last: bool = True
    """Whether pictures lie in memory with their channels last, which is faster, also on CPUs."""
    compile: bool | Literal["auto"] = "auto"
    """Whether the backbone is compiled, which takes minutes; `auto`: on CUDA from 10,000 steps on, which repay it."""
    sync_batchnorm: bool = False
    """Whether batch statistics are computed over all devices."""


class LogConfig(Config):
    """What is logged during training."""

    every: int = Field(50, ge=1)
    """Steps between two rows of metrics.csv."""
    to: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Further loggers, which must be installed: tensorboard, wandb, mlflow."""
    min_rank: float = Field(1.05, ge=0)
    """Effective rank of the embeddings below which a run, after its warm-up, stops as collapsed; 0 never stops it."""
    entropy: tuple[Share, Share] = (0.01, 0.999)
    """Bounds of a teacher's entropy over the batch and per image, beyond which a run stops; [0, 1] never stops it."""


class CheckpointConfig(Config):
    """What an interrupted run resumes from."""

    every: int = Field(1000, ge=1)
    """Steps between two checkpoints."""
    keep: int = Field(2, ge=1)
    """Number of the newest checkpoints that are kept."""
    at: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Further steps whose checkpoints are written and kept for good."""


class MonitorConfig(Config):
    """A nearest-neighbour accuracy that is measured during training; it does not influence the training."""

    every: int | None = Field(None, ge=1)
    """Steps between two measurements; null measures nothing."""
    split: str | None = None
    """Split whose labels are predicted from those learned from; neither one of those nor the final test split."""
    patches: int = Field(1000, ge=1)
    """Number of patches sampled from each of the two."""
    k: int = Field(20, ge=1)
    """Number of neighbours that vote."""

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
    map: MapConfig = MapConfig()
    objective: dict[str, Any] = {"name": "hidisc"}
    """The objective by its `name` (a file of `objectives/`) and that file's settings."""
    optim: OptimConfig = OptimConfig()
    compute: ComputeConfig = ComputeConfig()
    log: Annotated[LogConfig, Pace()] = LogConfig()
    checkpoint: Annotated[CheckpointConfig, Pace()] = CheckpointConfig()
    monitor: MonitorConfig = MonitorConfig()
    seed: int = Field(0, ge=0)
    """Seed of the weights, the batches and the views."""

    @model_validator(mode="after")
    def _reaches_its_checkpoints(self) -> "TrainConfig":
        beyond = [step for step in self.checkpoint.at if step > self.optim.steps]
        if beyond:
            raise ValueError(
                f"checkpoint.at = {list(self.checkpoint.at)} has step {beyond[0]:,}, but the training ends with "
                f"optim.steps = {self.optim.steps:,}. Leave it out, or train longer"
            )
        return self
