"""Scripts of jobs that restart in place (docs/survive.md): ranks fail, and others follow them or hang. Meanwhile the
operator is killed, stopped, frozen and cut off, users suspend, scale and recreate the job, and pods are disrupted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.families import IN_PLACE
from tests.simulation.fault_rates import FAIR, FaultRates
from tests.simulation.in_place_node import CRASH, Crash
from tests.simulation.script import REQUIRED, RUN, JobPlan, Script, Step, replica_spec
from trainop.engine.extensions import RESTART_MODE, RESTART_SCOPE
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json

NAME = "j0"
SHAPES: dict[str, dict[str, int]] = {
    "PyTorchJob": {"Master": 1, "Worker": 2},
    "TFJob": {"Chief": 1, "Worker": 2},
    "XGBoostJob": {"Master": 1, "Worker": 2},
    "PaddleJob": {"Worker": 3},
    "JAXJob": {"Worker": 3},
    "MXJob": {"Scheduler": 1, "Server": 1, "Worker": 1},
}
"""Jobs of which all replicas fail when one does, but for the last one."""
UNSOUND = "MXJob"
PERMANENT = 3
RETRYABLE = (130, 137, 139, 255)
BURST_LASTS = 160.0
"""Seconds after which a restart in place is over, or all pods were recreated."""
STORM = FaultRates(
    latency=0.05,
    reset=0.03,
    lost=0.03,
    throttled=0.02,
    broken=0.03,
    conflict=0.1,
    late=0.1,
    cut=0.05,
    mute=0.01,
    twice=0.05,
    expired=0.03,
)


class _Draw(NamedTuple):
    rng: random.Random
    ends: float
    """When the last rank may fail."""


def draw_in_place(seed: int) -> Script:
    """The script of a seed."""
    rng = random.Random(f"{seed}/in-place")
    if seed % 12 == 11:
        return _draw_unsound(seed, rng)
    plan = _draw_plan(rng)
    crashes = list(_draw_crashes(rng, plan))
    draw = _Draw(rng, crashes[-1].at)
    replicas = rng.choice((1, 1, 2))
    chaos = [*crashes, *_draw_faults(draw, replicas), *_draw_disruptions(draw)]
    rates = STORM if rng.random() < 0.3 else FAIR
    steps = [Step(1.0, "create", NAME), *_draw_steps(draw, plan)]
    serves = rng.choice(("kept", "kept", "kept", "dropped", "refused"))
    return _script(seed, plan, steps, chaos, replicas=replicas, rates=rates, serves=serves, lasts=draw.ends)


def draw_small(kind: str, serves: str, *, hangs: bool) -> Script:
    """Two failures of one job without any other fault, of which one rank hangs in the second."""
    plan = _plan(kind, dict.fromkeys(SHAPES[kind], "OnFailure"), {RESTART_MODE: "in-place"})
    crashes = [Step(at, CRASH, NAME, Crash(137, hangs=hangs and at > 20)) for at in (10.0, 40.0)]
    create = Step(1.0, "create", NAME)
    return _script(0, plan, [create], crashes, replicas=1, rates=FAIR, serves=serves, lasts=40.0)


def _draw_plan(rng: random.Random) -> JobPlan:
    kind = rng.choice([kind for kind in SHAPES if kind != UNSOUND])
    policy = rng.choice(("OnFailure", "ExitCode"))
    plan = _plan(kind, dict.fromkeys(SHAPES[kind], policy), {RESTART_MODE: "in-place"})
    if rng.random() < 0.5:
        plan.spec["runPolicy"]["backoffLimit"] = rng.randint(0, 4)
    if rng.random() < 0.2:
        plan.annotations[RESTART_SCOPE] = "job"  # type: ignore[index]  # made here
    return plan


def _plan(kind: str, policies: dict[str, str], annotations: dict[str, str]) -> JobPlan:
    framework = FRAMEWORKS[kind]
    specs: Json = {role: replica_spec(framework, count, policies[role]) for role, count in SHAPES[kind].items()}
    spec = {framework.replica_specs: specs, "runPolicy": {}, **REQUIRED.get(kind, {})}
    return JobPlan(NAME, kind, spec, RUN, annotations=annotations)


def _draw_crashes(rng: random.Random, plan: JobPlan) -> Iterator[Step]:
    """Ranks that fail: long after each other, or while the restart before is hardly over or not over."""
    if rng.random() < 0.15:  # a program that can never start
        plan.spec["runPolicy"].pop("backoffLimit", None)
        at = rng.uniform(8, 30)
        for _ in range(8):
            yield Step(at, CRASH, NAME, Crash(rng.choice(RETRYABLE)))
            at += rng.uniform(7, 14)
        return
    policies = {spec["restartPolicy"] for spec in plan.spec[plan.framework.replica_specs].values()}
    at = rng.uniform(8, 30)
    for _ in range(rng.choice((1, 2, 2, 3, 5))):
        code = rng.choice(RETRYABLE) if "ExitCode" in policies else rng.choice((1, 2, *RETRYABLE))
        if "ExitCode" in policies and rng.random() < 0.06:
            code = PERMANENT
        crash = Crash(code, hangs=rng.random() < 0.2, again=rng.random() < 0.15)
        yield Step(at, CRASH, NAME, crash)
        at += rng.choice((rng.uniform(0.2, 4), rng.uniform(5, 40), rng.uniform(5, 40), rng.uniform(150, 300)))


def _draw_faults(draw: _Draw, replicas: int) -> Iterator[Step]:
    rng = draw.rng
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        act = rng.choice((*("kill",) * 3, "stop", *("freeze",) * 2, "cut", "lag", "compact", "outage", "jump"))
        value = {
            "freeze": (rng.choice((3.0, 30.0)), rng.random() < 0.6),
            "jump": rng.choice((-3600.0, 3600.0)),
            "lag": (rng.choice(("jobs", "pods")), rng.uniform(2, 10)),
            "outage": rng.uniform(2, 15),
        }.get(act)
        yield Step(rng.uniform(2, draw.ends + 20), act, f"op{rng.randint(1, replicas)}", value)


def _draw_disruptions(draw: _Draw) -> Iterator[Step]:
    if draw.rng.random() < 0.25:
        act = draw.rng.choice(("evict", "preempt", "delete pod", "vanish", "drain"))
        yield Step(draw.rng.uniform(8, draw.ends + 20), act)


def _draw_steps(draw: _Draw, plan: JobPlan) -> Iterator[Step]:
    rng, at = draw.rng, draw.rng.uniform(5, draw.ends + 20)
    match rng.choice(("", "", "", "pause", "scale", "recreate")):
        case "pause":
            yield Step(at, "suspend", NAME)
            yield Step(at + rng.uniform(0.5, 30), "resume", NAME)
        case "scale":
            count = plan.spec[plan.framework.replica_specs]["Worker"]["replicas"]
            yield Step(at, "scale", NAME, ("Worker", rng.choice((count - 1, count + 1))))
        case "recreate":
            yield Step(at, "delete", NAME, "Background")
            yield Step(at + rng.choice((0.01, 3.0)), "create", NAME)


def _draw_unsound(seed: int, rng: random.Random) -> Script:
    """A job that cannot restart in place. No rank of it fails, so that nothing at all may happen to it."""
    kind = rng.choice(list(SHAPES))
    annotations, policy = {RESTART_MODE: "in-place"}, "OnFailure"
    if kind != UNSOUND:
        match rng.choice(("policy", "scope", "value")):
            case "policy":
                policy = rng.choice(("Never", "Always"))
            case "scope":
                annotations[RESTART_SCOPE] = "role"
            case _:
                annotations[RESTART_MODE] = "always"
    plan = _plan(kind, dict.fromkeys(SHAPES[kind], policy), annotations)
    faults = list(_draw_faults(_Draw(rng, 60.0), 1))
    return _script(seed, plan, [Step(1.0, "create", NAME)], faults, replicas=1, rates=FAIR, serves="kept", lasts=60.0)


def _script(
    seed: int,
    plan: JobPlan,
    steps: list[Step],
    chaos: list[Step],
    *,
    replicas: int,
    rates: FaultRates,
    serves: str,
    lasts: float,
) -> Script:
    return Script(
        f"{IN_PLACE} {seed}",
        (plan,),
        tuple(sorted(steps)),
        tuple(sorted(chaos)),
        fault_rates=rates,
        storm_at=0.5,
        calm_at=lasts + BURST_LASTS,
        orderly=False,
        replicas=replicas,
        events=False,
        family=IN_PLACE,
        restart_rules=serves,
    )
