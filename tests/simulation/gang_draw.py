"""Adds a gang scheduler to the script of a seed: scheduling policies of jobs, and what befalls PodGroups."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.simulation.script import JobPlan, Script, Step

SCHEDULERS = ("volcano", "my-sched")


def with_gang(script: Script) -> Script:
    """The same script under a gang scheduler."""
    rng = random.Random(f"{script.seed}/gang/script")
    jobs = tuple(_with_policy(rng, job, _fewest(job, script.steps)) for job in script.jobs)
    chaos = sorted([*script.chaos, *_draw_acts(rng, script)])
    return replace(script, gang=rng.choice(SCHEDULERS), jobs=jobs, chaos=tuple(chaos))


def _fewest(job: JobPlan, steps: Sequence[Step]) -> int:
    """The smallest number of replicas that the job ever has: with a greater minAvailable it would never start."""
    specs = job.spec[job.framework.replica_specs]
    counts = {role: [spec.get("replicas", 1)] for role, spec in specs.items()}
    for step in steps:
        if (step.act, step.subject) == ("scale", job.name):
            counts[step.value[0]].append(step.value[1])
    return sum(min(found) for found in counts.values())


def _with_policy(rng: random.Random, job: JobPlan, fewest: int) -> JobPlan:
    if rng.random() < 0.5:
        return job
    policy = {**job.spec["runPolicy"], "schedulingPolicy": {"minAvailable": rng.randint(1, max(1, min(4, fewest)))}}
    return replace(job, spec={**job.spec, "runPolicy": policy})


def _draw_acts(rng: random.Random, script: Script) -> Iterator[Step]:
    for act in rng.choices(("no room", "delete group", "edit group"), k=rng.randint(0, 3)):
        at = rng.uniform(0.0, script.calm_at)
        yield Step(at, act, "", rng.uniform(1, 15) if act == "no room" else None)
