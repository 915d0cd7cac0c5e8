"""What the tests of faults share: small jobs, what can be observed of one, and the faults that happen to it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster.node import configs
from e2e.realnode.cluster import NAMESPACE, OPERATOR, PATIENCE, RealCluster
from e2e.realnode.proof import Proof
from e2e.realnode.small_programs import WAITS
from trainop.programs.schemes import FRAMEWORKS

Json = dict[str, Any]
NODE, STANDBY = configs.IDENTITY.name, "standby"
OPERATOR_PODS = "--selector=control-plane=kubeflow-training-operator"
HISTORY = "trainop.kubeflow.org/restarts"


@dataclass(frozen=True)
class SmallJob:
    """A job of workers that all run one small program in the image `base`."""

    kind: str
    policy: str
    """The restart policy."""
    workers: int = 1
    name: str = "job"
    program: str = WAITS
    run_policy: Mapping[str, Any] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the pods' spec."""
    container: Mapping[str, Any] = field(default_factory=dict)
    """More fields of their container."""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        """As kubectl names it."""
        return f"{self.kind.lower()}/{self.name}"

    @property
    def pods(self) -> list[str]:
        """The names of its pods."""
        return [f"{self.name}-worker-{index}" for index in range(self.workers)]

    def text(self, image: str = "base") -> str:
        """The manifest as YAML."""
        framework = FRAMEWORKS[self.kind]
        container = {
            "name": framework.container,
            "image": image,
            "command": ["python", "-c", self.program],
            **self.container,
        }
        template = {"spec": {"containers": [container], **self.pod}}
        worker = {"replicas": self.workers, "restartPolicy": self.policy, "template": template}
        metadata = {"name": self.name, "annotations": dict(self.annotations)}
        spec = {"runPolicy": dict(self.run_policy), framework.replica_specs: {"Worker": worker}}
        return yaml.safe_dump({"apiVersion": "kubeflow.org/v1", "kind": self.kind, "metadata": metadata, "spec": spec})


@dataclass(frozen=True)
class Restarts:
    """The restarts of a job's pods by the operator, by their cause."""

    failures: int = 0
    """Failures of its code, which count towards `backoffLimit`."""
    disruptions: int = 0
    """Evictions, preemptions, lost nodes, deletions by other clients."""


class Scene:
    """One test: its namespace on the cluster, what can be seen in it, and faults."""

    def __init__(self, cluster: RealCluster, proof: Proof) -> None:
        self.cluster = cluster
        self.proof = proof

    # Jobs -------------------------------------------------------------------------------------------------------------

    def start(self, job: SmallJob) -> list[str]:
        """Creates the job and waits until all of its pods run. Returns their UIDs."""
        self.proof.apply(job.text())
        self.wait_until_all_run(job)
        return self.uids(job)

    def finish(self, job: SmallJob) -> None:
        """Lets the programs of a running job end, and waits until it has succeeded."""
        self.wait_until_all_run(job)
        for name in job.pods:
            self.proof.exec(name, "touch", "/tmp/end")
        self.proof.wait_for(job.resource, "Succeeded")

    def wait_until_replaced(self, job: SmallJob, index: int, before: list[str]) -> None:
        """Until the pod of this index is another than `before`, the UIDs of the pods."""
        name = job.pods[index]
        self.proof.wait_until(lambda: self.uids(job)[index] not in {"", before[index]}, f"{name} is replaced")

    def limit(self, job: SmallJob, name: str, seconds: int, since: str) -> int:
        """Sets a limit of the run policy so that it is reached in so many seconds, and returns it. `since` is the field
        of the status with the time that it counts from. A limit that the job has from its creation would be reached
        before its pods run if the machine is busy."""
        begin = datetime.fromisoformat(self.status(job)[since])
        limit = int((datetime.now(UTC) - begin).total_seconds()) + seconds
        self._set_policy(job, name, limit)
        return limit

    def suspend(self, job: SmallJob, *, on: bool) -> None:
        self._set_policy(job, "suspend", on)

    def _set_policy(self, job: SmallJob, name: str, value: object) -> None:
        patch = {"spec": {"runPolicy": {name: value}}}
        self.proof.kubectl("patch", job.resource, "--type=merge", f"--patch={json.dumps(patch)}")

    def wait_until_all_run(self, job: SmallJob) -> None:
        """Until all pods run, and the job says so."""
        self.proof.wait_until(lambda: self.all_run(job), f"{job.workers} pods of {job.resource} run")
        self.proof.wait_for(job.resource, "Running")

    # Counters and events follow the status, by less than a second on an idle machine.

    def wait_for_counters(self, job: SmallJob, counters: Mapping[str, int]) -> None:
        self._settle(lambda: self.counters(job), counters, f"counters of {job.resource}")

    def wait_until_placed(self, job: SmallJob, pods: Sequence[int]) -> None:
        """Until the scheduler has bound so many pods of each name in `job.pods`."""
        self._settle(lambda: self.placed(job), pods, f"pods of {job.resource} by name, bound to the node")

    def wait_for_events(self, job: SmallJob, reason: str, messages: Sequence[str]) -> None:
        """Until these are the messages of the job's events with this reason."""
        self._settle(lambda: self.events(job, reason), messages, f"events {reason} of {job.resource}")

    def wait_for_conditions(self, job: SmallJob, conditions: Sequence[str]) -> None:
        """Until these are the last conditions of the job."""
        self._settle(lambda: self.conditions(job)[-len(conditions) :], conditions, f"conditions of {job.resource}")

    def _settle(self, observe: Callable[[], object], wanted: object, what: str) -> None:
        """Waits until what is observed is `wanted`. A failure shows what was observed last."""
        seen: object = None

        def is_wanted() -> bool:
            nonlocal seen
            seen = observe()
            return seen == wanted

        try:
            self.proof.wait_until(is_wanted, f"{what}: {wanted}")
        except AssertionError as error:
            raise AssertionError(f"{what} are {seen} instead of {wanted}\n{error}") from None

    # What is seen -----------------------------------------------------------------------------------------------------

    def found(self, job: SmallJob) -> dict[str, Json]:
        """The pods of the job by name."""
        return {pod["metadata"]["name"]: pod for pod in self.proof.pods(job.name)}

    def uids(self, job: SmallJob) -> list[str]:
        """The UIDs of its pods in the order of `job.pods`; empty for one that does not exist."""
        found = self.found(job)
        return [found[name]["metadata"]["uid"] if name in found else "" for name in job.pods]

    def all_run(self, job: SmallJob) -> bool:
        """Whether all containers of the job run, and none of its pods is being deleted."""
        found = self.found(job)
        return found.keys() >= set(job.pods) and all(is_running(found[name]) for name in job.pods)

    def is_gone(self, job: SmallJob) -> bool:
        """Whether the job has no pods and no Services."""
        selector = f"--selector=training.kubeflow.org/job-name={job.name}"
        return not self.proof.kubectl("get", "pods,services", selector, "--output=name").strip()

    def status(self, job: SmallJob) -> Json:
        status: Json = self.proof.job(job.resource).get("status", {})
        return status

    def conditions(self, job: SmallJob) -> list[str]:
        """The conditions in their order, such as `Running=True JAXJobRunning`."""
        return [f"{one['type']}={one['status']} {one['reason']}" for one in self.status(job).get("conditions", ())]

    def message(self, job: SmallJob, condition: str) -> str:
        """The message of a condition that is True, else an empty one."""
        return str((self.proof.condition(job.resource, condition) or {}).get("message", ""))

    def restarts(self, job: SmallJob) -> Restarts:
        """The restart history that the operator keeps on the job."""
        annotations = self.proof.job(job.resource)["metadata"].get("annotations", {})
        stored = json.loads(annotations.get(HISTORY, "{}"))
        return Restarts(stored.get("failures", 0), stored.get("disruptions", 0))

    def counters(self, job: SmallJob) -> dict[str, int]:
        """The operator's counters of jobs of this kind in this namespace, by a short name, without those that are 0."""
        labels = {"job_namespace": self.proof.namespace, "framework": FRAMEWORKS[job.kind].name}
        found: dict[str, int] = {}
        for pod in self.operators():
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:8080/proxy/metrics"
            for family in text_string_to_metric_families(self.cluster.kubectl("get", "--raw", path)):
                for sample in family.samples:
                    if sample.labels == labels and sample.name.endswith("_total") and sample.value:
                        name = sample.name.removeprefix("training_operator_jobs_").removeprefix("trainop_")
                        name = name.removesuffix("_total")
                        found[name] = found.get(name, 0) + int(sample.value)
        return found

    def events(self, job: SmallJob, reason: str) -> list[str]:
        """The messages of the job's events with this reason, each as often as it was emitted."""
        return [
            event["message"]
            for event in self.proof.events(reason)
            if (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == (job.kind, job.name)
            for _ in range(event.get("count") or 1)
        ]

    def placed(self, job: SmallJob) -> list[int]:
        """How many pods of each name in `job.pods` the scheduler has bound to the node so far."""
        events = self.proof.events("Scheduled")
        bound = {(event["involvedObject"]["name"], event["involvedObject"]["uid"]) for event in events}
        return [sum(name == pod for name, _ in bound) for pod in job.pods]

    def operators(self) -> list[Json]:
        """The pods of the operator that are not being deleted."""
        pods = self.cluster.get("pods", OPERATOR_PODS, namespace=NAMESPACE)["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    # Faults -----------------------------------------------------------------------------------------------------------

    def kill(self, pod: Json) -> None:
        """kill -9 of the first process of the pod's only container. It takes a process outside of the container."""
        identity = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        tasks = [line.split() for line in self.cluster.node.run("ctr", "tasks", "ls").splitlines()]
        (process,) = [fields[1] for fields in tasks if fields[0] == identity]
        self.cluster.node.run("kill", "-KILL", process)

    def delete_pod(self, name: str) -> None:
        self.proof.kubectl("delete", "pod", name, "--wait=false")

    def evict(self, name: str) -> None:
        """Eviction by the API, as by `kubectl drain`, deschedulers and autoscalers of nodes."""
        metadata = {"name": name, "namespace": self.proof.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        path = f"/api/v1/namespaces/{self.proof.namespace}/pods/{name}/eviction"
        self.proof.kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(eviction))

    def hold(self, name: str, *, on: bool) -> None:
        """Adds or removes a finalizer, so that a deleted pod can still be seen."""
        patch = {"metadata": {"finalizers": ["e2e.trainop/hold"] if on else None}}
        self.proof.kubectl("patch", "pod", name, "--type=merge", f"--patch={json.dumps(patch)}")

    def signal_kubelet(self, number: signal.Signals) -> None:
        """SIGSTOP makes a node that does not answer any more, on which containers run on; SIGCONT brings it back."""
        pid, _ = (self.cluster.node.data / "pid" / "kubelet").read_text().split()
        self.cluster.node.run("kill", f"-{number.value}", pid)

    def node_is_ready(self) -> bool:
        conditions = self.cluster.get("node", NODE)["status"]["conditions"]
        return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)

    def add_standby(self) -> None:
        """Adds a second node, an object without a kubelet, that takes no pods. While all nodes of a cluster are lost,
        kube-controller-manager evicts nothing: it takes the cause to be its own."""
        taint = {"key": STANDBY, "effect": "NoSchedule"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": STANDBY}, "spec": {"taints": [taint]}}
        self.cluster.kubectl("create", "-f", "-", stdin=json.dumps(node))
        self.renew_standby()

    def renew_standby(self) -> None:
        """Reports the standby as ready, as its kubelet would every few seconds."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        patch = f"--patch={json.dumps({'status': {'conditions': [ready]}})}"
        self.cluster.kubectl("patch", f"node/{STANDBY}", "--subresource=status", "--type=merge", patch)

    def remove_standby(self) -> None:
        self.cluster.kubectl("delete", f"node/{STANDBY}", "--ignore-not-found")

    def restart_api_server(self) -> None:
        """Returns when it is ready again."""
        name = f"--name=node-{self.cluster.node.name}"
        self.cluster.node.run(sys.executable, "-m", "e2e.cluster", "restart", "kube-apiserver", name)

    # The operator -----------------------------------------------------------------------------------------------------

    def delete_operator(self) -> None:
        """At once, without its regular end. The Deployment makes a new pod."""
        options = ("--grace-period=0", "--force", "--wait=false")
        self.cluster.kubectl(f"--namespace={NAMESPACE}", "delete", "pods", OPERATOR_PODS, *options)

    def scale_operator(self, replicas: int) -> None:
        """Returns when the operator has that many pods, and they are ready."""
        self.cluster.kubectl(f"--namespace={NAMESPACE}", "scale", OPERATOR, f"--replicas={replicas}")
        self.wait_for_operator()
        self.proof.wait_until(lambda: len(self.operators()) == replicas, f"pods of the operator: {replicas}")

    def set_renew_deadline(self, seconds: int) -> None:
        """How long the operator may be without the API server before it ends, as another one could lead by then.
        `cluster.install()` sets the default again."""
        flags = {"lease-duration": f"{seconds + 60}s", "renew-deadline": f"{seconds}s"}
        path = "/spec/template/spec/containers/0/command/-"
        patch = [
            {"op": "add", "path": path, "value": f"--leader-elect-{name}={value}"} for name, value in flags.items()
        ]
        options = ("--type=json", f"--patch={json.dumps(patch)}")
        self.cluster.kubectl(f"--namespace={NAMESPACE}", "patch", OPERATOR, *options)
        self.wait_for_operator()
        self.proof.wait_until(lambda: len(self.operators()) == 1, "the operator before it is gone")

    def wait_for_operator(self) -> None:
        """Until the Deployment is as it should be."""
        timeout = f"--timeout={PATIENCE:.0f}s"
        self.cluster.kubectl(f"--namespace={NAMESPACE}", "rollout", "status", OPERATOR, timeout)


def is_running(pod: Json) -> bool:
    """Whether its only container runs, and it is not being deleted."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    return "running" in statuses[0].get("state", {}) and "deletionTimestamp" not in pod["metadata"]


def ended(pod: Json) -> Json:
    """How the pod's only container ended, now or before its restart; empty if it has not."""
    status = (pod["status"].get("containerStatuses") or [{}])[0]
    return status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated") or {}


def disruption(pod: Json) -> str:
    """The reason of its condition DisruptionTarget; empty without."""
    conditions = pod["status"].get("conditions", ())
    return next((str(one["reason"]) for one in conditions if one["type"] == "DisruptionTarget"), "")
