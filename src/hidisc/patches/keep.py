"""Which boxes stay: a pure function of their scores, so that a threshold can change without reading a slide."""

import numpy as np
from numpy.typing import NDArray

from hidisc.config import FilterConfig


def is_blank(
    pixel_std: NDArray[np.float32], tissue_fraction: NDArray[np.float32], filter: FilterConfig
) -> NDArray[np.bool_]:
    """(N,) boxes to drop; an unknown tissue fraction (NaN: imported patches) never drops one.

    The place for further filters, such as the class a trained run predicts: another score a box, another line here.
    """
    flat: NDArray[np.bool_] = pixel_std < filter.min_pixel_std
    bare: NDArray[np.bool_] = tissue_fraction < filter.min_tissue_fraction
    return flat | bare
