"""Which boxes stay: a pure function of their scores, so that a threshold can change without reading a slide."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
