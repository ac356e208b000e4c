"""Active learning: a linear probe on the labels given so far, and the patches that it knows least."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.settings.evaluate import LinearConfig

_OFFERED, _COMPARED = 24, 20_000
"""Patches offered; most patches that are learned from, and most without a label that are compared."""


def find_uncertain(
    vectors: NDArray[Any], labels: NDArray[np.object_], patients: NDArray[np.int64]
) -> tuple[NDArray[np.int64], str]:
    """Vectors without a label whose most probable one is least sure, the least sure first; and a sentence on the probe.

    `vectors` (N, D); `labels` (N,), None where there is none; `patients` (N,) codes.
    """
    is_labelled = labels != None  # noqa: E711 - elementwise
    classes, codes = np.unique(labels[is_labelled].astype(str), return_inverse=True)
    known, unknown = np.flatnonzero(is_labelled), np.flatnonzero(~is_labelled)
    if len(classes) < 2:
        raise UserError("a probe needs patches of two names at least. Give a second name to some.")
    if not len(unknown):
        raise UserError("every patch has a name already.")
    from hidisc.evaluation.linear import choose_penalty, fit_models  # torch takes seconds to load

    rng = make_rng(0, Purpose.EXPLORED_PROBE)
    kept = np.sort(rng.permutation(len(known))[:_COMPARED])
    unknown = np.sort(rng.permutation(unknown)[:_COMPARED])
    x, y, whose = np.asarray(vectors[known[kept]], np.float32), codes[kept], patients[known[kept]]
    config = LinearConfig()
    choice = choose_penalty(x, y, whose, config, rng)
    model, _ = next(fit_models(x, y, [choice.penalty], config.iterations))
    sure = model.predict(np.asarray(vectors[unknown], np.float32)).max(axis=1)
    remark = (
        f"Linear probe on {count(len(kept), 'patch')} of {count(len(np.unique(whose)), 'patient')}; least sure of "
        f"{count(len(unknown), 'patch')} without a name."
    )
    return unknown[np.argsort(sure, kind="stable")[:_OFFERED]], remark
