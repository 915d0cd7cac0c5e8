"""A toy cluster for one DIJob. The tests play di-server and the kubelet."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec

from tests.engine.builders import UID
from tests.engine.world import World
from trainop.engine.actions import Plan
from trainop.engine.seen import Options, Snapshot
from trainop.kinds.dijob.names import DIJOBS, Role
from trainop.kinds.dijob.plan import plan_dijob
from trainop.kinds.dijob.pods import PodOptions, aggregator_owner, build_pod, ddp_place, read_job
from trainop.kinds.dijob.seen import decode_di_pod, decode_di_service
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import Json, Unstructured

MAIN = "di-container"
LABELS = {"group-name": "diengine.opendilab.org", "controller-name": "di-operator", "dijob-name": "a"}


def template(*containers: Json, **spec: Any) -> Json:
    return {"spec": {"containers": list(containers) or [{"name": MAIN, "image": "i"}], **spec}}


def dijob(
    *, name: str = "a", coordinator: Json | None = None, replicas: bool = False, status: Json | None = None, **spec: Any
) -> Json:
    """A DIJob as stored; with `replicas` it has templates of collectors and learners."""
    sections = {"coordinator": {"template": coordinator or template()}}
    if replicas:
        sections |= {role: {"template": template()} for role in ("collector", "learner")}
    metadata = {"name": name, "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "1"}
    job = {"apiVersion": DIJOBS.api_version, "kind": "DIJob", "metadata": metadata, "spec": {**sections, **spec}}
    return job if status is None else {**job, "status": status}


def ddp_pods(job: Json, aggregator: Json, gpus: list[int]) -> list[Json]:
    """The ddp learners of an aggregator, which is given by its owner reference."""
    pods: list[Json] = []
    for index in range(len(gpus)):
        place = ddp_place(gpus, index, aggregator, pods[0]["metadata"]["name"] if pods else "")
        arguments: Json = {"suffix": f"g{index}", "place": place}
        pods.append(build_pod(read_job(job), Role.DDP_LEARNER, template(), PodOptions("s"), **arguments))
    return pods


class DiWorld(World):
    """One DIJob and its children."""

    def __init__(self, job: Json, *, options: Options | None = None) -> None:
        framework = replace(PYTORCH, resource=DIJOBS, companion_kinds=(), container=MAIN)
        super().__init__(job, framework=framework, options=options)

    def snapshot(self) -> Snapshot:
        pods = tuple(decode_di_pod(msgspec.json.encode(pod)) for pod in self.pods.values())
        services = tuple(decode_di_service(msgspec.json.encode(each)) for each in self.services.values())
        return Snapshot(Unstructured(self.raw), pods, services, self.now, self.options)

    def step(self) -> Plan:
        made = plan_dijob(self.snapshot())
        self.carry_out(made)
        return made

    @property
    def phase(self) -> str:
        found: str = self.status.get("phase", "")
        return found

    @property
    def counters(self) -> Json:
        """`replicaStatus` without the entries that count nothing."""
        return {name: entry for name, entry in self.status["replicaStatus"].items() if entry}

    def states(self) -> list[tuple[str, str]]:
        return [(each["type"], each["status"]) for each in self.status.get("conditions", [])]

    def told(self) -> list[tuple[str, str]]:
        """Types and reasons of the events."""
        return [(event.type, event.reason) for event in self.events]

    # di-server --------------------------------------------------------------------------------------------------------

    def add(self, role: Role, suffix: str, phase: str = "Running") -> str:
        """A replica that di-server has created."""
        pod = build_pod(read_job(self.raw), role, template(), PodOptions("s"), suffix=suffix)
        return self.put(pod, phase)

    def add_ddp(self, gpus: list[int], aggregator: str = "x1") -> list[str]:
        """An aggregator and its ddp learners."""
        name = self.add(Role.AGGREGATOR, aggregator)
        owner = aggregator_owner(name, self.pods[name]["metadata"]["uid"])
        return [self.put(pod, "Running") for pod in ddp_pods(self.raw, owner, gpus)]

    def put(self, pod: Json, phase: str = "Running") -> str:
        self._create(self.pods, json.loads(json.dumps(pod)), {"status": {"phase": phase}})
        name: str = pod["metadata"]["name"]
        return name

    # The kubelet ------------------------------------------------------------------------------------------------------

    def set_containers(self, pod: str, states: Json) -> None:
        """The states of the containers of a running pod, by name."""
        statuses = [{"name": name, "state": state} for name, state in states.items()]
        self.set_pod(pod, "Running", containerStatuses=statuses)


def ended(code: int, reason: str = "") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}}


RUNS: Json = {"running": {}}


def settled(options: Options | None = None, **fields: Any) -> DiWorld:
    """A job whose coordinator is pending."""
    world = DiWorld(dijob(**fields), options=options)
    world.settle()
    return world


def running(options: Options | None = None, **fields: Any) -> DiWorld:
    """A job whose coordinator runs."""
    world = settled(options, **fields)
    world.set_pod("a-coordinator", "Running")
    world.settle()
    return world
