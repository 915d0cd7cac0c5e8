"""A namespace with a queue of Kueue and jobs of one kind, on simulated nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from e2e.cluster.api import Api
from e2e.cluster.daemons import wait_until
from e2e.cluster.places import ClusterError
from e2e.schedulers.manifests import Json, create
from tests.patience import PATIENCE
from tests.server.kinds import KindWorld
from tests.server.world import CORE, MERGE
from trainop.kinds.mpi.exec.kind import MPI_EXEC
from trainop.programs.schemes import FRAMEWORKS

KUEUE = "kueue.x-k8s.io/v1beta2"
QUEUES = f"/apis/{KUEUE}"
WORKLOADS = f"{QUEUES}/namespaces/{{namespace}}/workloads"
QUEUE = {"kueue.x-k8s.io/queue-name": "queue"}
FLAVOR = "reserved"
TAINT = {"key": "reserved", "value": "training", "effect": "NoSchedule"}
TOLERATION = {"key": "reserved", "operator": "Equal", "value": "training", "effect": "NoSchedule"}
SELECTOR = {"pool": "reserved"}
"""Node labels of the flavor; its nodes bear the taint, too, so that pods run there only with what Kueue injects."""

SSD = {"disk": "ssd"}
"""Labels of all nodes, which the pods of the tests select."""

COUNTS: dict[str, dict[str, int]] = {
    "TFJob": {"Chief": 1, "Worker": 1},
    "PyTorchJob": {"Master": 1, "Worker": 1},
    "XGBoostJob": {"Master": 1, "Worker": 1},
    "PaddleJob": {"Worker": 2},
    "JAXJob": {"Worker": 2},
}
"""Two pods for each kind that Kueue knows, but for MPIJob."""
MORE_COUNTS = {"MXJob": {"Scheduler": 1, "Server": 1}, "MPIJob": {"Launcher": 1, "Worker": 1}}
"""And for the others."""
LAUNCHER = "Launcher"


def counts_of(kind: str) -> dict[str, int]:
    """Two pods of a kind."""
    return (COUNTS | MORE_COUNTS).get(kind, {"Worker": 2})


def priority(name: str) -> dict[str, str]:
    """The label of a job with a priority in its queue."""
    return {"kueue.x-k8s.io/priority-class": name}


def make_queue_objects(api: Api) -> None:
    """Creates what the queues and jobs of the tests refer to: flavors and priorities."""
    make_flavor(api)
    make_topology(api, SSD)
    make_priority(api, "low", 1)
    make_priority(api, "high", 1000)


def make_flavor(api: Api) -> None:
    """Creates the ResourceFlavor of the queues."""
    spec = {"nodeLabels": SELECTOR, "nodeTaints": [TAINT], "tolerations": [TOLERATION]}
    create(api, {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": FLAVOR}, "spec": spec})


def make_topology(api: Api, labels: Mapping[str, str]) -> None:
    """Creates the Topology `hosts` and a ResourceFlavor `by-host` of all nodes with these labels."""
    levels = [{"nodeLabel": "kubernetes.io/hostname"}]
    create(api, {"apiVersion": KUEUE, "kind": "Topology", "metadata": {"name": "hosts"}, "spec": {"levels": levels}})
    spec = {"nodeLabels": labels, "topologyName": "hosts", "tolerations": [TOLERATION]}
    create(api, {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "by-host"}, "spec": spec})


def make_priority(api: Api, name: str, value: int) -> None:
    create(api, {"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value})


class QueueWorld(KindWorld):
    """A namespace with a LocalQueue `queue` of a ClusterQueue of its own; `fields` are those of its `spec`, or
    `queue=False`: it has none yet. `kind` may be MPIJob, or MPIJob/v2beta1."""

    def __init__(self, api: Api, kind: str = "PyTorchJob", cpus: int = 4, flavor: str = FLAVOR, **fields: Any) -> None:
        kind, _, version = kind.partition("/")
        super().__init__(api, FRAMEWORKS.get(kind, MPI_EXEC))
        self.version = f"kubeflow.org/{version or 'v1'}"
        self.jobs = f"/apis/{self.version}/namespaces/{{namespace}}/{self.framework.resource.plural}"
        self.namespace = self.namespace.lower()
        if fields.pop("queue", True):
            self.make_queue(api, cpus, flavor, **fields)

    def make_queue(self, api: Api, cpus: int = 4, flavor: str = FLAVOR, **fields: Any) -> None:
        if checks := fields.pop("admissionChecks", None):
            fields["admissionChecksStrategy"] = {"admissionChecks": [{"name": name} for name in checks]}
        spec = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": _groups(cpus, flavor),
            **fields,
        }
        named = {"name": self.namespace}
        create(api, {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": named, "spec": spec})
        create(
            api,
            {
                "apiVersion": KUEUE,
                "kind": "LocalQueue",
                "metadata": {"name": "queue", "namespace": self.namespace},
                "spec": {"clusterQueue": self.namespace},
            },
        )

    # jobs

    def body(self, name: str, roles: Mapping[str, Json], **spec: Any) -> Json:
        """A job in the queue; `labels` and `annotations` are added to its own."""
        labels, annotations = spec.pop("labels", {}), spec.pop("annotations", {})
        body = super().body(name, roles, **spec)
        body["apiVersion"] = self.version
        body["metadata"].update(labels={**QUEUE, **labels}, annotations=annotations)
        return body

    def role(self, count: int, restart: str | None = None, **container: Any) -> Json:
        """A replica spec whose pods request one CPU each."""
        name = self.framework.container or "main"
        return super().role(count, restart, **{"name": name, "resources": {"requests": {"cpu": "1"}}, **container})

    def submit(self, name: str, counts: Mapping[str, int] | None = None, *, cpus: int = 1, **spec: Any) -> Json:
        """Create a job of two pods, or of `counts`, each of which requests `cpus`."""
        counts = counts or counts_of(self.framework.kind)
        container: Json = {"resources": {"requests": {"cpu": str(cpus)}}}
        roles = {role: self.role(count, **container) for role, count in counts.items()}
        for role in roles.values():
            role["template"]["spec"]["nodeSelector"] = SSD
        created: Json = self.ask("POST", self.jobs, self.body(name, roles, **spec))
        return created

    def suspended(self, name: str) -> bool:
        return bool(self.job(name)["spec"].get("runPolicy", {}).get("suspend"))

    def templates(self, name: str) -> list[Json]:
        return [role["template"] for role in self.job(name)["spec"][self.framework.replica_specs].values()]

    # pods

    def wait_running(self, name: str, count: int = 2) -> dict[str, Json]:
        """Wait until the job has exactly `count` pods, all running."""

        def running() -> dict[str, Json] | None:
            pods = self.pods_of(name)
            return pods if len(pods) == count and all(is_running(pod) for pod in pods.values()) else None

        pods: dict[str, Json] = self.wait(running, f"{count} running pods of {name}")
        return pods

    def wait_settled(self, name: str) -> dict[str, Json]:
        """Wait until the pods run and the Workload says so.

        Kueue gives up a preemption that conflicts with a write of PodsReady to the same Workload, and tries again only
        after another event of the queue.
        """
        pods = self.wait_running(name)
        self.wait_workload(name, "PodsReady")
        return pods

    def end_pods(self, name: str, exit_code: int = 0) -> None:
        """Make the running pods of a job exit; those of an MPIJob end with the launcher."""
        pods = self.pods_of(name)
        launchers = [pod for pod in pods if LAUNCHER.lower() in pod]
        self.end_some(name, *(launchers or pods), exit_code=exit_code)

    def end_some(self, name: str, *pods: str, exit_code: int = 0) -> None:
        """Make these pods of a job exit."""
        ends = {"sim.trainop/run-seconds": "0", "sim.trainop/exit-code": str(exit_code)}
        for pod in pods:
            assert pod.startswith(f"{name}-")
            self.ask("PATCH", f"{CORE}/pods/{pod}", {"metadata": {"annotations": ends}}, MERGE)

    # Kueue

    def condition_reason(self, type_: str, name: str = "j") -> str:
        conditions = self.status(name).get("conditions", ())
        return next((str(each["reason"]) for each in conditions if each["type"] == type_), "")

    def delete_workload(self, job: str) -> None:
        self.ask("DELETE", f"{WORKLOADS}/{self.workload(job)['metadata']['name']}")

    def workload(self, job: str) -> Json:
        """The Workload of a job, or an empty object."""
        for workload in self.ask("GET", WORKLOADS)["items"]:
            if any(owner["name"] == job for owner in workload["metadata"].get("ownerReferences", ())):
                found: Json = workload
                return found
        return {}

    def workload_is(self, job: str, condition: str) -> bool:
        conditions = self.workload(job).get("status", {}).get("conditions", ())
        return any(c["type"] == condition and c["status"] == "True" for c in conditions)

    def wait_workload(self, job: str, condition: str) -> None:
        self.wait(lambda: self.workload_is(job, condition), f"condition {condition} of the workload of {job}")

    def patch_workload(self, job: str, patch: Json, subresource: str = "") -> None:
        name = self.workload(job)["metadata"]["name"]
        self.ask("PATCH", f"{WORKLOADS}/{name}{subresource}", patch, MERGE)

    def used_cpus(self) -> str:
        """The quota in use, as the status of the ClusterQueue states it."""
        status = self.ask("GET", f"{QUEUES}/clusterqueues/{self.namespace}").get("status", {})
        (usage,) = status.get("flavorsUsage") or [{"resources": [{"total": ""}]}]
        return str(usage["resources"][0]["total"])

    def wait_used_cpus(self, count: str) -> None:
        self.wait(lambda: self.used_cpus() == count, f"{count} CPUs of quota in use")

    def patch_queue(self, spec: Json) -> None:
        self.ask("PATCH", f"{QUEUES}/clusterqueues/{self.namespace}", {"spec": spec}, MERGE)

    def set_quota(self, cpus: int) -> None:
        self.patch_queue({"resourceGroups": _groups(cpus)})

    def describe(self) -> str:
        workloads = {
            workload["metadata"]["name"]: [
                (c["type"], c["status"], c.get("reason"), c["message"])
                for c in workload.get("status", {}).get("conditions", ())
            ]
            for workload in self.ask("GET", WORKLOADS)["items"]
        }
        return f"{super().describe()}, workloads {workloads}"


def _groups(cpus: int, flavor: str = FLAVOR) -> list[Json]:
    """`resourceGroups` of a ClusterQueue with this quota."""
    quota = [{"name": "cpu", "nominalQuota": cpus}]
    return [{"coveredResources": ["cpu"], "flavors": [{"name": flavor, "resources": quota}]}]


def clear(api: Api) -> None:
    """Deletes all jobs, and waits until their pods are gone: the next test needs the nodes."""
    kinds = [f"kubeflow.org/v1/{framework.resource.plural}" for framework in FRAMEWORKS.values()]
    for kind in (*kinds, "kubeflow.org/v1/mpijobs", "diengine.opendilab.org/v1alpha1/dijobs"):
        for job in api("GET", f"/apis/{kind}").body["items"]:
            metadata, (group, plural) = job["metadata"], kind.rsplit("/", 1)
            api("DELETE", f"/apis/{group}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}")
    if not wait_until(lambda: not api("GET", "/api/v1/pods").body["items"], PATIENCE):
        raise ClusterError("pods of deleted jobs remain")


def is_running(pod: Json) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")
