"""A namespace for gangs: PodGroups and pods made by hand, and jobs of the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from e2e.cluster.api import Api
from e2e.schedulers.gangs import GangScheduler
from e2e.schedulers.manifests import Json, create
from e2e.schedulers.recorder import Recorder
from tests.server.kinds import KindWorld
from tests.server.world import CORE, MERGE
from trainop.programs.schemes import FRAMEWORKS

LARGE = "1500m"
"""CPUs of a pod. Two such pods fit on a node, four in the cluster: two gangs of three do not fit together."""


class GangWorld(KindWorld):
    """A namespace whose jobs are PyTorchJobs with `workers` of equal size."""

    def __init__(self, api: Api, scheduler: GangScheduler) -> None:
        super().__init__(api, FRAMEWORKS["PyTorchJob"])
        self.scheduler = scheduler
        self.groups = f"/apis/{scheduler.group}/namespaces/{{namespace}}/podgroups"

    def record(self) -> Recorder:
        return Recorder(self.api, self.namespace)

    # by hand

    def make_gang(self, name: str, pods: int, cpu: str, *, members: int | None = None, **spec: Any) -> None:
        """A PodGroup of `members`, all `pods` if not given, and its pods NAME-pod-0 and so on."""
        self.make_group(name, members or pods, **spec)
        for number in range(pods):
            pod = self._pod(f"{name}-pod-{number}", cpu)
            self.scheduler.join(pod, name)
            create(self.api, pod)

    def make_group(self, name: str, members: int, **spec: Any) -> None:
        metadata = {"name": name, "namespace": self.namespace}
        spec = {**self.scheduler.group_spec(members), **spec}
        create(self.api, {"apiVersion": self.scheduler.group, "kind": "PodGroup", "metadata": metadata, "spec": spec})

    def _pod(self, name: str, cpu: str) -> Json:
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }

    def delete_gang(self, name: str) -> None:
        self.ask("DELETE", f"{self.groups}/{name}")
        for pod in self.members(name):
            self.ask("DELETE", f"{CORE}/pods/{pod}")

    # jobs

    def submit(
        self,
        name: str,
        workers: int,
        cpu: str,
        *,
        priority: str = "",
        annotations: Mapping[str, str] | None = None,
        pods: Json | None = None,
        **spec: Any,
    ) -> Json:
        """Create a job of `workers` pods; `pods` are fields of their template."""
        role = self.role(workers, resources={"requests": {"cpu": cpu}})
        role["template"]["spec"] |= pods or {}
        if priority:
            role["template"]["spec"]["priorityClassName"] = priority
        body = self.body(name, {"Worker": role}, **spec)
        body["metadata"]["annotations"] = dict(annotations or {})
        created: Json = self.ask("POST", self.jobs, body)
        return created

    # both

    def members(self, name: str) -> dict[str, Json]:
        """The pods of a gang by name, without those that are being deleted."""
        return {
            pod: body
            for pod, body in self.pods().items()
            if pod.startswith(f"{name}-") and "deletionTimestamp" not in body["metadata"]
        }

    def wait_running(self, name: str, count: int) -> dict[str, Json]:
        """Wait until the gang has exactly `count` pods, all running."""

        pods: dict[str, Json] = self.wait(lambda: self.running(name, count), f"{count} running pods of {name}")
        return pods

    def running(self, name: str, count: int) -> dict[str, Json] | None:
        """The pods of the gang, if they are exactly `count` and all run."""
        pods = self.members(name)
        phases = [pod["status"].get("phase") for pod in pods.values()]
        return pods if phases == ["Running"] * count else None

    def wait_members(self, name: str, count: int, holds: Callable[[Json], bool], what: str) -> None:
        def all_hold() -> bool:
            pods = self.members(name)
            return len(pods) == count and all(holds(pod) for pod in pods.values())

        self.wait(all_hold, f"{count} pods of {name} that are {what}")

    def end_pods(self, name: str) -> None:
        """Make the pods of a gang exit with code 0."""
        self.end(*self.members(name))

    def end(self, *pods: str, exit_code: int = 0) -> None:
        """Make pods exit."""
        ends = {"sim.trainop/run-seconds": "0", "sim.trainop/exit-code": str(exit_code)}
        for pod in pods:
            self.ask("PATCH", f"{CORE}/pods/{pod}", {"metadata": {"annotations": ends}}, MERGE)

    def group_of(self, name: str) -> Json:
        """The PodGroup, or an empty object."""
        answer = self.try_to("GET", f"{self.groups}/{name}")
        found: Json = answer.body if answer.status == 200 else {}
        return found

    def describe(self) -> str:
        groups = {group["metadata"]["name"]: group.get("status") for group in self.ask("GET", self.groups)["items"]}
        reasons = {name: scheduling(pod).get("message") for name, pod in self.pods().items()}
        return f"{super().describe()}, groups {groups}, scheduling {reasons}\n{self.scheduler.describe()}"


def scheduling(pod: Json) -> Mapping[str, Any]:
    """The condition PodScheduled."""
    conditions = pod["status"].get("conditions", ())
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})


def is_waiting(pod: Json) -> bool:
    """Whether a scheduler has tried to place the pod and left it unbound."""
    return not pod["spec"].get("nodeName") and scheduling(pod).get("status") == "False"
