"""What the machine gives a process."""

import os
import subprocess
import sys

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
