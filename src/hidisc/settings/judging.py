"""Settings of `hidisc embed`, `hidisc evaluate` and `hidisc report`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from hidisc.config import Closed, Pace


class ForeignConfig(Closed):
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


class EmbedConfig(Closed):
    """Settings of `hidisc embed`."""

    recipes: ClassVar[str] = "embed"
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
    ahead: Annotated[int, Pace()] = Field(4, ge=1, le=64)
    """Batches read ahead; memory grows with it."""
    max_bad_share: Annotated[float, Pace()] = Field(0.01, ge=0, le=1)
    """Share of unreadable patches (left out, and counted) beyond which embedding stops."""
    model: ForeignConfig = ForeignConfig()


class KnnConfig(Closed):
    """The paper's verdict: k nearest neighbours by cosine similarity."""

    k: int = Field(200, ge=1)
    """Neighbours; a smaller bank is used whole, and that is said."""
    temperature: float = Field(0.07, gt=0)
    """A neighbour weighs exp(similarity / temperature)."""
    second_softmax: bool = False
    """Soft-max of a patch's scores once more before averaging, as the public code does."""
    memory_gb: Annotated[float, Pace()] = Field(2.0, gt=0)
    """Most memory the search takes beside the embeddings' files; the bank may be larger."""
    keep: int = Field(8, ge=0, le=200)
    """Nearest neighbours of every patch that are written down, for the report's sheets."""


class LinearConfig(Closed):
    """Second opinion: logistic regression on the embeddings."""

    patches: int = Field(20_000, ge=1)
    """Most patches of the bank it learns from, drawn alike of every patient."""
    penalties: tuple[float, ...] = Field((0.001, 0.01, 0.1, 1.0), min_length=1)
    """Inverse strengths to choose from, by folds of the bank's patients."""
    iterations: int = Field(200, ge=1)
    """Most steps of the solver."""


class MilConfig(Closed):
    """Third opinion: gated attention over the patches of a slide (Ilse et al., ICML 2018)."""

    hidden_dim: int = Field(128, ge=1)
    """Width of the attention."""
    epochs: int = Field(40, ge=1)
    """Passes over the bank's slides; the best of them by a fifth of the bank's patients is taken."""
    learning_rate: float = Field(1e-3, gt=0)
    """Adam's."""
    weight_decay: float = Field(1e-3, ge=0)
    """Adam's, decoupled."""
    patches: int = Field(512, ge=1)
    """Most patches of a slide seen in a step."""


class BootstrapConfig(Closed):
    """How far the numbers would move with other patients."""

    resamples: int = Field(2000, ge=0)
    """Draws of as many patients, with replacement; 0: no intervals."""
    interval: float = Field(0.95, gt=0, lt=1)
    """Share of the draws between the ends of an interval."""


class LeakageConfig(Closed):
    """What counts as having been seen before."""

    similarity: float = Field(0.98, ge=0, le=1)
    """Correlation of two patients' patches, as a whole and in detail, from which they are one picture."""
    max_duplicates: float = Field(0.01, ge=0, le=1)
    """Share of query patches that may be pictures of the bank under another patient's name."""
    allow: Annotated[bool, Pace()] = False
    """Evaluate in spite of overlap; every table and page then says so (`--allow-leakage`)."""


class EvaluateConfig(Closed):
    """Settings of `hidisc evaluate`."""

    recipes: ClassVar[str] = "evaluate"
    bank: tuple[str, ...] = ("train",)
    """Sides whose labels are known."""
    queries: tuple[str, ...] = ("test",)
    """Sides whose labels are guessed."""
    label: str = "label"
    """Column of the patch table to guess; a column of your own table works too."""
    classes: tuple[str, ...] | None = None
    """Labels to tell apart, in the order to show them; patches of others are left out. Null: all there are."""
    positive: str | None = None
    """Of two classes, the one that sensitivity, AUROC and AUPRC are about; null: the last."""
    levels: tuple[str, ...] = ("patient", "slide", "patch")
    """Scores of patches are averaged to each; from coarse to fine. The first is what is drawn in the bootstrap."""
    opinions: tuple[Literal["knn", "linear", "mil"], ...] = ("knn", "linear", "mil")
    """The first one is what tables show first."""
    knn: KnnConfig = KnnConfig()
    linear: LinearConfig = LinearConfig()
    mil: MilConfig = MilConfig()
    bootstrap: BootstrapConfig = BootstrapConfig()
    leakage: LeakageConfig = LeakageConfig()
    seed: int = Field(0, ge=0)
    """Of resamples, samples and the second and third opinions."""


class ReportConfig(Closed):
    """Settings of `hidisc report`."""

    title: str = "How good is the encoder?"
    """At the top of the page."""
    points: int = Field(3000, ge=10)
    """Patches on the map (t-SNE), drawn at random of the queries."""
    perplexity: float = Field(30.0, gt=1)
    """Of the map: about how many neighbours a patch minds."""
    picture_px: int = Field(48, ge=16, le=256)
    """Side of the pictures shown when a point is touched; the page grows with it."""
    sheet_rows: int = Field(6, ge=0, le=50)
    """Patches on the sheet of nearest neighbours, of the right ones and of the wrong ones each."""
    seed: int = Field(0, ge=0)
    """Of the points drawn and of the map."""
