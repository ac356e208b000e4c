"""Patches that you have as arrays or files -> a store -> a trained encoder -> embeddings -> scores.

    python examples/own_dataset.py [FOLDER]

The input is picture files and a table that says which patient and slide each belongs to. The pictures are drawn here
(blobs whose size is the diagnosis), so that the script runs in half a minute on a CPU; put your own in place of
`write_patches`. Each stage writes one folder into FOLDER (default `own`). If it is stopped, run it again: it continues.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from hidisc import EvaluateConfig, TrainConfig, embed, evaluate, find_table, import_patches, load_config, train

PATIENTS, SLIDES, PATCHES, SIZE_PX = 20, 2, 12, 32
DIAGNOSES = {"small": 1.0, "large": 2.5}


def draw_patch(blob_px: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """(H, W, 3) uint8: blurred noise, in a random colour per patch."""
    noise = Image.fromarray(rng.integers(0, 256, (SIZE_PX, SIZE_PX), dtype=np.uint8))
    blobs = np.asarray(noise.filter(ImageFilter.GaussianBlur(blob_px)), np.float32)
    blobs = (blobs - blobs.mean()) / blobs.std()
    return (rng.uniform(90, 160, 3) + 40 * blobs[..., None]).clip(0, 255).astype(np.uint8)


def write_patches(folder: Path) -> Path:
    """Write every patch as a file, and a table with one row per patch; `label`, `site`, `split` are optional."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with (folder / "patches.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["patient", "slide", "path", "label"])
        for patient in range(PATIENTS):
            label = list(DIAGNOSES)[patient % len(DIAGNOSES)]
            for slide in range(SLIDES):
                for patch in range(PATCHES):
                    name = f"{patient}-{slide}-{patch}.png"
                    Image.fromarray(draw_patch(DIAGNOSES[label], rng)).save(folder / name)
                    table.writerow([f"P{patient:02d}", f"S{slide}", name, label])
    return folder / "patches.csv"


def main() -> None:
    """Run every stage; each writes one folder."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "own")
    store = import_patches(find_table(write_patches(out / "patches")), out / "store", workers=0)
    print(f"store: {store.summary()['patches']} patches of {store.summary()['patients']} patients")
    train(out / "store", out / "run", load_config(TrainConfig, "hidisc-patient+laptop", ["optim.steps=100"]))
    embeddings = embed(out / "store", str(out / "run"), out / "embeddings", name="HiDisc", shown=False)
    if embeddings is not None:  # it is None in all processes but the first, on several devices
        print(f"embeddings: {embeddings.vectors.shape}, columns {', '.join(embeddings.table.columns[:3])}, ...")
    scores = evaluate(out / "embeddings", out / "scores", EvaluateConfig(probes=("knn",)))
    print(scores.verdict())


if __name__ == "__main__":
    main()
