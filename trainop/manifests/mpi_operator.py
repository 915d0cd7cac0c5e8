"""The overlay `mpi-operator`: the program mpi-operator, installed as mpi-operator's manifests install it."""

from __future__ import annotations

from collections.abc import Sequence

from trainop import __version__
from trainop.manifests import workload
from trainop.manifests.names import IMAGE
from trainop.manifests.overlays import Component, Needed, kustomization
from trainop.manifests.rbac import mpi_operator_exec_roles, mpi_operator_roles
from trainop.runtime import Json

ROOT = "overlays/mpi-operator"
EXEC = f"{ROOT}/exec"
"""The component for transport exec."""
NAME = NAMESPACE = "mpi-operator"
HEALTH_PORT, METRICS_PORT = 8080, 8081
LABELS = {
    "app": NAME,
    "app.kubernetes.io/component": "mpijob",
    "app.kubernetes.io/name": NAME,
    "kustomize.component": NAME,
}
"""Those of mpi-operator, whose Deployment can be updated: its selector is immutable."""


def deployment() -> Json:
    """The Deployment of mpi-operator. Flags are `args` of its only container, to which users append theirs."""
    base = workload.deployment()
    pod = base["spec"]["template"]["spec"]
    flags = [
        *("-alsologtostderr", "--lock-namespace=$(MY_POD_NAMESPACE)", f"--monitoring-port={METRICS_PORT}"),
        "--logging-format=json",
    ]
    container = {
        "name": NAME,
        "image": IMAGE,
        "command": ["/mpi-operator"],
        "args": flags,
        "env": workload.pod_variables(),
        "ports": [
            {"containerPort": HEALTH_PORT, "name": "health"},
            {"containerPort": METRICS_PORT, "name": "metrics"},
        ],
        "resources": workload.RESOURCES,
        "livenessProbe": workload.probe("/healthz", 15, 20, HEALTH_PORT),
        "readinessProbe": workload.probe("/readyz", 10, 15, HEALTH_PORT),
        "securityContext": workload.CONTAINER_SECURITY,
    }
    template = {
        "metadata": {**base["spec"]["template"]["metadata"], "labels": dict(LABELS)},
        "spec": {**pod, "serviceAccountName": NAME, "containers": [container]},
    }
    return {
        **base,
        "metadata": {"name": NAME, "labels": dict(LABELS)},
        "spec": {"replicas": 1, "selector": {"matchLabels": dict(LABELS)}, "template": template},
    }


def mpi_operator_files() -> dict[str, Sequence[Json]]:
    """The files of the overlay, and of its component for transport exec."""
    account = {**workload.service_account(), "metadata": {"name": NAME}}
    files = {
        "namespace.yaml": [workload.namespace_object(NAMESPACE)],
        "serviceaccount.yaml": [account],
        "rbac.yaml": mpi_operator_roles(NAME),
        "deployment.yaml": [deployment()],
    }
    images = [{"name": IMAGE, "newTag": __version__}]
    needed = Needed("apps/v1", "Deployment", NAME)
    return {
        f"{ROOT}/kustomization.yaml": [kustomization([*files], namespace=NAMESPACE, images=images)],
        **{f"{ROOT}/{name}": objects for name, objects in files.items()},
        **Component(objects=mpi_operator_exec_roles(NAME), needs=[needed]).files(EXEC),
    }
