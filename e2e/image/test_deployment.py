"""The shipped manifests and the built image on a real node, with kubelet, containerd and runc: `make test-node`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from e2e.cluster.daemons import wait_until
from e2e.cluster.node.node import Node
from e2e.cluster.places import ClusterError
from e2e.image.places import USER, archive_path, version
from tests.patience import PATIENCE

OPERATOR = ("--namespace=kubeflow", "deployment/training-operator")
# runs long enough for its pod to be seen Running
PROGRAM = (
    "import os, socket, time; time.sleep(5); print(socket.gethostbyname('pair-worker-1'), os.environ['TF_CONFIG'])"
)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A cluster with one real node, on which the standalone overlay is installed and ready."""
    one = Node(f"test-{os.getpid()}")
    one.up([archive_path()])
    try:
        for folder in ("manifests/crds", "manifests/overlays/standalone"):
            one.run("kubectl", "apply", "-k", folder)
        one.run("kubectl", "rollout", "status", *OPERATOR, f"--timeout={PATIENCE:.0f}s")
        yield one
    finally:
        one.down()


def get(node: Node, *what: str) -> Any:
    return json.loads(node.run("kubectl", "get", "--output=json", *what))


def tf_job(name: str, replicas: int) -> str:
    command = ["/opt/trainop/bin/python", "-c", PROGRAM]
    container = {"name": "tensorflow", "image": f"trainop:{version()}", "command": command}
    worker = {"replicas": replicas, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    metadata = {"name": name, "namespace": "default"}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": metadata}
    return yaml.safe_dump({**job, "spec": {"tfReplicaSpecs": {"Worker": worker}}})


def is_now(node: Node, condition: str) -> bool:
    conditions = get(node, "tfjob", "pair").get("status", {}).get("conditions", ())
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def test_the_operator_is_ready_and_confined(node: Node, record_property: Callable[[str, object], None]) -> None:
    (pod,) = get(node, "pods", "--namespace=kubeflow")["items"]
    (status,) = pod["status"]["containerStatuses"]
    assert (status["ready"], status["restartCount"]) == (True, 0)
    pids = node.run("pgrep", "--full", "/manager").split()
    (process,) = [facts for pid in pids if f"Uid:\t{USER}\t" in (facts := node.run("cat", f"/proc/{pid}/status"))]
    fields = dict(line.split(":\t", 1) for line in process.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == 0
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    record_property("benchmark", f"resident memory in the pod {int(fields['VmRSS'].split()[0]) >> 10} MiB")


def test_the_container_has_no_shell_and_a_read_only_root(node: Node) -> None:
    with pytest.raises(ClusterError, match="executable file not found"):
        node.run("kubectl", "exec", *OPERATOR, "--", "sh")
    write = "open('/tmp/x', 'w')"
    with pytest.raises(ClusterError, match="Read-only file system"):
        node.run("kubectl", "exec", *OPERATOR, "--", "/opt/trainop/bin/python", "-c", write)


def test_its_probes_and_metrics_answer(node: Node) -> None:
    service = "/api/v1/namespaces/kubeflow/services/training-operator:8080"
    text = node.run("kubectl", "get", "--raw", f"{service}/proxy/metrics")
    assert re.search(r"^# TYPE training_operator_jobs_created_total counter$", text, re.MULTILINE)


def test_a_job_runs_and_succeeds(node: Node) -> None:
    node.run("kubectl", "apply", "-f", "-", stdin=tf_job("pair", 2))
    assert wait_until(lambda: is_now(node, "Running"), PATIENCE), node.run("kubectl", "describe", "tfjob,pods")
    assert wait_until(lambda: is_now(node, "Succeeded"), PATIENCE), node.run("kubectl", "describe", "tfjob,pods")
    address, config = node.run("kubectl", "logs", "pair-worker-0").split(maxsplit=1)
    assert address.startswith("10.244.")
    assert json.loads(config)["task"] == {"type": "worker", "index": 0}


def test_the_api_server_reaches_the_webhook(node: Node) -> None:
    def refusal() -> str:
        try:
            return node.run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=tf_job("0-invalid", 1))
        except ClusterError as error:
            return str(error)

    assert wait_until(lambda: "denied the request" in refusal(), PATIENCE), refusal()
