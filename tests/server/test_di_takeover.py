"""Jobs that DI-orchestrator began are continued. Their pods, services and statuses are written here as its releases
write them; `e2e/takeover/test_di.py` shows the same with its programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.patience import PATIENCE
from tests.server.conftest import NUMBERS
from tests.server.di_programs import DiOperator
from tests.server.di_world import DiWorld
from tests.server.webhooks import DIJOBS
from tests.server.world import CORE, MERGE, Json

PORTS = {"coordinator": 22273, "collector": 22270, "learner": 22271, "ddp-learner": 22271, "aggregator": 22272}
THEN = "2026-01-02T03:04:05Z"
CREATED = ("Created", "True", "DIJobCreated", "DIJob {} created")
RUNNING = ("Running", "True", "DIJobRunning", "coordinator and aggregator of DIJob {} are running")
RAN = ("Running", "False", *RUNNING[2:])
SUCCEEDED = ("Succeeded", "True", "DIJobSucceeded", "DIJob {} succeeded because coordinator succeeded")


class Upstream(DiWorld):
    """Writes what DI-orchestrator writes."""

    def begin(self, name: str, phase: str, policy: str, counts: Json, *conditions: tuple[str, str, str, str]) -> Json:
        """A job with the status that DI-orchestrator v0.2.2 has written."""
        job = self.create_dijob(name, policy, "collector", "learner")
        found = [
            {
                "type": type_,
                "status": status,
                "reason": reason,
                "message": message.format(name),
                "lastUpdateTime": THEN,
                "lastTransitionTime": THEN,
            }
            for type_, status, reason, message in conditions
        ]
        roles: Json = {role: {} for role in ("Collector", "Learner", "Aggregator", "Coordinator")}
        body = {"status": {"phase": phase, "conditions": found, "replicaStatus": roles | counts}}
        self.ask("PATCH", f"{DIJOBS}/{name}/status", body, MERGE)
        return job

    def add(self, job: Json, role: str, suffix: str, phase: str, *owners: Json, service: bool = True) -> Json:
        """A pod and its Service. `owners` are in the place of the job, or in addition to it."""
        name = f"{job['metadata']['name']}-{role}{suffix and f'-{suffix}'}"
        own = {**reference(job), "controller": True}
        labels = {
            "group-name": "diengine.opendilab.org",
            "dijob-name": job["metadata"]["name"],
            "controller-name": "di-operator",
            "replica-type": role,
            "pod-name": name,
        }
        metadata = {"name": name, "labels": labels, "ownerReferences": list(owners) or [own]}
        port = PORTS[role]
        env = {
            f"{role.rpartition('-')[2].upper()}_PORT": str(port),
            "KUBERNETES_POD_NAMESPACE": self.namespace,
            "KUBERNETES_POD_NAME": name,
            "KUBERNETES_SERVER_URL": "di-server.di-system:8080",
        }
        container = {
            "name": "di-container",
            "image": "none",
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "ports": [{"name": "di-port", "containerPort": port}],
        }
        restart = "Never" if role == "coordinator" else "Always"
        spec = {"containers": [container], "restartPolicy": restart}
        pod: Json = self.ask("POST", f"{CORE}/pods", {"metadata": metadata, "spec": spec})
        if phase != "Pending":
            self.set_pods(phase, name)
        if service:
            headless = {"clusterIP": "None", "selector": labels, "ports": [{"name": "di-port", "port": port}]}
            self.ask("POST", f"{CORE}/services", {"metadata": metadata, "spec": headless})
        return pod


def reference(owner: Json) -> Json:
    metadata = owner["metadata"]
    about = {"apiVersion": owner.get("apiVersion", "v1"), "kind": owner.get("kind", "Pod")}
    return {**about, "name": metadata["name"], "uid": metadata["uid"]}


@pytest.fixture
def upstream(control_plane: ControlPlane) -> Upstream:
    return Upstream(control_plane.api, f"takeover{next(NUMBERS)}")


def start(folder: Path, plane: ControlPlane, world: DiWorld, jobs: int) -> DiOperator:
    """Starts ours, and waits until it has reconciled every job."""
    operator = DiOperator(folder / "log", f"--kubeconfig={plane.kubeconfig}", f"--namespace={world.namespace}")
    operator.start()
    results = ("success", "requeue_after")  # the latter of jobs that have something to wait for
    series = [f'controller_runtime_reconcile_total{{controller="di-operator",result="{each}"}}' for each in results]
    assert wait_until(lambda: sum(operator.metric(each) or 0 for each in series) >= jobs, PATIENCE), operator.text()
    return operator


@pytest.mark.case("di-orchestrator-12", "ab")
def test_jobs_of_v0_2_2(control_plane: ControlPlane, upstream: Upstream, alone: None, tmp_path: Path):
    counts: Json = {"Collector": {"active": 2}, "Learner": {"active": 1}, "Aggregator": {"active": 1}}
    running = upstream.begin(
        "running", "Running", "Running", {**counts, "Coordinator": {"active": 1}}, CREATED, RUNNING
    )
    upstream.add(running, "coordinator", "", "Running")
    for role, suffix in (("collector", "aaaaa"), ("collector", "bbbbb"), ("learner", "ccccc")):
        upstream.add(running, role, suffix, "Running")
    aggregator = upstream.add(running, "aggregator", "ddddd", "Running")
    both = ({**reference(running), "controller": True}, {**reference(aggregator), "controller": False})
    upstream.add(running, "ddp-learner", "eeeee", "Running", *both)
    pending = upstream.begin("pending", "Created", "Running", {}, CREATED)
    upstream.add(pending, "coordinator", "", "Pending")
    # deleted by policy All; DI-orchestrator itself would run it again
    upstream.begin("done", "Succeeded", "All", {"Coordinator": {"succeeded": 1}}, CREATED, RAN, SUCCEEDED)
    kept = upstream.begin("kept", "Succeeded", "Running", {"Coordinator": {"succeeded": 1}}, CREATED, RAN, SUCCEEDED)
    upstream.add(kept, "coordinator", "", "Succeeded", service=False)
    before = upstream.versions()

    operator = start(tmp_path, control_plane, upstream, 4)
    assert upstream.versions() == before, "nothing is created, deleted or written"
    assert upstream.told() == []

    upstream.set_pods("Failed", "running-collector-aaaaa")
    upstream.set_pods("Running", "pending-coordinator")
    failed = {"active": 1, "failed": 1}
    upstream.wait(lambda: upstream.dijob("running")["status"]["replicaStatus"]["Collector"] == failed, "the counts")
    upstream.wait_phase("pending", "Running")
    upstream.set_pods("Succeeded", "running-coordinator")
    ended = upstream.wait_phase("running", "Succeeded")
    found = [(each["type"], each["status"]) for each in ended["status"]["conditions"]]
    assert found == [("Created", "True"), ("Running", "False"), ("Succeeded", "True")]
    assert ended["status"]["conditions"][0]["lastTransitionTime"] == THEN
    upstream.wait(lambda: not upstream.services_of("running"), "the end of the services")
    left = {"running-coordinator", "running-collector-aaaaa"}
    upstream.wait(lambda: upstream.pods_of("running").keys() == left, "the clean-up by policy Running")
    assert [reason for reason, _, _ in upstream.told() if reason.startswith("DIJob")] == ["DIJobSucceeded"]
    after = upstream.versions()
    others = {path for path in before if path.rpartition("/")[2].startswith(("done", "kept"))}
    assert {path: after.get(path) for path in others} == {path: before[path] for path in others}
    assert "pods/done-coordinator" not in after
    operator.end()


def test_jobs_of_v0_1_0(control_plane: ControlPlane, upstream: Upstream, alone: None, tmp_path: Path):
    """The aggregator controls its ddp learners, and the policy that deletes all pods is called ALL."""
    counts: Json = {"Aggregator": {"active": 1}, "Coordinator": {"active": 1}}
    job = upstream.begin("old", "Running", "ALL", counts, CREATED, RUNNING)
    upstream.add(job, "coordinator", "", "Running")
    aggregator = upstream.add(job, "aggregator", "aaaaa", "Running")
    for suffix in ("bbbbb", "ccccc"):
        upstream.add(job, "ddp-learner", suffix, "Running", {**reference(aggregator), "controller": True})
    before = upstream.versions()

    operator = start(tmp_path, control_plane, upstream, 1)
    assert upstream.versions() == before
    assert upstream.told() == []
    upstream.set_pods("Succeeded", "old-coordinator")
    upstream.wait_phase("old", "Succeeded")
    upstream.wait(lambda: not upstream.pods_of("old"), "the clean-up by policy ALL")
    upstream.wait(lambda: not upstream.services_of("old"), "the end of the services")
    operator.end()
