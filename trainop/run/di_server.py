"""Runs di-server as a pod of the embedded cluster, under the names that DI-engine's clients expect."""

from __future__ import annotations

import asyncio
import sys

from trainop.local.cluster import LocalCluster
from trainop.runtime import (
    NAMESPACES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    AlreadyExistsError,
    Json,
    NotFoundError,
    PatchKind,
)

NAMESPACE, NAME, PORT = "di-system", "di-server", 8080
NEEDS_NAMESPACES = "di-server needs network mode `namespaces`: replicas that are created later have no names otherwise"
_LABELS = {"control-plane": NAME}
_POLL, _POLLS = 0.05, 1200


async def start_di_server(cluster: LocalCluster) -> None:
    """Returns when di-server answers. A pod of an earlier session with the same folder is replaced. Raises `OSError`
    if it does not start, or pods have no names by which they could reach each other."""
    if cluster.node.network == "addresses":
        raise OSError(NEEDS_NAMESPACES)
    client = cluster.client
    try:
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    except AlreadyExistsError:
        await _delete_pod(cluster)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAMESPACE}}
    await client.patch(SERVICE_ACCOUNTS, NAME, NAMESPACE, account, kind=PatchKind.APPLY, force=True)
    await client.patch(SERVICES, NAME, NAMESPACE, _service(), kind=PatchKind.APPLY, force=True)
    await client.create(PODS, _pod())
    for _ in range(_POLLS):
        if _is_ready(await client.get(PODS, NAME, NAMESPACE)):
            return
        await asyncio.sleep(_POLL)
    raise OSError("di-server has not become ready within 60 s; its log is in the folder of the cluster, see --data")


async def _delete_pod(cluster: LocalCluster) -> None:
    try:
        await cluster.client.delete(PODS, NAME, NAMESPACE, grace_seconds=0)
        while True:
            await cluster.client.get(PODS, NAME, NAMESPACE)
            await asyncio.sleep(_POLL)
    except NotFoundError:
        return


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _service() -> Json:
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": _LABELS}
    spec = {"selector": _LABELS, "ports": [{"port": PORT}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _pod() -> Json:
    container = {
        "name": "server",
        "image": "trainop",
        "command": [sys.executable, "-m", "trainop", NAME],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": PORT}, "periodSeconds": 1},
    }
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": _LABELS}
    spec = {"serviceAccountName": NAME, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
