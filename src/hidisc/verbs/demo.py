"""`hidisc demo`: from drawn slides to scores of two encoders; no slides of your own are needed."""

import time
from dataclasses import dataclass
from pathlib import Path

from hidisc.evaluation.scores import Scores
from hidisc.ground.progress import Say, ignore
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import GridConfig, PrepareConfig, SplitConfig
from hidisc.settings.report import ReportConfig
from hidisc.settings.train import TrainConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.prepare import prepare
from hidisc.verbs.report import report

METHODS = {"HiDisc-Patient": "hidisc-patient", "SimCLR": "simclr"}
"""What tables call the two recipes that are compared."""


@dataclass(frozen=True)
class Size:
    """How much is drawn and trained."""

    patients: int
    slides: int
    steps: int
    training: str
    """How long one training takes on two cores."""
    all: str
    """How long all of it takes."""


WHOLE, QUICK = Size(72, 3, 1200, "a minute", "4 minutes"), Size(24, 2, 30, "seconds", "a minute")


def demo(out: Path, *, quick: bool = False, seed: int = 0, workers: int | None = None, say: Say = ignore) -> Path:
    """Draw slides, prepare them, train two encoders on equally many images with flips alone, evaluate them; the report.

    Every step is a verb, and goes on where it was when the demo is called again.
    """
    size, began = QUICK if quick else WHOLE, time.monotonic()
    page = out / "report.html"
    say(f"hidisc demo: about {size.all} on two cores. Stop it at any moment; the same command goes on.\n")
    say(f"1/5  drawing {size.patients * size.slides} slides of {size.patients} patients with four diagnoses (seconds)")
    cohort = draw_cohort(out / "cohort", patients=size.patients, slides=size.slides, seed=seed)
    say("2/5  preparing them: tissue, blanks, stain normalisation, a quarter of the patients held out (half a minute)")
    config = PrepareConfig(
        grid=GridConfig(mpp=0.5, size_px=48), split=SplitConfig(fractions={"train": 0.75, "test": 0.25}), seed=seed
    )
    prepare(cohort, out / "store", config, workers=workers, say=say)
    from hidisc.verbs.embed import embed  # torch takes seconds to load, and the demo begins at once
    from hidisc.verbs.evaluate import evaluate
    from hidisc.verbs.train import train

    scores = []
    for number, (name, recipe) in enumerate(METHODS.items(), 3):
        say(f"{number}/5  training {name} without labels, {size.steps:,} steps of 64 images ({size.training})")
        folder = out / recipe
        settings = [f"seed={seed}", f"optim.steps={size.steps}"]
        train(out / "store", folder / "run", load_config(TrainConfig, f"{recipe}+weak+laptop", settings), say=say)
        embed(out / "store", str(folder / "run"), folder / "embeddings", name=name)
        scores.append(evaluate(folder / "embeddings", folder / "scores", EvaluateConfig(seed=seed)))
    say("5/5  writing the report (half a minute)")
    report([score.path for score in scores], page, ReportConfig(title="The demo: HiDisc and SimCLR on drawn tissue"))
    minutes = (time.monotonic() - began) / 60
    asked = "one training each, patients that neither has seen, 200 nearest neighbours, chance 25 %"
    say(f"\nDone in {minutes:.1f} min; {asked}:\n")
    say(_table(scores))
    return page


def _table(scores: list[Scores]) -> str:
    """Accuracy at every level with its interval over patients."""
    lines = [f"  {'accuracy in %':<16}{'patch':<22}{'slide':<22}{'patient':<22}"]
    for score in scores:
        cells = [row.metrics["accuracy"].percent() for row in score.info.list_levels()]
        lines.append(f"  {score.info.model.name:<16}" + "".join(f"{cell:<22}" for cell in cells))
    return "\n".join(lines)
