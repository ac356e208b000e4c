"""Floors: the task of an encoder with other vectors in place of its own, such as the colour of the patches alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings, find_rows_in_store
from hidisc.evaluation.compare import compare
from hidisc.evaluation.metrics import Ints
from hidisc.evaluation.predictions import ENCODER, Predictions, at_rows
from hidisc.evaluation.probes.folds import sample_per_patient
from hidisc.evaluation.scores import Floor
from hidisc.evaluation.task import LabelledPatches, Task, group
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.patches.store import PatchError, as_input
from hidisc.settings.evaluate import EvaluateConfig

_MOST = 20_000
"""Most patches whose colour is measured, sampled evenly over slides: a minute of reading at most."""


@dataclass(frozen=True)
class FloorVectors:
    """The vectors of a floor for some rows of the embeddings that it stands beside."""

    subject: str
    rows: Ints
    """(n,) rows of the embeddings, ascending."""
    vectors: NDArray[np.float32]
    """(n, D)."""

    def exchange(self, task: Task) -> Task:
        """The same task with these vectors: bank and queries lose the patches that have none here, and nothing else."""
        return replace(task, bank=self._exchange(task.bank), queries=self._exchange(task.queries))

    def _exchange(self, patches: LabelledPatches) -> LabelledPatches:
        chosen = patches.choose(np.isin(patches.rows, self.rows))
        return replace(chosen, exchanged=self.vectors[np.searchsorted(self.rows, chosen.rows)])


def measure_colour(embeddings: Embeddings, config: EvaluateConfig) -> FloorVectors | None:
    """The colour of the patches of some embeddings; None where their store is gone or has changed.

    Of more than 20,000 patches, a sample even over slides; where places are judged, whole places are drawn. Memory: the
    rows of the sample and as many vectors of twice the number of channels.
    """
    store = embeddings.open_store()
    if store is None:
        return None
    import torch

    from hidisc.embeddings.colour import fit_colour

    sample = _sample(embeddings, config)
    rows = find_rows_in_store(embeddings, sample, store)
    colour, vectors = fit_colour(store, rows), np.zeros((len(rows), 2 * store.input_channels), np.float32)
    is_read = np.zeros(len(rows), bool)
    for number, row in enumerate(rows):
        try:
            pixels = torch.from_numpy(as_input(store.read(int(row)), store.info.input)).permute(2, 0, 1)
        except PatchError:  # `embed` has left it out and said so, or it was damaged since
            continue
        vectors[number] = colour(pixels[None])[0].numpy()
        is_read[number] = True
    return FloorVectors("colour", sample[is_read], vectors[is_read])


def _sample(embeddings: Embeddings, config: EvaluateConfig) -> Ints:
    """Rows (n,) of the embeddings, ascending."""
    table, rng = embeddings.table, make_rng(config.seed, Purpose.FLOOR_PATCHES)
    if config.places is None or "place" not in table.names or len(table) <= _MOST:
        return sample_per_patient(table.codes("slide")[0].astype(np.int64), _MOST, rng)
    places = group([table.codes(level)[0] for level in ("patient", "slide", "place")])
    slides = table.codes("slide")[0][places.first].astype(np.int64)
    drawn = sample_per_patient(slides, max(1, int(_MOST / places.counts.mean())), rng)
    return np.flatnonzero(np.isin(places.of_row, drawn))


def _compare(
    subject: str, encoder: Sequence[Predictions], floor: Sequence[Predictions], patches: int, config: EvaluateConfig
) -> Floor:
    """How far an encoder is ahead of a floor by the first probe, from the predictions of both at every level.

    Where the floor has fewer patches than the encoder, both are compared on the floor's.
    """
    ours, theirs = list(encoder), {level.level: level for level in floor}
    if ours and "patch" in theirs and len(theirs["patch"]) < len(ours[0]):
        ours = at_rows(ours, theirs["patch"].units["row"], config.knn.second_softmax and ours[0].key.probe == "knn")
    ahead = {}
    for predictions in ours:
        if predictions.level in theirs:
            found = compare([[predictions]], [[theirs[predictions.level]]], config.bootstrap, config.seed)
            ahead[predictions.level] = {metric: difference.as_value() for metric, difference in found.items()}
    return Floor(subject=subject, patches=patches, ahead=ahead)


def compare_floors(
    predictions: Iterable[Predictions], sizes: Mapping[str, int], config: EvaluateConfig
) -> tuple[Floor, ...]:
    """The encoder beside each of its floors, by the first probe; `sizes`: patches of every subject."""
    levels: dict[str, list[Predictions]] = {}
    for found in predictions:
        if found.key.scale is None and found.key.probe == config.probes[0]:
            levels.setdefault(found.key.subject, []).append(found)
    return tuple(
        _compare(subject, levels.get(ENCODER, []), levels.get(subject, []), patches, config)
        for subject, patches in sizes.items()
        if subject != ENCODER
    )
