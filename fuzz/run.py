"""Tries mangled inputs and kills, and prints what fell through and a table of counts.

The exit code is 1 if an input fell through, or if no input of some kind was tried.

python -m fuzz.run --inputs 10000 --kills 100      all kinds but kills share the inputs
python -m fuzz.run --only slides --index 17        one input again, by the number that was printed
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch are imported; a judge is a core

from fuzz.artefacts import Artefacts
from fuzz.harness import Kind, Tally, find_untried, try_all
from fuzz.kills import Kills
from fuzz.requests import Requests
from fuzz.slides import Slides
from fuzz.suites import Suites
from fuzz.tables import Tables
from fuzz.volumes import Volumes
from fuzz.workbooks import Workbooks

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Tables(), Workbooks(), Slides(), Volumes(), Suites(), Requests(), Artefacts(), Kills())
}
SHARES = {
    "tables": 0.25, "workbooks": 0.1, "slides": 0.25, "volumes": 0.1, "suites": 0.1, "requests": 0.1, "artefacts": 0.1,
}  # fmt: skip
"""Of the inputs; kills are counted by themselves."""


def main(words: Sequence[str] | None = None) -> int:
    """Try the numbers of inputs that the words give; 1 when an input fell through or a kind was not tried."""
    given = _parse(words)
    workers = given.workers or os.cpu_count() or 1
    tallies, untried = [], []
    for name, kind in KINDS.items():
        if given.only not in (None, name):
            continue
        number = given.kills if name == "kills" else round(SHARES[name] * given.inputs)
        tally = try_all(kind, number, given.seed, workers=workers, keep=given.keep, only=given.index)
        print(f"{name}: {tally.tried:,} tried, {len(tally.fell)} fell through", file=sys.stderr)
        tallies.append(tally)
        untried += [problem for problem in [find_untried(kind, tally)] if problem and given.index is None]
    print(format_table(tallies))
    for problem in untried:
        print(f"{problem}. Raise --inputs or --kills, or name one kind with --only.", file=sys.stderr)
    return 1 if untried or any(tally.fell for tally in tallies) else 0


def format_table(tallies: Sequence[Tally]) -> str:
    """The counts of every kind, as Markdown."""
    lines = [
        "| kind | tried | refused with a sentence | accepted | fell through | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for tally in tallies:
        counts = (tally.tried, tally.refused, tally.accepted, len(tally.fell), round(tally.seconds))
        lines.append(f"| {tally.kind} | {' | '.join(f'{count:,}' for count in counts)} |")
    return "\n".join(lines)


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1000, help="of all kinds but kills, together")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=None, help="judges at once (default: one per core)")
    parser.add_argument("--keep", type=Path, default=Path("fuzz/found"), help="where what fell through is kept")
    parser.add_argument("--only", default=None, choices=list(KINDS), help="one kind")
    parser.add_argument("--index", type=int, default=None, help="one input of that kind")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
