"""`hidisc embed`: a PatchStore and an encoder, ours or another's -> Embeddings."""

import os
from contextlib import ExitStack
from pathlib import Path

from hidisc.embeddings.choose import choose_rows
from hidisc.embeddings.embeddings import EMBEDDINGS, Embeddings
from hidisc.embeddings.extract import Say, extract
from hidisc.embeddings.model import open_model
from hidisc.patches.store import PatchStore
from hidisc.paths import AnyPath
from hidisc.runs import begin, full_disk_said, hold
from hidisc.settings.judging import EmbedConfig
from hidisc.training.ranks import first_does, start
from hidisc.verbs.progress import show_patches

_CHANGEABLE = ("threads", "ahead", "max_bad_share")
"""Settings that do not touch the numbers."""


class _Record(EmbedConfig):
    """What must be the same for unfinished embeddings to go on."""

    name: str
    encoder: str
    patches: str


def embed(
    store_path: AnyPath,
    model: AnyPath,
    out: AnyPath,
    config: EmbedConfig | None = None,
    *,
    name: str | None = None,
    device: str = "auto",
    devices: str | int = "auto",
    nodes: int = 1,
    say: Say = lambda _: None,
    shown: bool = True,
) -> Embeddings | None:
    """Embed the patches of a store; unfinished embeddings go on where they were.

    `model`: what `embeddings.model.open_model` opens, such as the folder of a run or `timm:NAME`.

    On several devices every process calls this and only the first gets the embeddings, the others None. `shown`: with
    a progress bar.
    """
    config, out = config or EmbedConfig(), Path(out)
    store = PatchStore.load(store_path)
    rows = choose_rows(store, config)
    with (
        start(config.precision, device, devices, nodes) as fabric,
        ExitStack() as held,
        full_disk_said("What has been written is kept"),
    ):
        is_first = fabric.is_global_zero
        opened = open_model(os.fspath(model), store, config, name)
        record = _Record(
            **config.model_dump(),
            name=opened.card.name,
            encoder=opened.card.checksum,
            patches=store.info.patches.checksum,
        )

        def claim() -> None:
            held.enter_context(hold(Path(out)))
            begin(Path(out), "embed", record, _CHANGEABLE)

        first_does(fabric, claim)
        if not (out / EMBEDDINGS).is_file():
            if is_first:
                for note in opened.notes:
                    say(f"note: {note}")
            with show_patches("embedding", len(rows), shown=shown and is_first) as watch:
                extract(fabric, store, rows, opened, out, config, say, watch)
    return Embeddings.load(out) if is_first else None
