"""The columns of the built-in kinds for `kubectl get` (kubernetes `pkg/printers/internalversion/printers.go`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainop.local.api.printing.pod_status import pod_ready, pod_restarts, pod_status, readiness_gates
from trainop.local.api.schema.durations import age, human_duration
from trainop.runtime import Json
from trainop.runtime.lowlevel import read_time


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `cell` computes its value from the object and the current time. Priority 1 is for `-o wide` only."""

    name: str
    cell: Callable[[Json, datetime], Any]
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


Columns = Sequence[Column]


def field_cell(path: str, *, absent: Any = "") -> Callable[[Json, datetime], Any]:
    """A cell function with the value at a dotted path; `absent` if it is missing or empty."""
    names = path.split(".")

    def cell(item: Json, _: datetime) -> Any:
        value: Any = item
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return absent if value is None or value == "" else value

    return cell


def name_of(item: Json, _: datetime) -> str:
    """The object's name."""
    return str((item.get("metadata") or {}).get("name", ""))


def age_of(item: Json, now: datetime) -> str:
    """The time since the object was created."""
    return age((item.get("metadata") or {}).get("creationTimestamp"), now)


def _count(*members: str) -> Callable[[Json, datetime], int]:
    return lambda item, _: sum(len(item.get(member) or ()) for member in members)


def _wide_column(name: str, cell: Callable[[Json, datetime], Any], format: str = "") -> Column:  # noqa: A002  # name of the Table field
    return Column(name, cell, format=format, priority=1)


NAME = Column("Name", name_of, format="name", description="Name must be unique within a namespace.")
AGE = Column("Age", age_of, description="The time since the object was created.")
CREATED_AT = Column("Created At", lambda item, _: (item.get("metadata") or {}).get("creationTimestamp"), type="date")
DEFAULT_COLUMNS: Columns = (NAME, CREATED_AT)


# Pods and nodes -------------------------------------------------------------------------------------------------------


def _pod_ip(item: Json, _: datetime) -> str:
    status = item.get("status") or {}
    addresses = [entry.get("ip") for entry in status.get("podIPs") or ()]
    return str(next(iter(addresses), None) or status.get("podIP") or "<none>")


_POD: Columns = (
    NAME,
    Column("Ready", lambda item, _: pod_ready(item), description="Containers that are ready, of all."),
    Column("Status", lambda item, _: pod_status(item), description="What the pod's containers are doing."),
    Column("Restarts", pod_restarts, description="Restarts of containers, and when the last one was."),
    AGE,
    _wide_column("IP", _pod_ip),
    _wide_column("Node", field_cell("spec.nodeName", absent="<none>")),
    _wide_column("Nominated Node", field_cell("status.nominatedNodeName", absent="<none>")),
    _wide_column("Readiness Gates", lambda item, _: readiness_gates(item)),
)


def _node_status(item: Json, _: datetime) -> str:
    conditions = (item.get("status") or {}).get("conditions") or ()
    ready = [condition.get("status") == "True" for condition in conditions if condition.get("type") == "Ready"]
    words = [("Ready" if ready[-1] else "NotReady") if ready else "Unknown"]
    if (item.get("spec") or {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(item: Json, _: datetime) -> str:
    labels = (item.get("metadata") or {}).get("labels") or {}
    prefix = "node-role.kubernetes.io/"
    roles = {name.removeprefix(prefix) for name in labels if name.startswith(prefix)}
    roles.add(labels.get("kubernetes.io/role", ""))
    return ",".join(sorted(roles - {""})) or "<none>"


def _node_address(kind: str) -> Callable[[Json, datetime], str]:
    def cell(item: Json, _: datetime) -> str:
        addresses = (item.get("status") or {}).get("addresses") or ()
        return next((str(entry.get("address")) for entry in addresses if entry.get("type") == kind), "<none>")

    return cell


def _kernel(item: Json, _: datetime) -> str:
    info = (item.get("status") or {}).get("nodeInfo") or {}
    version = info.get("kernelVersion") or "<unknown>"
    return f"{version} ({info['architecture']})" if info.get("architecture") else version


_NODE: Columns = (
    NAME,
    Column("Status", _node_status),
    Column("Roles", _node_roles),
    AGE,
    Column("Version", field_cell("status.nodeInfo.kubeletVersion")),
    _wide_column("Internal-IP", _node_address("InternalIP")),
    _wide_column("External-IP", _node_address("ExternalIP")),
    _wide_column("OS-Image", field_cell("status.nodeInfo.osImage", absent="<unknown>")),
    _wide_column("Kernel-Version", _kernel),
    _wide_column("Container-Runtime", field_cell("status.nodeInfo.containerRuntimeVersion", absent="<unknown>")),
)


# Services and claims --------------------------------------------------------------------------------------------------


def _cluster_ip(item: Json, _: datetime) -> str:
    spec = item.get("spec") or {}
    return str(next(iter(spec.get("clusterIPs") or ()), None) or spec.get("clusterIP") or "<none>")


def _external_ip(item: Json, _: datetime) -> str:
    spec = item.get("spec") or {}
    ingress = ((item.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    addresses = [str(entry.get("ip") or entry.get("hostname")) for entry in ingress]
    external = [str(address) for address in spec.get("externalIPs") or ()]
    match spec.get("type", "ClusterIP"):
        case "ClusterIP" | "NodePort":
            return ",".join(external) or "<none>"
        case "LoadBalancer":
            return ",".join(addresses + external) or "<pending>"
        case "ExternalName":
            return str(spec.get("externalName", ""))
    return "<unknown>"


def _ports(item: Json, _: datetime) -> str:
    def shown(port: Json) -> str:
        number = f"{port['port']}:{port['nodePort']}" if port.get("nodePort") else str(port.get("port"))
        return f"{number}/{port.get('protocol', 'TCP')}"

    return ",".join(shown(port) for port in (item.get("spec") or {}).get("ports") or ()) or "<none>"


def _selector(item: Json, _: datetime) -> str:
    labels = (item.get("spec") or {}).get("selector") or {}
    return ",".join(f"{name}={labels[name]}" for name in sorted(labels)) or "<none>"


_SERVICE: Columns = (
    NAME,
    Column("Type", field_cell("spec.type", absent="ClusterIP")),
    Column("Cluster-IP", _cluster_ip),
    Column("External-IP", _external_ip),
    Column("Port(s)", _ports),
    AGE,
    _wide_column("Selector", _selector),
)

_ACCESS_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _claim_phase(item: Json, _: datetime) -> str:
    if (item.get("metadata") or {}).get("deletionTimestamp"):
        return "Terminating"
    return str((item.get("status") or {}).get("phase", ""))


def _if_bound(cell: Callable[[Json], str]) -> Callable[[Json, datetime], str]:
    """A cell that is empty unless the claim has a volume."""
    return lambda item, _: cell(item.get("status") or {}) if (item.get("spec") or {}).get("volumeName") else ""


_CLAIM: Columns = (
    NAME,
    Column("Status", _claim_phase),
    Column("Volume", field_cell("spec.volumeName")),
    Column("Capacity", _if_bound(lambda status: str((status.get("capacity") or {}).get("storage", "")))),
    Column(
        "Access Modes",
        _if_bound(lambda status: ",".join(_ACCESS_MODES.get(mode, mode) for mode in status.get("accessModes") or ())),
    ),
    Column("StorageClass", field_cell("spec.storageClassName")),
    Column("VolumeAttributesClass", field_cell("spec.volumeAttributesClassName", absent="<unset>")),
    AGE,
    _wide_column("VolumeMode", field_cell("spec.volumeMode", absent="<unset>")),
)


# Events ---------------------------------------------------------------------------------------------------------------


def _since(text: Any, now: datetime) -> str:
    moment = read_time(text, strict=True)
    return human_duration((now - moment).total_seconds()) if moment else "<unknown>"


def _first_seen(item: Json, now: datetime) -> str:
    return _since(item.get("firstTimestamp") or item.get("eventTime"), now)


def _last_seen(item: Json, now: datetime) -> str:
    if item.get("series"):
        return _since(item["series"].get("lastObservedTime"), now)
    return _since(item["lastTimestamp"], now) if item.get("lastTimestamp") else _first_seen(item, now)


def _event_object(item: Json, _: datetime) -> str:
    about = item.get("involvedObject") or {}
    return "/".join(part for part in (str(about.get("kind", "")).lower(), about.get("name")) if part)


def _event_source(item: Json, _: datetime) -> str:
    source = item.get("source") or {}
    component = source.get("component") or item.get("reportingComponent") or ""
    instance = source.get("host") or item.get("reportingInstance")
    return f"{component}, {instance}" if instance else component


def _event_count(item: Json, _: datetime) -> int:
    return int((item.get("series") or {}).get("count") or item.get("count") or 1)


_EVENT: Columns = (
    Column("Last Seen", _last_seen),
    Column("Type", field_cell("type")),
    Column("Reason", field_cell("reason")),
    Column("Object", _event_object),
    _wide_column("Subobject", field_cell("involvedObject.fieldPath")),
    _wide_column("Source", _event_source),
    Column("Message", lambda item, _: str(item.get("message", "")).strip()),
    _wide_column("First Seen", _first_seen),
    _wide_column("Count", _event_count),
    _wide_column("Name", name_of, format="name"),
)


# Definitions ----------------------------------------------------------------------------------------------------------


def _versions(item: Json, _: datetime) -> str:
    versions = (item.get("spec") or {}).get("versions") or ()
    return ",".join(sorted(v["name"] + ("(storage)" if v.get("storage") else "") for v in versions if v.get("served")))


def _established(item: Json, _: datetime) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def _short_names(item: Json, _: datetime) -> str:
    return ",".join(((item.get("spec") or {}).get("names") or {}).get("shortNames") or ())


_DEFINITION: Columns = (
    NAME,
    Column("Scope", field_cell("spec.scope")),
    Column("Versions", _versions),
    CREATED_AT,
    _wide_column("Group", field_cell("spec.group")),
    _wide_column("Kind", field_cell("spec.names.kind")),
    _wide_column("ShortNames", _short_names),
    Column("Established", _established, type="boolean", priority=1),
)

COLUMNS_BY_KIND: dict[tuple[str, str], Columns] = {
    ("", "Pod"): _POD,
    ("", "Node"): _NODE,
    ("", "Service"): _SERVICE,
    ("", "PersistentVolumeClaim"): _CLAIM,
    ("", "Event"): _EVENT,
    ("", "ConfigMap"): (NAME, Column("Data", _count("data", "binaryData")), AGE),
    ("", "Secret"): (NAME, Column("Type", field_cell("type")), Column("Data", _count("data")), AGE),
    ("", "ServiceAccount"): (NAME, AGE),
    ("", "Namespace"): (NAME, Column("Status", field_cell("status.phase")), AGE),
    ("coordination.k8s.io", "Lease"): (NAME, Column("Holder", field_cell("spec.holderIdentity")), AGE),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _DEFINITION,
    ("autoscaling", "Scale"): (
        NAME,
        Column("Desired", field_cell("spec.replicas", absent=0), type="integer"),
        Column("Available", field_cell("status.replicas", absent=0), type="integer"),
        AGE,
    ),
}
