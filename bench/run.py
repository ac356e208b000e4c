"""Measures every claim in this folder, one file after the other, prints one table and writes it to results.md.

python bench/run.py            all of them
python bench/run.py reads      only those files
"""

import importlib
import os
import platform
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from harness import Claim  # noqa: E402 - the folder is no package


def main() -> int:
    """Run the files named on the command line (default: all); the exit code says whether every claim held."""
    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("run", "harness"))
    found: list[Claim] = []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr)
        for claim in importlib.import_module(name).claims():
            print(claim)
            found.append(claim)
    table = "\n".join([*_head(), *map(_row, found)])
    print(f"\n{table}")
    if not sys.argv[1:]:
        (HERE / "results.md").write_text(f"{_preface()}\n\n{table}\n")
    return 0 if all(claim.held for claim in found) else 1


def _preface() -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    return (
        "# Measured claims\n\nWritten by `make bench`; ours and the reference are measured in the same run, each on "
        "one thread, except\nreading (two workers each side) and training (all threads).\n"
        f"Last run: {machine}."
    )


def _head() -> list[str]:
    return [
        "| claim | ours | reference | unit | ratio | bar | held |",
        "| --- | ---: | ---: | --- | ---: | ---: | --- |",
    ]


def _row(claim: Claim) -> str:
    sign = "≥" if claim.higher_is_better else "≤"
    cells = [claim.claim, _number(claim.ours), _number(claim.reference), claim.unit, f"{claim.ratio:.2f}"]
    return f"| {' | '.join([*cells, f'{sign} {claim.bar:g}', 'yes' if claim.held else '**no**'])} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
