"""Settings of `hidisc evaluate`, and of cross-validation, which `hidisc benchmark` shares."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from hidisc.settings.config import Config, Pace


class FoldsConfig(Config):
    """Cross-validation: every patient is a test patient once, and the folds' predictions are pooled."""

    number: int = Field(0, ge=0)
    """Number of folds that the patients are assigned to (`--folds`); 0 uses the splits of the store instead."""
    by: Literal["patient", "site", "each-site"] = "patient"
    """What stays together: each patient, all patients of a site, or one whole site as each fold (any `number`)."""
    seed: int = Field(0, ge=0)
    """Seed of the assignment; a benchmark takes the seed of the training, so that every seed has other folds."""

    @property
    def are_used(self) -> bool:
        """Whether there is cross-validation at all."""
        return self.number > 0 or self.by == "each-site"

    @model_validator(mode="after")
    def _leaves_someone(self) -> "FoldsConfig":
        if self.number == 1:
            raise ValueError("number must be 2 or more, or 0 for none: one fold would leave no reference patients")
        return self


class KnnConfig(Config):
    """The paper's probe: the k nearest neighbours by cosine similarity vote."""

    k: int = Field(200, ge=1)
    """Number of neighbours that vote; if there are fewer reference patches, all of them do."""
    temperature: float = Field(0.07, gt=0)
    """Temperature of the vote: a neighbour weighs exp(similarity / temperature)."""
    second_softmax: bool = False
    """Whether a soft-max is applied to a patch's scores once more before averaging, as the public code does."""
    memory_gb: Annotated[float, Pace()] = Field(2.0, gt=0)
    """Most memory in GB that the search takes beside the embedding files; the bank may be larger than that."""
    keep: int = Field(8, ge=0, le=200)
    """Number of nearest neighbours of every patch that are stored, for the report."""


class LinearConfig(Config):
    """Linear probe: logistic regression on the embeddings."""

    patches: int = Field(20_000, ge=1)
    """Most reference patches that the probe learns from, sampled equally from all patients."""
    penalties: tuple[float, ...] = Field((0.001, 0.01, 0.1, 1.0), min_length=1)
    """Inverse regularisation strengths (C) to choose from, by cross-validation over the reference patients."""
    iterations: int = Field(200, ge=1)
    """Most iterations of the solver."""


class MilConfig(Config):
    """Attention probe: gated attention over the patches of a slide (Ilse et al., ICML 2018)."""

    hidden_dim: int = Field(128, ge=1)
    """Width of the attention network."""
    epochs: int = Field(40, ge=1)
    """Passes over the reference slides; the best epoch is chosen on a fifth of the reference patients."""
    learning_rate: float = Field(1e-3, gt=0)
    """Learning rate of AdamW."""
    weight_decay: float = Field(1e-3, ge=0)
    """Weight decay of AdamW."""
    patches: int = Field(512, ge=1)
    """Most patches of a slide that are seen in one step."""


class BootstrapConfig(Config):
    """Confidence intervals: how far the numbers would move with other patients."""

    resamples: int = Field(2000, ge=0)
    """Number of bootstrap resamples of the test patients, with replacement; 0 gives no intervals."""
    interval: float = Field(0.95, gt=0, lt=1)
    """Share of the resamples between the ends of an interval."""


class LeakageConfig(Config):
    """What counts as having been seen before."""

    detail: float = Field(0.8, ge=0.3, le=1)
    """Correlation that the detail of patches of two patients must reach, with 99.9 % certainty, to be one picture."""
    max_duplicates: float = Field(0.01, ge=0, le=1)
    """Largest share of test patches that may be pictures of the bank under another patient's name."""
    allow: Annotated[bool, Pace()] = False
    """Whether to evaluate in spite of overlap (`--allow-leakage`); every table and page then says so."""
    allow_circular: Annotated[bool, Pace()] = False
    """Whether to evaluate by names that follow the embeddings (`--allow-circular`); every page then says so."""


class EvaluateConfig(Config):
    """Settings of `hidisc evaluate`."""

    recipes: ClassVar[str] = "evaluate"
    bank: tuple[str, ...] = ("train",)
    """Splits of the reference patients, whose labels are known to the probes."""
    queries: tuple[str, ...] = ("test",)
    """Splits of the test patients, whose labels are predicted."""
    test_patients: tuple[str, ...] | None = None
    """Names of the test patients, all others being reference patients; null chooses both by their splits."""
    folds: FoldsConfig = FoldsConfig()
    label: str = "label"
    """Column of the patch table to predict; further columns of the cohort can be used too."""
    classes: tuple[str, ...] | None = None
    """Labels to distinguish, in the order of the tables; patches of other labels are left out. Null takes all."""
    positive: str | None = None
    """Class that sensitivity, AUROC and AUPRC refer to where there are two classes; null takes the last."""
    levels: tuple[str, ...] = ("patient", "slide", "patch")
    """Levels, coarse to fine, to which patch scores are averaged; the bootstrap resamples units of the first."""
    probes: tuple[Literal["knn", "linear", "mil"], ...] = ("knn", "linear", "mil")
    """Probes to run: knn, linear, mil. Tables show the first one first."""
    knn: KnnConfig = KnnConfig()
    linear: LinearConfig = LinearConfig()
    mil: MilConfig = MilConfig()
    bootstrap: BootstrapConfig = BootstrapConfig()
    leakage: LeakageConfig = LeakageConfig()
    floor: bool = True
    """Whether the colour of the patches alone is judged beside the encoder, by the same probes and patients."""
    audit: bool = True
    """Whether the shortcut audit is run as well, where the table has a site, scanner, batch or date column."""
    align: str | None = None
    """Column, such as site, whose differences are taken out of embeddings (ComBat, fitted on reference patients)."""
    seed: int = Field(0, ge=0)
    """Seed of the bootstrap resamples, of patch sampling and of the linear and attention probes."""
