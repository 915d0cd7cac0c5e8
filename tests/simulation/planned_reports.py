"""Reports of progress, as a replica of the operator writes them that is not simulated: by server-side apply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.facts import owner_of, phase, terminating
from tests.simulation.script import NAMESPACE, Step
from tests.simulation.wire import at_once
from trainop.runtime.client.client import PatchKind

if TYPE_CHECKING:
    from tests.simulation.world import World

REPORT = "report"


def report(world: World, step: Step) -> None:
    """A pod of the job reports, if one runs."""
    plan = next(plan for plan in world.script.jobs if plan.name == step.subject)
    job = world.job_named(plan)
    pods = (stored.value for stored in world.store.table("pods").objects.values())
    uid = job["metadata"]["uid"] if job else ""
    if not any(
        phase(pod) == "Running" and not terminating(pod) and (owner_of(pod) or {}).get("uid") == uid for pod in pods
    ):
        return
    body = {
        "apiVersion": plan.resource.api_version,
        "kind": plan.kind,
        "metadata": {"name": plan.name, "namespace": NAMESPACE, "uid": uid},
        "status": {"trainerStatus": {"progressPercentage": step.value}},
    }
    at_once(
        world.users.client.patch(
            plan.resource,
            plan.name,
            NAMESPACE,
            body,
            kind=PatchKind.APPLY,
            subresource="status",
            force=True,
            field_manager="trainop-progress",
        )
    )
    world.note("node", f"{plan.name} reports {step.value} %")
    world.happened += 1
