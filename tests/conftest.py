"""What several test files share."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # how long an example takes is no property
settings.load_profile("untimed")

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real slides; it is on our machines only, so tests that need it are skipped elsewhere."""
    data = SHARED / "data"
    if not data.is_dir():
        pytest.skip(f"needs the real slides in {data}")
    return data


@pytest.fixture
def write_cohort(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes `cohort.csv` from lines of text, and a small file of its own content a given name."""

    def write(lines: Iterable[str] | str, files: Iterable[str] = ()) -> Path:
        for name in files:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"pixels of {name}", encoding="utf-8")
        csv = tmp_path / "cohort.csv"
        csv.write_text(lines if isinstance(lines, str) else "\n".join(lines) + "\n", encoding="utf-8")
        return csv

    return write
