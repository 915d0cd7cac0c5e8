"""`manifests/crds-typed` on a real kube-apiserver: what it refuses, and what it must not refuse."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from tests.conftest import start_control_plane
from tests.kustomize import MANIFESTS, build
from tests.needs import find_kubectl
from tests.server.world import Json, World
from trainop.runtime.objects.core_types import POD_TEMPLATE, SCHEMA_PREFIX, newest_schemas

EXAMPLES = [
    path for path in sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml")) if path.parent.name != "broken"
]
ETCD_LIMIT = 1_500_000
"""Bytes of a request that etcd accepts (`--max-request-bytes`)."""


class Shell:
    def __init__(self, kubectl: str, plane: ControlPlane) -> None:
        self._command = [kubectl, "--kubeconfig", str(plane.kubeconfig)]

    def __call__(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._command, *map(str, args)], capture_output=True, text=True, check=False)

    def succeed(self, *args: str | Path) -> str:
        done = self(*args)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    yield from start_control_plane("typed", ClusterOptions(), crds=False)


@pytest.fixture(scope="module")
def shell(plane: ControlPlane) -> Shell:
    """With the CRDs: the open ones first, which the typed ones replace."""
    found = Shell(find_kubectl(), plane)
    found.succeed("apply", "--server-side", "-k", MANIFESTS / "crds")
    found.succeed("apply", "--server-side", "-k", MANIFESTS / "crds-typed")
    found.succeed("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    return found


@pytest.fixture(scope="module")
def typed() -> list[Json]:
    return build(find_kubectl(), MANIFESTS / "crds-typed")


def places(schema: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all pod templates in a schema; maps have the key `Worker`."""
    properties = schema.get("properties", {})
    if "containers" in properties.get("spec", {}).get("properties", {}):
        yield path
        return
    inner = {**properties, **({"Worker": more} if (more := schema.get("additionalProperties")) else {})}
    for name, part in inner.items():
        yield from places(part, (*path, name)) if isinstance(part, dict) else ()


SCALARS = {"integer": 1, "number": 1, "boolean": True, "string": "text"}
SPECIAL = {"Quantity": "1", "IntOrString": "1", "Time": "2026-01-01T00:00:00Z", "ObjectMeta": {"labels": {"a": "b"}}}


def value_of(schema: Json, schemas: dict[str, Json]) -> Any:
    """A value of the schema with every field that it declares."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(SCHEMA_PREFIX)
        special = SPECIAL.get(name.rpartition(".")[2])
        return special or value_of(schemas[name], schemas)
    if schema["type"] in SCALARS:
        return SCALARS[schema["type"]]
    if schema["type"] == "array":
        return [value_of(schema["items"], schemas)]
    if "additionalProperties" in schema:
        return {"key": value_of(schema["additionalProperties"], schemas)}
    return {name: value_of(part, schemas) for name, part in schema["properties"].items()}


def jobs_with(typed: list[Json], template: Json) -> Iterator[tuple[str, Json, str]]:
    """For each place of a template in each version of each CRD: its collection, an object, and the path."""
    for crd in typed:
        spec = crd["spec"]
        for version in spec["versions"]:
            for path in places(version["schema"]["openAPIV3Schema"]):
                body: Json = {
                    "apiVersion": f"{spec['group']}/{version['name']}",
                    "kind": spec["names"]["kind"],
                    "metadata": {"name": "j"},
                    "spec": {"coordinator": {"template": template}} if spec["names"]["kind"] == "DIJob" else {},
                }
                if spec["names"]["kind"] == "MXJob":
                    body["spec"]["jobMode"] = "MXTrain"
                inner = body
                for name in path[:-1]:
                    inner = inner.setdefault(name, {})
                inner[path[-1]] = template
                collection = f"/apis/{body['apiVersion']}/namespaces/{{namespace}}/{spec['names']['plural']}"
                yield collection, body, ".".join(path)


def test_the_crds_are_small_enough_for_etcd_and_for_plain_kubectl_apply(typed: list[Json]):
    sizes = {crd["metadata"]["name"]: len(msgspec.json.encode(crd)) for crd in typed}
    assert len(sizes) == 9
    assert max(sizes.values()) < 262_144 < ETCD_LIMIT, "the limit of annotations, where plain apply keeps the object"


def test_every_misspelt_field_of_a_template_is_refused(shell: Shell, plane: ControlPlane, typed: list[Json]):
    world = World(plane.api, "strict")
    del shell
    wrong = {"spec": {"containers": [{"name": "c", "image": "i", "resource": {}}]}}
    found = list(jobs_with(typed, wrong))
    assert len(found) == 12
    for collection, body, path in found:
        answer = world.try_to("POST", f"{collection}?fieldValidation=Strict&dryRun=All", body)
        assert answer.status == 400, (path, answer)
        assert f'unknown field "{path}.spec.containers[0].resource"' in answer.body["message"]


def test_every_field_of_kubernetes_is_accepted_and_kept(shell: Shell, plane: ControlPlane, typed: list[Json]):
    world = World(plane.api, "full")
    del shell
    schemas = newest_schemas()
    template = value_of(schemas[POD_TEMPLATE], schemas)
    template["metadata"] = {"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["a/b"]}
    for collection, body, path in jobs_with(typed, template):
        answer = world.try_to("POST", f"{collection}?fieldValidation=Strict&dryRun=All", body)
        assert answer.status == 201, (path, answer)
        stored = answer.body
        for name in path.split("."):
            stored = stored[name]
        assert stored == template


def test_the_examples_are_accepted(shell: Shell):
    jobs = [path for path in EXAMPLES if "kind: " in path.read_text() and "Job" in path.read_text()]
    assert len(jobs) > 20
    for path in jobs:
        shell.succeed("apply", "--dry-run=server", "--validate=strict", "-f", path)


def test_kubectl_shows_the_typed_fields(shell: Shell):
    shown = shell.succeed("explain", "tfjob.spec.tfReplicaSpecs.template.spec.containers.livenessProbe")
    assert "timeoutSeconds" in shown
