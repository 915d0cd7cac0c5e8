"""All generated files, and all objects as one stream.

The directories follow `manifests/` of training-operator: `base` has no namespace, `overlays` set one. In contrast to
upstream, no overlay includes `crds`: an installation is deleted without the jobs of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainop import __version__
from trainop.manifests.components import components
from trainop.manifests.di import di_files
from trainop.manifests.helm.charts import chart_files
from trainop.manifests.mpi_operator import mpi_operator_files
from trainop.manifests.names import IMAGE, NAMESPACE
from trainop.manifests.overlays import high_availability, kustomization, namespaced_kustomization
from trainop.manifests.rbac import (
    cluster_role,
    cluster_role_binding,
    leases_role,
    leases_role_binding,
    namespaced_role,
    namespaced_role_binding,
    user_roles,
    webhook_role,
    webhook_role_binding,
)
from trainop.manifests.readme import readme
from trainop.manifests.service_mode import ADVICE, COMPONENT
from trainop.manifests.text import HEADER, to_comment, to_yaml
from trainop.manifests.train_jobs import train_job_files
from trainop.manifests.typed_templates import typed_crd_files
from trainop.manifests.webhook import webhook_configurations
from trainop.manifests.workload import deployment, namespace_object, service, service_account
from trainop.programs.schemes import crds
from trainop.runtime import Json

_STANDALONE = "overlays/standalone/kustomization.yaml"
COMMENTS = {_STANDALONE: to_comment(f"{ADVICE} Add the component {COMPONENT} to a kustomization of your own.")}
"""What those who open a file should know."""


def files() -> dict[str, str]:
    """The content of all files by relative path (with slashes)."""
    found = tree()
    written = {path: HEADER + COMMENTS.get(path, "") + to_yaml(*objects) for path, objects in found.items()}
    return written | chart_files() | {"README.md": readme(found)}


def tree() -> dict[str, Sequence[Json]]:
    """The objects in all files of kustomizations, by path."""
    definitions = {f"{each['metadata']['name']}.yaml": each for each in crds()}
    base = {
        "serviceaccount.yaml": [service_account()],
        "rbac.yaml": [
            *(cluster_role(), cluster_role_binding()),
            *(leases_role(), leases_role_binding(), webhook_role(), webhook_role_binding()),
        ],
        "service.yaml": [service()],
        "deployment.yaml": [deployment()],
        "webhook.yaml": webhook_configurations(),
    }
    found: dict[str, Sequence[Json]] = {
        "kustomization.yaml": [kustomization(["overlays/standalone"])],
        "crds/kustomization.yaml": [kustomization(sorted(definitions))],
        "base/kustomization.yaml": [kustomization([*base], images=[{"name": IMAGE, "newTag": __version__}])],
        _STANDALONE: [kustomization(["../../base", "namespace.yaml"], namespace=NAMESPACE)],
        "overlays/standalone/namespace.yaml": [namespace_object(NAMESPACE)],
        "overlays/high-availability/kustomization.yaml": [high_availability()],
        "overlays/kubeflow/kustomization.yaml": [kustomization(["../../base", "roles.yaml"], namespace=NAMESPACE)],
        "overlays/kubeflow/roles.yaml": user_roles(),
        "overlays/namespaced/kustomization.yaml": [namespaced_kustomization()],
        "overlays/namespaced/role.yaml": [namespaced_role(), namespaced_role_binding()],
    }
    found |= {f"crds/{name}": [definition] for name, definition in definitions.items()}
    found |= {f"base/{name}": objects for name, objects in base.items()}
    found |= typed_crd_files() | train_job_files() | mpi_operator_files() | di_files()
    for name, each in components().items():
        found |= each.files(f"components/{name}")
    return found


def stream(namespace: str, image: str, *, with_crds: bool = True) -> list[Json]:
    """All objects of an installation in `namespace`, in the order in which they can be applied."""
    roles = [leases_role(), leases_role_binding(namespace), webhook_role(), webhook_role_binding(namespace)]
    placed = [service_account(), *roles, service(), deployment(image)]
    return [
        namespace_object(namespace),
        *(crds() if with_crds else ()),
        cluster_role(),
        cluster_role_binding(namespace),
        *({**item, "metadata": {**item["metadata"], "namespace": namespace}} for item in placed),
        *webhook_configurations(namespace),
    ]
