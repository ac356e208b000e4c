"""`kill -9` at a random moment, once or several times, then the same command to its end: the same bytes."""

import shutil
import signal
from collections import Counter
from pathlib import Path

from fuzz import world
from fuzz.harness import INPUT, Judge, Kind, Outcome, Wrong, judge, rng_of
from fuzz.mutations import Rng
from hidisc.ground.errors import UserError
from hidisc.verbs.doctor import find_damage


class Kills(Kind):
    """Commands killed at named steps of `hidisc.ground.stop`."""

    name, limit_s = "kills", 900

    def __init__(
        self, names: tuple[str, ...] = tuple(world.COMMANDS), times: tuple[int, ...] = (1, 1, 1, 2, 2, 3)
    ) -> None:
        """`names`: of the commands that are killed; `times`: how often, before they may end."""
        self.names = self.groups = names
        self.times = times

    def prepare(self, home: Path) -> None:
        """A world that nothing happened to, and the steps that each command goes through."""
        world.make_world(home / "whole", 0, self.names)
        world.make_world(home / "traced", 0, ())
        (home / "steps").mkdir()
        for name in self.names:
            ended = world.run_command(
                world.COMMANDS[name].words(home / "traced"), home / "said.txt", trace=home / "steps" / name
            )
            if ended.code != 0:
                raise SystemExit(f"{name}: {ended.said}")
            different = world.differ(world.contents(home / "whole", name), world.contents(home / "traced", name))
            if different:
                raise SystemExit(f"two commands that nothing happened to ({name}) made different {different[:3]}")

    def count_cases(self, number: int, seed: int) -> int:
        """The cases whose kills together are the number, or a little more."""
        cases = kills = 0
        while kills < number:
            kills += int(rng_of(seed, self.name, cases).choice(self.times))
            cases += 1
        return cases

    def open(self, home: Path, folder: Path) -> Judge:
        """Every command is begun anew in a world of its own."""
        here = folder / "world"
        shutil.copytree(home / "whole", here)
        traces = {name: (home / "steps" / name).read_text().splitlines() for name in self.names}

        def say(rng: Rng, index: int) -> Outcome:
            times = int(rng.choice(self.times))
            name = self.group_of(index)
            orders = _order(traces[name], times, rng)
            (folder / INPUT / "orders.txt").write_text(f"{name}\n" + "\n".join(orders) + "\n")
            killed: list[str] = []
            outcome = judge(lambda: _kill(here, home / "whole", name, orders, folder, killed))
            said = outcome.said
            if outcome.verdict == "fell through":
                if (here / world.COMMANDS[name].home).is_dir():
                    shutil.copytree(here / world.COMMANDS[name].home, folder / INPUT / name)
                said = f"{name}, {'; '.join(orders)}: {said}"
            world.restore(here, home / "whole", name)
            return Outcome(outcome.verdict, said, tried=len(killed))

        return say


def _order(trace: list[str], times: int, rng: Rng) -> list[str]:
    """The moments to kill at: each at least one step behind the one before, so that it is nearly always reached."""
    moments = sorted(set(rng.integers(0, len(trace), times).tolist()))
    orders, before = [], -1
    for moment in moments:
        step = trace[moment].split()[0]
        number = Counter(line.split()[0] for line in trace[before + 1 : moment + 1])[step]
        orders.append(f"SIGKILL process {number} {step} *")
        before = moment
    return orders


def _kill(here: Path, whole: Path, name: str, orders: list[str], folder: Path, killed: list[str]) -> None:
    """Begin a command, kill it at every order (those that killed it are added to `killed`), and let it end."""
    command = world.COMMANDS[name]
    world.remove(here, name)
    for order in orders:
        ended = world.run_command(command.words(here), folder / "command.txt", at=order)
        if ended.code == 0 and killed:
            break  # what was done before it was killed is not done again
        if ended.code != -signal.SIGKILL:
            raise Wrong(f"it was to be killed at {order!r} and ended with {ended.code}: {ended.said}")
        killed.append(order)
        _look(here / command.home)
    ended = world.run_command(command.words(here), folder / "command.txt")
    if ended.code != 0 and not world.is_there_already(ended):
        raise Wrong(f"the same command again ended with {ended.code}: {ended.said}")
    different = world.differ(world.contents(here, name), world.contents(whole, name))
    if different:
        raise Wrong(f"{different[:3]} differ from those of a command that nothing happened to")
    problems = find_damage(here / command.home)
    if problems:
        raise Wrong(f"verify: {problems[0]}")


def _look(home: Path) -> None:
    """What a killed command leaves can be looked at."""
    try:
        find_damage(home)
    except UserError:
        return
