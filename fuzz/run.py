"""Tries mangled inputs and kills, prints what fell through and a table of counts, and exits with 1 if anything did.

python -m fuzz.run --inputs 10000 --kills 100      tables, slides and artefacts share the inputs
python -m fuzz.run --only slides --index 17        one input again, by the number that was printed
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch are imported; a judge is a core

from fuzz.artefacts import Artefacts
from fuzz.harness import Kind, Tally, try_all
from fuzz.kills import Kills
from fuzz.slides import Slides
from fuzz.tables import Tables

KINDS: dict[str, Kind] = {kind.name: kind for kind in (Tables(), Slides(), Artefacts(), Kills())}
SHARES = {"tables": 0.4, "slides": 0.4, "artefacts": 0.2}
"""Of the inputs; kills are counted by themselves."""


def main(words: Sequence[str] | None = None) -> int:
    """Try what is asked for; 1 when anything fell through."""
    asked = _parse(words)
    workers = asked.workers or os.cpu_count() or 1
    tallies = []
    for name, kind in KINDS.items():
        number = asked.kills if name == "kills" else round(SHARES[name] * asked.inputs)
        if number and asked.only in (None, name):
            tallies.append(try_all(kind, number, asked.seed, workers=workers, keep=asked.keep, only=asked.index))
            print(f"{name}: {tallies[-1].tried:,} tried, {len(tallies[-1].fell)} fell through", file=sys.stderr)
    print(format_table(tallies))
    return 1 if any(tally.fell for tally in tallies) else 0


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
    parser.add_argument("--inputs", type=int, default=1000, help="tables, slides and artefacts, together")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=None, help="judges at once (default: one per core)")
    parser.add_argument("--keep", type=Path, default=Path("fuzz/found"), help="where what fell through is kept")
    parser.add_argument("--only", default=None, help="one kind: tables, slides, artefacts or kills")
    parser.add_argument("--index", type=int, default=None, help="one input of that kind")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
