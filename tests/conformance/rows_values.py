"""Rows about values that a typed API server does not distinguish, and about what it sets by default.

Go's encoder leaves out the zero value of a field with `omitempty` that is no pointer: an empty `env[].value` is not
stored, while `enableServiceLinks: false` is. Which fields those are is generated; kube-apiserver itself says whether
that is right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.conformance.client import ABSENT, APPLY, MERGE, PRESENT, Backend, Call, Row, Variables, connect, fill, row
from tests.conformance.objects import CORE, PODS, pod
from trainop.local.api.registry.core_types import definition_of, message_of
from trainop.local.api.registry.messages import omitted_when_empty
from trainop.runtime.lowlevel import core_schemas

Body: TypeAlias = dict[str, Any]

BATCH, APPS = "/apis/batch/v1/namespaces/$ns/jobs", "/apis/apps/v1/namespaces/$ns/deployments"
SERVICES = f"{CORE}/services"

RICH_POD: Body = {
    "volumes": [
        {"name": "v", "secret": {"secretName": "s"}},
        {"name": "e", "emptyDir": {}},
        {"name": "h", "hostPath": {"path": "/x"}},
    ],
    "initContainers": [{"name": "before", "image": "i"}],
    "containers": [
        {
            "name": "main",
            "image": "none:1",
            "env": [
                {"name": "A"},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            ],
            "envFrom": [{"secretRef": {"name": "s"}}],
            "ports": [{"containerPort": 80}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
            "resources": {"limits": {"cpu": "1"}},
            "securityContext": {"capabilities": {"add": ["KILL"]}},
        }
    ],
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    },
    "imagePullSecrets": [{"name": "s"}],
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["x"]}],
    "dnsConfig": {"options": [{"name": "ndots"}]},
}
"""With objects of most types."""
HEADLESS: Body = {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 80}]}


def _template(spec: Body) -> Body:
    return {"metadata": {"labels": {"a": "b"}}, "spec": spec}


KINDS: Mapping[str, tuple[str, Body]] = {
    "Pod": (PODS, {"apiVersion": "v1", "kind": "Pod", "spec": RICH_POD}),
    "Service": (SERVICES, {"apiVersion": "v1", "kind": "Service", "spec": HEADLESS}),
    "Job": (
        BATCH,
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "spec": {"template": _template(RICH_POD | {"restartPolicy": "Never"})},
        },
    ),
    "Deployment": (
        APPS,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": _template(RICH_POD)},
        },
    ),
}
"""Collection and body, without metadata."""

_ZEROS = {"string": "", "boolean": False, "integer": 0}


def zeroed(definition: str, value: Body) -> Body:
    """The object with the zero value in each field that is not given and that an encoder omits when it is zero."""
    fields = core_schemas()[definition]["properties"]
    made = {name: _zeroed_part(fields[name], part) for name, part in value.items()}
    return {name: _ZEROS[fields[name]["type"]] for name in omitted_when_empty(message_of(definition))} | made


def _zeroed_part(schema: Body, value: Any) -> Any:
    if isinstance(value, list):
        return [_zeroed_part(schema["items"], item) for item in value]
    definition = schema.get("$ref", "").rpartition("/")[2]
    is_object = isinstance(value, dict) and "properties" in core_schemas().get(definition, {})
    return zeroed(definition, value) if is_object else value


@dataclass(frozen=True)
class Twice:
    """Creates an object as it is, and with zero values: the server must store the same."""

    path: str
    body: Body

    def take(self, backend: Backend, variables: Variables) -> None:
        group, _, version = self.body["apiVersion"].rpartition("/")
        plain = self.body | {"metadata": {"name": "plain"}}
        zeros = zeroed(definition_of(group, version, self.body["kind"]), self.body | {"metadata": {"name": "zeros"}})
        assert json.dumps(zeros).count('""') > 5, "many are added"
        first, second = (self._created(backend, variables, each) for each in (plain, zeros))
        assert first == second

    def _created(self, backend: Backend, variables: Variables, body: Body) -> Any:
        connection = connect(backend)
        try:
            headers = {**backend.headers, "Content-Type": "application/json"}
            connection.request("POST", fill(self.path, variables), json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        assert response.status == 201, text
        answer = json.loads(text)
        spec = json.dumps(answer["spec"])
        for own in (answer["metadata"]["uid"], answer["metadata"]["name"]):
            spec = spec.replace(own, "own")
        return json.loads(spec)


def with_env(*variables: Body) -> Body:
    return pod(containers=[{"name": "main", "image": "none", "env": list(variables)}])


def headless(name: str = "s", **spec: Any) -> Body:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": HEADLESS | spec}


ENV, LINKS, NOT_READY = "spec.containers.0.env", "spec.enableServiceLinks", "spec.publishNotReadyAddresses"
EMPTY, GIVEN = {"name": "A", "value": ""}, {"name": "A", "value": "x"}

ROWS: list[Row] = [
    *(row(f"zero values of a {kind}", Twice(path, body)) for kind, (path, body) in KINDS.items()),
    row(
        "an empty value of a variable is not stored",
        Call("POST", PODS, with_env(EMPTY, GIVEN | {"name": "B"}), 201, {f"{ENV}.0": {"name": "A", "value": ABSENT}}),
        Call("GET", f"{PODS}/p", expects={f"{ENV}.0.value": ABSENT, f"{ENV}.1.value": "x"}),
    ),
    row(
        "an empty value of a variable that is applied is not stored",
        Call(
            "PATCH",
            f"{PODS}/p?fieldManager=a",
            with_env(EMPTY),
            201,
            {f"{ENV}.0": {"name": "A", "value": ABSENT}},
            content_type=APPLY,
        ),
    ),
    *(
        row(
            f"enableServiceLinks of a pod: {given}",
            Call("POST", PODS, pod(enableServiceLinks=given), 201, {LINKS: given is not False}),
        )
        for given in (True, False, None)
    ),
    row("enableServiceLinks of a pod that does not say", Call("POST", PODS, pod(), 201, {LINKS: True})),
    *(
        row(
            f"what only pods get by default is not in the template of a {kind}",
            Call(
                "POST",
                path,
                body | {"metadata": {"name": "w"}},
                201,
                {
                    "spec.template.spec.enableServiceLinks": ABSENT,
                    "spec.template.spec.containers.0.resources": {"limits": {"cpu": "1"}, "requests": ABSENT},
                    "spec.template.spec.dnsPolicy": "ClusterFirst",
                    "spec.template.spec.containers.0.terminationMessagePath": PRESENT,
                },
            ),
        )
        for kind, (path, body) in KINDS.items()
        if "template" in body["spec"]
    ),
    row(
        "requests of a pod are its limits, unless it says",
        Call("POST", PODS, {**pod(), "spec": RICH_POD}, 201, {"spec.containers.0.resources.requests": {"cpu": "1"}}),
    ),
    row(
        "ports on the network of the node",
        Call(
            "POST",
            PODS,
            pod(hostNetwork=True, containers=[{"name": "main", "image": "i", "ports": [{"containerPort": 80}]}]),
            201,
            {"spec.containers.0.ports.0.hostPort": 80},
        ),
    ),
    *(
        row(
            f"publishNotReadyAddresses: {given}",
            Call("POST", SERVICES, headless(publishNotReadyAddresses=given), 201, {NOT_READY: given or ABSENT}),
        )
        for given in (True, False, None)
    ),
    row(
        "publishNotReadyAddresses is withdrawn",
        Call("POST", SERVICES, headless(publishNotReadyAddresses=True), 201),
        Call(
            "PATCH",
            f"{SERVICES}/s",
            {"spec": {"publishNotReadyAddresses": False}},
            200,
            {NOT_READY: ABSENT},
            content_type=MERGE,
        ),
    ),
]
