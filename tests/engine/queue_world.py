"""A toy cluster with Kueue: the rules of its API for Workloads, and its decisions, which the test makes.

The rules are those of kubernetes-sigs/kueue 0.19: the CRD of `Workload`, `pkg/webhooks/workload_webhook.go`, and what
`pkg/controller/jobframework` promises to the scheduler.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from tests.engine.builders import make_job, manifest_of
from tests.engine.world import World, merge_patch
from trainop.engine.actions import Action, Ensure, Patch, Plan, Remove
from trainop.engine.framework import Framework
from trainop.engine.kind import Kind, kind_of
from trainop.engine.kueue import WORKLOADS, Flavor, SeenQueue, Workload
from trainop.engine.queueing.roles import queueing_of
from trainop.engine.seen import Options, Snapshot
from trainop.engine.status import format_time
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import Json

QUEUE = "kueue.x-k8s.io/queue-name"
FLAVOR: Json = {
    "metadata": {"name": "spot"},
    "spec": {
        "nodeLabels": {"pool": "spot"},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
DEFAULT_FLAVOR: Json = {"metadata": {"name": "default"}, "spec": {}}


def queued_job(master: int | None = 1, worker: int | None = 2, *, labels: Json | None = None, **fields: Any) -> Json:
    """A PyTorchJob in the queue `q`."""
    job = make_job(master, worker, **fields)
    job["metadata"]["labels"] = {QUEUE: "q", **(labels or {})}
    return job


def kind_with_queue(framework: Framework = PYTORCH) -> Kind:
    return replace(kind_of(framework), queued=queueing_of(framework).plan)


class WithKueue(World):
    """A world of one job, and its Workloads."""

    kind: Kind

    def __init__(self, job: Json, **fields: Any) -> None:
        super().__init__(job, **fields)
        self.workloads: dict[str, Json] = {}
        flavors = (FLAVOR, DEFAULT_FLAVOR)
        self.queue = SeenQueue(flavors={each["metadata"]["name"]: read(Flavor, each) for each in flavors})

    # Passes

    def snapshot(self) -> Snapshot:
        found = tuple(read(Workload, each) for each in self.workloads.values())
        return replace(super().snapshot(), queue=replace(self.queue, workloads=found))

    def step(self) -> Plan:
        made = self.kind.decide(self.snapshot())
        self.carry_out(made)
        return made

    def _act(self, action: Action) -> None:
        if getattr(action, "resource", None) != WORKLOADS:
            super()._act(action)
            return
        assert isinstance(action, Ensure | Patch | Remove)
        if isinstance(action, Remove):
            assert self.workloads.pop(action.name)["metadata"]["uid"] == action.uid
            return
        if isinstance(action, Ensure):
            self._create(self.workloads, manifest_of(action), {"status": {}})
            made = self.workloads[action.name]
            made["metadata"] |= {"resourceVersion": "1", "generation": 1}
            review(made, None)
            return
        old = self.workloads[action.name]
        assert (action.uid, action.version) == (old["metadata"]["uid"], old["metadata"]["resourceVersion"])
        assert action.body.keys() <= ({"status"} if action.subresource else {"spec", "metadata"})
        new = merge_patch(old, action.body)
        review(new, old)
        new["metadata"]["resourceVersion"] = str(int(old["metadata"]["resourceVersion"]) + 1)
        self.workloads[action.name] = new

    # What is there

    @property
    def workload(self) -> Json:
        """The only Workload."""
        (found,) = self.workloads.values()
        return found

    def said(self, workload: Json | None = None) -> dict[str, tuple[str, str]]:
        """The conditions of a Workload: status and reason by type."""
        found = (workload or self.workload)["status"].get("conditions", ())
        return {each["type"]: (each["status"], each["reason"]) for each in found}

    @property
    def shown(self) -> tuple[str, str, str]:
        """The condition Admitted of the job."""
        (found,) = (each for each in self.status["conditions"] if each["type"] == "Admitted")
        return found["status"], found["reason"], found["message"]

    def suspended(self) -> object:
        return (self.spec.get("runPolicy") or {}).get("suspend")

    def pod_spec(self, name: str) -> Json:
        spec: Json = self.pods[name]["spec"]
        return spec

    # What Kueue does

    def admit(self, workload: Json | None = None, *, flavor: str = "default", **counts: int) -> None:
        """Admits a Workload in full, or with fewer pods of some sets."""
        workload = workload or self.workload
        assignments = [
            {"name": each["name"], "flavors": {"cpu": flavor}, "count": counts.get(each["name"], each["count"])}
            for each in workload["spec"]["podSets"]
        ]
        workload["status"]["admission"] = {"clusterQueue": "cq", "podSetAssignments": assignments}
        self.say(workload, QuotaReserved=("True", "QuotaReserved"), Admitted=("True", "Admitted"))
        if "Evicted" in self.said(workload):
            self.say(workload, Evicted=("False", "QuotaReserved"))

    def evict(self, reason: str = "Preempted", message: str = "to make room") -> None:
        self.say(self.workload, message, Evicted=("True", reason))

    def say(self, workload: Json, message: str = "", **conditions: tuple[str, str]) -> None:
        found = {each["type"]: each for each in workload["status"].get("conditions", ())}
        for type_, (status, reason) in conditions.items():
            new = {"type": type_, "status": status, "reason": reason, "message": message}
            found[type_] = {**new, "lastTransitionTime": format_time(self.now)}
        workload["status"]["conditions"] = list(found.values())
        workload["metadata"]["resourceVersion"] = str(int(workload["metadata"]["resourceVersion"]) + 1)

    def begin(self, **admission: Any) -> None:
        """The job is admitted, and runs."""
        self.settle()
        self.admit(**admission)
        self.settle()
        self.run()
        self.settle()


class QueueWorld(WithKueue):
    """A job of a framework."""

    def __init__(self, job: Json, *, framework: Framework = PYTORCH, options: Options | None = None) -> None:
        super().__init__(job, framework=framework, options=options)
        self.kind = kind_with_queue(framework)


def read(type_: Any, raw: Json) -> Any:
    return msgspec.convert(raw, type_)


def review(new: Json, old: Json | None) -> None:
    """Refuses what the API server refuses."""
    spec, metadata = new["spec"], new["metadata"]
    sets = spec["podSets"]
    assert 1 <= len(sets) <= 8
    assert len({each["name"] for each in sets}) == len(sets)
    assert len(metadata["name"]) <= 63
    partial = [each for each in sets if "minCount" in each]
    assert len(partial) <= 1
    assert all(1 <= each["minCount"] <= each["count"] for each in partial)
    assert not (partial and metadata["annotations"].get("kueue.x-k8s.io/elastic-job"))
    assert "priority" in spec or "priorityClassRef" not in spec
    assert spec["queueName"]
    for each in sets:
        containers = each["template"]["spec"]["containers"]
        assert containers
        assert not any("env" in container for container in containers)
    if old is None:
        return
    reserved = {each["type"] for each in old["status"].get("conditions", ()) if each["status"] == "True"}
    if "QuotaReserved" in reserved:
        assert spec["podSets"] == old["spec"]["podSets"], "pod sets are immutable while quota is reserved"
        assert spec["queueName"] == old["spec"]["queueName"]
        assert spec.get("priorityClassRef") == old["spec"].get("priorityClassRef")
    counts = {each["name"]: each["count"] for each in sets}
    before = {each["name"]: each["count"] for each in old["status"].get("reclaimablePods", ())}
    after = {each["name"]: each["count"] for each in new["status"].get("reclaimablePods", ())}
    assert all(count <= counts[name] for name, count in after.items())
    if new["status"].get("admission"):
        assert all(after.get(name, -1) >= count for name, count in before.items()), "they never become fewer"
    for each in new["status"].get("conditions", ()):
        assert each["reason"]
        assert each["lastTransitionTime"]
