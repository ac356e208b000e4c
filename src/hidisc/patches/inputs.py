"""Stored pixels -> what a network sees: float32 in [0, 1], with the channels the modality's papers use."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.slides.slide import Pixels

InputRule = Literal["unit", "srh"]
SRH_SCALE = 65536
SRH_OFFSET = 5000


def input_channels(rule: InputRule, stored_channels: int) -> int:
    """How many channels `as_input` gives."""
    return 3 if rule == "srh" else stored_channels


def as_input(pixels: Pixels, rule: InputRule) -> NDArray[np.float32]:
    """Float pixels (..., C') in [0, 1] from stored ones (..., C).

    `unit` divides by the largest value. `srh` takes the 16-bit channels CH2, CH3 divided by 65536 and puts
    CH3 - CH2 + 5000/65536 in front, all clamped to [0, 1], as OpenSRH and HiDisc do.
    """
    if rule == "unit":
        return pixels.astype(np.float32) / np.float32(np.iinfo(pixels.dtype).max)
    ch2, ch3 = (pixels[..., channel].astype(np.float32) / SRH_SCALE for channel in (0, 1))
    third = ch3 - ch2 + np.float32(SRH_OFFSET / SRH_SCALE)
    return np.stack([third, ch2, ch3], axis=-1).clip(0, 1)
