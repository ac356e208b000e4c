"""The audit of 100,000 embeddings of 512 numbers: processor seconds of all threads against a budget of one minute.

    python bench/audit.py

100 patients of 1,000 patches, two labels, four sites; the settings are the defaults. Colours are not read.
"""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from harness import Claim
from hidisc.artefacts.artefact import Artefact, Manifest
from hidisc.auditing.measure import run_audit
from hidisc.embeddings.embeddings import Embeddings, EmbeddingsInfo, ModelCard
from hidisc.models.card import NOTHING
from hidisc.patches.table import PatchTable, names_column
from hidisc.settings.audit import AuditConfig

PATIENTS, PATCHES, DIM = 100, 1000, 512
BUDGET_S = 60


def make_embeddings() -> Embeddings:
    """Random vectors shifted by label, site and patient."""
    rng = np.random.default_rng(0)
    counts, numbers = [PATCHES] * PATIENTS, range(PATIENTS)
    names = {
        "patient": [f"P{number}" for number in numbers],
        "slide": [f"P{number}-1" for number in numbers],
        "label": ["ab"[number % 2] for number in numbers],
        "site": [["north", "south", "east", "west"][number // 2 % 4] for number in numbers],
    }
    table = PatchTable(pa.table({name: names_column(values, counts) for name, values in names.items()}))
    vectors = rng.standard_normal((PATIENTS * PATCHES, DIM), dtype=np.float32)
    for name in ("patient", "label", "site"):
        codes = table.codes(name)[0]
        vectors += rng.standard_normal((codes.max() + 1, DIM), dtype=np.float32)[codes] * 0.2
    card = ModelCard(name="drawn", kind="onnx", source="", checksum="", group="", size_px=1, history=NOTHING)
    info = EmbeddingsInfo(
        rows=len(vectors), dim=DIM, dtype="float32", model=card, store="", store_checksum="", slides=(), splits=None,
        per_slide=None, seed=0, bad_patches=0, versions={},
    )  # fmt: skip
    return Embeddings(Artefact(Path(), Manifest(kind="embed", inputs={}, files=())), info, table, vectors)


def claims() -> list[Claim]:
    """Measure."""
    made, config = make_embeddings(), AuditConfig(columns=("site",))
    began = time.process_time()
    run_audit(made, config)
    seconds = time.process_time() - began
    claim = "audit of 100,000 x 512 embeddings, one nuisance column, all threads : a minute"
    return [Claim(claim, seconds, BUDGET_S, "CPU s", 1, higher_is_better=False)]


if __name__ == "__main__":
    for claim in claims():
        print(claim)
