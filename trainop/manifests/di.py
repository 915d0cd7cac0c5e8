"""The installation for DIJobs: di-operator, di-server and di-webhook, under the names that DI-orchestrator gives them.

DI-engine's installer waits for the Deployment di-webhook, and its clients call the Service di-server (DI-orchestrator
`config/manager`, `config/rbac`, `config/webhook`; DI-engine `ding/utils/orchestrator_launcher.py`). In contrast to
upstream, each program has a service account with rights of its own, instead of `default` with the rights of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainop import __version__
from trainop.controllers.admission import DI_MUTATING, DI_VALIDATING, configurations_of, webhooks_of
from trainop.kinds.dijob.kind import DIJOB
from trainop.kinds.dijob.names import AGGREGATOR_CONFIGS, DIJOBS, GROUP_NAME, REPLICA_TYPE
from trainop.manifests.names import IMAGE, METRICS_PORT, NAME, PROBE_PORT, RBAC, WEBHOOK_PORT
from trainop.manifests.overlays import Component, Needed, json_patch, kustomization
from trainop.manifests.rbac import review_rules
from trainop.manifests.webhook import listed_webhooks, refusing, webhook_configuration
from trainop.manifests.workload import (
    CONTAINER_SECURITY,
    GRACE_SECONDS,
    JSON_LOGS,
    POD_SECURITY,
    RESOURCES,
    pod_variables,
    probe,
)
from trainop.programs.di_webhook import SECRET, SERVICE
from trainop.programs.schemes import kinds_with_webhooks
from trainop.runtime import Json

NAMESPACE = "di-system"
OPERATOR, SERVER, WEBHOOK = "di-operator", "di-server", "di-webhook"
SERVER_PORT, NODE_PORT = 8080, 32270
MONITORED = {OPERATOR: "metrics", SERVER: "http", WEBHOOK: "metrics"}
"""Deployment -> the port of its pods that serves metrics."""
BESIDE = "dijob"
"""The component for DIJobs beside training-operator."""
_FOLDER = "overlays/di-system"
_OWN_NAMESPACE = "$(MY_POD_NAMESPACE)"
"""Replaced by the kubelet in commands and arguments."""
_ADDRESS = f"{SERVER}.{_OWN_NAMESPACE}:{SERVER_PORT}"
FLAGS_BESIDE = (f"--di-server-address={_ADDRESS}", "--di-webhooks")
"""Those of training-operator in the component `BESIDE`."""


def di_files() -> dict[str, Sequence[Json]]:
    """The overlay `di-system` and the components about di-server, by path."""
    parts: dict[str, list[Json]] = {
        "namespace.yaml": [namespace_object()],
        "rbac.yaml": [*accounts(OPERATOR, SERVER, WEBHOOK), *operator_roles(), *server_roles(), *webhook_roles()],
        "deployments.yaml": [operator_deployment(), server_deployment(), webhook_deployment()],
        "services.yaml": [metrics_service(), server_service(), webhook_service()],
        # As upstream: without di-webhook no DIJob is created or updated.
        "webhooks.yaml": di_webhook_configurations(SERVICE, "Fail"),
    }
    images = [{"name": IMAGE, "newTag": __version__}]
    own = kustomization([*parts], namespace=NAMESPACE, images=images)
    tree: dict[str, Sequence[Json]] = {f"{_FOLDER}/kustomization.yaml": [own]}
    for name, each in di_components().items():
        tree |= each.files(f"components/{name}")
    return tree | {f"{_FOLDER}/{name}": objects for name, objects in parts.items()}


def di_components() -> dict[str, Component]:
    """What DIJobs need beside training-operator, and what can be added to di-server and to the overlay."""
    server, operator, training = (Needed("apps/v1", "Deployment", name) for name in (SERVER, OPERATOR, NAME))
    policies = {each["metadata"]["name"]: each for each in network_policies()}
    of_server = policies.pop(SERVER)
    return {
        BESIDE: Component(
            objects=beside(),
            needs=[training, Needed(f"{RBAC}/v1", "ClusterRole", NAME)],
            patches=_patches_beside(),
            replacements=[_same_failure_policy()],
            images=[{"name": IMAGE, "newTag": __version__}],
        ),
        "di-server-nodeport": Component(objects=[_node_port()], needs=[server]),
        "di-server-network-policy": Component(objects=[of_server], needs=[server]),
        "di-network-policy": Component(
            objects=[*policies.values()], needs=[operator], also=["../di-server-network-policy"]
        ),
    }


def beside(image: str = IMAGE) -> list[Json]:
    return [
        *(*accounts(SERVER), *server_roles(), server_deployment(image), server_service()),
        *_granted("ClusterRole", f"{NAME}-{BESIDE}", NAME, injection_rules()),
        *di_webhook_configurations(NAME, "Ignore"),
    ]


def _patches_beside() -> list[Json]:
    """training-operator serves the webhooks of DIJobs, and tells coordinators where di-server is."""
    place = "/spec/template/spec/containers/0/command/-"
    operations = [{"op": "add", "path": place, "value": flag} for flag in FLAGS_BESIDE]
    return [json_patch({"kind": "Deployment", "name": NAME}, operations)]


def _same_failure_policy() -> Json:
    """The failure policy of training-operator's webhooks, which the component `required-webhooks` may have changed."""
    (source,) = configurations_of(webhooks_of(kinds_with_webhooks()))
    return {
        "source": {"kind": source.resource.kind, "name": source.name, "fieldPath": "webhooks.0.failurePolicy"},
        "targets": [
            {
                "select": {"kind": each.resource.kind, "name": each.name},
                "fieldPaths": [f"webhooks.{index}.failurePolicy" for index in refusing(webhooks)],
            }
            for each, webhooks in listed_webhooks([DIJOB]).items()
        ],
    }


def namespace_object() -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": _labels(OPERATOR)}}


def _labels(name: str) -> dict[str, str]:
    """Upstream's label and selector of each Deployment."""
    return {"control-plane": name}


def di_webhook_configurations(service: str, policy: str) -> list[Json]:
    """Kustomize replaces the namespace `default` by that of the Service."""
    called = {"name": service, "namespace": "default"}
    return [
        webhook_configuration(each, webhooks, called, _labels(WEBHOOK), policy)
        for each, webhooks in listed_webhooks([DIJOB]).items()
    ]


# rights


def accounts(*names: str) -> list[Json]:
    return [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}} for name in names]


def operator_roles() -> list[Json]:
    return [
        *_granted("ClusterRole", "di-operator-cluster-role", OPERATOR, operator_rules()),
        *_granted("Role", "di-leader-election-role", OPERATOR, [_rule(_LEASES, "leases", "get create update")]),
    ]


def server_roles() -> list[Json]:
    return [
        *_granted("ClusterRole", "di-server-cluster-role", SERVER, server_rules()),
        *_granted("Role", "di-server-role", SERVER, [_rule(_LEASES, "leases", "get list create update delete")]),
        *_granted("ClusterRole", "di-proxy-role", SERVER, review_rules()),
    ]


def webhook_roles() -> list[Json]:
    """RBAC cannot limit the right to create a Secret to a name."""
    certificate = [_rule("", "secrets", "get list watch update", SECRET), _rule("", "secrets", "create")]
    return [
        *_granted("ClusterRole", "di-webhook-cluster-role", WEBHOOK, injection_rules()),
        *_granted("Role", "di-webhook-role", WEBHOOK, certificate),
    ]


def injection_rules() -> list[Json]:
    """To write the CA into the webhook configurations."""
    return [
        _rule(each.resource.group, each.resource.plural, "get list watch patch", each.name)
        for each in (DI_MUTATING, DI_VALIDATING)
    ]


_LEASES = "coordination.k8s.io"


def operator_rules() -> list[Json]:
    return [
        _rule(DIJOBS.group, "dijobs", "get list watch"),
        _rule(DIJOBS.group, "dijobs/status", "patch update"),
        # Required to set `blockOwnerDeletion` if the admission plugin OwnerReferencesPermissionEnforcement is enabled.
        _rule(DIJOBS.group, "dijobs/finalizers", "update"),
        _rule("", "pods services", "get list watch create delete"),
        _rule("", "events", "create patch"),
    ]


def server_rules() -> list[Json]:
    """di-server creates the pods that coordinators ask for, and never writes a DIJob. Events name fields of their
    templates that the API server does not know."""
    return [
        _rule(DIJOBS.group, AGGREGATOR_CONFIGS.plural, "get"),
        _rule(DIJOBS.group, DIJOBS.plural, "get list watch"),
        _rule("", "pods", "get list watch create delete"),
        _rule("", "nodes", "list watch"),
        _rule("", "events", "create patch"),
    ]


def _rule(group: str, resources: str, verbs: str, *names: str) -> Json:
    found: Json = {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}
    return {**found, "resourceNames": list(names)} if names else found


def _granted(kind: str, name: str, account: str, rules: Sequence[Json]) -> list[Json]:
    """A role, and its binding to a service account. Kustomize adds the namespace of the account."""
    version = f"{RBAC}/v1"
    role = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "rules": list(rules)}
    binding = {
        "apiVersion": version,
        "kind": f"{kind}Binding",
        "metadata": {"name": f"{name.removesuffix('-role')}-rolebinding"},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account}],
    }
    return [role, binding]


# programs


def operator_deployment(image: str = IMAGE) -> Json:
    flags = [
        f"--health-probe-bind-address=:{PROBE_PORT}",
        f"--metrics-bind-address=:{METRICS_PORT}",
        "--leader-elect",
        f"--server-address={_ADDRESS}",
        JSON_LOGS,
    ]
    return _deployment(OPERATOR, "manager", flags, {"metrics": METRICS_PORT}, image=image)


def server_deployment(image: str = IMAGE) -> Json:
    flags = [
        f"--server-bind-address=:{SERVER_PORT}",
        f"--server-address={_ADDRESS}",
        f"--lease-lock-namespace={_OWN_NAMESPACE}",
        f"--agconfig-namespace={_OWN_NAMESPACE}",
        JSON_LOGS,
    ]
    return _deployment(SERVER, "server", flags, {"http": SERVER_PORT}, image=image, probe_port=SERVER_PORT)


def webhook_deployment(image: str = IMAGE) -> Json:
    ports = {"webhook-server": WEBHOOK_PORT, "metrics": METRICS_PORT}
    return _deployment(WEBHOOK, "webhook", [JSON_LOGS], ports, image=image)


def _deployment(
    name: str,
    container: str,
    flags: Sequence[str],
    ports: Mapping[str, int],
    *,
    image: str,
    probe_port: int = PROBE_PORT,
) -> Json:
    """One replica. All programs are in one image."""
    own = {
        "name": container,
        "image": image,
        "command": [f"/{name}"],
        **({"args": list(flags)} if flags else {}),
        "env": pod_variables(),
        "ports": [{"containerPort": port, "name": each, "protocol": "TCP"} for each, port in ports.items()],
        "resources": RESOURCES,
        "livenessProbe": probe("/healthz", 15, 20, probe_port),
        "readinessProbe": probe("/readyz", 5, 10, probe_port),
        "securityContext": CONTAINER_SECURITY,
    }
    pod = {
        "serviceAccountName": name,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": POD_SECURITY,
        "containers": [own],
    }
    template = {"metadata": {"labels": _labels(name)}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": _labels(name)},
        "spec": {"replicas": 1, "selector": {"matchLabels": _labels(name)}, "template": template},
    }


# services


def metrics_service() -> Json:
    """Upstream's name of the port; the metrics are served without TLS."""
    port = {"name": "https", "port": 8443, "targetPort": METRICS_PORT}
    return _service("di-operator-metrics-service", OPERATOR, port, labels=_labels(OPERATOR))


def server_service() -> Json:
    return _service(SERVER, SERVER, {"protocol": "TCP", "port": SERVER_PORT, "targetPort": SERVER_PORT})


def webhook_service() -> Json:
    return _service(SERVICE, WEBHOOK, {"port": 443, "targetPort": WEBHOOK_PORT})


def _service(name: str, selected: str, port: Json, *, labels: dict[str, str] | None = None, **spec: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, **({"labels": labels} if labels else {})},
        "spec": {**spec, "selector": _labels(selected), "ports": [port]},
    }


def _node_port() -> Json:
    """Opens di-server to the network of the nodes, as upstream always does."""
    port = {"protocol": "TCP", "port": SERVER_PORT, "targetPort": SERVER_PORT, "nodePort": NODE_PORT}
    return _service("di-server-nodeport", SERVER, port, type="NodePort")


def network_policies() -> list[Json]:
    """Admits the coordinators and aggregators of DIJobs to di-server, the API server to the webhooks, and Prometheus to
    all metrics. A sample: adjust the namespace of Prometheus, and admit users of di-server who call it from elsewhere.
    """
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    roles = {"key": REPLICA_TYPE, "operator": "In", "values": ["coordinator", "aggregator"]}
    callers = {"matchLabels": {GROUP_NAME: DIJOBS.group}, "matchExpressions": [roles]}
    clients = {"namespaceSelector": {}, "podSelector": callers}
    return [
        _policy(OPERATOR, {"from": [monitoring], "ports": [_open(METRICS_PORT)]}),
        _policy(SERVER, {"from": [clients, monitoring], "ports": [_open(SERVER_PORT)]}),
        _policy(
            WEBHOOK,
            {"from": [monitoring], "ports": [_open(METRICS_PORT)]},
            {"ports": [_open(WEBHOOK_PORT)]},  # the API server is no pod that can be selected
        ),
    ]


def _open(port: int) -> Json:
    return {"port": port, "protocol": "TCP"}


def _policy(name: str, *ingress: Json) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": _labels(name)},
        "spec": {"podSelector": {"matchLabels": _labels(name)}, "policyTypes": ["Ingress"], "ingress": list(ingress)},
    }
