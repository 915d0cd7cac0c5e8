"""DIJobs on the real API server: a job with all roles, and what di-server is asked to do."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from e2e.cluster.api import Api
from tests.server.webhooks import DIJOBS, dijob
from tests.server.world import CORE, MERGE, Json, World

GROUP = "/apis/diengine.opendilab.org/v1alpha1"
AGGREGATORS = GROUP + "/namespaces/{namespace}/aggregatorconfigs"
TEMPLATE: Json = {"template": {"spec": {"containers": [{"name": "di-container", "image": "none"}]}}}


class DiWorld(World):
    """A namespace with DIJobs; the test plays the kubelet."""

    def create_dijob(self, name: str, policy: str = "Running", *roles: str) -> Json:
        """A job with a coordinator and these roles."""
        body = dijob(policy, name, **dict.fromkeys(roles, TEMPLATE))
        created: Json = self.ask("POST", DIJOBS, body)
        return created

    def dijob(self, name: str) -> Json:
        found: Json = self.ask("GET", f"{DIJOBS}/{name}")
        return found

    def phase(self, name: str) -> str:
        return str(self.dijob(name).get("status", {}).get("phase", ""))

    def wait_phase(self, name: str, phase: str) -> Json:
        self.wait(lambda: self.phase(name) == phase, f"phase {phase} of {name}")
        return self.dijob(name)

    def pods_of(self, job: str, role: str = "") -> dict[str, Json]:
        return {name: pod for name, pod in self.pods().items() if is_of(pod, job, role)}

    def services_of(self, job: str) -> dict[str, Json]:
        return {name: service for name, service in self.services().items() if is_of(service, job)}

    def set_pods(self, phase: str, *names: str) -> None:
        for name in names:
            self.ask("PATCH", f"{CORE}/pods/{name}/status", {"status": {"phase": phase}}, MERGE)

    def wait_all_services(self, *jobs: str) -> None:
        """Waits until each pod of the jobs has its Service."""
        for job in jobs:
            self.wait(
                lambda job=job: self.pods_of(job).keys() == self.services_of(job).keys(),  # type: ignore[misc]  # mypy cannot infer the lambda
                f"the services of {job}",
            )

    def versions(self) -> dict[str, tuple[str, str]]:
        """Path of every job, pod and Service -> UID and resourceVersion."""
        paths = (DIJOBS, f"{CORE}/pods", f"{CORE}/services")
        return {
            f"{path.rpartition('/')[2]}/{each['metadata']['name']}": (
                each["metadata"]["uid"],
                each["metadata"]["resourceVersion"],
            )
            for path in paths
            for each in self.ask("GET", path)["items"]
        }

    def told(self) -> list[tuple[str, str, int]]:
        """Reason, message and count of every event."""
        found = self.ask("GET", f"{CORE}/events")["items"]
        return sorted((each["reason"], each["message"], each.get("count") or 1) for each in found)

    def told_of(self, reason: str) -> bool:
        return any(each == reason for each, _, _ in self.told())


def is_of(child: Json, job: str, role: str = "") -> bool:
    labels = child["metadata"].get("labels") or {}
    return labels.get("dijob-name") == job and role in {"", labels.get("replica-type")}


def share_aggregators(api: Api) -> None:
    """The AggregatorConfig of the cluster."""
    api("POST", "/api/v1/namespaces", {"metadata": {"name": "di-system"}})
    body = {
        "apiVersion": "diengine.opendilab.org/v1alpha1",
        "kind": "AggregatorConfig",
        "metadata": {"name": "aggregator-config"},
        "spec": {"aggregator": TEMPLATE},
    }
    answer = api("POST", AGGREGATORS.format(namespace="di-system"), body)
    assert answer.status in {201, 409}, answer


def request(port: int, method: str, path: str, body: Any = None, *, token: str = "") -> tuple[int, Json]:
    """One request to di-server, as DI-engine's client sends it: JSON without a content type."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)  # our port
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310  # our port
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
