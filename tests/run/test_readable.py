"""The words for an API server's refusals; the texts in the table are those of kube-apiserver 1.34."""

from __future__ import annotations

import pytest
import yaml

from trainop.local.api.serving.server import ApiServer
from trainop.run.documents import BadInputError, Document
from trainop.run.positions import Positions
from trainop.run.readable import describe_field, describe_message, describe_refusal
from trainop.run.submit import apply
from trainop.runtime.client.client import Client
from trainop.runtime.errors import api_error

AT = "spec.x.containers[0]"
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
UNCHECKED = (
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation"
)
MISTYPED = (
    'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field '
)
TYPED_PATCH = "failed to create typed patch object (ns/t; kubeflow.org/v1, Kind=PyTorchJob): "


@pytest.mark.parametrize(
    ("path", "message", "line"),
    [
        (
            f"{AT}.command",
            f'Invalid value: "string": {AT}.command in body must be of type array: "string"',
            f"{AT}.command: must be a list, found a string",
        ),
        (
            f"{AT}.env[0].value",
            f'Invalid value: "integer": {AT}.env[0].value in body must be of type string: "integer"',
            f"{AT}.env[0].value: must be a string, found a whole number; put it in quotes",
        ),
        (
            f"{AT}.cpu",
            f'Invalid value: "number": {AT}.cpu in body must be of type integer,string: "number"',
            f"{AT}.cpu: must be a whole number or a string, found a number",
        ),
        (
            f"{AT}.cpu",
            f"Invalid value: \"lots\": {AT}.cpu in body should match '{QUANTITY}'",
            f'{AT}.cpu: must be a quantity such as 2, 500m or 4Gi, found "lots"',
        ),
        (
            "spec.n",
            "Invalid value: 0: spec.n in body should be greater than or equal to 1",
            "spec.n: should be greater than or equal to 1, found 0",
        ),
        ("spec.jobMode", "Required value", "spec.jobMode: Required value"),
        ("<nil>", UNCHECKED, ""),
    ],
)
def test_a_field_is_one_line(path: str, message: str, line: str):
    assert describe_field(path, message) == line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            f"{MISTYPED}ConfigMap.data of type string",
            "data: must be a string, found a number; put it in quotes",
        ),
        (
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
            "spec.containers: must be a list, found a string",
        ),
        (
            "json: cannot unmarshal array into Go struct field PodSpec.spec.affinity of type v1.Affinity",
            "spec.affinity: must be an object, found a list",
        ),
        (
            TYPED_PATCH + '.spec.x: duplicate entries for key [name="a"]',
            'spec.x: duplicate entries for key [name="a"]',
        ),
        ("quota exceeded", "quota exceeded"),
    ],
)
def test_a_message_is_one_line(message: str, line: str):
    assert describe_message(message) == line


def test_a_refusal_without_usable_causes_is_its_message():
    assert list(describe_refusal(api_error(422, b"why"))) == ["why"]


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": 1}},
            ["error: data: must be a string, found a number; put it in quotes"],
        ),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "My_Ns"}},
            ['error: metadata.namespace: Invalid value: "My_Ns": a lowercase RFC 1123 label must'],
        ),
        (
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "A_"}, "spec": {"ports": [{"port": 0}]}},
            [
                f"error: {field}: Invalid value"
                for field in ("metadata.name", "spec.ports[0].port", "spec.ports[0].targetPort")
            ],
        ),
    ],
)
async def test_what_the_embedded_cluster_refuses_is_said_by_field(raw: dict[str, object], lines: list[str]):
    server = ApiServer()
    node = yaml.compose(yaml.safe_dump(raw))
    assert node is not None
    with pytest.raises(BadInputError) as refused:
        await apply(Client(server.transport()), [Document(raw, "f", Positions(node))])
    await server.close()
    said = str(refused.value).splitlines()
    assert len(said) == len(lines)
    assert all(line.partition(" ")[2].startswith(start) for line, start in zip(said, lines, strict=True)), said
