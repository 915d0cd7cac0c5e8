"""The endpoint for progress (`--progress-bind-address`): its port, and the right to review tokens."""

from __future__ import annotations

from trainop.manifests.names import NAME, PROGRESS_PORT, RBAC
from trainop.manifests.overlays import Component, Needed, json_patch
from trainop.manifests.rbac import progress_roles
from trainop.runtime import Json

FLAG = f"--progress-bind-address=:{PROGRESS_PORT}"
PORT: Json = {"name": "progress", "port": PROGRESS_PORT, "protocol": "TCP", "targetPort": PROGRESS_PORT}
"""Of the Service."""
CONTAINER_PORT: Json = {"containerPort": PROGRESS_PORT, "name": "progress", "protocol": "TCP"}


def progress() -> Component:
    """For operators of all namespaces, which alone have the certificate of webhooks and may review tokens."""
    container = "/spec/template/spec/containers/0"
    deployment: list[Json] = [
        {"op": "add", "path": f"{container}/command/-", "value": FLAG},
        {"op": "add", "path": f"{container}/ports/-", "value": CONTAINER_PORT},
    ]
    return Component(
        objects=progress_roles(),
        needs=[Needed(f"{RBAC}/v1", "ClusterRole", NAME), Needed("v1", "Service", NAME)],
        patches=[
            json_patch({"kind": "Deployment", "name": NAME}, deployment),
            json_patch({"kind": "Service", "name": NAME}, [{"op": "add", "path": "/spec/ports/-", "value": PORT}]),
        ],
    )
