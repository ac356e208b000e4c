"""`hidisc demo`: a drawn cohort of slides, prepared; nothing of one's own is needed."""

import time
from pathlib import Path

from hidisc.settings.preparing import GridConfig, PrepareConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.build import Built, Say
from hidisc.verbs.prepare import prepare


def demo(
    out: Path, *, quick: bool = False, seed: int = 0, workers: int | None = None, say: Say = lambda _: None
) -> Built:
    """Draw slides of four diagnoses, cut them into patches, and say what is done and how long it takes."""
    started = time.monotonic()
    patients, slides = (8, 2) if quick else (72, 3)
    say(f"1/2  drawing {patients * slides} slides of {patients} patients with four diagnoses (seconds)")
    cohort = draw_cohort(out / "cohort", patients=patients, slides=slides, seed=seed)
    say(f"2/2  preparing them: tissue, blanks, Macenko stain normalisation ({cohort} -> {out / 'store'})")
    config = PrepareConfig(grid=GridConfig(mpp=0.5, size_px=48), seed=seed)
    built = prepare(cohort, out / "store", config, workers=workers, say=say)
    counts = built.summary()
    say(
        f"done in {time.monotonic() - started:.0f} s: {counts['patches']:,} patches of {counts['slides']} slides of "
        f"{counts['patients']} patients"
    )
    return built
