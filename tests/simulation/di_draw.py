"""Generates the scripts of seeds with DIJobs and di-server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.simulation.fault_rates import draw_fault_rates
from tests.simulation.script import RUN, JobPlan, Script, Step
from tests.simulation.themes import OPERATOR, REQUESTS, SERVER, WATCHES
from trainop.runtime.objects.metadata import Json

SPANS = {"outage": (2, 20), "no quorum": (0.5, 8), "no admission": (0.5, 8), "node": (5, 40)}
SPANS |= {"kill server": (0.5, 15), "freeze server": (2, 30)}
"""Seconds."""
LOSSES = ("vanish", "delete pod", "node", "evict")
SERVERS = ("kill server", "kill server", "stop server", "freeze server")
NAME = "j0"
THEMES: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]], ...] = (
    ((), (), (0,)),
    (SERVERS, (), (0,)),
    (SERVERS[:2], (), (0,)),
    (SERVERS, REQUESTS, (0, 1, 2)),
    ((*OPERATOR, "cut", "compact"), WATCHES, (0, 1, 3)),
    ((*SERVER, *SERVERS), REQUESTS, (0, 1)),
    ((*OPERATOR, *SERVER, *SERVERS), REQUESTS + WATCHES, (0, 2, 4)),
)
"""Faults of processes and the API server, of the network, and how many kinds of the latter."""


def draw_di(seed: int, number: int) -> Script:
    """The script of a seed, the `number`-th of its family."""
    rng = random.Random(f"{seed}/di")
    acts, rates, kinds = THEMES[number % len(THEMES)]
    calm_at = rng.uniform(20, 45)
    steps = [Step(rng.uniform(0.5, 4), "create", NAME)]
    if rng.random() < 0.15:
        at = rng.uniform(10, calm_at)
        steps.append(Step(at, "delete", NAME, rng.choice(("Background", "Foreground"))))
        steps.append(Step(min(at + rng.choice((0.01, 3.0)), calm_at), "create", NAME))
    replicas = 1 + (rng.random() < 0.2)
    chaos = [*_draw_requests(rng, calm_at)]
    chaos += _draw_faults(rng, acts, [step.at for step in chaos], calm_at, replicas)
    return Script(
        seed=str(seed),
        family="di",
        jobs=(_draw_job(rng),),
        steps=tuple(steps),
        chaos=tuple(sorted(chaos)),
        fault_rates=draw_fault_rates(rng, rng.sample(rates, min(rng.choice(kinds), len(rates)))),
        storm_at=rng.choice((0.0, 5.0)),
        calm_at=calm_at,
        orderly=False,
        replicas=replicas,
        events=rng.random() < 0.2,
    )


def _draw_job(rng: random.Random) -> JobPlan:
    spec: Json = {"coordinator": _section(None), "collector": _section(rng.choice((None, "Never")))}
    spec["learner"] = _section(None)
    spec["cleanPodPolicy"] = rng.choice(("Running", "All", "None"))
    return JobPlan(NAME, "DIJob", spec, RUN)


def _section(policy: str | None) -> Json:
    pod = {"containers": [{"name": "di-container", "image": "img"}]}
    return {"template": {"spec": pod | ({"restartPolicy": policy} if policy else {})}}


def _draw_requests(rng: random.Random, until: float) -> Iterator[Step]:
    """What clients ask for, now and then two of them at once; and the end of the coordinator."""
    at = 4.0
    for _ in range(rng.randint(2, 9)):
        at = rng.uniform(at, until - 1) if rng.random() < 0.7 else at + rng.uniform(0.0, 0.2)
        act = rng.choices(("post", "remove", "replace"), (6, 2, 2))[0]
        yield Step(min(at, until - 1), act, NAME, None if act == "replace" else _draw_demand(rng))
    if rng.random() < 0.35:
        yield Step(rng.uniform(10, until), "finish", NAME, rng.choice(("Succeeded", "Succeeded", "Failed")))


def _draw_demand(rng: random.Random) -> Json:
    body: Json = {"collectors": {"replicas": rng.randint(0, 3)}, "learners": {"replicas": rng.randint(0, 2)}}
    if rng.random() < 0.4:
        body["learners"]["gpus"] = str(rng.choice((1, 2, 6)))
    return body


def _draw_faults(
    rng: random.Random, acts: tuple[str, ...], moments: list[float], until: float, replicas: int
) -> Iterator[Step]:
    """Most of what befalls servers happens in the middle of a request."""
    chosen = rng.sample(acts, min(rng.randint(1, 4), len(acts))) + rng.choices(LOSSES, k=rng.randint(0, 2))
    for act in chosen:
        server = act.endswith(" server")
        subject = f"di{rng.randint(1, 2)}" if server else f"op{rng.randint(1, replicas)}"
        amid = server and rng.random() < 0.7
        at = rng.choice(moments) + rng.uniform(0.0, 0.15) if amid else rng.uniform(3, until - 1)
        yield Step(min(at, until - 0.5), act, subject, _draw_value(rng, act))


def _draw_value(rng: random.Random, act: str) -> Any:
    match act:
        case "freeze":
            return rng.uniform(5, 28), rng.random() < 0.7
        case "lag":
            return rng.choice(("jobs", "pods", "services")), rng.uniform(3, 25)
        case "jump":
            return rng.choice((-20.0, 20.0, 3600.0))
    return rng.uniform(*SPANS[act]) if act in SPANS else None
