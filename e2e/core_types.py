"""Generates the type files of trainop/runtime/objects: schemas of the built-in kinds, from Kubernetes' own OpenAPI.

    python e2e/core_types.py KUBECONFIG         core_types.json; run it when the emulated Kubernetes version changes
    python e2e/core_types.py --newest SOURCE    newer_pod_types.json; run it for each release of Kubernetes

KUBECONFIG names an API server, which is asked with kubectl. SOURCE is the same, or the folder `api/openapi-spec/v3` of
Kubernetes' source (without enums), from `go mod download -json k8s.io/kubernetes@v1.37.2`.

`core_types.json` contains the definitions that the kinds of the embedded API server refer to, one per line.
Descriptions are cut to their first sentence, so that the file stays small enough to review. `newer_pod_types.json`
contains what the types of a pod template have in addition, by which fields of a template are known or not.
"""

import json
import pathlib
import re
import subprocess
import sys
from typing import Any

TARGET = pathlib.Path(__file__).parents[1] / "trainop" / "runtime" / "objects" / "core_types.json"
NEWER = TARGET.with_name("newer_pod_types.json")
POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
KINDS = {
    "api/v1": "Pod Service ConfigMap Secret Event Node ServiceAccount PersistentVolumeClaim Namespace Endpoints "
    "ResourceQuota Binding",
    "apis/apps/v1": "Deployment",
    "apis/batch/v1": "Job",
    "apis/autoscaling/v2": "HorizontalPodAutoscaler",
    "apis/autoscaling/v1": "Scale",
    "apis/coordination.k8s.io/v1": "Lease",
    "apis/discovery.k8s.io/v1": "EndpointSlice",
    "apis/events.k8s.io/v1": "Event",
    "apis/policy/v1": "Eviction",
    "apis/rbac.authorization.k8s.io/v1": "Role RoleBinding ClusterRole ClusterRoleBinding",
    "apis/scheduling.k8s.io/v1": "PriorityClass",
    "apis/apiextensions.k8s.io/v1": "CustomResourceDefinition",
    "apis/admissionregistration.k8s.io/v1": "ValidatingWebhookConfiguration MutatingWebhookConfiguration",
}
KEPT_FIELDS = ("type", "format", "required", "enum", "default", "x-kubernetes-group-version-kind")


def fetch(source: pathlib.Path, document: str) -> dict[str, Any]:
    """The schemas of one group and version, from the folder or the API server."""
    if source.is_dir():
        text = (source / f"{document.replace('/', '__')}_openapi.json").read_bytes()
    else:
        command = ["kubectl", "--kubeconfig", str(source), "get", "--raw", f"/openapi/v3/{document}"]
        text = subprocess.run(command, check=True, capture_output=True).stdout
    found: dict[str, Any] = json.loads(text)["components"]["schemas"]
    return found


def trim(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema reduced to the keywords that the embedded API server uses."""
    if "allOf" in schema and len(schema["allOf"]) == 1:
        schema = {**schema, **schema["allOf"][0]}
    kept = {name: schema[name] for name in KEPT_FIELDS if name in schema and schema[name] != {}}
    if text := schema.get("description", ""):
        kept["description"] = re.split(r"(?<=[a-z)`])\. |\n", text)[0][:300]
    if isinstance(reference := schema.get("$ref"), str):
        kept["$ref"] = reference
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            kept[name] = trim(schema[name])
    if properties := schema.get("properties"):
        kept["properties"] = {name: trim(part) for name, part in properties.items()}
    kept |= {name: part for name, part in schema.items() if name.startswith("x-kubernetes-list")}
    kept |= {name: part for name, part in schema.items() if name.startswith(("x-kubernetes-map", "x-kubernetes-patch"))}
    return kept


def references(value: object) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"].rpartition("/")[2]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(part) for part in value.values()))
    return set().union(*(references(part) for part in value)) if isinstance(value, list) else set()


def closure(schemas: dict[str, Any], wanted: set[str]) -> dict[str, dict[str, Any]]:
    """The named definitions and all that they refer to, trimmed."""
    kept: dict[str, dict[str, Any]] = {}
    while wanted:
        name = wanted.pop()
        if name not in kept:
            kept[name] = trim(schemas[name])
            wanted |= references(kept[name])
    return kept


def write(target: pathlib.Path, kept: dict[str, dict[str, Any]]) -> None:
    lines = [f"{json.dumps(name)}:{json.dumps(kept[name], separators=(',', ':'))}" for name in sorted(kept)]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def write_types(source: pathlib.Path) -> None:
    kept: dict[str, dict[str, Any]] = {}
    for document, kinds in KINDS.items():
        schemas = fetch(source, document)
        group, version = document.removeprefix("apis/").split("/") if document != "api/v1" else ("", "v1")
        wanted = {
            name
            for name, schema in schemas.items()
            for gvk in schema.get("x-kubernetes-group-version-kind", ())
            if (gvk["group"], gvk["version"]) == (group, version) and gvk["kind"] in kinds.split()
        }
        kept |= closure(schemas, wanted)
    write(TARGET, kept)


def write_newer(source: pathlib.Path) -> None:
    known = json.loads(TARGET.read_bytes())
    newer = {}
    for name, schema in closure(fetch(source, "api/v1"), {POD_TEMPLATE}).items():
        fields = schema.get("properties", {})
        if added := {
            field: fields[field] for field in fields if field not in known.get(name, {}).get("properties", {})
        }:
            newer[name] = {"properties": added} if name in known else schema
    write(NEWER, newer)


if __name__ == "__main__":
    if sys.argv[1] == "--newest":
        write_newer(pathlib.Path(sys.argv[2]))
    else:
        write_types(pathlib.Path(sys.argv[1]))
