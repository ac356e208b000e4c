"""How many threads an evaluation uses: the neighbour search all cores of this process, everything else one.

numpy, scikit-learn and torch each bring a pool of threads, and threads that wait for others compute meanwhile. In the
short steps of a solver they wait most of the time: with two threads on a busy machine, the linear probe took five times
the processor time of one.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from hidisc.ground.machine import count_cores


@contextmanager
def use_threads(most: int | None = None) -> Iterator[None]:
    """In the block, torch uses at most `most` threads (None: the cores of this process), BLAS of other libraries one.

    A smaller number that the user sets in OMP_NUM_THREADS stays. It decorates functions as well.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, most or count_cores()))
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
