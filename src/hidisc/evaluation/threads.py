"""How many threads an evaluation uses: torch all cores of this process, every other library one.

numpy, scikit-learn and torch each bring a pool of threads that waits for work by computing; on a busy machine they
slow each other down. So the large products are torch's, and the pools of the others are not used.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from hidisc.ground.machine import count_cores


@contextmanager
def use_threads(most: int | None = None) -> Iterator[None]:
    """In the block, torch uses at most `most` threads (None: the cores of this process), BLAS of other libraries one.

    A smaller number that the user sets in OMP_NUM_THREADS stays.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, most or count_cores()))
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
