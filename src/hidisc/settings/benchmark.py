"""Settings of `hidisc benchmark`: a suite is a table of the paper as rows to train and claims to check."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from hidisc.ground.text import name_some
from hidisc.settings.config import Config, Pace
from hidisc.settings.evaluate import EvaluateConfig, FoldsConfig


class RowConfig(Config):
    """One row of the table: a training that is repeated for every seed."""

    name: str
    """Name of the row in tables."""
    recipe: str = ""
    """Recipe of `hidisc train`, with its layers: simclr+weak."""
    encoder: Literal["trained", "start", "colour"] = "trained"
    """What is judged: the trained encoder, the same before its first step, or the colour of patches alone."""
    changes: tuple[str, ...] = ()
    """Further settings as `--set` takes them: optim.learning_rate=0.01."""
    at: float | None = None
    """Position of the row on the suite's axis."""
    store: str = ""
    """Name of the store it uses, as given with `--store NAME=PATH`; empty means the first store."""
    published: tuple[str, ...] = ()
    """Names of the row in the paper's tables, if they differ."""

    @property
    def paper_names(self) -> tuple[str, ...]:
        """Its names in the paper's tables."""
        return self.published or (self.name,)


class ClaimConfig(Config):
    """A statement of the paper about two rows."""

    text: str
    """The statement in the paper's words, or nearly so."""
    better: str
    """Name of the row that is said to be better (with `expect: no better`, the one said not to be)."""
    than: str
    """Name of the row it is compared with."""
    level: str = "patch"
    """Level that the statement is about."""
    metric: str = "accuracy"
    """Metric that the statement is about."""
    expect: Literal["better", "no better"] = "better"
    """What the paper found."""


class ScaleConfig(Config):
    """What is put over every row at one scale of training; by default nothing, so that rows run as written."""

    recipe: str = ""
    """Recipe that is put over the row's own recipe, as b in `a+b`."""
    changes: tuple[str, ...] = ()
    """Settings that are put over both recipes."""
    time: Annotated[str, Pace()] = ""
    """Expected time, in words."""

    def describe(self, name: str) -> str:
        """What a scale of some name does to the rows, in words."""
        put = [layer for layer in (self.recipe, *self.changes) if layer]
        return f"--scale {name} puts {name_some(put)} over every row" if put else "every row as written"


class SuiteConfig(Config):
    """Settings of `hidisc benchmark SUITE`."""

    recipes: ClassVar[str] = "benchmark"
    title: str
    """Title of the page and of the tables."""
    paper: tuple[str, ...] = ()
    """The paper's tables to stand beside, by their labels in its source: main_srh_extended."""
    notes: tuple[str, ...] = ()
    """Sentences that a reader of the page should know."""
    axis: str | None = None
    """What `at` of the rows means; metrics are plotted over it."""
    rows: tuple[RowConfig, ...] = Field(min_length=1)
    """The methods of the table: each is trained once per seed."""
    claims: tuple[ClaimConfig, ...] = ()
    """Statements of the paper about two rows, each of which is checked."""
    seeds: int = Field(3, ge=1)
    """Number of trainings of every row, each with a seed of its own."""
    folds: FoldsConfig = FoldsConfig()
    samplings: int = Field(1, ge=1)
    """Number of evaluations of every training, each on another sample of patches; needs `per_slide`."""
    per_slide: int | None = Field(None, ge=1)
    """Number of patches per slide that are evaluated; null evaluates all."""
    evaluation_points: tuple[float, ...] = (1.0,)
    """Shares of a training after which it is evaluated; several of them give a curve."""
    floors: bool = True
    """Whether colour alone and the untrained encoder of the first row are judged beside the rows."""
    evaluate: EvaluateConfig = EvaluateConfig(probes=("knn",))
    small: ScaleConfig = ScaleConfig()
    """What `--scale small` puts over every row."""
    full: ScaleConfig = ScaleConfig(time="days on a GPU")
    """What `--scale paper` puts over every row."""

    @model_validator(mode="after")
    def _fits_together(self) -> "SuiteConfig":
        names = [row.name for row in self.rows]
        if len(set(names)) != len(names):
            raise ValueError("two rows have one name; name each once")
        untold = [row.name for row in self.rows if row.encoder != "colour" and not row.recipe]
        if untold:
            raise ValueError(f"the row {untold[0]!r} names no recipe of `hidisc train`")
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
