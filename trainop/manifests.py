"""`trainop manifests`: all that a cluster needs to run the operator, made from the values that the operator runs with.

The tree follows training-operator's `manifests/`: `base` without a namespace, `overlays` that add one. Names, labels
and probes are upstream's, so that existing kustomizations keep fitting.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click
import yaml

from trainop import __version__
from trainop.engine.framework import GROUP
from trainop.engine.schema.crd import crd
from trainop.errors import TrainopError
from trainop.operator import FRAMEWORKS
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import EVENTS, LEASES, PODS, SERVICES, Resource

NAME = "training-operator"
NAMESPACE = "kubeflow"
IMAGE = "trainop"
METRICS_PORT, PROBE_PORT = 8080, 8081
_LABELS = {"control-plane": "kubeflow-training-operator"}
_RBAC = "rbac.authorization.k8s.io"
_AGGREGATION = "rbac.authorization.kubeflow.org/aggregate-to-kubeflow-"
_HEADER = "# Written by `trainop manifests`; changes belong into trainop/manifests.py.\n"


class OutdatedManifestsError(TrainopError):
    """Files on disk are not what this version would write."""


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=Path("manifests"))
@click.option("--check", is_flag=True, help="Write nothing; fail if a file differs from what would be written.")
@click.option("--print", "printed", is_flag=True, help="Write nothing; print one stream for `kubectl apply -f -`.")
@click.option("--namespace", default=NAMESPACE, show_default=True, help="With --print: where the operator lives.")
@click.option("--image", default=f"{IMAGE}:{__version__}", show_default=True, help="With --print: what it runs.")
def manifests_command(directory: Path, check: bool, printed: bool, namespace: str, image: str) -> None:
    """Write CRDs, RBAC and the Deployment of the operator into DIRECTORY (by default `manifests`)."""
    if printed:
        click.echo(to_yaml(*stream(namespace, image)), nl=False)
        return
    wanted = files()
    stale = _stale(directory, wanted)
    if check:
        differing = [path for path, text in wanted.items() if _read(directory / path) != text]
        if differing or stale:
            listed = ", ".join(sorted([*differing, *stale]))
            raise OutdatedManifestsError(
                f"not up to date in {directory}: {listed}; run `trainop manifests {directory}`"
            )
        return
    for path, text in wanted.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text, encoding="utf-8")
    for path in stale:
        (directory / path).unlink()
    click.echo(f"{len(wanted)} files in {directory}", file=sys.stderr)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _stale(directory: Path, wanted: Mapping[str, str]) -> list[str]:
    """Files that an earlier version wrote and this one does not know."""
    found = (path for path in directory.rglob("*.yaml") if (_read(path) or "").startswith(_HEADER))
    names = (path.relative_to(directory).as_posix() for path in found)
    return sorted(name for name in names if name not in wanted)


def files() -> dict[str, str]:
    """The text of every file of the tree by its path, which is relative and with slashes."""
    crds = {f"{framework.resource}.yaml": crd(framework) for framework in FRAMEWORKS.values()}
    base = {
        "serviceaccount.yaml": [service_account()],
        "rbac.yaml": [cluster_role(), cluster_role_binding(), leases_role(), leases_role_binding()],
        "service.yaml": [service()],
        "deployment.yaml": [deployment()],
    }
    tree: dict[str, Sequence[Json]] = {
        "kustomization.yaml": [kustomization(["overlays/standalone"])],
        "crds/kustomization.yaml": [kustomization(sorted(crds))],
        "base/kustomization.yaml": [kustomization(["../crds", *base], images=[{"name": IMAGE, "newTag": __version__}])],
        "overlays/standalone/kustomization.yaml": [
            kustomization(["../../base", "namespace.yaml"], namespace=NAMESPACE)
        ],
        "overlays/standalone/namespace.yaml": [namespace_object(NAMESPACE)],
        "overlays/kubeflow/kustomization.yaml": [kustomization(["../../base", "roles.yaml"], namespace=NAMESPACE)],
        "overlays/kubeflow/roles.yaml": user_roles(),
        "overlays/namespaced/kustomization.yaml": [namespaced_kustomization()],
        "overlays/namespaced/role.yaml": [namespaced_role(), namespaced_role_binding()],
    }
    tree |= {f"crds/{name}": [definition] for name, definition in crds.items()}
    tree |= {f"base/{name}": objects for name, objects in base.items()}
    return {path: _HEADER + to_yaml(*objects) for path, objects in tree.items()}


def stream(namespace: str, image: str) -> list[Json]:
    """All objects of an installation in that namespace, in the order in which they can be applied."""
    placed = [service_account(), leases_role(), leases_role_binding(namespace), service(), deployment(image)]
    return [
        namespace_object(namespace),
        *(crd(framework) for framework in FRAMEWORKS.values()),
        cluster_role(),
        cluster_role_binding(namespace),
        *({**item, "metadata": {**item["metadata"], "namespace": namespace}} for item in placed),
    ]


class _Dumper(yaml.SafeDumper):
    """Writes every list indented below its key, texts of several lines as such, and repeats what occurs twice."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(str, _Dumper.represent_str)


def to_yaml(*objects: Json) -> str:
    """The objects as one YAML stream."""
    return "---\n".join(yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=120) for item in objects)


# Rights ---------------------------------------------------------------------------------------------------------------


def _rule(resources: Iterable[Resource | str], verbs: str, group: str | None = None) -> Json:
    listed = list(resources)
    found = next((resource.group for resource in listed if isinstance(resource, Resource)), "")
    names = [resource.plural if isinstance(resource, Resource) else resource for resource in listed]
    return {"apiGroups": [found if group is None else group], "resources": names, "verbs": verbs.split()}


def rules() -> list[Json]:
    """What the operator may do where jobs are: nothing that no code of ours asks for."""
    plurals = sorted(framework.resource.plural for framework in FRAMEWORKS.values())
    return [
        _rule(plurals, "get list watch patch delete", GROUP),
        _rule([f"{plural}/status" for plural in plurals], "patch", GROUP),
        # Asked for where owner references that block deletion are guarded (OwnerReferencesPermissionEnforcement).
        _rule([f"{plural}/finalizers" for plural in plurals], "update", GROUP),
        _rule([PODS, SERVICES], "get list watch create patch delete"),
        *(_rule([resource], "get list watch create patch delete") for resource in companion_resources()),
        _rule([EVENTS], "create patch"),
    ]


def companion_resources() -> list[Resource]:
    """What jobs have beside pods and services."""
    kinds = (kind for framework in FRAMEWORKS.values() for kind in framework.companion_kinds)
    return sorted({kind.resource for kind in kinds}, key=str)


def _role(kind: str, name: str, rules: Sequence[Json], labels: Mapping[str, str] | None = None) -> Json:
    metadata: Json = {"name": name, **({"labels": dict(labels)} if labels else {})}
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata, "rules": list(rules)}


def _binding(kind: str, name: str, namespace: str | None) -> Json:
    subject = {"kind": "ServiceAccount", "name": NAME, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
        "subjects": [subject],
    }


def service_account() -> Json:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}}


def cluster_role() -> Json:
    return _role("ClusterRole", NAME, rules())


def cluster_role_binding(namespace: str | None = None) -> Json:
    return _binding("ClusterRole", NAME, namespace)


def leases_role() -> Json:
    """Leader election happens in the operator's own namespace alone."""
    return _role("Role", f"{NAME}-leader-election", [_rule([LEASES], "get create update")])


def leases_role_binding(namespace: str | None = None) -> Json:
    return _binding("Role", f"{NAME}-leader-election", namespace)


def namespaced_role() -> Json:
    return _role("Role", NAME, rules())


def namespaced_role_binding() -> Json:
    return _binding("Role", NAME, None)


def user_roles() -> list[Json]:
    """What Kubeflow's own admin, edit and view roles gather for the users of a profile."""
    plurals = sorted(framework.resource.plural for framework in FRAMEWORKS.values())
    statuses = [f"{plural}/status" for plural in plurals]
    gathered = {"matchLabels": {f"{_AGGREGATION}training-admin": "true"}}
    admin = _role("ClusterRole", "kubeflow-training-admin", [], {f"{_AGGREGATION}admin": "true"})
    edit = [
        _rule(plurals, "create delete get list patch update watch", GROUP),
        _rule(statuses, "get", GROUP),
        _rule(["persistentvolumeclaims"], "create delete get list watch"),
        _rule([EVENTS], "get list watch"),
    ]
    return [
        {**admin, "aggregationRule": {"clusterRoleSelectors": [gathered]}},
        _role(
            "ClusterRole",
            "kubeflow-training-edit",
            edit,
            {f"{_AGGREGATION}edit": "true", f"{_AGGREGATION}training-admin": "true"},
        ),
        _role(
            "ClusterRole",
            "kubeflow-training-view",
            [_rule(plurals, "get list watch", GROUP), _rule(statuses, "get", GROUP)],
            {f"{_AGGREGATION}view": "true"},
        ),
    ]


# The operator ---------------------------------------------------------------------------------------------------------


def namespace_object(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def service() -> Json:
    """Where Prometheus reads the metrics."""
    annotations = {
        "prometheus.io/path": "/metrics",
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(METRICS_PORT),
    }
    port = {"name": "monitoring-port", "port": METRICS_PORT, "targetPort": METRICS_PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "labels": {"app": NAME}, "annotations": annotations},
        "spec": {"type": "ClusterIP", "selector": dict(_LABELS), "ports": [port]},
    }


def deployment(image: str = IMAGE) -> Json:
    """One replica; more of them need `--leader-elect`."""
    template = {
        "metadata": {"labels": dict(_LABELS), "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "serviceAccountName": NAME,
            "terminationGracePeriodSeconds": 10,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [_container(image)],
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "labels": dict(_LABELS)},
        "spec": {"replicas": 1, "selector": {"matchLabels": dict(_LABELS)}, "template": template},
    }


def _container(image: str) -> Json:
    def from_field(name: str, path: str) -> Json:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    def probe(path: str, delay: int, period: int) -> Json:
        request = {"path": path, "port": PROBE_PORT}
        return {"httpGet": request, "initialDelaySeconds": delay, "periodSeconds": period, "timeoutSeconds": 3}

    return {
        "name": NAME,
        "image": image,
        # Users add flags behind it, by a JSON patch on command/1.
        "command": ["/manager"],
        "env": [from_field("MY_POD_NAMESPACE", "metadata.namespace"), from_field("MY_POD_NAME", "metadata.name")],
        "ports": [{"containerPort": METRICS_PORT}],
        "livenessProbe": probe("/healthz", 15, 20),
        "readinessProbe": probe("/readyz", 10, 15),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


# Kustomize ------------------------------------------------------------------------------------------------------------


def kustomization(resources: Sequence[str], *, namespace: str = "", images: Sequence[Json] = ()) -> Json:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **({"namespace": namespace} if namespace else {}),
        "resources": list(resources),
        **({"images": list(images)} if images else {}),
    }


def namespaced_kustomization() -> Json:
    """An installation without any right beyond its own namespace; only its CRDs must be applied by an administrator."""
    no_rights = [
        {"patch": to_yaml({**item, "$patch": "delete"})}
        for item in (
            {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": {"name": NAME}}
            for kind in ("ClusterRole", "ClusterRoleBinding")
        )
    ]
    own_namespace = {
        "op": "add",
        "path": "/spec/template/spec/containers/0/command/1",
        "value": "--namespace=$(MY_POD_NAMESPACE)",
    }
    one_namespace = {
        "target": {"kind": "Deployment", "name": NAME},
        "patch": yaml.safe_dump([own_namespace], width=120),
    }
    return {
        **kustomization(["../../base", "role.yaml"], namespace=NAMESPACE),
        "patches": [*no_rights, one_namespace],
    }
