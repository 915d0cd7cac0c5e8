"""Runs a seed and checks it; the end of an orderly script must equal that of its run without faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.simulation.draw import draw_script
from tests.simulation.ends import same_end
from tests.simulation.families import IN_PLACE, SURVIVE
from tests.simulation.script import Script
from tests.simulation.world import Kill, Outcome, play


@dataclass(frozen=True)
class Verdict:
    """The result of one seed; `problem` is empty if there is none."""

    seed: str
    problem: str
    outcome: Outcome
    """The outcome of the run that shows the problem."""

    @property
    def replay(self) -> str:
        family, _, number = self.seed.rpartition(" ")
        return f"make simulate SEED={number}" + (f" FAMILY={family}" if family in {SURVIVE, IN_PLACE} else "")

    def report(self) -> str:
        """The problem, the trace, and the command that replays it."""
        return "\n".join((f"seed {self.seed}: {self.problem}", *self.outcome.lines(), f"replay with: {self.replay}"))


def examine(
    script: Script, *, kill: Kill | None = None, twin: Outcome | None = None, everything: bool = False
) -> Verdict:
    """Run and check a script; `twin` is the outcome of its run without faults, if known."""
    outcome = play(script, kill=kill, everything=everything)
    if outcome.failed:
        return Verdict(script.seed, str(outcome.violations[0]).strip(), outcome)
    if not script.orderly:
        return Verdict(script.seed, "", outcome)
    if twin is None:
        twin = play(script.without_faults(), everything=everything, afresh=False)
        if twin.failed:
            return Verdict(script.seed, f"without faults: {str(twin.violations[0]).strip()}", twin)
    difference = same_end(script, outcome.end, twin.end)
    return Verdict(script.seed, f"another end: {difference}" if difference else "", outcome)


def examine_seed(seed: int, *, everything: bool = False) -> Verdict:
    return examine(draw_script(seed), everything=everything)


def first_problem(seeds: Iterable[int], check: Callable[[int], Verdict] = examine_seed) -> tuple[int, Verdict] | None:
    """The number of seeds until the first problem, and the problem; None if no seed shows one."""
    for number, seed in enumerate(seeds, start=1):
        verdict = check(seed)
        if verdict.problem:
            return number, verdict
    return None


def kills(script: Script) -> Iterator[tuple[Kill, Verdict]]:
    """Run the script twice per write of the operator, killed right before and right after that write."""
    twin = play(script)
    if twin.failed:
        yield Kill(0, "not"), Verdict(script.seed, str(twin.violations[0]), twin)
        return
    number = 0
    while True:
        number += 1
        for when in ("before", "after"):
            kill = Kill(number, when)
            verdict = examine(script, kill=kill, twin=twin)
            if not any(what == "killed by plan" for _, _, what in verdict.outcome.trace):
                return
            yield kill, verdict
