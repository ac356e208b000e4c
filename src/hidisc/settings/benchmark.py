"""Settings of `hidisc benchmark`: a suite is a table of the paper as rows to train and claims to check."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from hidisc.settings.config import Config
from hidisc.settings.evaluate import EvaluateConfig


class RowConfig(Config):
    """One row of the table: a training, repeated for every seed."""

    name: str
    """What tables call it."""
    recipe: str
    """Of `hidisc train`, layers and all: simclr+weak."""
    changes: tuple[str, ...] = ()
    """Further settings, as `--set` takes them: optim.learning_rate=0.01."""
    at: float | None = None
    """Where it stands on the suite's axis."""
    store: str = ""
    """Which store it learns from and is judged on, by the name given with `--store NAME=PATH`; empty: the first."""
    published: tuple[str, ...] = ()
    """What the paper's tables call it, where that is another name."""

    @property
    def paper_names(self) -> tuple[str, ...]:
        """Its names in the paper's tables."""
        return self.published or (self.name,)


class ClaimConfig(Config):
    """A sentence of the paper about two rows."""

    text: str
    """In the paper's words, or near them."""
    better: str
    """Name of the row said to be better; with `expect: no better`, the one said not to be."""
    than: str
    """Name of the other row."""
    level: str = "patch"
    """Level it is said of."""
    metric: str = "accuracy"
    """Metric it is said of."""
    expect: Literal["better", "no better"] = "better"
    """What the paper found."""


class ScaleConfig(Config):
    """What is put over every row at a scale."""

    recipe: str = ""
    """Put over the row's own recipe, as in `a+b`."""
    changes: tuple[str, ...] = ()
    """Over both."""
    time: str = ""
    """What to expect, in words."""


class SuiteConfig(Config):
    """Settings of `hidisc benchmark SUITE`."""

    recipes: ClassVar[str] = "benchmark"
    renamed: ClassVar[Mapping[str, str]] = {"looks": "evaluation_points"}
    title: str
    """Of the page and the tables."""
    paper: tuple[str, ...] = ()
    """The paper's tables to stand beside, by their labels: main_srh_extended."""
    notes: tuple[str, ...] = ()
    """What to mind when reading it, a sentence each."""
    axis: str | None = None
    """What `at` of the rows means; a plot over it is drawn."""
    rows: tuple[RowConfig, ...] = Field(min_length=1)
    """The methods of the table: each is trained once per seed."""
    claims: tuple[ClaimConfig, ...] = ()
    """Statements of the paper about two rows, each of which is checked."""
    seeds: int = Field(3, ge=1)
    """Trainings of every row."""
    samplings: int = Field(1, ge=1)
    """Evaluations of every training, each on another sample of patches; needs `per_slide`."""
    per_slide: int | None = Field(None, ge=1)
    """Patches of a slide that are judged; null: all."""
    evaluation_points: tuple[float, ...] = (1.0,)
    """Shares of a training after which it is judged: a curve where there are several."""
    evaluate: EvaluateConfig = EvaluateConfig(probes=("knn",))
    small: ScaleConfig = ScaleConfig(recipe="laptop")
    """What `--scale small` puts over every row."""
    full: ScaleConfig = ScaleConfig(time="days on a GPU")
    """What `--scale paper` puts over every row."""

    @model_validator(mode="after")
    def _fits_together(self) -> "SuiteConfig":
        names = [row.name for row in self.rows]
        if len(set(names)) != len(names):
            raise ValueError("two rows have one name; name each once")
        unknown = [name for claim in self.claims for name in (claim.better, claim.than) if name not in names]
        if unknown:
            raise ValueError(f"a claim speaks of {unknown[0]!r}, which is no row")
        if self.samplings > 1 and self.per_slide is None:
            raise ValueError("samplings need per_slide: all patches of a slide are the same every time")
        points = self.evaluation_points
        if not all(0 < point <= 1 for point in points) or sorted(set(points)) != list(points):
            raise ValueError("evaluation_points must rise and lie above 0 and up to 1: evaluation_points: [0.5, 1.0]")
        if points[-1:] != (1.0,):
            raise ValueError("the last of evaluation_points must be 1.0, the end of the training")
        return self
