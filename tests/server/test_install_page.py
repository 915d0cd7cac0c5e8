"""The commands of docs/install.md, word for word, on a new cluster: the API server and its controllers are real, and
the test is scheduler and kubelet. The operator runs with the command and rights of the Deployment that was applied."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from tests.conftest import start_control_plane
from tests.patience import PATIENCE
from tests.server.pod import PodStandIn, flags_of
from tests.server.process import Operator
from tests.server.world import MERGE, Json, container

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "install.md"
HOME = "kubeflow"


@pytest.fixture
def new_cluster() -> Iterator[ControlPlane]:
    yield from start_control_plane("install", ClusterOptions(extras=("controller-manager",)), crds=False)


def scripts() -> list[str]:
    """The shell blocks of the page, in order."""
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Kubelet(threading.Thread):
    """Runs every pod: the operator's pod is the process that `start_operator` starts, and those of jobs succeed."""

    def __init__(self, control_plane: ControlPlane, start_operator: Callable[[], Operator]) -> None:
        super().__init__(daemon=True)
        self._api = control_plane.api
        self._start_operator = start_operator
        self._ended = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self._ended.wait(0.1):
                for pod in self._api("GET", "/api/v1/pods").body["items"]:
                    if pod["status"].get("phase") == "Pending":
                        self._run_pod(pod)
        except Exception as error:  # noqa: BLE001  # reported by the test's thread
            self.failure = error

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE)
        assert self.failure is None, self.failure

    def _run_pod(self, pod: Json) -> None:
        labels = pod["metadata"]["labels"]
        if labels.get("control-plane") == "kubeflow-training-operator":
            self._start_operator()
            ready = {"type": "Ready", "status": "True"}
            state = container({"running": {"startedAt": "2024-01-01T00:00:00Z"}})
            self._report(pod, {"phase": "Running", "conditions": [ready], "containerStatuses": [state]})
        else:
            state = container({"terminated": {"exitCode": 0, "reason": "Completed"}})
            self._report(pod, {"phase": "Succeeded", "containerStatuses": [state]})

    def _report(self, pod: Json, status: Json) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        answer = self._api("PATCH", path, {"status": status}, MERGE)
        assert answer.status in {200, 404}, answer


OWN = "trainop.kubeflow.org/launcher-finish"
LAUNCHERS = {"first": [OWN, "a.example/b"], "last": ["a.example/b", OWN], "other": ["a.example/b"], "only": [OWN]}
"""Names of launchers that are left behind, with their finalizers."""
BATCH = "/apis/batch/v1/namespaces/default/jobs"


def leave_launchers(plane: ControlPlane) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "mpi", "image": "none"}]}}
    for name, finalizers in LAUNCHERS.items():
        labels = {"training.kubeflow.org/operator-name": "mpi-operator"}
        metadata = {"name": name, "labels": labels, "finalizers": finalizers}
        answer = plane.api("POST", BATCH, {"metadata": metadata, "spec": {"suspend": True, "template": template}})
        assert answer.status == 201, answer


def test_a_new_cluster_runs_a_job_by_the_commands_of_the_page(
    new_cluster: ControlPlane, kubectl: str, tmp_path: Path, make_operator: Callable[..., Operator]
):
    stand_in = PodStandIn(new_cluster, tmp_path / "serviceaccount", make_operator)

    def start_operator() -> Operator:
        deployment = new_cluster.api("GET", f"/apis/apps/v1/namespaces/{HOME}/deployments/training-operator").body
        return stand_in.start(HOME, *flags_of(deployment))

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl").symlink_to(kubectl)
    path = os.pathsep.join((str(tmp_path / "bin"), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(new_cluster.kubeconfig), "HOME": str(tmp_path)}
    kubelet = Kubelet(new_cluster, start_operator)
    kubelet.start()
    said = []
    try:
        for number, script in enumerate(scripts(), 1):
            if number == len(scripts()):
                leave_launchers(new_cluster)
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=2 * PATIENCE,
                check=False,
            )
            assert done.returncode == 0, (script, done.stdout, kubelet.failure)
            said.append(done.stdout)
    finally:
        kubelet.end()
    applied, hello, refused, removed, released = said
    assert 'deployment "training-operator" successfully rolled out' in applied
    assert re.search(r"^pytorchjob.kubeflow.org/hello +Succeeded", hello, re.MULTILINE), hello
    assert {*re.findall(r"^pod/(\S+)", hello, re.MULTILINE)} == {"hello-master-0", "hello-worker-0", "hello-worker-1"}
    assert "PyTorchJobSucceeded" in hello
    assert "0-invalid" in refused
    assert 'deployment.apps "training-operator" deleted' in removed
    assert {*re.findall(r"^job.batch/(\S+) patched", released, re.MULTILINE)} == {"first", "last", "only"}
    for name, finalizers in LAUNCHERS.items():
        left = new_cluster.api("GET", f"{BATCH}/{name}").body["metadata"].get("finalizers", [])
        assert left == [each for each in finalizers if each != OWN], "those of other programs stay"
    assert new_cluster.api("GET", "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/hello").status == 200
