"""What one plan of a DIJob starts from: the job, its own children in the snapshot, and the plan that is being made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from trainop.engine.framework import Words
from trainop.engine.seen import Pod, Service, Snapshot
from trainop.engine.status import ConditionRules
from trainop.engine.steps.builder import PlanBuilder
from trainop.kinds.dijob.job import DiJob, parse_dijob
from trainop.kinds.dijob.names import CONTROLLER, DIJOBS, REPLICA_TYPE, Role, coordinator_name, role_of
from trainop.kinds.dijob.seen import DiPod
from trainop.runtime import Metadata

ChildT = TypeVar("ChildT", Pod, Service)

WORDS = Words(resource=DIJOBS, controller=CONTROLLER)
RULES = ConditionRules(removes={}, closes="")
"""No condition removes another. At the end of a job, `kinds/dijob/status.py` sets Running to False with new times."""


@dataclass(slots=True)
class World:
    """The job and its children, and the plan that is being made."""

    builder: PlanBuilder
    job: DiJob
    pods: list[DiPod]
    """The pods that the job controls, and those that its aggregators control: ddp learners of v0.1.0."""
    false_coordinators: list[DiPod]
    """Pods that would be among them, with the role of the coordinator but not its name. The operator creates none: they
    must neither end the job nor hold it up."""
    services: list[Service]

    @property
    def seen(self) -> Snapshot:
        return self.builder.seen

    @property
    def phase(self) -> str:
        """The stored phase; empty for a new job."""
        found = self.builder.status.get("phase")
        return found if isinstance(found, str) else ""

    @property
    def coordinator(self) -> DiPod | None:
        """The pod with the name of the coordinator, whatever its labels."""
        name = coordinator_name(self.job.name)
        return next((pod for pod in self.pods if pod.metadata.name == name), None)


def look(seen: Snapshot) -> World:
    """Finds the job's own children. Others with its labels are ignored, also those without an owner."""
    uid = seen.job.metadata.uid
    aggregators = {
        pod.metadata.uid
        for pod in seen.pods
        if pod.metadata.labels.get(REPLICA_TYPE) == Role.AGGREGATOR.value and _controller(pod.metadata) == uid
    }
    owners = {uid, *aggregators}
    name = coordinator_name(seen.job.metadata.name)
    pods: list[DiPod] = []
    false_coordinators: list[DiPod] = []
    for pod in _owned(seen.pods, owners):
        if isinstance(pod, DiPod):
            is_false = role_of_pod(pod) is Role.COORDINATOR and pod.metadata.name != name
            (false_coordinators if is_false else pods).append(pod)
    builder = PlanBuilder(WORDS, seen, begun=True, rules=RULES)  # no refusal of the API server fails a DIJob
    return World(builder, parse_dijob(seen.job), pods, false_coordinators, _owned(seen.services, owners))


def role_of_pod(pod: DiPod) -> Role | None:
    return role_of(pod.metadata.labels)


def _owned(children: Iterable[ChildT], owners: set[str]) -> list[ChildT]:
    return [child for child in children if _controller(child.metadata) in owners]


def _controller(metadata: Metadata) -> str | None:
    owner = metadata.controller
    return None if owner is None else owner.uid
