"""The floor of an evaluation: what the colour of the patches alone predicts, by the same patients and probes."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.compare import compare
from hidisc.evaluation.duplicates import store_rows
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.probes.folds import sample_per_patient
from hidisc.evaluation.scores import ProbeScores, Value, predictions_file
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.models.card import NOTHING
from hidisc.patches.store import PatchError, as_input
from hidisc.settings.evaluate import EvaluateConfig

_MOST = 20_000
"""Most patches whose colour is measured, sampled evenly over slides: a minute of reading at most."""


def colour_of(embeddings: Embeddings, seed: int) -> Embeddings | None:
    """Some of the patches with their colour in place of their vectors; None where their store is gone or has changed.

    Memory: 20,000 rows of the table and as many vectors of twice the number of channels.
    """
    store = embeddings.open_store()
    if store is None:
        return None
    import torch  # here: the page of a benchmark compares with floors as well, and measures none

    from hidisc.embeddings.colour import COLOUR, fit_colour

    slides = embeddings.table.codes("slide")[0].astype(np.int64)
    sample = sample_per_patient(slides, _MOST, make_rng(seed, Purpose.FLOOR_PATCHES))
    rows = store_rows(embeddings, sample, store)
    colour, vectors, is_read = fit_colour(store, rows), np.zeros((len(rows), 2 * store.input_channels), np.float32), []
    for number, row in enumerate(rows):
        try:
            pixels = torch.from_numpy(as_input(store.read(int(row)), store.info.input)).permute(2, 0, 1)
        except PatchError:  # `embed` has left it out and said so, or it was damaged since
            continue
        vectors[number] = colour(pixels[None])[0].numpy()
        is_read.append(number)
    card = embeddings.info.model.model_copy(
        update={"name": COLOUR, "kind": "colour", "checksum": COLOUR, "group": COLOUR, "seed": None, "history": NOTHING}
    )
    info = embeddings.info.model_copy(update={"model": card})
    return replace(embeddings, info=info, table=embeddings.table.select(sample[is_read]), vectors=vectors[is_read])


def compare_with_floor(
    out: Path, config: EvaluateConfig, probe: ProbeScores, positive: int
) -> dict[str, dict[str, Value]]:
    """Level: metric: how much better the encoder is than colour alone, from the predictions that `out` has of both."""
    found = {}
    for level in probe.levels:
        ours, theirs = (
            Predictions.load(out / predictions_file(probe.name, level.level, probe.name, of_floor), level.level)
            for of_floor in (False, True)
        )
        differences = compare([[ours]], [[theirs]], positive, config.bootstrap, config.seed)
        found[level.level] = {metric: difference.as_value() for metric, difference in differences.items()}
    return found
