"""Scripts of jobs that are watched: they report and fall silent, or some of their pods never start. What befalls the
operator meanwhile is no reason for anything that happens to them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.families import SURVIVE
from tests.simulation.planned_reports import REPORT
from tests.simulation.script import RUN, JobPlan, Script, Step
from tests.simulation.small import pick_roles
from tests.simulation.still_draw import _plan as draw_plan
from trainop.engine.extensions import RESTART_SCOPE, SCOPES
from trainop.engine.stalls import ON_STALL, STALLED_AFTER
from trainop.engine.startup import ON_STARTUP_DEADLINE, STARTUP_DEADLINE

NAME = "j0"
AFTER = 60.0
"""Seconds of stalled-after."""
LASTS = 420.0
"""Seconds in which a job may fall silent, restart, and fall silent again."""
LATE = 30.0
"""Seconds of the startup deadline."""


def draw_survivor(seed: int) -> Script:
    """The script of a seed."""
    rng = random.Random(f"{seed}/survive")
    return _draw_start(seed, rng) if seed % 4 == 3 else _draw_silence(seed, rng)


def _draw_silence(seed: int, rng: random.Random) -> Script:
    annotations = {STALLED_AFTER: "1m", RESTART_SCOPE: rng.choice(SCOPES)}
    if rng.random() < 0.7:
        annotations[ON_STALL] = "restart"
    plan = replace(draw_plan(rng), annotations=annotations)
    if rng.random() < 0.5:
        plan.spec["runPolicy"]["backoffLimit"] = rng.randint(0, 3)
    chaos = list(_draw_reports(rng)) if rng.random() < 0.85 else []
    replicas = rng.choice((1, 1, 2))
    chaos += _draw_faults(rng, replicas, LASTS - 2 * AFTER)
    steps = [Step(1.0, "create", NAME)]
    if rng.random() < 0.3:
        at = rng.uniform(20, 250)
        steps += [Step(at, "suspend", NAME), Step(at + rng.uniform(1, 60), "resume", NAME)]
    return _script(seed, plan, steps, chaos, replicas, LASTS)


def _draw_reports(rng: random.Random) -> Iterator[Step]:
    """One or two times of reports, with silence between and after them."""
    at, percent = rng.uniform(2, 15), 0
    for _ in range(rng.choice((1, 1, 2))):
        interval = rng.uniform(10, 20)
        for _ in range(rng.randint(1, 8)):
            yield Step(at, REPORT, NAME, percent)
            at, percent = at + interval, percent + 1
        at += rng.uniform(20, 4 * AFTER)


def _draw_start(seed: int, rng: random.Random) -> Script:
    """One pod of the job never starts, or all do in time."""
    how = rng.choice(("suspend", "fail"))
    annotations = {STARTUP_DEADLINE: f"{LATE:.0f}s", ON_STARTUP_DEADLINE: how}
    plan = replace(draw_plan(rng), annotations=annotations)
    replicas = rng.choice((1, 1, 2))
    chaos = list(_draw_faults(rng, replicas, LATE + 20))
    last = pick_roles(plan.framework)[-1].lower()
    never = (f"-{last}-0",) if rng.random() < 0.8 else ()
    script = _script(seed, plan, [Step(1.0, "create", NAME)], chaos, replicas, LATE + 160)
    return replace(script, unstartable=never)


def _draw_faults(rng: random.Random, replicas: int, until: float) -> Iterator[Step]:
    for _ in range(rng.choice((0, 1, 2, 4))):
        act = rng.choice(("kill", "kill", "stop", "freeze", "freeze", "jump", "cut", "lag", "compact", "outage"))
        value = {
            "freeze": (rng.choice((5.0, 40.0, 2 * AFTER)), rng.random() < 0.5),
            "jump": rng.choice((-3600.0, 3600.0)),
            "lag": (rng.choice(("jobs", "pods")), rng.uniform(2, 8)),
            "outage": rng.uniform(2, 15),
        }.get(act)
        yield Step(rng.uniform(2, until), act, f"op{rng.randint(1, replicas)}", value)


def _script(seed: int, plan: JobPlan, steps: list[Step], chaos: list[Step], replicas: int, lasts: float) -> Script:
    assert plan.goal == RUN
    return Script(
        f"survive {seed}",
        (plan,),
        tuple(steps),
        tuple(sorted(chaos)),
        calm_at=lasts,
        orderly=False,
        replicas=replicas,
        events=False,
        family=SURVIVE,
    )
