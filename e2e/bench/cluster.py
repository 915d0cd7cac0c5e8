"""The cluster of one measurement: a new API server, the operator's CRDs and account, and CPU accounting."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from e2e.bench.node import NODE
from e2e.bench.operators import NAMESPACE as OPERATOR_NAMESPACE
from e2e.bench.processes import Program, busy_seconds, cpu_seconds, own_seconds
from e2e.cluster.build import MINIMAL
from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import default_data
from trainop.runtime.client.auth import load_config
from trainop.runtime.client.client import Client
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.client.transport import Request
from trainop.runtime.errors import AlreadyExistsError, ApiError
from trainop.runtime.objects.metadata import (
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Json,
    Resource,
)

NEEDED = (*MINIMAL, "kube-controller-manager")
"""The programs of `e2e.cluster` that the benchmark runs."""
NAMESPACE = "bench"
SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
ACCOUNT = f"system:serviceaccount:{OPERATOR_NAMESPACE}:operator"
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
_SLICES = [{"group": "discovery.k8s.io", "resources": ["endpointslices"]}]
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "users": [ACCOUNT]},
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete"], "resources": _SLICES},
        {"level": "None"},
    ],
}
"""Logs what the operator does, and the EndpointSlices that the cluster writes because of it."""
JOBS, ENDPOINT_SLICES = "job-controller", "endpointslice-controller"
"""Controllers of kube-controller-manager."""

Cpu: TypeAlias = dict[str, float]
"""CPU seconds by component (`operator`, `apiserver`, `etcd`, `kcm`, `harness`, `other`), and the monotonic time `t`."""


class BenchCluster:
    """An API server with an administrator's client; measures the CPU time of the machine's processes."""

    def __init__(self, plane: ControlPlane, client: Client, folder: Path) -> None:
        self.plane = plane
        self.client = client
        self.folder = folder
        self.kubeconfig = folder / "operator.kubeconfig"
        self.audit_log = folder / "audit.log"
        self.has_controllers = "kube-controller-manager" in plane.plan.commands
        self.components = ("operator", "apiserver", "etcd", *(("kcm",) if self.has_controllers else ()))
        """The programs of a cluster with an operator, as in `Cpu`."""

    def count_objects(self) -> dict[str, int]:
        """The number of objects in the namespace of the measured jobs."""
        return {resource.plural: self._count(resource) for resource in (PODS, SERVICES, SLICES, EVENTS)}

    def _count(self, resource: Resource) -> int:
        found = self.plane.api("GET", f"{resource.path(NAMESPACE)}?limit=1").body
        return len(found["items"]) + int(found["metadata"].get("remainingItemCount", 0))

    def cpu(self, operator: Program | None = None) -> Cpu:
        names = {"apiserver": "kube-apiserver", "etcd": "etcd", "kcm": "kube-controller-manager"}
        used = {component: cpu_seconds(self.plane.daemons.running(name) or 0) for component, name in names.items()}
        used |= {"operator": operator.cpu() if operator else 0.0, "harness": own_seconds()}
        return used | {"other": busy_seconds() - sum(used.values()), "t": time.monotonic()}

    async def wait_idle(self, limit: float = 25.0) -> None:
        """Waits until the API server is idle, after discovery, OpenAPI and RBAC bootstrap."""
        end, idle_samples = time.monotonic() + limit, 0
        while time.monotonic() < end and idle_samples < 3:
            before = self.cpu()["apiserver"]
            await asyncio.sleep(0.5)
            idle_samples = idle_samples + 1 if self.cpu()["apiserver"] - before < 0.04 else 0

    async def install(self, crds: Iterable[Json]) -> None:
        """Creates the node, namespaces, CRDs, and the operator's service account with all rights."""
        await self._create(NODES, {"metadata": {"name": NODE}})
        for name in (OPERATOR_NAMESPACE, NAMESPACE):
            await self._create(NAMESPACES, {"metadata": {"name": name}})
        account = {"metadata": {"name": "operator", "namespace": OPERATOR_NAMESPACE}}
        await self._create(SERVICE_ACCOUNTS, account)
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        subject = {"kind": "ServiceAccount", "namespace": OPERATOR_NAMESPACE, "name": "operator"}
        await self._create(BINDINGS, {"metadata": {"name": "operator"}, "roleRef": role, "subjects": [subject]})
        for crd in crds:
            await self._install_crd(crd)
        self._write_kubeconfig(await self._token())

    async def _create(self, resource: Resource, body: Json) -> None:
        try:
            await self.client.create(resource, {"apiVersion": resource.api_version, "kind": resource.kind, **body})
        except AlreadyExistsError:
            return

    async def _install_crd(self, crd: Json) -> None:
        """Creates a CRD and waits until all its served versions can be listed."""
        await self._create(CUSTOM_RESOURCE_DEFINITIONS, crd)
        spec = crd["spec"]
        for version in spec["versions"]:
            resource = Resource(spec["group"], version["name"], spec["names"]["plural"], spec["names"]["kind"])
            while version["served"]:
                try:
                    await self.client.list(resource)
                except ApiError:
                    await asyncio.sleep(0.1)
                else:
                    break

    async def _token(self) -> str:
        path = SERVICE_ACCOUNTS.path(OPERATOR_NAMESPACE, "operator", "token")
        token_request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 36000},
        }
        answer = await self.client.request(Request("POST", path, body=json.dumps(token_request).encode()))
        return str(json.loads(answer.body)["status"]["token"])

    def _write_kubeconfig(self, token: str) -> None:
        ca = base64.b64encode((self.plane.data / "pki" / "ca.crt").read_bytes()).decode()
        cluster_entry = {"server": self.plane.plan.url, "certificate-authority-data": ca}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": cluster_entry}],
            "users": [{"name": "operator", "user": {"token": token}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "operator"}}],
        }
        self.kubeconfig.write_text(json.dumps(config))


@asynccontextmanager
async def open_cluster(
    crds: Iterable[Json] = (), *, audit: bool = False, controllers: Sequence[str] = ()
) -> AsyncIterator[BenchCluster]:
    """A new control plane for each measurement, so that no objects are left from another one; tmpfs, no fsync.

    kube-controller-manager runs if there are `controllers`.
    """
    with tempfile.TemporaryDirectory(prefix="trainop-bench-", dir=_tmpfs()) as name:
        folder = Path(name)
        plane = ControlPlane(default_data(f"bench-{folder.name}"), die_with_parent=True)
        try:
            plane.up(_cluster_options(folder, audit=audit, controllers=controllers))
            transport = HttpTransport(load_config(str(plane.kubeconfig)))
            try:
                cluster = BenchCluster(plane, Client(transport, user_agent="trainop-bench"), folder)
                await cluster.install(crds)
                await cluster.wait_idle()
                yield cluster
            finally:
                await transport.close()
        finally:
            plane.down()


def _tmpfs() -> Path | None:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else None


def _cluster_options(folder: Path, *, audit: bool, controllers: Sequence[str]) -> ClusterOptions:
    flags: list[str] = []
    if audit:
        policy = folder / "audit.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        flags += [
            f"kube-apiserver=--audit-policy-file={policy}",
            f"kube-apiserver=--audit-log-path={folder / 'audit.log'}",
            "kube-apiserver=--audit-log-maxsize=4096",
        ]
    if not controllers:
        return ClusterOptions(flags=tuple(flags))
    flags += [
        f"kube-controller-manager=--controllers={','.join(controllers)},serviceaccount-controller",
        "kube-controller-manager=--kube-api-qps=10000",
        "kube-controller-manager=--kube-api-burst=20000",
    ]
    return ClusterOptions(extras=("controller-manager",), flags=tuple(flags))
