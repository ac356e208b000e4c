"""Every setting, its default and its meaning; closed models, recipes (YAML) and `--set a.b=c` over them.

A setting that does not exist is refused with the nearest name that does, and every field is read somewhere
(`tests/test_config.py`), so a recipe can carry no dead key.
"""

import difflib
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hidisc.errors import UserError


class Closed(BaseModel):
    """A frozen model that refuses unknown keys and documents each field by the string under it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
    recipes: ClassVar[str] = "prepare"


class GridConfig(Closed):
    """Which squares are cut out of a slide."""

    mpp: float = Field(0.5, gt=0, le=100)
    """Micrometres a pixel of the stored patches; 0.5 is the paper's 20x."""
    size_px: int = Field(300, ge=8, le=4096)
    """Side of a patch."""
    stride_px: int | None = Field(None, ge=1)
    """Step from one patch to the next; null: the size, so that patches touch and do not overlap."""
    allow_upsampling: bool = False
    """Cut slides whose finest level is coarser than `mpp` (by more than 10 %) by inventing pixels."""


class TissueConfig(Closed):
    """Where on the thumbnail there is tissue."""

    thumbnail_mpp: float = Field(8.0, gt=0)
    """Micrometres a pixel of the stored thumbnail; small pictures get a finer one, about 1,024 px wide."""
    min_density: float = Field(0.02, ge=0)
    """Optical density below which a thumbnail pixel is always glass."""
    max_density: float = Field(0.06, ge=0)
    """Optical density above which it is always tissue; Otsu's threshold decides between the two."""
    skip_glass: bool = True
    """Do not read squares without a trace of tissue on the thumbnail; false reads and scores every square."""


class FilterConfig(Closed):
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


class StainConfig(Closed):
    """Stain normalisation of 8-bit RGB."""

    method: Literal["macenko", "none"] = "macenko"
    """Macenko's normalisation as in the paper, or none (SRH, fluorescence, imported patches)."""
    mode: Literal["slide", "patch"] = "slide"
    """Stains estimated once a slide from sampled tissue, or for every patch on its own."""
    reference: str = "published"
    """`published`: the fixed reference stains; or the path of a reference picture to look like."""
    sample_patches: int = Field(64, ge=1, le=512)
    """Patches a slide whose pixels the estimate is made from."""


class PixelsConfig(Closed):
    """How a patch is stored."""

    codec: Literal["jpeg", "png", "raw"] = "jpeg"
    """jpeg (8 bits, 1 or 3 channels, 4:4:4), png (lossless) or raw (largest, quickest to read)."""
    quality: int = Field(90, ge=1, le=100)
    """JPEG quality."""


class SplitConfig(Closed):
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


class PrepareConfig(Closed):
    """Settings of `hidisc prepare`."""

    grid: GridConfig = GridConfig()
    tissue: TissueConfig = TissueConfig()
    filter: FilterConfig = FilterConfig()
    stain: StainConfig = StainConfig()
    pixels: PixelsConfig = PixelsConfig()
    split: SplitConfig = SplitConfig()
    label_level: Literal["patient", "slide"] = "patient"
    """`slide` allows the slides of a patient to have different labels."""
    assume_mpp: float | None = Field(None, gt=0)
    """Micrometres a pixel of slides whose file and cohort row do not say; null: they are refused."""
    seed: int = Field(0, ge=0)
    """Of the split and of the patches that stains are estimated from."""


class ImportConfig(Closed):
    """Settings of `hidisc import`: patches that exist already as files."""

    filter: FilterConfig = FilterConfig(min_pixel_std=0)
    pixels: PixelsConfig = PixelsConfig(codec="png")
    split: SplitConfig = SplitConfig()
    label_level: Literal["patient", "slide", "patch"] = "patient"
    """`slide` or `patch` allows labels to differ within a patient or slide."""
    resize_px: int | None = Field(None, ge=8, le=4096)
    """Bring every patch to this side; null: all must have the same size already."""
    mpp: float | None = Field(None, gt=0)
    """Micrometres a pixel, when known; only recorded."""
    seed: int = Field(0, ge=0)
    """Of the split."""


class DataConfig(Closed):
    """Which patches are learned from and how they are read."""

    splits: tuple[str, ...] = ("train",)
    """Sides of the store to learn from; patients of the others are never seen."""
    threads: int | None = Field(None, ge=1, le=64)
    """Threads that read and decode ahead of training; null: one a core, at most 8."""
    ahead: int = Field(4, ge=1, le=64)
    """Batches read ahead; memory grows with it, one batch of stored patches each."""
    max_bad_share: float = Field(0.01, ge=0, le=1)
    """Share of unreadable patches (each is replaced by another of its slide) beyond which training stops."""


class BatchConfig(Closed):
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


class ViewsConfig(Closed):
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


class HeadConfig(Closed):
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


class ModelConfig(Closed):
    """The encoder."""

    backbone: str = "resnet50"
    """Any timm name, or `hf-hub:owner/name`."""
    options: dict[str, Any] = {}
    """Further arguments of the timm model: --set 'model.options={drop_path_rate: 0.1}'."""
    weights: str | None = None
    """Where the backbone starts: null random, `hub` the weights timm downloads, or a .safetensors file."""
    head: HeadConfig = HeadConfig()


class OptimConfig(Closed):
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


class ComputeConfig(Closed):
    """How the arithmetic is done."""

    precision: Annotated[Literal["32", "bf16", "16"], BeforeValidator(str)] = "32"
    """32-bit, or mixed with bfloat16 or float16; losses are always 32-bit."""
    channels_last: bool = True
    """Memory layout; measured quicker, also on CPUs."""
    compile: bool = False
    """torch.compile of the encoder: minutes to begin, then 10-20 % quicker."""
    sync_batchnorm: bool = False
    """Batch statistics over all devices."""


class LogConfig(Closed):
    """What is written down on the way."""

    every: int = Field(50, ge=1)
    """Steps between rows of metrics.csv."""
    to: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Further loggers, when installed."""
    min_rank: float = Field(1.05, ge=0)
    """Effective rank of the embeddings below which a run, after its warm-up, is stopped as collapsed; 0: never."""


class CheckpointConfig(Closed):
    """What a killed run resumes from."""

    every: int = Field(1000, ge=1)
    """Steps between checkpoints."""
    keep: int = Field(2, ge=1)
    """How many of the newest stay."""


class MonitorConfig(Closed):
    """A look at how well nearest neighbours tell the labels while training; changes nothing in it."""

    every: int | None = Field(None, ge=1)
    """Steps between looks; null: none."""
    split: str = "test"
    """Side whose labels are guessed, from those learned from; for tuning, a side that is not the final test."""
    patches: int = Field(1000, ge=1)
    """Patches of each side."""
    k: int = Field(20, ge=1)
    """Neighbours."""


class TrainConfig(Closed):
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
    log: LogConfig = LogConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    monitor: MonitorConfig = MonitorConfig()
    seed: int = Field(0, ge=0)
    """Of the weights, the batches and the views."""


Config = TypeVar("Config", bound=Closed)
SHELVES = ("prepare", "train")
"""The folders of `recipes/`, a verb each."""
_WHOLE = ("draw", "weights", "fractions")
"""Settings that are a list of names with numbers: a recipe replaces them, it does not add to them."""


def load_config(model: type[Config], recipe: str | None = None, changes: Sequence[str] = ()) -> Config:
    """Defaults, then the recipes (shipped names or YAML files, `a+b`: b over a), then `a.b=c` changes."""
    settings: dict[str, Any] = {}
    for name in _layers(recipe):
        _merge(settings, read_recipe(name, model.recipes))
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise UserError(f"--set {change!r} has no '='. Write it as --set {name.strip() or 'a.b'}=VALUE.")
        _put(settings, name.strip(), _parse(value))
    return validate(model, settings, f"recipe {recipe!r}" if recipe and not changes else "settings")


def validate(model: type[Config], settings: Mapping[str, Any], source: str) -> Config:
    """The settings as a config; what is wrong with them is said, all at once, under the name of their `source`."""
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise UserError("\n  ".join([f"{source}:", *_explain(error, model)])) from error


def read_recipe(name: str, kind: str) -> dict[str, Any]:
    """The settings of a recipe shipped with hidisc for a verb, or of a YAML file of the user's."""
    if name in list_recipes(kind):
        text = (_shelf(kind) / f"{name}.yaml").read_bytes()
    elif Path(name).is_file():
        text = Path(name).read_bytes()
    else:
        other = [verb for verb in SHELVES if name in list_recipes(verb)]
        hint = f" It is a recipe of `hidisc {other[0]}`." if other else ""
        valid = ", ".join(list_recipes(kind))
        raise UserError(
            f"recipe {name!r} is neither a file nor one of {valid}. Give one of these or a YAML file.{hint}"
        )
    try:
        settings = yaml.safe_load(text.decode("utf-8")) or {}
    except UnicodeDecodeError as error:
        raise UserError(f"recipe {name!r} is not UTF-8 text. Save it as UTF-8.") from error
    except yaml.YAMLError as error:
        raise UserError(f"recipe {name!r} is not valid YAML: {error}") from error
    if not isinstance(settings, dict):
        raise UserError(f"recipe {name!r} is not a list of settings. Write `grid:` and `  mpp: 0.5` below it.")
    return settings


def list_recipes(kind: str) -> list[str]:
    """Names of the recipes shipped with hidisc for a verb."""
    return sorted(Path(file.name).stem for file in _shelf(kind).iterdir() if file.name.endswith(".yaml"))


def _shelf(kind: str) -> Traversable:
    return resources.files("hidisc.recipes") / kind


def _layers(recipe: str | None) -> list[str]:
    """`a+b` as two recipes, unless there is a file of that name."""
    if not recipe:
        return []
    return [recipe] if Path(recipe).is_file() else [name.strip() for name in recipe.split("+")]


def _merge(settings: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Put one recipe's settings over another's, group by group."""
    for key, value in over.items():
        below = settings.get(key)
        if isinstance(below, dict) and isinstance(value, Mapping) and key not in _WHOLE:
            _merge(below, value)
        else:
            settings[key] = value


def to_yaml(config: BaseModel) -> str:
    """A config with every value spelled out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Settings that differ between two dumped configs, as `a.b: 1 -> 2`."""
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {a} -> {b}")
    return found


def _parse(value: str) -> Any:
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        return value


def _put(settings: dict[str, Any], name: str, value: Any) -> None:
    *parents, last = name.split(".")
    for parent in parents:
        below = settings[parent] = {} if settings.get(parent) is None else settings[parent]
        if not isinstance(below, dict):
            raise UserError(f"--set {name}: {parent!r} is a single value, not a group of settings.")
        settings = below
    settings[last] = value


def _explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Each pydantic complaint as a sentence that names the setting, its value and what is valid."""
    lines = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"]) or "settings"
        if item["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, setting_names(model), n=1, cutoff=0.5)
            meant = f" Did you mean {close[0]!r}?" if close else f" Settings are: {', '.join(setting_names(model))}."
            lines.append(f"{name!r} is not a setting.{meant}")
        else:
            said = item["msg"].removeprefix("Value error, ")
            lines.append(f"{name} = {item['input']!r}: {said[0].lower()}{said[1:]}.")
    return lines


def setting_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every setting of a config by its dotted name."""
    names = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += setting_names(kind, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names
