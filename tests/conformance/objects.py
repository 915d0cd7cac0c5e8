"""The objects used in rows, and a CRD with most features of a schema."""

from __future__ import annotations

from typing import Any

CORE = "/api/v1/namespaces/$ns"
MAPS = f"{CORE}/configmaps"
PODS = f"{CORE}/pods"
GROUP = "conformance.trainop.dev"
WIDGETS = f"/apis/{GROUP}/v1/namespaces/$ns/widgets"
JOBS = "/apis/kubeflow.org/v1/namespaces/$ns/pytorchjobs"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def config_map(name: str = "a", data: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}
    return body if data is None else {**body, "data": data}


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "none"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, **spec},
    }


def widget(name: str = "w", spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Widget",
        "metadata": {"name": name, **metadata},
        "spec": {} if spec is None else spec,
    }


def pytorch_job(name: str = "j", **run_policy: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "none"}]}}
    worker = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"runPolicy": run_policy, "pytorchReplicaSpecs": {"Worker": worker}},
    }


PORT = {
    "type": "object",
    "required": ["port"],
    "properties": {
        "port": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535},
        "protocol": {"type": "string", "default": "TCP"},
        "note": {"type": "string"},
    },
}
SPEC = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "format": "int32", "minimum": 0, "default": 1},
        "replicas": {"type": "integer", "format": "int32", "minimum": 0},
        "color": {"type": "string", "enum": ["red", "green"]},
        "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
        "flag": {"type": "boolean"},
        "amount": {"x-kubernetes-int-or-string": True},
        "ports": {
            "type": "array",
            "maxItems": 3,
            "items": PORT,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port"],
        },
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "words": {"type": "array", "items": {"type": "string"}},
        "options": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "nested": {
            "type": "object",
            "default": {},
            "properties": {"depth": {"type": "integer", "default": 7}, "maybe": {"type": "string", "nullable": True}},
        },
    },
}
STATUS = {
    "type": "object",
    "properties": {
        "replicas": {"type": "integer", "format": "int32"},
        "selector": {"type": "string"},
        "phase": {"type": "string", "enum": ["Good", "Bad"]},
        "since": {"type": "string", "format": "date-time"},
    },
}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"widgets.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "plural": "widgets",
            "singular": "widget",
            "kind": "Widget",
            "listKind": "WidgetList",
            "shortNames": ["wd"],
            "categories": ["all"],
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC, "status": STATUS}}},
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "additionalPrinterColumns": [
                    {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
            }
        ],
    },
}
