"""The table of built-in kinds: those that training jobs, their tools and manifests of operators use."""

from __future__ import annotations

from dataclasses import replace

from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.crds import CrdStrategy
from trainop.local.api.registry.events import EVENTS_V1, to_core_event, to_events_v1
from trainop.local.api.registry.kinds import Kind, Strategy, builtin
from trainop.local.api.registry.namespaces import NamespaceStrategy
from trainop.local.api.registry.pods import PodStrategy
from trainop.local.api.registry.services import ServiceStrategy
from trainop.local.api.registry.simple_kinds import (
    ConfigMapStrategy,
    EventStrategy,
    LeaseStrategy,
    NodeStrategy,
    RbacStrategy,
    SecretStrategy,
    ServiceAccountStrategy,
    VolumeClaimStrategy,
    WebhookStrategy,
)
from trainop.local.api.registry.workloads import DeploymentStrategy, JobStrategy, NoControllerStrategy
from trainop.runtime import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)

_RBAC = "rbac.authorization.k8s.io"
_NO_DELETECOLLECTION = ("create", "delete", "get", "list", "patch", "update", "watch")


def builtin_kinds(backend: Backend, network: str) -> list[Kind]:
    """All built-in kinds in the order of discovery; `network` is the CIDR of cluster IPs."""
    return [*_core_group(backend, network), *_other_groups(backend), *_stored_only_kinds()]


_POD_SUBRESOURCES = (
    *("status", "log", "binding", "eviction", "ephemeralcontainers"),
    *("exec", "attach", "portforward"),
)


def _core_group(backend: Backend, network: str) -> list[Kind]:
    status = ("status",)
    return [
        builtin(CONFIG_MAPS, short=("cm",), strategy=ConfigMapStrategy()),
        builtin(Resource("", "v1", "endpoints", "Endpoints"), "endpoints", short=("ep",)),
        builtin(EVENTS, short=("ev",), strategy=EventStrategy()),
        builtin(
            NAMESPACES,
            short=("ns",),
            strategy=NamespaceStrategy(),
            verbs=_NO_DELETECOLLECTION,
            subresources=("status", "finalize"),
        ),
        builtin(NODES, short=("no",), strategy=NodeStrategy(), subresources=status),
        builtin(PERSISTENT_VOLUME_CLAIMS, short=("pvc",), strategy=VolumeClaimStrategy(), subresources=status),
        builtin(
            PODS,
            short=("po",),
            categories=("all",),
            strategy=PodStrategy(backend),
            subresources=_POD_SUBRESOURCES,
        ),
        builtin(
            Resource("", "v1", "resourcequotas", "ResourceQuota"),
            short=("quota",),
            strategy=NoControllerStrategy(),
            subresources=status,
        ),
        builtin(SECRETS, strategy=SecretStrategy()),
        builtin(SERVICE_ACCOUNTS, short=("sa",), strategy=ServiceAccountStrategy(), subresources=("token",)),
        builtin(
            SERVICES,
            short=("svc",),
            categories=("all",),
            strategy=ServiceStrategy(backend, network),
            subresources=status,
        ),
    ]


def _other_groups(backend: Backend) -> list[Kind]:
    status = ("status",)
    return [
        replace(
            builtin(
                Resource("apps", "v1", "deployments", "Deployment"),
                short=("deploy",),
                categories=("all",),
                strategy=DeploymentStrategy(),
                subresources=("status", "scale"),
            ),
            scale={"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        ),
        builtin(
            Resource("batch", "v1", "jobs", "Job"), categories=("all",), strategy=JobStrategy(), subresources=status
        ),
        builtin(
            Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
            short=("hpa",),
            categories=("all",),
            strategy=NoControllerStrategy(),
            subresources=status,
        ),
        builtin(LEASES, strategy=LeaseStrategy()),
        replace(
            builtin(EVENTS_V1, short=("ev",), strategy=Strategy()),
            table=EVENTS.plural,
            from_storage=to_events_v1,
            to_storage=to_core_event,
        ),
        builtin(Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")),
        builtin(
            CUSTOM_RESOURCE_DEFINITIONS,
            short=("crd", "crds"),
            categories=("api-extensions",),
            strategy=CrdStrategy(backend),
            subresources=status,
        ),
    ]


def _stored_only_kinds() -> list[Kind]:
    """Kinds that are only stored, so that manifests can be applied; no controller acts on them."""
    admission = "admissionregistration.k8s.io"
    rbac = RbacStrategy()
    return [
        builtin(Resource(_RBAC, "v1", "roles", "Role"), strategy=rbac),
        builtin(Resource(_RBAC, "v1", "rolebindings", "RoleBinding"), strategy=rbac),
        builtin(Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False), strategy=rbac),
        builtin(Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False), strategy=rbac),
        builtin(
            Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False), short=("pc",)
        ),
        builtin(
            Resource(
                admission, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False
            ),
            strategy=WebhookStrategy(ignorable=True),
        ),
        builtin(
            Resource(
                admission, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False
            ),
            strategy=WebhookStrategy(ignorable=False),
        ),
    ]
