"""Command line of the simulation.

python -m tests.simulation --seeds 300            look for seeds that show a problem
python -m tests.simulation --seed 42 [--log]      replay one seed, with its trace and all log lines
python -m tests.simulation --family in-place      seeds of one family, which may be one that is numbered apart
python -m tests.simulation --kills                kill the operator at every write of the small scenarios
python -m tests.simulation --bugs                 how many seeds it takes to find each planted bug, as a table
python -m tests.simulation --bugs --write         the same, written into docs/simulation.md
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from itertools import islice
from pathlib import Path

from tests.simulation import (  # noqa: F401  # each plants its own
    bugs,
    bugs_of_checkpoints,
    bugs_of_di,
    bugs_of_gangs,
    bugs_of_in_place,
    bugs_of_jobs,
    bugs_of_mpi,
    bugs_of_ownership,
    bugs_of_waiting,
)
from tests.simulation.draw import draw_script
from tests.simulation.examine import examine, kills
from tests.simulation.families import EVERY, IN_PLACE, SURVIVE, seeds_of
from tests.simulation.in_place_draw import draw_in_place
from tests.simulation.planting import BUGS, hunt
from tests.simulation.small import scenarios
from tests.simulation.survive_draw import draw_survivor
from trainop.programs.schemes import FRAMEWORKS

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulation.md"
BEGIN, END = "<!-- bugs: begin -->\n", "<!-- bugs: end -->\n"
APART = {SURVIVE: draw_survivor, IN_PLACE: draw_in_place}
"""Families whose seeds are numbered apart."""
MOST_SEEDS = 300
"""Number of seeds within which a planted bug has to be found: three times the current maximum, because every change of
the product changes what the seeds draw. A search ends at the first seed that shows a problem."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulate the whole operator.")
    parser.add_argument("--seeds", type=int, default=300, help="how many to try (300)")
    parser.add_argument("--first", type=int, default=0, help="where to begin (0)")
    families = ("all", *EVERY, *APART)
    parser.add_argument("--family", default="all", choices=families, help="only seeds of this family (all)")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--log", action="store_true", help="with the operator's log lines in the trace")
    parser.add_argument("--kills", action="store_true", help="kill the operator at every write of the small scenarios")
    parser.add_argument("--bugs", action="store_true", help="find the planted bugs")
    parser.add_argument("--write", action="store_true", help="write their table into docs/simulation.md")
    options = parser.parse_args()
    gc.freeze()
    if options.seed is not None:
        return replay(options.family, options.seed, options.log)
    if options.bugs:
        return print_bugs(options.first, options.write)
    return kill_everywhere() if options.kills else search(options.family, options.first, options.seeds)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def replay(family: str, seed: int, everything: bool) -> int:
    script = APART.get(family, draw_script)(seed)
    verdict = examine(script, everything=everything)
    say(f"{script}\n")
    for line in verdict.outcome.lines():
        say(line)
    say(f"\nseed {seed}: {verdict.problem or 'all is well'}")
    return 1 if verdict.problem else 0


def search(family: str, first: int, count: int) -> int:
    begun, busy = time.perf_counter(), time.process_time()
    failed = virtual = 0
    seeds = range(first, first + count) if family in APART else islice(seeds_of(family, first), count)
    for seed in seeds:
        verdict = examine(APART.get(family, draw_script)(seed))
        virtual += int(verdict.outcome.lasted)
        if verdict.problem:
            failed += 1
            say(f"seed {seed}: {verdict.problem}\n  replay with: {verdict.replay}")
    took, busy = time.perf_counter() - begun, time.process_time() - busy
    rates = f"{count / took:.1f} seeds/s, {count / busy:.1f} per second of one core"
    say(f"{count} seeds, {failed} with problems; {rates}; {virtual / 3600:.1f} hours simulated")
    return 1 if failed else 0


def kill_everywhere() -> int:
    total = failed = 0
    for kind in FRAMEWORKS:
        for script in scenarios(kind):
            count = 0
            for kill, verdict in kills(script):
                count += 1
                if verdict.problem:
                    failed += 1
                    say(f"{script.seed}, killed {kill.when} write {kill.number}: {verdict.problem}")
            say(f"{script.seed}: {count} kills")
            total += count
    say(f"{total} kills, {failed} with problems")
    return 1 if failed else 0


def print_bugs(first: int, write: bool) -> int:
    rows = ["| planted bug | what is wrong | seeds | what the simulation says |", "|---|---|---|---|"]
    missed = 0
    for bug in BUGS:
        found = hunt(bug, MOST_SEEDS, first)
        missed += found is None
        number, what = (str(found[0]), found[1]) if found else (f"> {MOST_SEEDS}", "nothing")
        rows.append(f"| {bug.name} | {bug.text} | {number} | {what} |")
        say(rows[-1])
    if write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        DOCUMENT.write_text(before + BEGIN + "\n".join(rows) + "\n" + END + after, encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
