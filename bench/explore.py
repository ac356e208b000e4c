"""The explorer on two cores: first picture, neighbours, tiles, memory, at 10,000 and at 1,000,000 patches.

    python bench/explore.py              both
    python bench/explore.py 10000        one of them
    python bench/explore.py 1000000      2.2 GB of disk in the folder of temporary files, 2.4 GB of memory

Each is asked of a server in a process of its own, as a browser asks. The first picture is counted from the start of the
command to the last byte of the map, with the places on the map there already. Neighbours stand beside the bare product
of the same vectors with one query, in this process and interleaved. Of the patches of the store only the first ones
of each slide have pixels: the others are rows of its table.
"""

import json
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from harness import Claim, best_of
from hidisc.artefacts.artefact import CONFIG, FORMAT, MANIFEST, Manifest, read_manifest
from hidisc.embeddings.embeddings import EMBEDDINGS, PATCHES, VECTORS, Embeddings, EmbeddingsInfo, ModelCard
from hidisc.explorer.projection import CLUSTERS, PlacedPatches, save_map
from hidisc.ground.files import describe_file, seal
from hidisc.models.card import UNKNOWN
from hidisc.patches.folders import find_folder
from hidisc.patches.store import PatchStore
from hidisc.patches.table import SCHEMA, PatchTable, names_column
from hidisc.settings.prepare import GridConfig, ImportConfig, PrepareConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.prepare import import_patches, prepare

FEW, MANY, DIM, SLIDES = 10_000, 1_000_000, 512, 100


def finish(folder: Path, kind: str, files: list[str]) -> None:
    """Declare files to be a finished artefact."""
    (folder / CONFIG).write_text(f"kind: {kind}\nformat: {FORMAT}\ninputs: {{}}\n")
    entries = tuple(describe_file(folder / name, name) for name in (CONFIG, *files))
    (folder / MANIFEST).write_bytes(seal(Manifest(kind=kind, inputs={}, files=entries)))


def make_store(folder: Path, patches: int) -> PatchStore:
    """A store whose table has `patches` rows, of slides of which only four patches have pixels."""
    rng = np.random.default_rng(0)
    for slide in range(SLIDES):
        (folder / "pictures" / f"P{slide}" / "1").mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / f"P{slide}" / "1" / f"{number}.png")
    import_patches(find_folder(folder / "pictures"), folder / "store", ImportConfig(), workers=0)
    made = PatchStore.load(folder / "store")
    each = patches // SLIDES
    columns: dict[str, Any] = {field.name: pa.nulls(patches, field.type) for field in SCHEMA}
    columns["patient"] = names_column([f"P{slide}" for slide in range(SLIDES)], [each] * SLIDES)
    columns["slide"] = names_column([entry.slide for entry in made.info.slides], [each] * SLIDES)
    columns["label"] = names_column([f"class {slide % 7}" for slide in range(SLIDES)], [each] * SLIDES)
    columns["patch"] = columns["row"] = pa.array(np.tile(np.arange(each, dtype=np.int32), SLIDES))
    columns["shard"] = pa.array(np.repeat(np.arange(SLIDES, dtype=np.int32), each))
    PatchTable(pa.table(columns, schema=SCHEMA)).save(folder / "store" / "patches.parquet")
    manifest = read_manifest(folder / "store")
    assert manifest is not None
    entries = tuple(describe_file(folder / "store" / entry.path, entry.path) for entry in manifest.files)
    (folder / "store" / MANIFEST).write_bytes(seal(manifest.model_copy(update={"files": entries})))
    return PatchStore.load(folder / "store")


def make_embeddings(folder: Path, store: PatchStore) -> Embeddings:
    """Random vectors around a centre per slide, and random places on the map."""
    out, rng, rows = folder / "embeddings", np.random.default_rng(1), len(store)
    out.mkdir()
    vectors = np.lib.format.open_memmap(out / VECTORS, "w+", np.float32, (rows, DIM))
    centres = rng.normal(size=(SLIDES, DIM)).astype(np.float32)
    each = rows // SLIDES
    for slide in range(SLIDES):
        part = slice(slide * each, (slide + 1) * each)
        vectors[part] = centres[slide] + rng.standard_normal((each, DIM), np.float32)
    vectors.flush()
    store.table.save(out / PATCHES)
    card = ModelCard(name="made", kind="run", source="run", checksum="made", group="made", size_px=32, history=UNKNOWN)
    info = EmbeddingsInfo(
        rows=rows,
        dim=DIM,
        dtype="float32",
        model=card,
        store="../store",
        store_checksum=store.checksum,
        slides=store.info.slides,
        splits=None,
        per_slide=None,
        seed=0,
        bad_patches=0,
        versions={},
    )
    (out / EMBEDDINGS).write_text(info.model_dump_json())
    finish(out, "embed", [VECTORS, PATCHES, EMBEDDINGS])
    made = Embeddings.load(out)
    clusters = rng.integers(0, CLUSTERS, rows, dtype=np.int32)
    save_map(made, PlacedPatches(rng.random((rows, 2), np.float32), clusters))
    return made


class Explorer:
    """The command in a process of its own."""

    def __init__(self, *words: Path | str) -> None:
        command = [sys.executable, "-m", "hidisc", "explore", *map(str, words), "--no-browser", "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        address = json.loads(self._process.stdout.readline())["address"]
        home, token = address.removeprefix("http://").split("/?token=")
        self._connection = HTTPConnection(home)
        self._cookie = {"Cookie": f"hidisc-{home.split(':')[1]}={token}"}

    def ask(self, name: str, **body: Any) -> bytes:
        """One request, as the page makes it."""
        headers = self._cookie | ({"Content-Type": "application/json"} if body else {})
        self._connection.request("POST" if body else "GET", f"/{name}", json.dumps(body) if body else None, headers)
        answer = self._connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        return data

    def show(self) -> None:
        """What the page asks for until the map is drawn."""
        for name in ("", "page.js", "pane.js", "map.js", "slide.js", "page.css", "cohort"):
            self.ask(name)
        if b'"many"' in self.ask("points?by=label"):
            self.ask("density.png?by=label&width=640&height=560")

    @property
    def memory_gb(self) -> float:
        """What it has taken beside mapped files, which the kernel takes back when it needs to."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) / 1e6

    def end(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait()


def measure(folder: Path, patches: int) -> tuple[float, float, float, float]:
    """Seconds to the first picture and of a search, seconds of the bare product, and GB of memory."""
    store = make_store(folder, patches)
    made = make_embeddings(folder, store)
    seconds = []
    for _ in range(2):  # the first brings the files into the page cache
        start = time.perf_counter()
        explorer = Explorer(store.path, made.path)
        explorer.show()
        seconds.append(time.perf_counter() - start)
        if not _:
            explorer.end()
    query = np.array(made.vectors[5])
    best = best_of(
        5, ours=lambda: explorer.ask("alike", region={"rows": [5]}, most=24), bare=lambda: made.vectors @ query
    )
    memory = explorer.memory_gb
    explorer.end()
    return seconds[1], best["ours"], best["bare"], memory


def measure_tile(folder: Path) -> float:
    """Seconds of a tile of a slide's finest level that was asked for before."""
    cohort = draw_cohort(folder / "drawn", patients=4, slides=1, fields=100, field_px=300, mpp=0.25, seed=0)
    prepare(cohort, folder / "cut", PrepareConfig(grid=GridConfig(mpp=0.5, size_px=150)), workers=0)
    explorer = Explorer(folder / "cut", "--cohort", cohort)
    seconds = best_of(5, tile=lambda: explorer.ask("tile.jpg?slide=0&level=0&column=3&line=3"))["tile"]
    explorer.end()
    return seconds


def claims(sizes: tuple[int, ...] = (FEW, MANY)) -> list[Claim]:
    """The bars are absolute, but for the search, which stands beside the bare product."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for patches in sizes:
            (folder / str(patches)).mkdir()
            first, search, bare, memory = measure(folder / str(patches), patches)
            size, budget_s = f"{patches:,} x {DIM}", 2.0 if patches <= FEW else 5.0
            found += [
                Claim(f"explorer, first picture of {size} : {budget_s:g} s", first, budget_s, "s", 1, False),
                Claim(f"explorer, neighbours in {size} : 0.3 s", search, 0.3, "s", 1, False),
                Claim(f"explorer, memory at {size} : 2 GB", memory, 2.0, "GB", 1, False),
            ]
            if patches > FEW:  # of fewer, the request itself takes longer than the product
                found.append(Claim(f"explorer, neighbours in {size} : bare product", search, bare, "s", 1.5, False))
        found.append(Claim("explorer, a tile of 256 px, warm : 60 ms", measure_tile(folder), 0.06, "s", 1, False))
    return found


if __name__ == "__main__":
    print(*claims(tuple(map(int, sys.argv[1:])) or (FEW, MANY)), sep="\n")
