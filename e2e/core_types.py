"""Generates trainop/local/api/registry/core_types.json: schemas of the built-in kinds, from an API server's OpenAPI.

    python e2e/core_types.py KUBECONFIG     needs kubectl; run it when the emulated Kubernetes version changes

The file contains the definitions that the kinds of the embedded API server refer to, one per line. Descriptions are
cut to their first sentence, so that the file stays small enough to review.
"""

import json
import pathlib
import re
import subprocess
import sys
from typing import Any

TARGET = pathlib.Path(__file__).parents[1] / "trainop" / "local" / "api" / "registry" / "core_types.json"
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


def fetch(kubeconfig: str, document: str) -> dict[str, Any]:
    command = ["kubectl", "--kubeconfig", kubeconfig, "get", "--raw", f"/openapi/v3/{document}"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
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


def main() -> None:
    kept: dict[str, dict[str, Any]] = {}
    for document, kinds in KINDS.items():
        schemas = fetch(sys.argv[1], document)["components"]["schemas"]
        group, version = document.removeprefix("apis/").split("/") if document != "api/v1" else ("", "v1")
        wanted = {
            name
            for name, schema in schemas.items()
            for gvk in schema.get("x-kubernetes-group-version-kind", ())
            if (gvk["group"], gvk["version"]) == (group, version) and gvk["kind"] in kinds.split()
        }
        while wanted:
            name = wanted.pop()
            if name not in kept:
                kept[name] = trim(schemas[name])
                wanted |= references(kept[name])
    lines = [f"{json.dumps(name)}:{json.dumps(kept[name], separators=(',', ':'))}" for name in sorted(kept)]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
