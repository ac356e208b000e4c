"""Which squares of a slide stay, and labels of squares that a trained run predicts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hidisc.ground.files import write_atomic
from hidisc.settings.prepare import FilterConfig


def is_blank(
    pixel_std: NDArray[np.float32], tissue_fraction: NDArray[np.float32], filter: FilterConfig
) -> NDArray[np.bool_]:
    """(N,) boxes not to store; an unknown tissue fraction (NaN: imported patches) never drops one."""
    flat: NDArray[np.bool_] = pixel_std < filter.min_pixel_std
    bare: NDArray[np.bool_] = tissue_fraction < filter.min_tissue_fraction
    return flat | bare


def is_marked(pen_fraction: NDArray[np.float32], filter: FilterConfig) -> NDArray[np.bool_]:
    """(N,) stored patches to leave out: a pen has marked too much of them."""
    return pen_fraction > filter.max_pen_fraction


def is_unwanted(predicted: NDArray[np.int16], labels: Sequence[str], filter: FilterConfig) -> NDArray[np.bool_]:
    """(N,) stored patches to leave out: a trained run predicts (codes into `labels`) a label that is to be dropped."""
    return np.isin(predicted, [code for code, label in enumerate(labels) if label in filter.drop_labels])


LABEL, SCORE = "predicted_label", "predicted_score"


def predicted_file(folder: Path, run: str) -> Path:
    """Where the predictions of one run (by its checksum) for a slide are."""
    return folder / f"predicted-{run}.parquet"


def save_predicted(folder: Path, run: str, codes: NDArray[np.int16], scores: NDArray[np.float32]) -> None:
    """Codes (boxes,) into the run's labels, -1 for boxes without a stored patch, and their probabilities (boxes,)."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({LABEL: codes, SCORE: scores}), sink, compression="zstd", write_page_checksum=True)
    write_atomic(predicted_file(folder, run), sink.getvalue().to_pybytes())


def load_predicted(folder: Path, run: str, boxes: int) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Codes and scores (boxes,) of a slide; all -1 and NaN when it has no predictions, or the file is damaged."""
    try:
        table = pq.read_table(predicted_file(folder, run), page_checksum_verification=True)
    except (OSError, pa.ArrowInvalid):
        table = None
    if table is None or len(table) != boxes or table.column_names != [LABEL, SCORE]:
        return np.full(boxes, -1, np.int16), np.full(boxes, np.nan, np.float32)
    return table[LABEL].to_numpy().copy(), table[SCORE].to_numpy().copy()
