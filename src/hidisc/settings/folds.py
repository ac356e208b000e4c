"""Settings of cross-validation, which `hidisc evaluate` and `hidisc benchmark` share."""

from typing import Literal

from pydantic import Field, model_validator

from hidisc.settings.config import Config


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
