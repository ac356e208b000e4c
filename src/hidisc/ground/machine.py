"""The machine and the installation: cores this process may use, versions of packages."""

import os
from importlib import metadata


def count_cores() -> int:
    """Cores this process may use: on a cluster node those of the job, not all the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions(*packages: str) -> dict[str, str | None]:
    """Installed versions by distribution name, None where one is not installed."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
