"""How the parts of an object merge: which lists are maps by key or sets, and which values are atomic.

Server-side apply reads `x-kubernetes-list-type`, `-list-map-keys` and `-map-type`; strategic merge patches read
`x-kubernetes-patch-merge-key` and `-patch-strategy`. A `Shape` holds both. The shapes of built-in kinds follow the
OpenAPI document of Kubernetes (`api/openapi-spec/swagger.json`); those of custom resources are derived from the CRD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from trainop.runtime import Json


@dataclass(frozen=True, slots=True)
class Shape:
    """The merge rules of one node of an object. By default maps are granular and lists are atomic."""

    fields: Mapping[str, Shape] = field(default_factory=dict)
    """Map: the members that have merge rules of their own."""
    declared: frozenset[str] | None = None
    """Map: the fields that the type declares; None if the type is unknown and every member counts as a field."""
    values: Shape | None = None
    """Map: the shape of every other member."""
    items: Shape | None = None
    """List: the shape of each item."""
    atomic: bool = False
    """Map: server-side apply replaces it as one value (`x-kubernetes-map-type: atomic`)."""
    set: bool = False
    """List: scalars without duplicates, merged by server-side apply and by strategic merge patches."""
    keys: tuple[str, ...] = ()
    """List: server-side apply merges it as a map by these fields (`x-kubernetes-list-map-keys`)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """List: the values of omitted key fields, such as `protocol: TCP`."""
    merge_key: str = ""
    """List: a strategic merge patch merges it by this field (`x-kubernetes-patch-merge-key`)."""
    zero_value: Mapping[str, Any] = field(default_factory=dict)
    """Whole object: the JSON of the zero value of its Go type; fields equal to it have no manager."""

    def member(self, name: str) -> Shape:
        """The shape of a member of a map."""
        return self.fields.get(name) or self.values or (UNKNOWN if self.declared is None else OPEN)

    def declares(self, name: str) -> bool:
        """Whether a member of a map is a declared field of its type, as opposed to a key of a free-form map."""
        return self.declared is None or name in self.declared

    @property
    def item(self) -> Shape:
        """The shape of the items of a list."""
        return self.items or (UNKNOWN if self.declared is None else OPEN)


UNKNOWN = Shape()
"""The type is unknown: maps are granular, lists are atomic."""
OPEN = Shape(declared=frozenset())
"""A free-form map: the type declares no fields."""

_ATOMIC = Shape(atomic=True)
_SET = Shape(set=True)


def _map_list(*keys: str, item: Shape = UNKNOWN, **defaults: Any) -> Shape:
    """A list that server-side apply merges by all `keys`, and a strategic merge patch by the first one."""
    return Shape(keys=keys, merge_key=keys[0], items=item, defaults=defaults)


def _fields(**members: Shape) -> Shape:
    return Shape(fields=members)


_METADATA = _fields(finalizers=_SET, ownerReferences=_map_list("uid", item=_ATOMIC))
_CONDITIONS = _map_list("type")
_VALUE_FROM = _fields(
    configMapKeyRef=_ATOMIC, fieldRef=_ATOMIC, fileKeyRef=_ATOMIC, resourceFieldRef=_ATOMIC, secretKeyRef=_ATOMIC
)
_CONTAINER = _fields(
    env=_map_list("name", item=_fields(valueFrom=_VALUE_FROM)),
    ports=_map_list("containerPort", "protocol", protocol="TCP"),
    resources=_fields(claims=Shape(keys=("name",))),
    volumeDevices=_map_list("devicePath"),
    volumeMounts=_map_list("mountPath"),
)
_AFFINITY = _fields(
    nodeAffinity=_fields(requiredDuringSchedulingIgnoredDuringExecution=_ATOMIC),
)
_CLAIM = _fields(spec=_fields(dataSource=_ATOMIC, selector=_ATOMIC), metadata=_METADATA)
_NAME_ONLY_REFERENCE = _fields(secretRef=_ATOMIC, nodePublishSecretRef=_ATOMIC)
_VOLUME = _fields(
    cephfs=_NAME_ONLY_REFERENCE,
    cinder=_NAME_ONLY_REFERENCE,
    csi=_NAME_ONLY_REFERENCE,
    ephemeral=_fields(volumeClaimTemplate=_CLAIM),
    flexVolume=_NAME_ONLY_REFERENCE,
    iscsi=_NAME_ONLY_REFERENCE,
    rbd=_NAME_ONLY_REFERENCE,
    scaleIO=_NAME_ONLY_REFERENCE,
    storageos=_NAME_ONLY_REFERENCE,
)
_POD_SPEC = _fields(
    affinity=_AFFINITY,
    containers=_map_list("name", item=_CONTAINER),
    ephemeralContainers=_map_list("name", item=_CONTAINER),
    hostAliases=_map_list("ip"),
    imagePullSecrets=_map_list("name", item=_ATOMIC),
    initContainers=_map_list("name", item=_CONTAINER),
    nodeSelector=_ATOMIC,
    resourceClaims=_map_list("name"),
    schedulingGates=_map_list("name"),
    topologySpreadConstraints=_map_list("topologyKey", "whenUnsatisfiable", item=_fields(labelSelector=_ATOMIC)),
    volumes=_map_list("name", item=_VOLUME),
)
_TEMPLATE = _fields(metadata=_METADATA, spec=_POD_SPEC)
_POD_STATUS = _fields(
    conditions=_CONDITIONS,
    hostIPs=Shape(merge_key="ip"),
    podIPs=_map_list("ip"),
    resourceClaimStatuses=_map_list("name"),
)
_KINDS: dict[tuple[str, str], Shape] = {
    ("", "Pod"): _fields(spec=_POD_SPEC, status=_POD_STATUS),
    ("", "PodTemplate"): _fields(template=_TEMPLATE),
    ("apps", "Deployment"): _fields(
        spec=_fields(selector=_ATOMIC, template=_TEMPLATE), status=_fields(conditions=_CONDITIONS)
    ),
    ("batch", "Job"): _fields(
        spec=_fields(selector=_ATOMIC, template=_TEMPLATE), status=_fields(conditions=Shape(merge_key="type"))
    ),
    ("", "Service"): _fields(
        spec=_fields(ports=_map_list("port", "protocol", protocol="TCP"), selector=_ATOMIC),
        status=_fields(conditions=_CONDITIONS),
    ),
    ("", "Event"): _fields(involvedObject=_ATOMIC, related=_ATOMIC),
    ("", "Node"): _fields(
        spec=_fields(podCIDRs=_SET, taints=Shape(merge_key="key")),
        status=_fields(addresses=_map_list("type"), conditions=_CONDITIONS),
    ),
    ("", "Namespace"): _fields(status=_fields(conditions=_CONDITIONS)),
    ("", "ServiceAccount"): _fields(imagePullSecrets=Shape(merge_key="name"), secrets=_map_list("name", item=_ATOMIC)),
    ("", "PersistentVolumeClaim"): _fields(spec=_CLAIM.fields["spec"], status=_fields(conditions=_CONDITIONS)),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _fields(status=_fields(conditions=Shape(keys=("type",)))),
}


_ZERO_OBJECT: dict[str, Any] = {"metadata": {}}
_ZERO_VALUES: dict[tuple[str, str], dict[str, Any]] = {
    ("", "Pod"): {"spec": {"containers": None}, "status": {}},
    ("", "Service"): {"spec": {}, "status": {"loadBalancer": {}}},
    ("", "Event"): {
        "involvedObject": {},
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    },
    ("", "Node"): {"spec": {}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {}}},
    ("", "Namespace"): {"spec": {}, "status": {}},
    ("", "PersistentVolumeClaim"): {"spec": {"resources": {}}, "status": {}},
    ("coordination.k8s.io", "Lease"): {"spec": {}},
    ("apiextensions.k8s.io", "CustomResourceDefinition"): {
        "spec": {"group": "", "names": {"plural": "", "kind": ""}, "scope": "", "versions": None},
        "status": {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": None},
    },
}


@cache
def shape_of_kind(group: str, kind: str) -> Shape:
    """The shape of a built-in kind; for an unknown kind only the shape of its metadata."""
    return replace(
        _with_metadata(_KINDS.get((group, kind), UNKNOWN)),
        zero_value=_ZERO_OBJECT | _ZERO_VALUES.get((group, kind), {}),
    )


def shape_of_schema(schema: Json) -> Shape:
    """The shape of objects of an `openAPIV3Schema`, including that of their metadata."""
    return _with_metadata(_compile(schema))


def _with_metadata(shape: Shape) -> Shape:
    declared = None if shape.declared is None else shape.declared | {"apiVersion", "kind", "metadata"}
    return replace(shape, fields={**shape.fields, "metadata": _METADATA}, declared=declared)


def _compile(schema: Json) -> Shape:
    """The shape of one node of a structural schema."""
    members = {name: _compile(member) for name, member in (schema.get("properties") or {}).items()}
    if schema.get("x-kubernetes-embedded-resource"):
        members["metadata"] = _METADATA
    additional, items = schema.get("additionalProperties"), schema.get("items")
    list_type = schema.get("x-kubernetes-list-type")
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) if list_type == "map" else ()
    key_schemas = ((items or {}).get("properties") or {}) if keys else {}
    return Shape(
        fields={name: member for name, member in members.items() if member != OPEN},
        declared=frozenset(members),
        values=_compile(additional) if isinstance(additional, dict) else None,
        items=_compile(items) if isinstance(items, dict) else None,
        atomic=schema.get("x-kubernetes-map-type") == "atomic",
        set=list_type == "set",
        keys=keys,
        defaults={key: key_schemas[key]["default"] for key in keys if "default" in key_schemas.get(key, {})},
        merge_key=keys[0] if keys else "",
    )
