"""Other hierarchies than slides of patients: eyes of patients, wells of plates, scans of one channel."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hidisc.objectives.objective import load_settings
from hidisc.patches.folders import find_table
from hidisc.patches.store import PatchStore
from hidisc.settings.config import load_config
from hidisc.settings.prepare import ImportConfig
from hidisc.settings.train import TrainConfig
from hidisc.training.build import choose_training_set
from hidisc.verbs.prepare import import_patches
from hidisc.verbs.train import train
from tests.training.stores import TINY

ALL = ("split.fractions={train: 1, test: 0}",)


def draw_store(folder: Path, rows: Sequence[Mapping[str, str]], channels: int = 3) -> Path:
    """A store of small random pictures, one per row of a table; `path` is added."""
    rng = np.random.default_rng(0)
    lines = [",".join([*rows[0], "path"])]
    for number, row in enumerate(rows):
        pixels = rng.integers(0, 255, (32, 32, channels), dtype=np.uint8).squeeze()
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(",".join([*row.values(), f"{number}.png"]))
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    config = load_config(ImportConfig, None, ALL)
    import_patches(find_table(folder / "table.csv"), folder / "store", config, workers=0)
    return folder / "store"


def drawn(store: Path, config: TrainConfig) -> list[dict[str, str]]:
    """The names of the levels of every patch in the first batch."""
    table = PatchStore.load(store).table
    chosen = choose_training_set(PatchStore.load(store), config, load_settings(config.objective))
    rows = chosen.sampler(config, 1).draw(0).ancestry[:, -1]
    return [{level: str(table.column(level)[row]) for level in config.batch.levels[:-1]} for row in rows]


def test_eyes_of_patients(tmp_path: Path) -> None:
    rows = [
        {"patient": f"E{patient}", "slide": eye, "label": "ab"[patient % 2]}
        for patient in range(6)
        for eye in ("left", "right")
        for _ in range(3)
    ]
    store = draw_store(tmp_path, rows)
    changes = [*TINY, "optim.steps=2", "objective.across={patient: slide}"]
    config = load_config(TrainConfig, "hidisc-patient", changes)
    batch = drawn(store, config)
    for patient in {row["patient"] for row in batch}:
        assert {row["slide"] for row in batch if row["patient"] == patient} == {f"{patient}/left", f"{patient}/right"}
    said: list[str] = []
    run = train(store, tmp_path / "run", config, device="cpu", devices=1, say=said.append)
    assert run is not None
    assert not any("no positives" in sentence for sentence in said)
    assert all(row[level] > 0 for row in run.metrics() for level in ("patient", "slide", "patch"))


def test_wells_of_plates(tmp_path: Path) -> None:
    rows = [
        {"patient": compound, "plate": f"plate{plate}", "slide": f"plate{plate}-{well}"}
        for compound, well in (("aspirin", "A01"), ("taxol", "C05"), ("dmso", "H12"), ("nocodazole", "B07"))
        for plate in (1, 2)
        for _ in range(3)
    ]
    store = draw_store(tmp_path, rows)
    levels = ("batch.levels=[patient, plate, slide, patch]", "batch.draw={plate: 2, patch: 2}")
    changes = [*TINY, "optim.steps=2", *levels, "objective.across={patient: plate}"]
    config = load_config(TrainConfig, "hidisc-patient", changes)
    batch = drawn(store, config)
    for compound in {row["patient"] for row in batch}:
        assert {row["plate"] for row in batch if row["patient"] == compound} == {"plate1", "plate2"}
    run = train(store, tmp_path / "run", config, device="cpu", devices=1)
    assert run is not None
    assert all(row[level] > 0 for row in run.metrics() for level in ("patient", "plate", "slide", "patch"))


@pytest.mark.parametrize("method", ["hidisc-patient", "dino-hierarchical"])
def test_scans_of_one_channel(tmp_path: Path, method: str) -> None:
    rows = [{"patient": f"P{patient}", "slide": scan} for patient in range(6) for scan in "xy" for _ in range(3)]
    store = draw_store(tmp_path, rows, channels=1)
    assert PatchStore.load(store).input_channels == 1
    changes = [*TINY, "optim.steps=2", "views.local.size_px=16"]
    config = load_config(TrainConfig, f"{method}+mri", changes)
    assert not {"flips", "stain", "cohort_stain", "solarize"} & set(config.views.ops)
    assert (config.views.hue, config.views.saturation) == (0, 0)
    run = train(store, tmp_path / "run", config, device="cpu", devices=1)
    assert run is not None
    assert run.card.channels == 1
