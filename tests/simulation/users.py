"""Simulated users, who create, change and delete jobs."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

from tests.simulation.facts import terminating
from tests.simulation.script import NAMESPACE, JobPlan, Step
from tests.simulation.wire import at_once
from trainop.runtime.client.client import Client
from trainop.runtime.errors import AlreadyExistsError, NotFoundError
from trainop.runtime.objects.metadata import Json

if TYPE_CHECKING:
    from tests.simulation.world import World

ACTS = {"create", "delete", "suspend", "resume"}
"""What users do in an encore, to the first job that has pods."""


class Users:
    """Users, whose requests never meet network faults."""

    def __init__(self, world: World) -> None:
        self._world = world
        rng = random.Random(f"{world.script.seed}/users")
        self.client = Client(world.server.transport(), clock=world.clock, rng=rng)
        self.wishes: dict[str, deque[Step]] = {}
        """What the user of each job still wants to do."""

    def follow(self, plan: JobPlan) -> None:
        """The user of a job takes one step after the other."""
        steps = self._world.script.steps
        left = self.wishes[plan.name] = deque(step for step in steps if step.subject == plan.name)
        self._world.loop.outside(left[0].at, self._take_step, plan)

    def _take_step(self, plan: JobPlan) -> None:
        loop, left = self._world.loop, self.wishes[plan.name]
        if not self.act(plan, left[0]):
            loop.outside(0.5, self._take_step, plan)
            return
        left.popleft()
        if left:
            loop.outside(max(0.0, left[0].at - loop.time()), self._take_step, plan)
        self._world.nodes.look()

    def act(self, plan: JobPlan, step: Step) -> bool:
        """Carry out one step; returns False if it has to be retried."""
        resource = plan.resource
        try:
            match step.act:
                case "create":
                    at_once(self.client.create(resource, plan.body(), namespace=NAMESPACE))
                case "delete":
                    at_once(self.client.delete(resource, plan.name, NAMESPACE, propagation=step.value))
                case _:
                    at_once(self.client.patch(resource, plan.name, NAMESPACE, _patch(plan, step)))
        except AlreadyExistsError:
            job = self._world.job_named(plan)
            if job is not None and terminating(job):
                return False
        except NotFoundError:
            self._world.note("user", f"finds no {step.subject} to {step.act}")
            return True
        self._world.note("user", f"{step.act} {step.subject} {step.value or ''}")
        self._world.happened += 1
        return True


def _patch(plan: JobPlan, step: Step) -> Json:
    match step.act:
        case "suspend" | "resume":
            return {"spec": {"runPolicy": {"suspend": step.act == "suspend"}}}
        case "scale":
            role, count = step.value
            return {"spec": {plan.framework.replica_specs: {role: {"replicas": count}}}}
        case "edit":
            return dict(step.value)
    return {"metadata": {"annotations": {"note": f"{step.at:.3f}"}}}
