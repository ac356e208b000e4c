"""Features imported against h5py reading them: TRIDENT's files, of which every row is a chunk of its own.

    python bench/features.py      1.3 GB of disk in the folder of temporary files

Both read all vectors of all slides. The import also compares checksums, refuses what is not finite, and writes the
vectors to disk; h5py's are thrown away. Everything is in the page cache, interleaved, the best of several rounds.
"""

import shutil
import tempfile
from pathlib import Path

import h5py
import numpy as np

from harness import Claim, best_of
from hidisc.verbs.import_features import import_features

SLIDES, PATCHES, DIM, ROUNDS = 40, 4_000, 1_024, 5


def write_files(folder: Path) -> tuple[Path, Path]:
    """The features of slides as TRIDENT writes them, and the table of their patients."""
    rng = np.random.default_rng(0)
    source = folder / "features_made"
    source.mkdir()
    rows = ["patient,slide,label"]
    corners = np.stack([np.arange(PATCHES) % 64, np.arange(PATCHES) // 64], axis=1) * 512
    for number in range(SLIDES):
        rows.append(f"P{number},S{number},{'ab'[number % 2]}")
        with h5py.File(source / f"S{number}.h5", "w") as file:
            for name, values in (("features", rng.standard_normal((PATCHES, DIM), np.float32)), ("coords", corners)):
                each = (1, values.shape[1])
                made = file.create_dataset(name, values.shape, values.dtype, chunks=each, maxshape=(None, each[1]))
                made[:] = values
            made.attrs.update(patch_size=256, patch_size_level0=512)
    table = folder / "clinical.csv"
    table.write_text("\n".join(rows) + "\n")
    return source, table


def read_all(source: Path) -> None:
    """Read every vector and throw it away."""
    for path in sorted(source.iterdir()):
        with h5py.File(path, "r") as file:
            assert len(file["features"][:]) == PATCHES


def claims() -> list[Claim]:
    """Measure the import."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, table = write_files(folder)

        def bring_in() -> None:
            shutil.rmtree(folder / "out", ignore_errors=True)
            import_features(source, table, folder / "out", shown=False)

        best = best_of(ROUNDS, ours=bring_in, h5py=lambda: read_all(source))
    return [Claim("import of features : h5py reading them", best["ours"], best["h5py"], "s", 1.3, False)]


if __name__ == "__main__":
    print(*claims(), sep="\n")
