"""A supervised run drops patches by the label it predicts, in `prepare` and `import` alike."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hidisc import ImportConfig, PatchStore, find_table, import_patches
from hidisc.artefacts.artefact import verify
from hidisc.ground.errors import UserError
from hidisc.settings.config import load_config
from hidisc.settings.prepare import FilterConfig
from hidisc.settings.train import TrainConfig
from hidisc.verbs.train import train

QUICK = [
    "model.backbone=test_resnet",
    "batch.images=16",
    "optim.steps=30",
    "optim.learning_rate=0.003",
    "views.ops=[flips]",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six patients with red ("tumour") and blue ("blank") patches, told apart by colour alone."""
    folder = tmp_path_factory.mktemp("patches")
    rng = np.random.default_rng(0)
    lines = ["patient,slide,path,label,split"]
    for number in range(48):
        red = number % 2
        pixels = rng.integers(0, 60, (32, 32, 3), dtype=np.uint8)
        pixels[..., 0 if red else 2] += 180
        Image.fromarray(pixels).save(folder / f"{number}.png")
        side = "test" if number < 8 else "train"
        lines.append(f"P{number // 8},S{number // 4},{number}.png,{'tumour' if red else 'blank'},{side}")
    (folder / "patches.csv").write_text("\n".join(lines))
    return folder / "patches.csv"


def build(table: Path, out: Path, **filter: object) -> PatchStore:
    config = ImportConfig(label_level="patch", filter=FilterConfig(min_pixel_std=0, **filter))
    import_patches(find_table(table, "patch"), out, config, workers=0)
    return PatchStore.load(out)


@pytest.fixture(scope="module")
def run(table: Path) -> Path:
    build(table, table.parent / "labelled")
    config = load_config(TrainConfig, "supervised", QUICK)
    train(table.parent / "labelled", table.parent / "run", config, device="cpu")
    return table.parent / "run"


def test_patches_predicted_to_be_blank_are_dropped_and_scored(table: Path, run: Path, tmp_path: Path) -> None:
    store = build(table, tmp_path / "store", run=str(run), drop_labels=("blank",))
    assert set(store.table.column("predicted_label")) == {"tumour"}
    assert set(store.table.column("label")) == {"tumour"}
    assert len(store) == 24
    dropped = store.dropped()
    assert set(dropped.column("predicted_label")) == {"blank"}
    scores = np.concatenate([store.table.column("predicted_score"), dropped.column("predicted_score")])
    assert ((scores > 0.5) & (scores <= 1)).all()


def test_predictions_are_made_once(table: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    build(table, out, run=str(run), drop_labels=("blank",))
    files = {path: path.stat().st_mtime_ns for path in out.glob("shards/*/predicted-*.parquet")}
    assert len(files) == 12
    lost = next(iter(files))
    lost.unlink()
    before = (out / "store.json").read_bytes()
    build(table, out, run=str(run), drop_labels=("blank",))
    again = {path: path.stat().st_mtime_ns for path in out.glob("shards/*/predicted-*.parquet")}
    assert {path for path in again if again[path] != files[path]} == {lost}
    assert (out / "store.json").read_bytes() == before


def test_damaged_predictions_are_made_again(table: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    build(table, out, run=str(run), drop_labels=("blank",))
    files = {path: path.read_bytes() for path in sorted(out.glob("shards/*/predicted-*.parquet"))[:3]}
    for (path, data), place in zip(files.items(), (4, len(next(iter(files.values()))) // 3, -4), strict=True):
        flipped = bytearray(data)
        flipped[place] ^= 1
        path.write_bytes(flipped)
    build(table, out, run=str(run), drop_labels=("blank",))
    assert all(path.read_bytes() == data for path, data in files.items())
    assert verify(out) == []


def test_labels_the_run_does_not_know(table: Path, run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"filter.drop_labels: 'glass' is no label .* predicts \(.*blank.*\)"):
        build(table, tmp_path / "store", run=str(run), drop_labels=("glass",))


def test_a_run_without_labels(table: Path, run: Path, tmp_path: Path) -> None:
    config = load_config(TrainConfig, "simclr", [*QUICK, "optim.steps=1"])
    train(table.parent / "labelled", tmp_path / "plain", config, device="cpu")
    with pytest.raises(UserError, match=r"predicts \(it predicts none\)"):
        build(table, tmp_path / "store", run=str(tmp_path / "plain"), drop_labels=("blank",))


def test_patches_of_another_size(table: Path, run: Path, tmp_path: Path) -> None:
    config = ImportConfig(
        label_level="patch", resize_px=16, filter=FilterConfig(min_pixel_std=0, run=str(run), drop_labels=("blank",))
    )
    with pytest.raises(
        UserError, match=r"filter.run was trained on 32 px patches of 3 channels, and slide .* at 16 px"
    ):
        import_patches(find_table(table, "patch"), tmp_path / "store", config, workers=0)
