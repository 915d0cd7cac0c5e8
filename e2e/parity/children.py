"""What an operator makes of one job: its children and its status at some moments, in a form that can be compared.

Used for the Go operators, whose answers are recorded, and for ours, on the same kind of API server. No kubelet runs:
the statuses of pods are written here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from e2e.cluster.api import Api
from e2e.parity import RECORDED

Json = dict[str, Any]
Leaves = dict[str, Any]
"""Path -> value, of one moment."""

FOLDER = RECORDED / "children"
CREATED, RUNNING, ENDED = MOMENTS = ("created", "running", "ended")
SUSPENDED, RESUMED = ("suspended", "resumed")
PAUSE = (CREATED, RUNNING, SUSPENDED, RESUMED)
CORE, RBAC = "/api/v1", "/apis/rbac.authorization.k8s.io/v1"
RESOURCES = {
    "Pod": (CORE, "pods"),
    "Service": (CORE, "services"),
    "ConfigMap": (CORE, "configmaps"),
    "Secret": (CORE, "secrets"),
    "ServiceAccount": (CORE, "serviceaccounts"),
    "Role": (RBAC, "roles"),
    "RoleBinding": (RBAC, "rolebindings"),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
    "Job": ("/apis/batch/v1", "jobs"),
}
_OF_THE_CLUSTER = {"kube-root-ca.crt", "default"}
_MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A job whose children are recorded."""

    name: str
    kind: str
    plural: str
    specs: str
    container: str
    roles: Mapping[str, int]
    version: str = "v1"
    spec: Json = field(default_factory=dict)
    restart: str = "Never"
    policy: Json = field(default_factory=dict)
    """Fields of `runPolicy` beside or instead of the usual ones."""
    moments: tuple[str, ...] = MOMENTS
    ends: Mapping[str, int] = field(default_factory=dict)
    """Prefix of pod names after the job's -> exit code, of the pods that end; all others run on."""

    def body(self) -> Json:
        limits = {"limits": {"cpu": "1"}, "requests": {"cpu": "100m"}}
        one = {"name": self.container, "image": "image:1", "command": ["train"], "resources": limits}
        template = {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}, "spec": {"containers": [one]}}
        roles = {
            role: {"replicas": count, "restartPolicy": self.restart, "template": template}
            for role, count in self.roles.items()
        }
        api = f"kubeflow.org/{self.version}"
        spec = {"runPolicy": {"cleanPodPolicy": "Running", **self.policy}, self.specs: roles, **self.spec}
        return {"apiVersion": api, "kind": self.kind, "metadata": {"name": "j"}, "spec": spec}


def _v1(name: str, kind: str, container: str, roles: Mapping[str, int], **fields: Any) -> Scenario:
    lower = kind.removesuffix("Job").lower()
    specs = {"TFJob": "tfReplicaSpecs", "XGBoostJob": "xgbReplicaSpecs"}.get(kind, f"{lower}ReplicaSpecs")
    return Scenario(name, kind, f"{kind.lower()}s", specs, container, roles, **fields)


def _ssh(name: str, roles: Mapping[str, int], **spec: Any) -> Scenario:
    """Of which only the children are compared."""
    return _v1(name, "MPIJob", "mpi", roles, version="v2beta1", spec=spec, moments=(CREATED,))


def _courses(
    name: str,
    kind: str,
    container: str,
    roles: Mapping[str, int],
    leader: str,
    *,
    pauses: bool = True,
    failed: Json | None = None,
    **fields: Any,
) -> tuple[Scenario, ...]:
    """What every kind is shown with: a pod that fails, all pods deleted at the end, and a pause."""

    def make(suffix: str, **more: Any) -> Scenario:
        return _v1(f"{name}-{suffix}", kind, container, roles, **fields, **more)

    ended = (
        make("failed", ends={leader: 1}, policy=failed or {}),
        make("all", ends={leader: 0}, policy={"cleanPodPolicy": "All"}),
    )
    return (*ended, make("suspended", moments=PAUSE)) if pauses else ended


_PAIR = {"Master": 1, "Worker": 1}
_MPI = {"Launcher": 1, "Worker": 1}
_MX = {"Scheduler": 1, "Server": 1, "Worker": 1}
_TRAIN = {"jobMode": "MXTrain"}
_AS_WORKER = {"runLauncherAsWorker": True, "slotsPerWorker": 2, "mpiImplementation": "Intel"}
_MPICH = {"mpiImplementation": "MPICH", "launcherCreationPolicy": "WaitForWorkersReady"}
_CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
_DYNAMIC = {"enableDynamicWorker": True}
_ELASTIC = {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d", "metrics": [_CPU]}
SCENARIOS = {
    "training-operator": (
        _v1("tf", "TFJob", "tensorflow", {"Chief": 1, "PS": 1, "Worker": 2}, ends={"chief": 0}),
        _v1(
            "tf-dynamic", "TFJob", "tensorflow", {"Worker": 2}, spec={"enableDynamicWorker": True}, ends={"worker-0": 0}
        ),
        _v1("pytorch", "PyTorchJob", "pytorch", {"Master": 1, "Worker": 2}, ends={"master": 0}),
        _v1("pytorch-failed", "PyTorchJob", "pytorch", {"Master": 1, "Worker": 1}, ends={"worker": 1}),
        _v1("pytorch-elastic", "PyTorchJob", "pytorch", {"Worker": 2}, spec={"elasticPolicy": _ELASTIC}),
        _v1("xgboost", "XGBoostJob", "xgboost", {"Master": 1, "Worker": 1}, ends={"master": 0}),
        _v1("paddle", "PaddleJob", "paddle", {"Master": 1, "Worker": 1}, ends={"master": 0}),
        _v1("jax", "JAXJob", "jax", {"Worker": 2}, ends={"worker": 0}),
        _v1("mpi", "MPIJob", "mpi", {"Launcher": 1, "Worker": 2}, ends={"launcher": 0}),
        _v1("mpi-alone", "MPIJob", "mpi", {"Launcher": 1}, ends={"launcher": 0}),
        *_courses("tf", "TFJob", "tensorflow", {"Worker": 2}, "worker-0"),
        *_courses("pytorch-master", "PyTorchJob", "pytorch", _PAIR, "master"),
        *_courses("xgboost", "XGBoostJob", "xgboost", _PAIR, "master"),
        *_courses("paddle", "PaddleJob", "paddle", _PAIR, "master"),
        *_courses("jax", "JAXJob", "jax", {"Worker": 2}, "worker-0"),
        *_courses("mpi", "MPIJob", "mpi", _MPI, "launcher"),
    ),
    "training-operator-1.7": (
        _v1("mx", "MXJob", "mxnet", _MX, spec=_TRAIN, ends={"scheduler": 0}),
        *_courses("mx", "MXJob", "mxnet", _MX, "scheduler", pauses=False, spec=_TRAIN),
    ),
    "mpi-operator": (
        _ssh("mpi", {"Launcher": 1, "Worker": 2}),
        _ssh("mpi-alone", {"Launcher": 1}),
        _ssh("mpi-as-worker", {"Launcher": 1, "Worker": 1}, **_AS_WORKER),
        _ssh("mpi-mpich", {"Launcher": 1, "Worker": 1}, **_MPICH),
        _v1("mpi-ended", "MPIJob", "mpi", _MPI, version="v2beta1", ends={"launcher": 0}),
        *_courses("mpi", "MPIJob", "mpi", _MPI, "launcher", version="v2beta1", failed={"backoffLimit": 0}),
    ),
}
"""By the operator that is replaced."""


class Stage:
    """A namespace of its own, in which one scenario is played."""

    def __init__(self, api: Api, scenario: Scenario, namespace: str) -> None:
        self.api, self.scenario, self.namespace = api, scenario, namespace
        self._jobs = f"/apis/kubeflow.org/{scenario.version}/namespaces/{namespace}/{scenario.plural}"
        self._ask("POST", f"{CORE}/namespaces", {"metadata": {"name": namespace}})
        self._ask("POST", self._jobs, scenario.body())

    def _ask(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        answer = self.api(method, path, body, content)
        assert 200 <= answer.status < 300, (method, path, answer)
        return answer.body

    def _list(self, kind: str) -> list[Json]:
        group, plural = RESOURCES[kind]
        found: list[Json] = self._ask("GET", f"{group}/namespaces/{self.namespace}/{plural}")["items"]
        return [each for each in found if each["metadata"]["name"] not in _OF_THE_CLUSTER]

    def complete(self) -> bool:
        """Whether all pods are there. Of a job that does not run, only those that the operator itself creates."""
        creators = len(self.scenario.moments) > 1 or self.scenario.version == "v1"
        launchers = 0 if creators else self.scenario.roles.get("Launcher", 0)
        return len(self._list("Pod")) >= sum(self.scenario.roles.values()) - launchers

    def suspend(self, wanted: bool) -> None:
        self._ask("PATCH", f"{self._jobs}/j", {"spec": {"runPolicy": {"suspend": wanted}}}, _MERGE)

    def run_pods(self) -> None:
        for pod in self._list("Pod"):
            self._set_pod(pod, "Running", {"running": {"startedAt": "2024-01-01T00:00:00Z"}})

    def end_pods(self) -> None:
        for pod in self._list("Pod"):
            role = pod["metadata"]["name"].removeprefix("j-")
            for prefix, code in self.scenario.ends.items():
                if role.startswith(prefix):
                    phase = "Failed" if code else "Succeeded"
                    self._set_pod(pod, phase, {"terminated": {"exitCode": code, "reason": "Error" if code else ""}})

    def _set_pod(self, pod: Json, phase: str, state: Json) -> None:
        container = {"name": pod["spec"]["containers"][0]["name"], "image": "i", "imageID": "", "restartCount": 0}
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
        statuses = [{**container, "ready": phase == "Running", "state": state}]
        status = {"phase": phase, "containerStatuses": statuses, "conditions": [ready]}
        path = f"{CORE}/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        self._ask("PATCH", path, {"status": status}, _MERGE)

    def remove_terminating(self) -> None:
        """What the kubelet and the garbage collector would do."""
        for pod in self._list("Pod"):
            if "deletionTimestamp" in pod["metadata"]:
                path = f"{CORE}/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
                self.api("DELETE", path, {"gracePeriodSeconds": 0})

    def look(self) -> Leaves:
        """All that the operator has made of the job up to now."""
        job = self._ask("GET", f"{self._jobs}/j")
        found: Json = {"status": job.get("status") or {}}
        for kind in RESOURCES:
            made = (each for each in self._list(kind) if not _is_of_batch_job(each))
            found[kind] = {each["metadata"]["name"]: _reduced(kind, each) for each in made}
        events = self._ask("GET", f"{CORE}/namespaces/{self.namespace}/events")["items"]
        about = [each for each in events if each["involvedObject"].get("kind") == self.scenario.kind]
        if about:
            found["events"] = {f"{each['type']} {each['reason']}": _without_names(each["message"]) for each in about}
        text = json.dumps(found).replace(job["metadata"]["uid"], "UID").replace(self.namespace, "NAMESPACE")
        return {path: value for path, value in _flatten(json.loads(text), "") if not path.endswith("controller-uid")}


def _is_of_batch_job(value: Json) -> bool:
    """Whether it is a pod that the Job controller has made, where there is one."""
    return any(owner["kind"] == "Job" for owner in value["metadata"].get("ownerReferences", ()))


def _without_names(message: str) -> str:
    """The message without a number or name, so that it is the same for all pods of a job."""
    return re.sub(r"\bj-[-a-z0-9]+", "CHILD", message)


_VOLATILE = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "generateName", "selfLink")
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")


def _reduced(kind: str, value: Json) -> Json:
    """Without what the API server or a kubelet adds, and without secrets."""
    metadata = {name: each for name, each in value["metadata"].items() if name not in _VOLATILE}
    rest = {name: each for name, each in value.items() if name not in ("metadata", "status", "apiVersion", "kind")}
    if kind == "Secret":
        rest["data"] = sorted(rest.get("data", {}))
    if kind == "Service":
        rest["spec"] = {name: each for name, each in rest["spec"].items() if not name.startswith("clusterIP")}
    if kind == "Pod":
        rest["spec"] = _without_account(rest["spec"])
    return {"metadata": metadata, **rest}


def _without_account(spec: Json) -> Json:
    """Without what the ServiceAccount admission plugin adds, which not every API server has."""
    dropped = (
        ("serviceAccount", "serviceAccountName") if spec.get("serviceAccountName") == "default" else ("serviceAccount",)
    )
    kept = {name: value for name, value in spec.items() if name not in dropped}
    for owner, name in [(kept, "volumes"), *((each, "volumeMounts") for each in _containers(kept))]:
        found = [each for each in owner.pop(name, ()) if not each["name"].startswith("kube-api-access")]
        if found:
            owner[name] = found
    return kept


def _containers(spec: Json) -> list[Json]:
    found: list[Json] = [*spec["containers"], *spec.get("initContainers", ())]
    return found


def _flatten(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The leaves. Entries of a list are named by their `name` or `type`; texts that are JSON are read."""
    if isinstance(value, str) and value[:1] in "{[" and value:
        try:
            value = json.loads(value)
        except ValueError:
            yield path, value
            return
    if isinstance(value, list) and value:
        keys = [each.get("name") or each.get("type") if isinstance(each, dict) else None for each in value]
        named = None not in keys and len(set(keys)) == len(keys)
        for place, (key, each) in enumerate(zip(keys, value, strict=True)):
            yield from _flatten(each, f"{path}[{key if named else place}]")
    elif isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flatten(each, f"{path}/{name}" if path else name)
    elif not (isinstance(value, str) and _TIME.match(value)):
        yield path, value
    else:
        yield path, "a time"


def play(stage: Stage, wait: Callable[[str], Leaves]) -> dict[str, Leaves]:
    """Plays the scenario; `wait` returns what `Stage.look` shows once it has come to rest at a moment."""
    acts: dict[str, Callable[[], None]] = {
        RUNNING: stage.run_pods,
        SUSPENDED: partial(stage.suspend, True),
        RESUMED: partial(stage.suspend, False),
        ENDED: stage.end_pods,
    }
    found = {}
    for moment in stage.scenario.moments:
        if moment in acts:
            acts[moment]()
        found[moment] = wait(moment)
    return found


def compare(theirs: Leaves, ours: Leaves) -> dict[str, str]:
    """Path -> both values, of all leaves that are different."""
    absent = "nothing"
    paths = sorted({*theirs, *ours})
    return {
        path: f"{theirs.get(path, absent)!r} -> {ours.get(path, absent)!r}"
        for path in paths
        if theirs.get(path, absent) != ours.get(path, absent)
    }


def recorded(operator: str, scenario: str) -> dict[str, Leaves]:
    """By moment. A file has the leaves of the first moment, and of each other one what has changed since."""
    now: Leaves = {}
    found = {}
    for moment, changes in json.loads((FOLDER / operator / f"{scenario}.json").read_text()).items():
        now = {path: value for path, value in (now | changes["set"]).items() if path not in changes["gone"]}
        found[moment] = now
    return found


def write(operator: str, scenario: str, found: Mapping[str, Leaves]) -> None:
    before: Leaves = {}
    changes = {}
    for moment, now in found.items():
        differing = {path: now[path] for path in sorted(now) if path not in before or before[path] != now[path]}
        changes[moment] = {"set": differing, "gone": sorted(before.keys() - now.keys())}
        before = now
    path = FOLDER / operator / f"{scenario}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(changes, indent=1) + "\n")
