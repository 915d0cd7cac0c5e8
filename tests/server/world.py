"""A namespace on the real API server, with requests for jobs and children, and pod statuses as a kubelet writes
them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import quote

from e2e.cluster.api import Answer, Api
from tests.patience import PATIENCE

Json: TypeAlias = dict[str, Any]
JOBS = "/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs"
CORE = "/api/v1/namespaces/{namespace}"
MERGE = "application/merge-patch+json"


def replicas(count: int | None, restart: str | None = None, **template: Any) -> Json:
    """A replica spec; `template` is merged into the pod's spec, and its `metadata` becomes the template's."""
    metadata = template.pop("metadata", {})
    container = {"name": "pytorch", "image": "none", **template.pop("container", {})}
    spec: Json = {"template": {"metadata": metadata, "spec": {"containers": [container], **template}}}
    if count is not None:
        spec["replicas"] = count
    if restart is not None:
        spec["restartPolicy"] = restart
    return spec


class World:
    """The requests of a test to the API server, in one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        self.ask("POST", "/api/v1/namespaces", body)

    def ask(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """The decoded body of a response that must be 2xx; `{namespace}` in the path is replaced."""
        answer = self.try_to(method, path, body, content_type)
        assert 200 <= answer.status < 300, (method, path, answer)
        return answer.body

    def try_to(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Answer:
        return self.api(method, path.format(namespace=self.namespace), body, content_type)

    # jobs

    def create_job(self, name: str, specs: Mapping[str, Json], *, spec: Json | None = None, **run_policy: Any) -> Json:
        body = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name},
            "spec": {"runPolicy": run_policy, "pytorchReplicaSpecs": dict(specs), **(spec or {})},
        }
        created: Json = self.ask("POST", JOBS, body)
        return created

    def job(self, name: str = "j") -> Json:
        job: Json = self.ask("GET", f"{JOBS}/{name}")
        return job

    def patch_job(self, spec: Json, name: str = "j") -> Json:
        patched: Json = self.ask("PATCH", f"{JOBS}/{name}", {"spec": spec}, MERGE)
        return patched

    def patch_run_policy(self, name: str = "j", **fields: Any) -> Json:
        return self.patch_job({"runPolicy": fields}, name)

    def status(self, name: str = "j") -> Json:
        status: Json = self.job(name).get("status", {})
        return status

    def tally(self, role: str, name: str = "j") -> Json:
        """The counters of a role in the status; empty before there is one."""
        counters: Json = self.status(name).get("replicaStatuses", {}).get(role, {})
        return counters

    def conditions(self, name: str = "j") -> list[tuple[str, str, str]]:
        """Type, status and reason of the job's conditions, in order."""
        return [(c["type"], c["status"], c["reason"]) for c in self.status(name).get("conditions", ())]

    def condition(self, kind: str, name: str = "j") -> Json:
        return next((c for c in self.status(name).get("conditions", ()) if c["type"] == kind), {})

    def is_now(self, kind: str, name: str = "j") -> bool:
        return bool(self.condition(kind, name).get("status") == "True")

    def history(self, since: Json) -> list[list[tuple[str, str, str]]]:
        """The conditions (type, status, message) of each version of a job after `since`, from a watch."""
        metadata = since["metadata"]
        query = f"watch=1&timeoutSeconds=1&resourceVersion={metadata['resourceVersion']}"
        path = f"{JOBS}?{query}&fieldSelector=metadata.name={metadata['name']}"
        lines = str(self.ask("GET", path)).splitlines()
        jobs = [json.loads(line)["object"] for line in lines]
        conditions = [job.get("status", {}).get("conditions", []) for job in jobs]
        return [[(c["type"], c["status"], c["message"]) for c in seen] for seen in conditions]

    # children

    def pods(self) -> dict[str, Json]:
        return {pod["metadata"]["name"]: pod for pod in self.ask("GET", f"{CORE}/pods")["items"]}

    def services(self) -> dict[str, Json]:
        return {service["metadata"]["name"]: service for service in self.ask("GET", f"{CORE}/services")["items"]}

    def events(self, reason: str) -> list[Json]:
        events: list[Json] = self.ask("GET", f"{CORE}/events?fieldSelector=reason={quote(reason)}")["items"]
        return events

    def wait_events(self, reason: str, count: int = 1) -> list[Json]:
        """Wait for the events of a reason, and demand exactly `count`: events are written beside the status."""
        self.wait(lambda: len(self.events(reason)) >= count, f"{count} event(s) {reason}")
        events = self.events(reason)
        assert len(events) == count, events
        return events

    # waiting

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Poll until `condition` is true and return its value; on timeout, fail with the state of the namespace."""
        end = time.monotonic() + PATIENCE
        while not (value := condition()):
            assert time.monotonic() < end, f"timeout while waiting for {what}: {self.describe()}"
            time.sleep(0.03)
        return value

    def wait_pods(self, *names: str) -> dict[str, Json]:
        """Wait until exactly these pods exist, none of them terminating."""

        def settled() -> dict[str, Json] | None:
            pods = self.pods()
            leaving = any("deletionTimestamp" in pod["metadata"] for pod in pods.values())
            return pods if set(pods) == set(names) and not leaving else None

        if not names:
            self.wait(lambda: not self.pods(), "no pods")
            return {}
        pods: dict[str, Json] = self.wait(settled, f"exactly the pods {', '.join(names)}")
        return pods

    def wait_services(self, *names: str) -> dict[str, Json]:
        """Wait until exactly these services exist."""
        self.wait(lambda: set(self.services()) == set(names), f"exactly the services {', '.join(names)}")
        return self.services()

    def wait_pod(self, name: str) -> Json:
        pod: Json = self.wait(lambda: self.pods().get(name), f"pod {name}")
        return pod

    def wait_successor(self, name: str, uid: str) -> Json:
        """Wait for a pod of the same name with another UID."""

        def successor() -> Json | None:
            pod = self.pods().get(name)
            return pod if pod and pod["metadata"]["uid"] != uid else None

        pod: Json = self.wait(successor, f"a new pod {name}")
        return pod

    def wait_condition(self, kind: str, name: str = "j") -> Json:
        self.wait(lambda: self.is_now(kind, name), f"condition {kind}")
        return self.condition(kind, name)

    def settle(self, seconds: float = 0.5) -> None:
        """Wait for `seconds`, to prove that the operator does not do something."""
        time.sleep(seconds)

    def describe(self) -> str:
        pods = {
            name: (pod["status"]["phase"], pod["metadata"].get("deletionTimestamp"))
            for name, pod in self.pods().items()
        }
        jobs = {job["metadata"]["name"]: job.get("status") for job in self.ask("GET", JOBS)["items"]}
        return f"pods {pods}, jobs {jobs}"

    # the kubelet

    def set_pod(self, name: str, status: Json) -> None:
        self.ask("PATCH", f"{CORE}/pods/{name}/status", {"status": status}, MERGE)

    def run_pod(self, *names: str, restarts: int = 0) -> None:
        """Set these pods to Running; `restarts` is the restart count of the container."""
        for name in names:
            running = {"running": {"startedAt": "2024-01-01T00:00:00Z"}}
            self.set_pod(name, {"phase": "Running", "containerStatuses": [container(running, restarts)]})

    def end_pod(self, name: str, exit_code: int = 0) -> None:
        """Terminate the pod's container with `exit_code`, and set the pod's phase accordingly."""
        terminated = {"terminated": {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}}
        phase = "Failed" if exit_code else "Succeeded"
        self.set_pod(name, {"phase": phase, "containerStatuses": [container(terminated)]})

    def evict_pod(self, name: str) -> None:
        self.set_pod(name, {"phase": "Failed", "reason": "Evicted", "message": "no disk", "containerStatuses": None})

    def reap_pod(self, name: str) -> None:
        """Remove a terminating pod, as the kubelet does after the containers have stopped."""
        self.ask("DELETE", f"{CORE}/pods/{name}", {"gracePeriodSeconds": 0})


def container(state: Json, restarts: int = 0) -> Json:
    """An entry of containerStatuses."""
    ready = "running" in state
    return {"name": "pytorch", "image": "none", "imageID": "", "ready": ready, "restartCount": restarts, "state": state}
