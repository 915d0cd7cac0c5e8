"""`crds-typed`: the CRDs with pod templates of the types of Kubernetes, as upstream's, instead of open ones.

The schema is generated from Kubernetes' own OpenAPI, without descriptions, which are nine tenths of upstream's CRDs. It
is one file, which kustomize copies into every template of the CRDs of `crds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from trainop.engine.schema.openapi import quantities
from trainop.engine.schema.podschema import pod_template
from trainop.manifests.overlays import kustomization
from trainop.programs.schemes import crds
from trainop.runtime import Json
from trainop.runtime.lowlevel import POD_TEMPLATE, SCHEMA_PREFIX, newest_schemas

_KEPT = ("type", "format", "required", "x-kubernetes-map-type")
_INT_OR_STRING: Json = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
_METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_SPECIAL = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": quantities("")["additionalProperties"],
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _INT_OR_STRING,
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": {"type": "string", "format": "date-time"},
}
"""Types whose values are no objects."""


def typed_template() -> Json:
    """The structural schema of a pod template. As upstream, only the usual fields of its metadata are kept, and values
    of enumerations are left to the API server."""
    schemas = newest_schemas()
    metadata = _without_descriptions(pod_template()["properties"]["metadata"])
    return _expand({"$ref": SCHEMA_PREFIX + POD_TEMPLATE}, schemas, {**_SPECIAL, _METADATA: metadata})


def _without_descriptions(schema: Json) -> Json:
    properties = {name: _without_descriptions(part) for name, part in schema.get("properties", {}).items()}
    rest = {name: part for name, part in schema.items() if name not in {"description", "properties"}}
    for name in ("items", "additionalProperties"):
        if name in rest:
            rest[name] = _without_descriptions(rest[name])
    return {**rest, **({"properties": properties} if properties else {})}


def _expand(schema: Json, schemas: Mapping[str, Json], special: Mapping[str, Json]) -> Json:
    """The schema with all references replaced, because CRDs have none."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(SCHEMA_PREFIX)
        return special[name] if name in special else _expand(schemas[name], schemas, special)
    made: Json = {name: schema[name] for name in _KEPT if name in schema}
    for name in ("items", "additionalProperties"):
        if name in schema:
            made[name] = _expand(schema[name], schemas, special)
    if "properties" in schema:
        made["properties"] = {name: _expand(part, schemas, special) for name, part in schema["properties"].items()}
    return made | _list_type(schema, made, schemas)


def _list_type(schema: Json, made: Json, schemas: Mapping[str, Json]) -> Json:
    """How the list is merged. The keys of a list by key must be required or have a default, which `made` gets."""
    type_ = schema.get("x-kubernetes-list-type")
    if type_ != "map":
        return {"x-kubernetes-list-type": type_} if type_ else {}
    keys, item = schema["x-kubernetes-list-map-keys"], made["items"]
    declared = schemas[schema["items"]["$ref"].removeprefix(SCHEMA_PREFIX)]["properties"]
    for key in keys:
        if key not in item.get("required", ()):
            item["properties"][key] = {**item["properties"][key], "default": declared[key]["default"]}
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}


def find_templates(schema: Json, path: str = "") -> Iterator[str]:
    """The paths of all pod templates in a schema, with dots."""
    properties = schema.get("properties", {})
    if "containers" in properties.get("spec", {}).get("properties", {}):
        yield path
        return
    inner = {f"properties.{name}": part for name, part in properties.items()}
    inner |= {name: schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)}
    for name, part in inner.items():
        yield from find_templates(part, f"{path}.{name}" if path else name)


def find_volumes(schema: Json) -> Iterator[str]:
    """The path of the volumes that a DIJob has beside its templates."""
    if "volumes" in schema["properties"]["spec"]["properties"]:
        yield "properties.spec.properties.volumes"


def _target(definition: Json, find: Callable[[Json], Iterator[str]]) -> Json | None:
    """The places of one CRD into which kustomize copies a schema; None if it has none."""
    paths = [
        f"spec.versions.{index}.schema.openAPIV3Schema.{path}"
        for index, version in enumerate(definition["spec"]["versions"])
        for path in find(version["schema"]["openAPIV3Schema"])
    ]
    selected = {"kind": "CustomResourceDefinition", "name": definition["metadata"]["name"]}
    return {"select": selected, "fieldPaths": paths} if paths else None


def typed_crd_files() -> dict[str, Sequence[Json]]:
    """The files of `crds-typed`, by path."""
    name = "pod-template"
    source = {
        "apiVersion": "trainop.kubeflow.org/v1",
        "kind": "Schema",
        "metadata": {"name": name, "annotations": {"config.kubernetes.io/local-config": "true"}},  # is not applied
        "template": typed_template(),
    }
    definitions = crds()
    copied = {"template": find_templates, "template.properties.spec.properties.volumes": find_volumes}
    replacements = [
        {
            "source": {"kind": "Schema", "name": name, "fieldPath": path},
            "targets": [target for each in definitions if (target := _target(each, find))],
        }
        for path, find in copied.items()
    ]
    return {
        "crds-typed/kustomization.yaml": [
            {**kustomization(["../crds", f"{name}.yaml"]), "replacements": replacements},
        ],
        f"crds-typed/{name}.yaml": [source],
    }
