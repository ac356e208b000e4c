"""Work done ahead of whoever asks for it, by threads, and handed over in order.

Threads, not processes: decoding lets go of Python's lock and nothing is copied between processes, so they read a third
more per second (`bench/reading.py`), and there is nothing to start or to leave behind.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from hidisc.ground.machine import count_cores

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int | None, count: int
) -> Generator[Result, None, None]:
    """work(item) of every item in order, up to `count` + 1 begun before they are asked for; holds that many results.

    `threads` None: one per core, at most 8. Closing the generator ends the threads.
    """
    pool = ThreadPoolExecutor(threads or min(count_cores(), 8), thread_name_prefix="hidisc-read")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
