"""The commands of docs/migrate-di.md, with kubectl, on a cluster where DI-orchestrator v0.2.2 is installed: the objects
that others rely on, as its `config/di-manager.yaml` has them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import yaml

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.conftest import read_crds
from tests.needs import find_kubectl
from tests.patience import PATIENCE
from tests.server.webhooks import dijob
from tests.server.world import Json

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "migrate-di.md"
SYSTEM = {"namespace": "di-system"}
APPS = "/apis/apps/v1/namespaces/di-system/deployments"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
INJECT = {"cert-manager.io/inject-ca-from": "di-system/di-serving-cert"}
PROGRAMS = {"di-operator": "manager", "di-server": "server", "di-webhook": "webhook"}


def commands(heading: str) -> str:
    """The shell commands below a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    text = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    assert text
    return text


def run(plane: ControlPlane, script: str, **environment: str) -> str:
    path = f"{Path(find_kubectl()).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "PATH": path, "KUBECONFIG": str(plane.kubeconfig), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# what DI-orchestrator installs


def definitions() -> list[Json]:
    service = {"name": "di-webhook-service", **SYSTEM, "path": "/mutate-diengine-opendilab-org-v1alpha1-dijob"}
    webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1", "v1beta1"]}
    found = []
    for crd in read_crds():
        if crd["spec"]["group"] == "diengine.opendilab.org":
            spec = {**crd["spec"], "conversion": {"strategy": "Webhook", "webhook": webhook}}
            found.append({**crd, "metadata": {"name": crd["metadata"]["name"], "annotations": INJECT}, "spec": spec})
    return found


def deployment(name: str) -> Json:
    limits = {"cpu": "30m", "memory": "100Mi"}
    container = {
        "name": PROGRAMS[name],
        "image": f"opendilab/{name}:v0.2.2",
        "command": [f"/{name}"],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [{"name": "cert", "mountPath": "/tmp/k8s-webhook-server/serving-certs", "readOnly": True}],
    }
    secret = {"secretName": "di-webhook-server-cert", "defaultMode": 420}
    pod = {"containers": [container], "volumes": [{"name": "cert", "secret": secret}]}
    labels = {"control-plane": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, **SYSTEM, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def configuration(kind: str, name: str, webhook: str, verb: str) -> Json:
    service = {"name": "di-webhook-service", **SYSTEM, "path": f"/{verb}-diengine-opendilab-org-v1alpha1-dijob"}
    rule = {
        "apiGroups": ["diengine.opendilab.org"],
        "apiVersions": ["v1alpha1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["dijobs"],
    }
    entry = {
        "name": webhook,
        "clientConfig": {"service": service},
        "rules": [rule],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1", "v1beta1"],
    }
    metadata = {"name": name, "annotations": INJECT}
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "webhooks": [entry]}


def di_manager() -> list[Json]:
    port = {"port": 8080, "protocol": "TCP", "targetPort": 8080}
    service = {"apiVersion": "v1", "kind": "Service"}
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "di-operator-cluster-role"}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "di-system"}},
        *definitions(),
        {**role, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "list"]}]},
        {
            **role,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "di-operator-cluster-rolebinding"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "di-operator-cluster-role"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", **SYSTEM}],
        },
        {
            **service,
            "metadata": {"name": "di-server", **SYSTEM},
            "spec": {"ports": [port], "selector": {"control-plane": "di-server"}},
        },
        {
            **service,
            "metadata": {"name": "di-server-nodeport", **SYSTEM},
            "spec": {
                "type": "NodePort",
                "ports": [{**port, "nodePort": 32270}],
                "selector": {"control-plane": "di-server"},
            },
        },
        *map(deployment, PROGRAMS),
        configuration("MutatingWebhookConfiguration", "di-mutating-webhook-configuration", "mdijob.kb.io", "mutate"),
        configuration(
            "ValidatingWebhookConfiguration", "di-validating-webhook-configuration", "vdijob.kb.io", "validate"
        ),
    ]


def cert_manager(plane: ControlPlane) -> None:
    """Its CRDs, as far as the page names them, and what it has made for DI-orchestrator."""
    for kind, plural in (("Issuer", "issuers"), ("Certificate", "certificates")):
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version = {"name": "v1", "served": True, "storage": True, "schema": schema}
        names = {"kind": kind, "plural": plural, "singular": kind.lower()}
        spec = {"group": "cert-manager.io", "scope": "Namespaced", "names": names, "versions": [version]}
        body = {"metadata": {"name": f"{plural}.cert-manager.io"}, "spec": spec}
        assert plane.api("POST", DEFINITIONS, body).status == 201
        path = f"/apis/cert-manager.io/v1/namespaces/di-system/{plural}"
        assert wait_until(lambda path=path: plane.api("GET", path).status == 200, PATIENCE)  # type: ignore[misc]  # mypy cannot infer the lambda
    base = "/apis/cert-manager.io/v1/namespaces/di-system"
    for kind, plural, name in (
        ("Issuer", "issuers", "di-selfsigned-issuer"),
        ("Certificate", "certificates", "di-serving-cert"),
    ):
        body = {"apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": {"name": name}}
        assert plane.api("POST", f"{base}/{plural}", body).status == 201
    metadata = {
        "name": "di-webhook-server-cert",
        "annotations": {"cert-manager.io/certificate-name": "di-serving-cert"},
    }
    assert plane.api("POST", "/api/v1/namespaces/di-system/secrets", {"metadata": metadata}).status == 201


# what is found


def found(plane: ControlPlane, path: str) -> Json:
    answer = plane.api("GET", path)
    assert answer.status == 200, (path, answer)
    body: Json = answer.body
    return body


def pod_of(plane: ControlPlane, name: str) -> Json:
    spec: Json = found(plane, f"{APPS}/{name}")["spec"]["template"]["spec"]
    return spec


def subject(plane: ControlPlane) -> str:
    (each,) = found(plane, f"{RBAC}/clusterrolebindings/di-operator-cluster-rolebinding")["subjects"]
    return str(each["name"])


def conversions(plane: ControlPlane) -> set[str]:
    names = ("dijobs", "aggregatorconfigs")
    crds = (found(plane, f"{DEFINITIONS}/{name}.diengine.opendilab.org") for name in names)
    return {crd["spec"]["conversion"]["strategy"] for crd in crds}


def test_there_and_back(plane: ControlPlane, tmp_path: Path) -> None:
    manager = tmp_path / "di-manager.yaml"
    manager.write_text(yaml.safe_dump_all(di_manager()))
    run(plane, f"kubectl create -f {manager}")
    cert_manager(plane)
    jobs = "/apis/diengine.opendilab.org/v1alpha1/namespaces/default/dijobs"
    hooks = (
        f"{HOOKS}/mutatingwebhookconfigurations/di-mutating-webhook-configuration",
        f"{HOOKS}/validatingwebhookconfigurations/di-validating-webhook-configuration",
    )
    assert wait_until(lambda: plane.api("GET", jobs).status == 200, PATIENCE)
    for path in hooks:  # nothing answers here
        entry = found(plane, path)
        entry["webhooks"][0]["failurePolicy"] = "Ignore"
        assert plane.api("PUT", path, entry).status == 200
    assert wait_until(lambda: plane.api("POST", jobs, dijob("All", "stored")).status == 201, PATIENCE)
    before = found(plane, f"{jobs}/stored")

    assert "stored" in run(plane, commands("Before"))
    run(plane, commands("Replace"))
    assert found(plane, f"{jobs}/stored") == before
    assert conversions(plane) == {"None"}
    for name, container in PROGRAMS.items():
        pod = pod_of(plane, name)
        assert (pod["serviceAccountName"], pod.get("volumes")) == (name, None)
        (own,) = pod["containers"]
        assert (own["name"], own["command"], own["image"].partition(":")[0]) == (container, [f"/{name}"], "trainop")
        assert "limits" not in own["resources"]
    assert subject(plane) == "di-operator"
    for path in hooks:
        entry = found(plane, path)
        assert "annotations" not in entry["metadata"]
        assert entry["webhooks"][0]["failurePolicy"] == "Fail"
    for gone in (
        f"{RBAC}/clusterrolebindings/di-rollover",
        "/api/v1/namespaces/di-system/services/di-server-nodeport",
        "/api/v1/namespaces/di-system/secrets/di-webhook-server-cert",
        "/apis/cert-manager.io/v1/namespaces/di-system/certificates/di-serving-cert",
    ):
        assert plane.api("GET", gone).status == 404, gone

    run(plane, commands("Go back"), DI_MANAGER=str(manager))
    assert found(plane, f"{jobs}/stored") == before
    assert conversions(plane) == {"Webhook"}
    for name in PROGRAMS:
        pod = pod_of(plane, name)
        assert pod.get("serviceAccountName", "default") == "default"
        assert pod["containers"][0]["image"] == f"opendilab/{name}:v0.2.2"
    assert subject(plane) == "default"
    ours = f"{RBAC}/clusterroles"
    names = {each["metadata"]["name"] for each in found(plane, ours)["items"]}
    assert not names & {"di-server-cluster-role", "di-webhook-cluster-role"}
