"""What the machine gives a process."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from hidisc.ground.machine import versions


def test_cores_are_those_of_the_job() -> None:
    code = "import os; os.sched_setaffinity(0, {0}); import hidisc.ground.machine as here; print(here.count_cores())"
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system cannot give a process fewer cores")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_versions() -> None:
    found = versions("numpy", "no-such-package")
    assert found["numpy"]
    assert found["no-such-package"] is None


_COUNT_FAULTS = """
import resource, sys
from hidisc.ground.machine import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for megabytes in range(16, 31):  # by default, a block larger than all before is given back as soon as it is freed
    b"x" * (megabytes * 1_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc keeps memory as it likes")
@pytest.mark.parametrize("environment", [{}, {"MALLOC_TRIM_THRESHOLD_": "65536"}], ids=["plain", "Dask's worker"])
def test_freed_memory_is_kept(environment: dict[str, str]) -> None:
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if huge.exists() and "[always]" in huge.read_text():
        pytest.skip("this kernel gives memory in huge pages, so that pages cannot be counted")
    unset = {"GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}
    env = {name: value for name, value in os.environ.items() if name not in unset} | environment

    def count_pages(how: str) -> int:
        command = [sys.executable, "-c", _COUNT_FAULTS, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout)

    page = os.sysconf("SC_PAGE_SIZE")
    largest, all_blocks = 30_000_000 / page, 1_000_000 * sum(range(16, 31)) / page
    assert count_pages("leave") > 0.9 * all_blocks
    assert count_pages("keep") < 1.1 * largest
