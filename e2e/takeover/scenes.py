"""The jobs that exist when the operator is replaced: what has happened to them, and what happens later."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from e2e.takeover.observers import NODE, STUCK, WAITING
from tests.server.kinds import ROWS, KindWorld
from tests.server.world import CORE, MERGE, Json
from tests.upstream import Upstream
from trainop.engine.framework import JOB_NAME

HPAS = "/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"


class Stage(KindWorld):
    """A namespace with the jobs of one kind."""

    def create_scene(self, scene: Scene) -> None:
        counts = scene.counts or ROWS[self.framework.kind].counts
        roles = {
            (type_.lower() if scene.lower_case else type_): self._role(scene, count) for type_, count in counts.items()
        }
        spec = {"runPolicy": dict(scene.run_policy), **scene.spec}
        self.ask("POST", self.jobs, self.body(scene.name, roles, **spec))

    def _role(self, scene: Scene, count: int) -> Json:
        role = self.role(count, scene.restart)
        role["template"]["spec"]["nodeName"] = NODE  # so that deleted pods are removed by the kubelet, in their time
        if scene.container:
            role["template"]["spec"]["containers"][0]["name"] = scene.container
        role["template"]["spec"]["containers"][0]["resources"] = dict(scene.resources)
        if scene.annotations:
            role["template"]["metadata"] = {"annotations": dict(scene.annotations)}
        return role

    def names(self, job: str) -> list[str]:
        return ROWS[self.framework.kind].names(job)

    @property
    def victim(self) -> str:
        """The replica whose failure fails a job with policy Never, such as `ps-0`."""
        return ROWS[self.framework.kind].fails

    def fill(self, text: str, job: str) -> str:
        """A message of `ROWS` for another job."""
        return re.sub(r"(?<=[ /])[jf](?= )", job, text.replace("{ns}", self.namespace))

    def uids_of(self, job: str) -> dict[str, str]:
        """Name -> UID of the pods of a job, terminating ones included."""
        found = self.ask("GET", f"{CORE}/pods?labelSelector={JOB_NAME}={job}")["items"]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    def wait_running_pods(self, name: str) -> None:
        def running() -> bool:
            pods = self.pods_of(name)
            return set(pods) == set(self.names(name)) and all(p["status"]["phase"] == "Running" for p in pods.values())

        self.wait(running, f"all pods of {name} to run")

    def wait_active(self, name: str) -> None:
        """Wait until all pods of the job run and are counted, and it has the condition Running."""
        self.wait_running_pods(name)
        self.wait_condition("Running", name)
        counts = ROWS[self.framework.kind].counts

        def counted() -> bool:
            found = self.status(name).get("replicaStatuses", {})
            return {type_: entry.get("active", 0) for type_, entry in found.items()} == counts

        self.wait(counted, f"all pods of {name} to be counted")


Step: TypeAlias = Callable[[Stage, str], None]


def runs(stage: Stage, name: str) -> None:
    stage.wait_active(name)


def waits(stage: Stage, name: str) -> None:
    stage.wait(lambda: set(stage.pods_of(name)) == set(stage.names(name)), f"the pods of {name}")
    stage.wait_condition("Created", name)


def starts(stage: Stage, name: str) -> None:
    """The pods need not wait any more."""
    for pod in stage.pods_of(name):
        patch = {"metadata": {"annotations": {WAITING: None}}}
        stage.ask("PATCH", f"{CORE}/pods/{pod}", patch, MERGE)
    stage.wait_active(name)


def succeeds(stage: Stage, name: str) -> None:
    row = ROWS[stage.framework.kind]
    for end in row.ends:
        stage.end_pod(f"{name}-{end}")
    assert stage.wait_condition("Succeeded", name)["message"] == stage.fill(row.succeeded, name)
    assert stage.status(name)["completionTime"]


def fails(stage: Stage, name: str) -> None:
    stage.end_pod(f"{name}-{stage.victim}", 3)
    failed = stage.wait_condition("Failed", name)
    assert failed["message"] == Upstream(stage.fill(ROWS[stage.framework.kind].failed, name))


def fails_by_code(stage: Stage, name: str) -> None:
    stage.end_pod(f"{name}-{stage.victim}", 1)
    message = stage.wait_condition("Failed", name)["message"]
    found = re.match(rf'job "{name}" is failing because "\w+" replica\(s\) failed\.', message)
    assert found, message
    assert message == Upstream(found[0])


def restarts(stage: Stage, name: str) -> None:
    victim = f"{name}-{stage.victim}"
    uid = stage.pods()[victim]["metadata"]["uid"]
    stage.end_pod(victim, 137)
    stage.wait_successor(victim, uid)
    stage.wait_active(name)


def is_evicted(stage: Stage, name: str) -> None:
    victim = f"{name}-{stage.victim}"
    uid = stage.pods()[victim]["metadata"]["uid"]
    stage.evict_pod(victim)
    stage.wait_successor(victim, uid)
    stage.wait_active(name)


def restarts_in_place(stage: Stage, name: str) -> None:
    stage.run_pod(f"{name}-{stage.victim}", restarts=2)


def is_suspended(stage: Stage, name: str) -> None:
    stage.patch_job({"runPolicy": {"suspend": True}}, name)
    stays_suspended(stage, name)
    # training-operator counts a terminating pod as failed once the job is resumed
    stage.wait(lambda: not stage.uids_of(name), f"no pods of {name}")


def stays_suspended(stage: Stage, name: str) -> None:
    assert stage.wait_condition("Suspended", name)["message"] == f"{stage.framework.kind} {name} is suspended."


def resumes(stage: Stage, name: str) -> None:
    stage.patch_job({"runPolicy": {"suspend": False}}, name)
    stage.wait(lambda: stage.condition("Suspended", name).get("status") == "False", f"{name} to be resumed")
    assert stage.condition("Suspended", name)["message"] == f"{stage.framework.kind} {name} is resumed."
    stage.wait_active(name)


def expires(stage: Stage, name: str) -> None:
    """The time to live of a finished job ends; its children are collected as garbage."""
    stage.patch_job({"runPolicy": {"ttlSecondsAfterFinished": 0}}, name)
    stage.wait(lambda: stage.try_to("GET", f"{stage.jobs}/{name}").status == 404, f"the deletion of {name}")
    stage.wait(lambda: not stage.pods_of(name), f"the collection of the pods of {name}")


def is_deleted(stage: Stage, name: str) -> None:
    stage.ask("DELETE", f"{stage.jobs}/{name}")
    stage.wait(lambda: not stage.pods_of(name), f"the collection of the pods of {name}")


def misses_deadline(stage: Stage, name: str) -> None:
    stage.patch_job({"runPolicy": {"activeDeadlineSeconds": 1}}, name)
    message = stage.wait_condition("Failed", name)["message"]
    assert message == Upstream(f"Job {name} has failed because it was active longer than specified deadline")


def exceeds_backoff(stage: Stage, name: str) -> None:
    stage.run_pod(f"{name}-{stage.victim}", restarts=4)
    message = stage.wait_condition("Failed", name)["message"]
    assert message == Upstream(f"Job {name} has failed because it has reached the specified backoff limit")


def _scale(stage: Stage, name: str, count: int) -> None:
    stage.patch_job({stage.framework.replica_specs: {"Worker": {"replicas": count}}}, name)
    wanted = {f"{name}-master-0", *(f"{name}-worker-{index}" for index in range(count))}
    stage.wait(lambda: set(stage.pods_of(name)) == wanted, f"the pods {sorted(wanted)}")
    stage.wait(
        lambda: all(pod["status"]["phase"] == "Running" for pod in stage.pods_of(name).values()), "all pods to run"
    )


def scales_up(stage: Stage, name: str) -> None:
    _scale(stage, name, 4)


def scales_down(stage: Stage, name: str) -> None:
    """By one: a gap below is a known defect of training-operator."""
    _scale(stage, name, 1)


def has_autoscaler(stage: Stage, name: str) -> None:
    stage.wait(lambda: stage.try_to("GET", f"{HPAS}/{name}").status == 200, f"the autoscaler of {name}")
    stage.wait_condition("Running", name)


def is_ignored(stage: Stage, name: str) -> None:
    assert "status" not in stage.job(name)
    assert not stage.pods_of(name)


@dataclass(frozen=True)
class Scene:
    """A job and its past."""

    name: str
    restart: str | None = "OnFailure"
    run_policy: Mapping[str, object] = field(default_factory=dict)
    spec: Json = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of the pod templates."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Replicas, unless those of `ROWS`."""
    resources: Mapping[str, object] = field(default_factory=dict)
    """Of the containers."""
    lower_case: bool = False
    """The replica types are spelt in lower case."""
    container: str = ""
    """A name for the containers that differs from what the kind demands."""
    past: tuple[Step, ...] = (runs,)
    """Before the operator is replaced."""
    future: tuple[Step, ...] = ()
    """Afterwards. The scene is played twice: one job has its future under our operator, and one under the old one."""
    kinds: tuple[str, ...] = ()
    """The kinds that play the scene; empty means all."""


METRICS: list[Json] = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "0.5"}}}
]
ELASTIC: Json = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d", "metrics": METRICS}}
PYTORCH = ("PyTorchJob",)

SCENES = [
    Scene("waits", "Never", annotations={WAITING: "Unschedulable"}, past=(waits,), future=(starts, fails)),
    Scene("runs", future=(succeeds,)),
    Scene("retried", "ExitCode", past=(runs, restarts), future=(restarts, restarts)),
    Scene("suspended", run_policy={"suspend": True}, past=(stays_suspended,), future=(resumes, succeeds)),
    Scene("stopped", past=(runs, is_suspended), future=(resumes, is_suspended)),
    Scene("resumed", past=(runs, is_suspended, resumes), future=(succeeds,)),
    Scene("keeps", run_policy={"cleanPodPolicy": "None"}, past=(runs, succeeds), future=(expires,)),
    Scene("sweeps", run_policy={"cleanPodPolicy": "Running"}, past=(runs, succeeds)),
    Scene("clears", run_policy={"cleanPodPolicy": "All"}, past=(runs, succeeds)),
    Scene("failed", "Never", past=(runs, fails), future=(expires,)),
    Scene("doomed", past=(runs,), future=(is_deleted,)),
    Scene("evicted", past=(runs, is_evicted), future=(is_evicted,), kinds=PYTORCH),
    Scene("always", "Always", future=(succeeds,), kinds=PYTORCH),
    Scene("late", run_policy={"activeDeadlineSeconds": 3600}, future=(misses_deadline,)),
    Scene("flaky", run_policy={"backoffLimit": 4}, past=(runs, restarts_in_place), future=(exceeds_backoff,)),
    Scene("grown", past=(runs, scales_up), future=(scales_down,), kinds=PYTORCH),
    Scene("shrunk", past=(runs, scales_down), future=(scales_up,), kinds=PYTORCH),
    Scene("dated", run_policy={"ttlSecondsAfterFinished": 3600}, past=(runs, succeeds)),
    Scene("elastic", counts={"Worker": 2}, spec=ELASTIC, past=(has_autoscaler,), kinds=PYTORCH),
]
NOT_IN_1_7 = [
    Scene("short", lower_case=True, future=(succeeds,)),
    Scene("foreign", run_policy={"managedBy": "kueue.x-k8s.io/multikueue"}, past=(is_ignored,), kinds=PYTORCH),
    Scene("coded", "ExitCode", past=(runs, fails_by_code)),
    Scene("wrong", "ExitCode", past=(runs,), future=(fails_by_code,)),
]
"""1.7 has no `managedBy`, does not count the pods of lower-case types, and does not end a job whose pod exited with a
permanent code."""

RESTARTS = "trainop.kubeflow.org/restarts"


def restarts_counted(job: Json) -> int:
    """The failures in the restart history that our operator writes."""
    history = json.loads(job["metadata"].get("annotations", {}).get(RESTARTS, "{}"))
    return int(history.get("failures", 0))


__all__ = ["NOT_IN_1_7", "SCENES", "STUCK", "Scene", "Stage", "Step", "restarts_counted"]
