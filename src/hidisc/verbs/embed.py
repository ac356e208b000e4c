"""`hidisc embed`: a PatchStore and an encoder, ours or another's -> Embeddings."""

import os
from pathlib import Path

from hidisc.artefacts.artefact import make, read_kind
from hidisc.artefacts.inputs import ANY_INPUTS, STORE, ExpectedInputs
from hidisc.embeddings.embeddings import EMBEDDINGS, PATCHES, VECTORS, Embeddings
from hidisc.embeddings.extract import extract
from hidisc.embeddings.model import choose_rows, open_model
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, full_disk_said
from hidisc.ground.progress import Say, ignore
from hidisc.models.encoder import hash_start
from hidisc.patches.store import PatchStore
from hidisc.settings.embed import EmbedConfig
from hidisc.training.processes import finished_before, made_by_first, start
from hidisc.verbs.progress import show_patches


class _Settings(EmbedConfig):
    """The settings, and what tables call the encoder."""

    name: str


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
    say: Say = ignore,
    shown: bool = True,
    expected: ExpectedInputs = ANY_INPUTS,
) -> Embeddings | None:
    """Embed the patches of a store; unfinished embeddings go on where they were.

    `model`: what `embeddings.model.open_model` opens, such as the folder of a run or `timm:NAME`.

    On several devices every process calls this and only the first gets the embeddings, the others None. `shown`:
    whether there is a progress bar. Inputs other than `expected` are refused.
    """
    config, out = config or EmbedConfig(), Path(out)
    if read_kind(Path(store_path)) == "train" and read_kind(Path(model)) in ("prepare", "import"):
        raise UserError(
            f"{store_path} is a run and {model} is a store: the two are swapped. Write `hidisc embed {model} "
            f"{store_path} --out {out}`."
        )
    store = PatchStore.load(store_path, expected)
    rows = choose_rows(store, config)
    with (
        start(config.precision, device, devices, nodes) as fabric,
        full_disk_said("What has been written is kept"),
    ):
        is_first = fabric.is_global_zero
        weights = ExpectedInputs(out, hash_start(config.model.weights, expected))
        opened = open_model(os.fspath(model), store, config, name)
        hash_start(config.model.weights, weights)  # after they are read: these are the ones that were asked for
        settings = _Settings(**config.model_dump(), name=opened.card.name)
        inputs = {STORE: store.checksum, "the encoder": opened.checksum}
        with made_by_first(fabric, make(out, "embed", settings, inputs)) as work:
            done = (out / VECTORS).with_suffix(".done")
            if work is not None and work.find_problems() is not None:
                done.unlink(missing_ok=True)  # a finished file that is damaged is written anew
            if not finished_before(fabric, work, say):
                if is_first:
                    for note in opened.notes:
                        say(f"note: {note}")
                with show_patches("embedding", len(rows), shown and is_first, store.info.level_names) as watch:
                    extract(fabric, store, rows, opened, out, config, say, watch)
                if work is not None:
                    work.finish((EMBEDDINGS, VECTORS, PATCHES))
                    done.unlink()
    return Embeddings.load(out) if is_first else None
