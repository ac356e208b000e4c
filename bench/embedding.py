"""`embed` against bare inference on tensors in memory.

    python bench/embedding.py

ResNet-18, 96 px, all threads on both sides. Ours reads JPEG patches of a store, embeds and writes them, in batches of
256 as by default. The bare passes are of 64 patches, which is faster than 256 on a CPU, and of 256.
"""

import tempfile
import time
from pathlib import Path

import torch

from harness import Claim, median_rates
from hidisc.artefacts.artefact import make
from hidisc.embeddings.embeddings import EMBEDDINGS, PATCHES, VECTORS
from hidisc.embeddings.extract import extract
from hidisc.embeddings.model import choose_rows, open_model
from hidisc.patches.store import PatchStore
from hidisc.settings.embed import EmbedConfig
from hidisc.training.processes import start
from training import SIZE_PX, make_store

BATCH, FASTEST, TURNS = 256, 64, 9


def ours_per_s(store: PatchStore, out: Path) -> float:
    """Patches a second, from the first read to the finished folder; opening the model is left out on both sides."""
    config = EmbedConfig(batch=BATCH)
    rows = choose_rows(store, config)
    with start("32", "cpu", 1, 1) as fabric:
        model = open_model("timm:resnet18", store, config)
        began = time.perf_counter()
        with make(out, "embed", config) as work:
            extract(fabric, store, rows, model, out, config, say=lambda _: None, watch=lambda _: None)
            work.finish((EMBEDDINGS, VECTORS, PATCHES))
        return len(rows) / (time.perf_counter() - began)


def bare_per_s(store: PatchStore, batch: int) -> float:
    """Patches a second of the same network on one batch in memory, as many patches."""
    net = open_model("timm:resnet18", store, EmbedConfig()).net.to(memory_format=torch.channels_last)
    x = torch.rand(batch, 3, SIZE_PX, SIZE_PX).to(memory_format=torch.channels_last)
    sizes = [batch] * (len(store) // batch) + [len(store) % batch] * (len(store) % batch > 0)
    began = time.perf_counter()
    with torch.inference_mode():
        for size in sizes:
            net(x[:size])
    return len(store) / (time.perf_counter() - began)


def claims() -> list[Claim]:
    """Measure."""
    with tempfile.TemporaryDirectory() as name:
        store = make_store(Path(name), patients=60)
        folders = (Path(name) / f"e{turn}" for turn in range(TURNS))
        rates = median_rates(
            TURNS,
            fastest=lambda: bare_per_s(store, FASTEST),
            large=lambda: bare_per_s(store, BATCH),
            ours=lambda: ours_per_s(store, next(folders)),
        )
    title = "embed : bare inference on tensors in memory, ResNet-18, 96 px, passes of"
    return [
        Claim(f"{title} {FASTEST}", rates["ours"], rates["fastest"], "patches/s", 0.95),
        Claim(f"{title} {BATCH}", rates["ours"], rates["large"], "patches/s", 1.0),
    ]


if __name__ == "__main__":
    for claim in claims():
        print(claim)
