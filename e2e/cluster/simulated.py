"""Nodes simulated by kwok, and an admission policy that binds pods to them without a scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from e2e.cluster.api import Api
from e2e.cluster.daemons import wait_until
from e2e.cluster.places import ClusterError

SIZE = {"cpu": "1k", "memory": "1Ti", "pods": "100k", "nvidia.com/gpu": "1k"}


def make_nodes(api: Api, count: int) -> None:
    """Creates the nodes sim-0, sim-1 and so on, and waits until kwok has made them ready."""
    for number in range(count):
        make_node(api, f"sim-{number}")
    wait_ready(api, count)


def make_node(
    api: Api,
    name: str,
    size: Mapping[str, str] = SIZE,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
) -> None:
    """Creates one node."""
    all_labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok", **(labels or {})}
    metadata = {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": all_labels}
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {"taints": list(taints)},
        "status": {"capacity": size, "allocatable": size},
    }
    api("POST", "/api/v1/nodes", body)


def wait_ready(api: Api, count: int) -> None:
    """Waits until kwok has made `count` nodes ready."""

    def all_ready() -> bool:
        nodes = api("GET", "/api/v1/nodes").body["items"]
        conditions = [condition for node in nodes for condition in node["status"].get("conditions", ())]
        ready: int = sum(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return ready >= count

    if not wait_until(all_ready, 120, every=0.1):
        raise ClusterError("the simulated nodes did not become ready")


def bind_at_creation(api: Api) -> None:
    """Installs a policy that sets `nodeName: sim-0` on new pods. kwok cannot bind; a scheduler would add load."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    mutation = {"expression": 'Object{spec: Object.spec{nodeName: "sim-0"}}'}
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "unbound", "expression": "!has(object.spec.nodeName)"}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": mutation}],
    }
    _create_policy(api, "MutatingAdmissionPolicy", "mutatingadmissionpolicies", policy)
    binding = {"policyName": "sim-0"}
    _create_policy(api, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", binding)
    container = {"name": "probe", "image": "none"}
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "probe-"},
        "spec": {"containers": [container]},
    }

    def binds() -> bool:
        answer = api("POST", "/api/v1/namespaces/default/pods?dryRun=All", probe)
        return bool(answer.body.get("spec", {}).get("nodeName"))

    if not wait_until(binds, 120):
        raise ClusterError("the binder does not bind")


def _create_policy(api: Api, kind: str, plural: str, spec: Mapping[str, object]) -> None:
    group = "admissionregistration.k8s.io/v1beta1"
    body = {"apiVersion": group, "kind": kind, "metadata": {"name": "sim-0"}, "spec": spec}
    answer = api("POST", f"/apis/{group}/{plural}", body)
    if answer.status != 201:
        raise ClusterError(f"{kind}: {answer.body}")
