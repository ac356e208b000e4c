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
from hidisc.evaluation.task import Task
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

    def choose(self, task: Task) -> Task:
        """The task without the patches, of bank and queries, that have no such vector."""
        bank, queries = (patches.choose(np.isin(patches.rows, self.rows)) for patches in (task.bank, task.queries))
        return replace(task, bank=bank, queries=queries)

    def exchange(self, task: Task) -> Task:
        """These patches of the task with these vectors in place of the encoder's; nothing else differs."""
        chosen = self.choose(task)
        bank, queries = (
            replace(patches, exchanged=self.vectors[np.searchsorted(self.rows, patches.rows)])
            for patches in (chosen.bank, chosen.queries)
        )
        return replace(task, bank=bank, queries=queries)


def measure_colour(
    embeddings: Embeddings, store: PatchStore, config: EvaluateConfig
) -> tuple[Ints, NDArray[np.float32]]:
    """Rows (n,) of some embeddings, and the colour (n, 2 C) of their patches: mean and deviation of each channel.

    Of more than 20,000 patches, a sample even over slides. Memory: the rows of the sample and as many vectors.
    """
    import torch

    from hidisc.embeddings.colour import fit_colour

    slides = embeddings.table.codes("slide")[0].astype(np.int64)
    sample = sample_per_patient(slides, _MOST, make_rng(config.seed, Purpose.FLOOR_PATCHES))
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
