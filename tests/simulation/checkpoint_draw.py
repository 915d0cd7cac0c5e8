"""Draws jobs whose replicas save when they are ended (docs/survive.md), and disruptions that are announced first."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.script import BACKOFF, JobPlan, Step
from trainop.engine.extensions import CHECKPOINT_ALL, CHECKPOINT_GRACE, ON_DISRUPTION

GRACES = ("1s", "45s", "2m30s", "3h", "soon")
DRAIN = "drain"
"""A pod gets the condition DisruptionTarget and is deleted a moment later."""


def draw_checkpoints(
    rng: random.Random, jobs: tuple[JobPlan, ...], until: float
) -> tuple[tuple[JobPlan, ...], list[Step]]:
    """Annotations for some jobs, and drains at any time if there are such jobs."""
    drawn = tuple(_annotated(rng, job) for job in jobs)
    if all(job.annotations.keys().isdisjoint({CHECKPOINT_GRACE, ON_DISRUPTION}) for job in drawn):
        return drawn, []
    return drawn, [Step(rng.uniform(0, until), DRAIN) for _ in range(rng.choice((0, 1, 1, 2)))]


def _annotated(rng: random.Random, job: JobPlan) -> JobPlan:
    """A failure at the same time as a disruption does not count in a job that restarts as a whole, so that its
    backoffLimit may be reached later."""
    added = {}
    if rng.random() < 0.2:
        added[CHECKPOINT_GRACE] = rng.choice(GRACES)
    if rng.random() < 0.15:
        added[ON_DISRUPTION] = rng.choice((CHECKPOINT_ALL, CHECKPOINT_ALL, CHECKPOINT_ALL, "save"))
    together = added.get(ON_DISRUPTION) == CHECKPOINT_ALL
    delicate = job.delicate or (together and job.goal == BACKOFF)
    return replace(job, annotations={**job.annotations, **added}, delicate=delicate)
