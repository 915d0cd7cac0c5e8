"""Service mode `job` with the DNS of a cluster: each replica of each kind finds every other by its short name."""

from __future__ import annotations

import pytest
import yaml

from e2e.realnode.proof import Proof

GREETS_ALL = """
import json, os, re, socket, sys, threading, time

own, names = socket.gethostname(), os.environ["REPLICAS"].split()
addresses = {name: name for name in names}
for found in re.findall(r'"([^"]+):2222"', os.environ.get("TF_CONFIG", "")):
    addresses[found.partition(".")[0]] = found
heard = set()

def answer(connection):
    heard.add(connection.recv(512).decode())
    connection.sendall(own.encode())
    connection.close()

server = socket.create_server(("", 2222))
def serve():
    while True:
        threading.Thread(target=answer, args=server.accept()[:1], daemon=True).start()
threading.Thread(target=serve, daemon=True).start()

def greet(address):
    for _ in range(300):
        try:
            with socket.create_connection((address, 2222), timeout=5) as connection:
                connection.sendall(f"{own} as {address}".encode())
                return connection.recv(512).decode()
        except OSError as error:
            last = error
            time.sleep(0.2)
    sys.exit(f"{address}: {last}")

for name in names:
    for address in dict.fromkeys([name, addresses[name]]):
        met = greet(address)
        print(f"{address} is {met}", flush=True)
        assert met == name, (address, met)
wanted = {f"{name} as {address}" for name in names for address in (own, addresses[own])}
while heard != wanted:  # the others still need this server
    time.sleep(0.1)
time.sleep(0.5)  # for the last answer
print("heard all", flush=True)
"""
"""Each replica connects to each replica, itself included, by its short name and by its address in TF_CONFIG, and checks
which one answers."""

JOBS = {
    "PyTorchJob": ("pytorchReplicaSpecs", "pytorch", {"Master": 1, "Worker": 2}),
    "TFJob": ("tfReplicaSpecs", "tensorflow", {"PS": 1, "Worker": 2}),
    "XGBoostJob": ("xgbReplicaSpecs", "xgboost", {"Master": 1, "Worker": 2}),
    "PaddleJob": ("paddleReplicaSpecs", "paddle", {"Master": 1, "Worker": 2}),
    "JAXJob": ("jaxReplicaSpecs", "jax", {"Worker": 3}),
    "MXJob": ("mxReplicaSpecs", "mxnet", {"Scheduler": 1, "Server": 1, "Worker": 1}),
}


@pytest.mark.parametrize("kind", JOBS)
def test_replicas_find_each_other_by_their_short_names(proof: Proof, kind: str) -> None:
    """Service mode job: every replica reaches every other under its short name, with one Service"""
    field, container, roles = JOBS[kind]
    names = [f"meet-{role.lower()}-{index}" for role, count in roles.items() for index in range(count)]
    proof.apply(yaml.safe_dump(job(kind, field, container, roles, names)), image="base")
    resource = f"{kind.lower()}/meet"
    proof.wait_for(resource, "Running")
    services = [each["metadata"]["name"] for each in proof.get("services")["items"]]
    proof.wait_for(resource, "Succeeded")
    for replica in names:
        proof.wait_for_log(replica, "heard all")
        log = proof.logs(replica)
        for name in names:
            assert f"{name} is {name}\n" in log
            if kind == "TFJob":
                assert f"{name}.meet-pods.{proof.namespace}.svc is {name}\n" in log
    assert services == ["meet-pods"]
    assert proof.events("ServiceModeNotPossible") == []
    proof.expect("each replica answers under its short name; one Service", "as wanted")


def job(kind: str, field: str, container: str, roles: dict[str, int], names: list[str]) -> dict[str, object]:
    program = {
        "name": container,
        "image": "base",
        "command": ["python", "-c", GREETS_ALL],
        "env": [{"name": "REPLICAS", "value": " ".join(names)}],
    }
    template = {"spec": {"containers": [program]}}
    specs = {role: {"replicas": count, "template": template} for role, count in roles.items()}
    annotations = {"trainop.kubeflow.org/service-mode": "job"}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": "meet", "annotations": annotations},
        "spec": {field: specs, **({"jobMode": "MXTrain"} if kind == "MXJob" else {})},
    }
