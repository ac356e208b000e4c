"""Settings of `hidisc evaluate`."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hidisc.settings.config import Config, Pace


class KnnConfig(Config):
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


class LinearConfig(Config):
    """Second probe: logistic regression on the embeddings."""

    patches: int = Field(20_000, ge=1)
    """Most patches of the bank it learns from, drawn alike of every patient."""
    penalties: tuple[float, ...] = Field((0.001, 0.01, 0.1, 1.0), min_length=1)
    """Inverse strengths to choose from, by folds of the bank's patients."""
    iterations: int = Field(200, ge=1)
    """Most steps of the solver."""


class MilConfig(Config):
    """Third probe: gated attention over the patches of a slide (Ilse et al., ICML 2018)."""

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


class BootstrapConfig(Config):
    """How far the numbers would move with other patients."""

    resamples: int = Field(2000, ge=0)
    """Draws of as many patients, with replacement; 0: no intervals."""
    interval: float = Field(0.95, gt=0, lt=1)
    """Share of the draws between the ends of an interval."""


class LeakageConfig(Config):
    """What counts as having been seen before."""

    similarity: float = Field(0.98, ge=0, le=1)
    """Correlation of two patients' patches, as a whole and in detail, from which they are one picture."""
    max_duplicates: float = Field(0.01, ge=0, le=1)
    """Share of query patches that may be pictures of the bank under another patient's name."""
    allow: Annotated[bool, Pace()] = False
    """Evaluate in spite of overlap; every table and page then says so (`--allow-leakage`)."""


class EvaluateConfig(Config):
    """Settings of `hidisc evaluate`."""

    recipes: ClassVar[str] = "evaluate"
    renamed: ClassVar[Mapping[str, str]] = {"opinions": "probes"}
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
    probes: tuple[Literal["knn", "linear", "mil"], ...] = ("knn", "linear", "mil")
    """The first one is what tables show first."""
    knn: KnnConfig = KnnConfig()
    linear: LinearConfig = LinearConfig()
    mil: MilConfig = MilConfig()
    bootstrap: BootstrapConfig = BootstrapConfig()
    leakage: LeakageConfig = LeakageConfig()
    seed: int = Field(0, ge=0)
    """Of resamples, samples and the second and third probes."""
