"""Active learning: a linear probe on the labels given so far, and the patches that it knows least."""

import numpy as np
from numpy.typing import NDArray

from hidisc.explore.session import Rows, Session
from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.settings.evaluate import LinearConfig

_OFFERED, _COMPARED = 24, 20_000
"""Patches offered, and patches without a label that are compared."""


def find_uncertain(session: Session, labels: NDArray[np.object_]) -> tuple[Rows, str]:
    """Rows without a label whose most probable one is least sure, the least sure first; and a sentence on the probe."""
    if session.embeddings is None:
        raise UserError("a probe needs embeddings. Start the explorer with embeddings of this store.")
    given = labels[session.embedded]
    is_labelled = given != None  # noqa: E711 - elementwise
    classes, codes = np.unique(given[is_labelled].astype(str), return_inverse=True)
    if len(classes) < 2:
        raise UserError("a probe needs patches of two names at least. Give a second name to some.")
    from hidisc.evaluation.linear import choose_penalty, fit_models  # torch takes seconds to load

    vectors, rng = session.embeddings.vectors, make_rng(0, Purpose.EXPLORED_PROBE)
    known, unknown = np.flatnonzero(is_labelled), np.flatnonzero(~is_labelled)
    if not len(unknown):
        raise UserError("every patch has a name already.")
    if len(known) > _COMPARED:
        kept = np.sort(rng.choice(len(known), _COMPARED, replace=False))
        known, codes = known[kept], codes[kept]
    unknown = np.sort(rng.choice(unknown, min(_COMPARED, len(unknown)), replace=False))
    patients = session.store.table.codes("patient")[0][session.embedded[known]].astype(np.int64)
    x, config = np.asarray(vectors[known], np.float32), LinearConfig()
    choice = choose_penalty(x, codes, patients, config, rng)
    model, _ = next(fit_models(x, codes, [choice.penalty], config.iterations))
    sure = model.predict(np.asarray(vectors[unknown], np.float32)).max(axis=1)
    order = np.argsort(sure, kind="stable")[:_OFFERED]
    remark = (
        f"Linear probe on {count(len(known), 'patch')} of {count(len(np.unique(patients)), 'patient')}; least sure of "
        f"{count(len(unknown), 'patch')} without a name."
    )
    return session.embedded[unknown[order]], remark
