"""How the parts of an object merge: which lists are maps by key or sets, and which values are replaced whole.

Two vocabularies meet here. Server-side apply reads `x-kubernetes-list-type`, `-list-map-keys` and `-map-type`;
strategic merge patches read `x-kubernetes-patch-merge-key` and `-patch-strategy`. A `Shape` carries both. The tables
of built-in kinds follow the OpenAPI document of Kubernetes (`api/openapi-spec/swagger.json`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from trainop.runtime.objects.metadata import Json


@dataclass(frozen=True, slots=True)
class Shape:
    """One place in an object. Where nothing is said, maps merge member by member and lists are replaced whole."""

    fields: Mapping[str, Shape] = field(default_factory=dict)
    """Of a map, the members that have something to say."""
    named: frozenset[str] | None = None
    """Of a map, the fields that its type names, where it names some; None where all that may stand there are fields."""
    values: Shape | None = None
    """Of a map, every other member."""
    items: Shape | None = None
    """Of a list, each item."""
    atomic: bool = False
    """A map that server-side apply takes as one value."""
    set: bool = False
    """A list of scalars without duplicates; both kinds of patch merge it."""
    keys: tuple[str, ...] = ()
    """Server-side apply merges the list as a map by these fields."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a missing key field stands for, such as `protocol: TCP`."""
    merge_key: str = ""
    """A strategic merge patch merges the list by this field."""
    blank: Mapping[str, Any] = field(default_factory=dict)
    """Of a whole object, what one holds before anybody has set a field, as the Go types of the API server print it."""

    def member(self, name: str) -> Shape:
        """The shape of a member of a map."""
        return self.fields.get(name) or self.values or (UNKNOWN if self.named is None else OPEN)

    def names(self, name: str) -> bool:
        """Whether a member of a map is a field of its type, and not a key of the user's."""
        return self.named is None or name in self.named

    @property
    def item(self) -> Shape:
        """The shape of the items of a list."""
        return self.items or (UNKNOWN if self.named is None else OPEN)


UNKNOWN = Shape()
"""Nothing is known: maps merge, lists are replaced."""
OPEN = Shape(named=frozenset())
"""Below it stand keys of the user's."""

_ATOMIC = Shape(atomic=True)
_SET = Shape(set=True)


def _map_list(*keys: str, item: Shape = UNKNOWN, **defaults: Any) -> Shape:
    """A list that both kinds of patch merge: apply by all `keys`, the strategic merge patch by the first."""
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


_BLANK: dict[str, Any] = {"metadata": {}}
_BLANKS: dict[tuple[str, str], dict[str, Any]] = {
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
    """The shape of a built-in kind; of any other, that of its metadata."""
    return replace(_with_metadata(_KINDS.get((group, kind), UNKNOWN)), blank=_BLANK | _BLANKS.get((group, kind), {}))


def shape_of_schema(schema: Json) -> Shape:
    """The shape that the `openAPIV3Schema` of a CRD version describes, with that of metadata."""
    return _with_metadata(_compile(schema))


def _with_metadata(shape: Shape) -> Shape:
    named = None if shape.named is None else shape.named | {"apiVersion", "kind", "metadata"}
    return replace(shape, fields={**shape.fields, "metadata": _METADATA}, named=named)


def _compile(schema: Json) -> Shape:
    """The shape of one place of a structural schema."""
    members = {name: _compile(member) for name, member in (schema.get("properties") or {}).items()}
    if schema.get("x-kubernetes-embedded-resource"):
        members["metadata"] = _METADATA
    additional, items = schema.get("additionalProperties"), schema.get("items")
    list_type = schema.get("x-kubernetes-list-type")
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) if list_type == "map" else ()
    key_schemas = ((items or {}).get("properties") or {}) if keys else {}
    return Shape(
        fields={name: member for name, member in members.items() if member != OPEN},
        named=frozenset(members),
        values=_compile(additional) if isinstance(additional, dict) else None,
        items=_compile(items) if isinstance(items, dict) else None,
        atomic=schema.get("x-kubernetes-map-type") == "atomic",
        set=list_type == "set",
        keys=keys,
        defaults={key: key_schemas[key]["default"] for key in keys if "default" in key_schemas.get(key, {})},
        merge_key=keys[0] if keys else "",
    )
