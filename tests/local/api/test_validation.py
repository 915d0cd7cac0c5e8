"""Validation errors of built-in objects with the messages of kube-apiserver 1.34; each row was compared with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.local.api.support import CONFIG_MAPS, PODS, SERVICES, Api
from trainop.runtime.objects.quantity import canonical_quantity

SECRETS = "/api/v1/namespaces/default/secrets"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
C = {"name": "c", "image": "i"}
NAMED: dict[str, Any] = {"metadata": {"name": "a"}}
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def container(**given: Any) -> dict[str, Any]:
    return {**NAMED, "spec": {"containers": [{**C, **given}]}}


def spec(**given: Any) -> dict[str, Any]:
    return {**NAMED, "spec": {"containers": [C], **given}}


def service(*ports: dict[str, Any], **given: Any) -> dict[str, Any]:
    return {**NAMED, "spec": {"ports": list(ports), **given}}


def of(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", **metadata}}


# path, body, what follows `Kind "a" is invalid: `
ROWS: list[tuple[str, Any, str]] = [
    (PODS, container(name="C_"), f'spec.containers[0].name: Invalid value: "C_": {LABEL}'),
    (
        PODS,
        container(image=" i "),
        'spec.containers[0].image: Invalid value: " i ": must not have leading or trailing whitespace',
    ),
    (
        PODS,
        container(imagePullPolicy="F"),
        (
            'spec.containers[0].imagePullPolicy: Unsupported value: "F": '
            'supported values: "Always", "IfNotPresent", "Never"'
        ),
    ),
    (PODS, container(ports=[{}]), "spec.containers[0].ports[0].containerPort: Required value"),
    (
        PODS,
        container(ports=[{"containerPort": 1, "hostPort": 70000}]),
        "spec.containers[0].ports[0].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
    ),
    (
        PODS,
        container(ports=[{"containerPort": 1, "protocol": "X"}]),
        'spec.containers[0].ports[0].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP"',
    ),
    (
        PODS,
        container(ports=[{"containerPort": 1, "name": "a--b"}]),
        'spec.containers[0].ports[0].name: Invalid value: "a--b": must not contain consecutive hyphens',
    ),
    (
        PODS,
        container(ports=[{"containerPort": 1, "name": "-a"}]),
        'spec.containers[0].ports[0].name: Invalid value: "-a": must not begin or end with a hyphen',
    ),
    (
        PODS,
        container(ports=[{"containerPort": 1, "name": "sixteen-letters-"}]),
        (
            '[spec.containers[0].ports[0].name: Invalid value: "sixteen-letters-": must be no more than 15 characters, '
            'spec.containers[0].ports[0].name: Invalid value: "sixteen-letters-": must not begin or end with a hyphen]'
        ),
    ),
    (
        PODS,
        container(ports=[{"containerPort": 1, "name": "p"}, {"containerPort": 2, "name": "p"}]),
        'spec.containers[0].ports[1].name: Duplicate value: "p"',
    ),
    (PODS, container(env=[{"value": "x"}]), "spec.containers[0].env[0].name: Required value"),
    (
        PODS,
        container(env=[{"name": "x", "value": "y", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        'spec.containers[0].env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty',
    ),
    (
        PODS,
        container(volumeMounts=[{"name": "v", "mountPath": "/v"}]),
        'spec.containers[0].volumeMounts[0].name: Not found: "v"',
    ),
    (
        PODS,
        {**NAMED, "spec": {"volumes": [{"name": "v"}], "containers": [{**C, "volumeMounts": [{"name": "v"}]}]}},
        "spec.containers[0].volumeMounts[0].mountPath: Required value",
    ),
    (
        PODS,
        container(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
        'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
    ),
    (
        PODS,
        container(resources={"requests": {"cpu": "-1"}}),
        'spec.containers[0].resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0',
    ),
    (PODS, spec(volumes=[{"name": "v"}, {"name": "v"}]), 'spec.volumes[1].name: Duplicate value: "v"'),
    (PODS, spec(volumes=[{"emptyDir": {}}]), "spec.volumes[0].name: Required value"),
    (PODS, spec(initContainers=[C]), 'spec.initContainers[0].name: Duplicate value: "c"'),
    (
        PODS,
        spec(activeDeadlineSeconds=0),
        "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
    ),
    (PODS, spec(subdomain="a.b"), 'spec.subdomain: Invalid value: "a.b": must not contain dots'),
    (
        PODS,
        spec(dnsPolicy="X"),
        (
            'spec.dnsPolicy: Unsupported value: "X": supported values: '
            '"ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"'
        ),
    ),
    (SERVICES, service(), "spec.ports: Required value"),
    (
        SERVICES,
        service({"port": 70000, "targetPort": 1}),
        ("spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive"),
    ),
    (
        SERVICES,
        service({"port": 1, "name": "a"}, {"port": 2, "name": "a"}),
        'spec.ports[1].name: Duplicate value: "a"',
    ),
    (SERVICES, service({"port": 1}, type="ExternalName"), "spec.externalName: Required value"),
    (CONFIG_MAPS, {**NAMED, "data": {"..": "x"}}, "data[..]: Invalid value: \"..\": must not be '..'"),
    (
        CONFIG_MAPS,
        {**NAMED, "data": {"x": "x"}, "binaryData": {"x": "eA=="}},
        'data[x]: Invalid value: "x": duplicate of key present in binaryData',
    ),
    (SECRETS, {**NAMED, "type": "kubernetes.io/tls"}, "[data[tls.crt]: Required value, data[tls.key]: Required value]"),
    (
        CLAIMS,
        {**NAMED, "spec": {}},
        (
            "[spec.accessModes: Required value: at least 1 access mode is required, "
            "spec.resources[storage]: Required value]"
        ),
    ),
    (
        LEASES,
        {**NAMED, "spec": {"leaseTransitions": -1}},
        "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
    ),
    (CONFIG_MAPS, of(labels={"a b": "c"}), f'metadata.labels: Invalid value: "a b": {QUALIFIED}'),
    (CONFIG_MAPS, of(labels={"/x": ""}), 'metadata.labels: Invalid value: "/x": prefix part must be non-empty'),
    (
        CONFIG_MAPS,
        of(labels={"x": "y" * 64}),
        f'metadata.labels: Invalid value: "{"y" * 64}": must be no more than 63 characters',
    ),
    (CONFIG_MAPS, of(annotations={"-": "x"}), f'metadata.annotations: Invalid value: "-": {QUALIFIED}'),
    (
        CONFIG_MAPS,
        of(annotations={"x": "y" * 262144}),
        "metadata.annotations: Too long: may not be more than 262144 bytes",
    ),
    (
        CONFIG_MAPS,
        of(ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": ""}]),
        "metadata.ownerReferences[0].uid: Required value: must not be empty",
    ),
    (
        CONFIG_MAPS,
        of(
            ownerReferences=[
                {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": True} for name in "xy"
            ]
        ),
        (
            'metadata.ownerReferences: Invalid value: [{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x",'
            '"controller":true},{"apiVersion":"v1","kind":"Pod","name":"y","uid":"y","controller":true}]: Only one '
            'reference can have Controller set to true. Found "true" in references for Pod/x and Pod/y'
        ),
    ),
    (ROLES, {"metadata": {"name": "a%b"}}, "metadata.name: Invalid value: \"a%b\": may not contain '%'"),
]


@pytest.mark.parametrize(("path", "body", "problem"), ROWS)
async def test_says_what_is_wrong(path: str, body: Any, problem: str):
    answer = await Api()("POST", path, body)
    assert answer.code == 422, answer.raw
    assert answer.json["message"].partition(" is invalid: ")[2] == problem


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1025Mi", "1025Mi"),
        ("1.5Gi", "1536Mi"),
        ("1e3", "1e3"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("0", "0"),
        ("0Mi", "0"),
        ("many", "many"),
    ],
)
def test_quantities_have_one_form(given: str, written: str):
    assert canonical_quantity(given) == written


async def test_external_names_and_node_ports():
    api = Api()
    named = await api.create(SERVICES, {**NAMED, "spec": {"type": "ExternalName", "externalName": "x.example"}})
    assert "clusterIP" not in named["spec"]
    for name in "bc":
        body = {"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 1}]}}
        await api.create(SERVICES, body)
    ports = {(await api("GET", f"{SERVICES}/{name}")).json["spec"]["ports"][0]["nodePort"] for name in "bc"}
    assert len(ports) == 2


async def test_defaults_of_probes_volumes_and_variables():
    probe = {"httpGet": {"port": 80}}
    variable = {"name": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    given = {**C, "livenessProbe": probe, "env": [variable]}
    volumes = [{"name": "v"}, {"name": "w", "configMap": {"name": "c"}}, {"name": "h", "hostPath": {"path": "/"}}]
    made = await Api().create(PODS, {**NAMED, "spec": {"containers": [given], "volumes": volumes}})
    one = made["spec"]["containers"][0]
    assert one["livenessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    assert one["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert made["spec"]["volumes"] == [
        {"name": "v", "emptyDir": {}},
        {"name": "w", "configMap": {"name": "c", "defaultMode": 420}},
        {"name": "h", "hostPath": {"path": "/", "type": ""}},
    ]


TEMPLATE: Any = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
UNATTENDED = [
    ("/apis/apps/v1/namespaces/default/deployments", {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}),
    ("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", {"maxReplicas": 2}),
    ("/api/v1/namespaces/default/resourcequotas", {"hard": {"pods": "1"}}),
]


@pytest.mark.parametrize(("path", "spec"), UNATTENDED, ids=[path.rpartition("/")[2] for path, _ in UNATTENDED])
async def test_what_nothing_acts_on_says_so_once(path: str, spec: dict[str, Any]):
    api = Api()
    answer = await api("POST", path, {"metadata": {"name": "x"}, "spec": spec})
    assert answer.code == 201, answer.raw
    assert "this cluster has no controller for objects of kind" in answer.headers["warning"]
    for label in ("1", "2"):
        assert (await api.patch(f"{path}/x", {"metadata": {"labels": {"changed": label}}})).code == 200
    events = (await api("GET", "/api/v1/namespaces/default/events")).json["items"]
    assert [(event["involvedObject"]["uid"], event["reason"], event["type"]) for event in events] == [
        (answer.json["metadata"]["uid"], "NothingActsOnIt", "Warning")
    ]
    assert events[0]["message"] == (
        f"this cluster has no controller for objects of kind {answer.json['kind']}: it runs pods and training jobs"
    )


@pytest.mark.parametrize(
    "resource",
    [
        "/apis/apps/v1/namespaces/default/statefulsets",
        "/apis/batch/v1/namespaces/default/cronjobs",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
        "/apis/storage.k8s.io/v1/storageclasses",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        "/api/v1/namespaces/default/limitranges",
    ],
)
async def test_kinds_that_are_left_out_are_named(resource: str):
    group = resource.split("/")[2] if resource.startswith("/apis") else ""
    shown = ".".join(part for part in (resource.rpartition("/")[2], group) if part)
    answer = await Api()("POST", resource, {"metadata": {"name": "x"}})
    assert (answer.code, answer.json["reason"]) == (404, "NotFound")
    assert answer.json["message"] == f"this cluster does not serve {shown}: it has no controller for them"
