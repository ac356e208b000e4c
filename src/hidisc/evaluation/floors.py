"""Floors: subjects that an encoder must beat, such as the colour of the patches alone. A floor is declared once, here.

A floor is the task of the encoder with other vectors in place of the encoder's own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings, find_rows_in_store
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.metrics import Ints
from hidisc.evaluation.probes.folds import sample_per_patient
from hidisc.evaluation.task import LabelledPatches, Task, group
from hidisc.ground.progress import Progress
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.patches.store import PatchError, PatchStore, as_input
from hidisc.settings.evaluate import EvaluateConfig

_MOST = 20_000
"""Most patches whose colour is measured, sampled evenly over slides: a minute of reading at most."""


@dataclass(frozen=True)
class FloorVectors:
    """The vectors of a floor for some rows of the encoder's embeddings."""

    subject: str
    rows: Ints
    """(n,) rows of the embeddings, ascending."""
    vectors: NDArray[np.float32]
    """(n, D)."""

    def exchange(self, task: Task) -> Task:
        """The same task with these vectors: bank and queries lose the patches without such a vector, nothing else."""
        return replace(task, bank=self._exchange(task.bank), queries=self._exchange(task.queries))

    def _exchange(self, patches: LabelledPatches) -> LabelledPatches:
        chosen = patches.choose(np.isin(patches.rows, self.rows))
        return replace(chosen, exchanged=self.vectors[np.searchsorted(self.rows, chosen.rows)])


def measure_colour(
    embeddings: Embeddings, store: PatchStore, config: EvaluateConfig
) -> tuple[Ints, NDArray[np.float32]]:
    """Rows (n,) of some embeddings, and the colour (n, 2 C) of their patches: mean and deviation of each channel.

    Of more than 20,000 patches, a sample even over slides; where places are judged, whole places are drawn. Memory: the
    rows of the sample and as many vectors.
    """
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
    return sample[is_read], vectors[is_read]


def _sample(embeddings: Embeddings, config: EvaluateConfig) -> Ints:
    """Rows (n,) of the embeddings, ascending."""
    table, rng = embeddings.table, make_rng(config.seed, Purpose.FLOOR_PATCHES)
    if config.places is None or "place" not in table.names or len(table) <= _MOST:
        return sample_per_patient(table.codes("slide")[0].astype(np.int64), _MOST, rng)
    places = group([table.codes(level)[0] for level in ("patient", "slide", "place")])
    slides = table.codes("slide")[0][places.first].astype(np.int64)
    drawn = sample_per_patient(slides, max(1, int(_MOST / places.counts.mean())), rng)
    return np.flatnonzero(np.isin(places.of_row, drawn))


@dataclass(frozen=True)
class FloorSubject:
    """A subject that stands beside the encoder."""

    key: str
    """Its name in the table of a judgement, and the folder of its predictions."""
    title: str
    """Its name in sentences."""
    measured: str
    """What is measured, in words."""
    measure: Callable[[Embeddings, PatchStore, EvaluateConfig], tuple[Ints, NDArray[np.float32]]]
    """Rows (n,) of the embeddings, ascending, and their vectors (n, D), from the store of the patches."""


FLOORS = {
    floor.key: floor for floor in (FloorSubject("colour", "colour alone", "the colour of the patches", measure_colour),)
}
"""Every floor by its key; the endpoint says which of them apply."""


def measure_floors(
    embeddings: Embeddings, endpoint: Classes, config: EvaluateConfig, progress: Progress
) -> list[FloorVectors]:
    """The floors of an endpoint, as vectors of the patches of some embeddings; a note where they cannot be measured."""
    measured = []
    for key in endpoint.floors if config.floor else ():
        floor = FLOORS[key]
        if embeddings.info.store is None:  # there are no pictures; the check for near-duplicates says so
            continue
        progress.say(f"measuring {floor.measured}, the floor that an encoder must beat ...")
        store = embeddings.open_store()
        if store is None:
            progress.say(f"note: {floor.title} is not judged beside it: {embeddings.why_no_pictures}")
        else:
            measured.append(FloorVectors(key, *floor.measure(embeddings, store, config)))
    return measured
