"""Sequences of events that would hardly ever be drawn at random. A few seeds play one of them each, with a random kind
of job, size and times."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.fault_rates import FaultRates
from tests.simulation.script import REQUIRED, RUN, SUCCEED, JobPlan, Script, Step, replica_spec
from tests.simulation.small import pick_roles
from trainop.engine.framework import Framework
from trainop.engine.parse import parse
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json, Unstructured

EVERY, FIRST = 15, 10
"""One seed in so many, from this one on. It has no divisor in common with the number of themes, so that each
theme loses as many."""
NAME = "j0"


def stage(seed: int) -> Script | None:
    """None for most seeds."""
    turn, rest = divmod(seed - FIRST, EVERY)
    if rest:
        return None
    return STAGED[turn % len(STAGED)](str(seed), random.Random(f"{seed}/staged"))


def _plan(framework: Framework, counts: dict[str, int], goal: str) -> JobPlan:
    specs: Json = {role: replica_spec(framework, count, "OnFailure") for role, count in counts.items()}
    run_policy = {"cleanPodPolicy": "None"}
    spec = {framework.replica_specs: specs, "runPolicy": run_policy, **REQUIRED.get(framework.kind, {})}
    return JobPlan(NAME, framework.kind, spec, goal)


def _lone(rng: random.Random) -> JobPlan:
    """A job of a single pod, which runs on."""
    plans = (_plan(framework, {role: 1}, RUN) for framework in FRAMEWORKS.values() for role in framework.roles)
    return rng.choice([plan for plan in plans if not parse(plan.framework, Unstructured(plan.body())).errors])


def _scaled_down_after_success(seed: str, rng: random.Random) -> Script:
    """The leading replica succeeds, the others run on and the policy leaves them, until a user scales down."""
    pairs = [(framework, pick_roles(framework)) for framework in FRAMEWORKS.values()]
    framework, (first, others) = rng.choice(
        [
            (framework, roles)
            for framework, roles in pairs
            if len(roles) == 2 and framework.roles[roles[1]].maximum is None
        ]
    )
    count = rng.randint(2, 3)
    plan = _prolonged(_plan(framework, {first: 1, others: count}, SUCCEED), others, range(count))
    steps = Step(1.0, "create", NAME), Step(rng.uniform(9, 20), "scale", NAME, (others, 1))
    return Script(seed, (plan,), steps, orderly=False, lingering=True)


def _prolonged(plan: JobPlan, role: str, indices: range) -> JobPlan:
    """Let these pods end later than others, by restarts of their containers."""
    return replace(plan, in_place={(role.lower(), index): 3 for index in indices})


def _first_worker_without_code(seed: str, rng: random.Random) -> Script:
    """The first worker of a TFJob without a chief succeeds while others run, and its exit code is not reported."""
    count = rng.randint(2, 3)
    plan = _prolonged(_plan(FRAMEWORKS["TFJob"], {"Worker": count}, SUCCEED), "Worker", range(1, count))
    return Script(seed, (plan,), (Step(1.0, "create", NAME),), orderly=False, unreported=frozenset({("worker", 0)}))


def _edited_before_the_echo(seed: str, rng: random.Random) -> Script:
    """A user suspends the job before the watch has shown the operator's last status, and one list shows both."""
    born, pause = rng.uniform(1, 3), rng.uniform(3, 6)
    steps = Step(born, "create", NAME), Step(born + pause, "suspend", NAME)
    chaos = (
        Step(born + rng.uniform(0.05, 0.2), "lag", "op1", ("jobs", pause + rng.uniform(1, 5))),
        Step(born + pause + 0.01, "compact"),
    )
    return Script(seed, (_lone(rng),), steps, chaos, orderly=False)


def _lost_before_observed(seed: str, rng: random.Random) -> Script:
    """A lost pod is recreated, and the new pod is lost before any watch has shown it."""
    lost = rng.uniform(8, 10)
    chaos = (
        Step(lost, "vanish"),
        Step(lost + rng.uniform(0.06, 0.12), "lag", "op1", ("pods", 4.0)),
        Step(lost + rng.uniform(1.5, 2.5), "vanish unseen"),
    )
    return Script(
        seed, (_lone(rng),), (Step(1.0, "create", NAME),), chaos, fault_rates=FaultRates(latency=0.05), orderly=False
    )


STAGED: tuple[Callable[[str, random.Random], Script], ...] = (
    _scaled_down_after_success,
    _first_worker_without_code,
    _edited_before_the_echo,
    _lost_before_observed,
)
