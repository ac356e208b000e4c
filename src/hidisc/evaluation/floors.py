"""Floors: subjects that an encoder must beat, such as the colour of the patches alone. A floor is declared once, here.

A floor is the task of the encoder with other vectors in place of the encoder's own: colours, the vectors that a map
started from, or these whitened within slides by the reference patients.
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
from hidisc.ground.errors import UserError
from hidisc.ground.files import name_related
from hidisc.ground.progress import Progress
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.models.linear_maps import measure_moments, whiten_floor
from hidisc.patches.store import PatchError, as_input
from hidisc.sampling.hierarchy import Hierarchy
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
    is_whitened: bool = False
    """Whether they are whitened within slides in every task, by its reference patients."""

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
        exchanged = replace(task, bank=bank, queries=queries)
        return whiten_task(exchanged) if self.is_whitened else exchanged


def whiten_task(task: Task) -> Task:
    """The task with its vectors whitened within the slides (the finest level above the patch) of the bank."""
    bank, queries = task.bank.vectors(), task.queries.vectors()
    table = task.bank.embeddings.table.select(task.bank.rows)
    tree = Hierarchy(task.levels).grow(table, np.ones(len(table), bool))
    made = whiten_floor(measure_moments(bank, tree, task.bank.embeddings.path))
    bank, queries = made.apply(bank), made.apply(queries)
    return replace(task, bank=replace(task.bank, exchanged=bank), queries=replace(task.queries, exchanged=queries))


Measured = FloorVectors | str | None
"""The vectors of a floor; or why it cannot be measured, as the end of a sentence; None: it does not apply."""


def measure_colour(embeddings: Embeddings, config: EvaluateConfig) -> Measured:
    """The colour (n, 2 C) of patches of some embeddings: mean and deviation of each channel.

    Of more than 20,000 patches, a sample even over slides. Memory: the rows of the sample and as many vectors.
    """
    if embeddings.info.store is None:
        return None  # there are no pictures; the check for near-duplicates says so
    store = embeddings.open_store()
    if store is None:
        return embeddings.why_no_pictures
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


def measure_start(embeddings: Embeddings, config: EvaluateConfig) -> Measured:
    """The vectors that a map was applied to, of the same sample of patches as colour."""
    info = embeddings.info
    if info.start is None:
        return None
    try:
        start = Embeddings.load(embeddings.path / info.start)
    except UserError:
        start = None
    if start is None or start.checksum != info.start_checksum:
        return f"{name_related(info.start, embeddings.path)!r}, which holds these vectors, is not there, or has changed"
    old, new = start.table, embeddings.table
    if not all(np.array_equal(old.column(name), new.column(name)) for name in ("slide", "patch")):
        return f"{name_related(info.start, embeddings.path)!r}, which holds these vectors, has other patches too"
    return FloorVectors("start", *_take(start, config))


def measure_whitened(embeddings: Embeddings, config: EvaluateConfig) -> Measured:
    """The vectors that a map was applied to, or those of an encoder of others, to be whitened within slides."""
    card = embeddings.info.model
    if embeddings.info.start is not None:
        found = None if card.objective == "whiten-within" else measure_start(embeddings, config)
        return replace(found, subject="whitened", is_whitened=True) if isinstance(found, FloorVectors) else found
    is_untrained = card.seed is not None  # of others, only an encoder with random weights has a seed
    if card.kind in ("run", "colour") or is_untrained:
        return None
    return FloorVectors("whitened", *_take(embeddings, config), is_whitened=True)


def _sample(embeddings: Embeddings, config: EvaluateConfig) -> Ints:
    """Rows (n,) of the embeddings, ascending, even over slides."""
    slides = embeddings.table.codes("slide")[0].astype(np.int64)
    return sample_per_patient(slides, _MOST, make_rng(config.seed, Purpose.FLOOR_PATCHES))


def _take(embeddings: Embeddings, config: EvaluateConfig) -> tuple[Ints, NDArray[np.float32]]:
    rows = _sample(embeddings, config)
    return rows, np.asarray(embeddings.vectors[rows], np.float32)


@dataclass(frozen=True)
class FloorSubject:
    """A subject that stands beside the encoder."""

    key: str
    """Its name in the table of a judgement, and the folder of its predictions."""
    title: str
    """Its name in sentences."""
    measured: str
    """What is measured, in words."""
    measure: Callable[[Embeddings, EvaluateConfig], Measured]
    """Its vectors for some embeddings."""


FLOORS = {
    floor.key: floor
    for floor in (
        FloorSubject("colour", "colour alone", "the colour of the patches", measure_colour),
        FloorSubject("start", "its start", "the vectors that the map began with", measure_start),
        FloorSubject("whitened", "whitening within slides", "the start whitened within slides", measure_whitened),
    )
}
"""Every floor by its key; the endpoint says which of them apply."""


def measure_floors(
    embeddings: Embeddings, endpoint: Classes, config: EvaluateConfig, progress: Progress
) -> list[FloorVectors]:
    """The floors of an endpoint, as vectors of the patches of some embeddings; a note where they cannot be measured."""
    measured = []
    for key in endpoint.floors if config.floor else ():
        floor = FLOORS[key]
        if key == "colour" and embeddings.info.store is not None:
            progress.say(f"measuring {floor.measured}, the floor that an encoder must beat ...")
        found = floor.measure(embeddings, config)
        if isinstance(found, str):
            progress.say(f"note: {floor.title} is not judged beside it: {found}")
        elif found is not None:
            measured.append(found)
    return measured
