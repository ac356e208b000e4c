"""The machine and the installation: cores and memory of this process, versions of packages."""

import ctypes
import os
import platform
from functools import cache
from importlib import metadata

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's `mallopt`, from its malloc.h
_LARGEST_KEPT = 2**25  # bytes; glibc takes no larger threshold, and larger blocks go back to the kernel when freed


def count_cores() -> int:
    """Cores this process may use: on a cluster node those of the job, not all the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, for its next step: no more than its peak.

    By default, glibc gives the memory of a training step back to the kernel at its end, and the kernel clears the same
    pages for the next step. In Dask's workers, whose environment has MALLOC_TRIM_THRESHOLD_=65536, that is half of the
    time of a small network on a CPU (bench/memory.py). Other C libraries stay as they are. A second call does nothing.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
        libc.mallopt(_TRIM_THRESHOLD, -1)  # never


def versions(*packages: str) -> dict[str, str | None]:
    """Installed versions by distribution name, None where one is not installed."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
