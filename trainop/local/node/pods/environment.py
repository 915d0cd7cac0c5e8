"""The environment, command line and references of a container, as kubelet computes them. Pure.

Sources: kubelet `pkg/kubelet/kubelet_pods.go` (makeEnvironmentVariables), `third_party/forked/golang/expansion`.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from trainop.local.node.pods.quantity import parse_quantity
from trainop.runtime.objects.metadata import Json

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_RESOURCE = re.compile(r"(requests|limits)\.(.+)")


class ConfigError(Exception):
    """The pod asks for something that is not there; the message is what kubelet says."""


class Reference(NamedTuple):
    """A ConfigMap or Secret in the pod's namespace."""

    kind: Literal["configmap", "secret"]
    name: str

    def __str__(self) -> str:
        return f'{self.kind} "{self.name}"'


Sources: TypeAlias = Mapping[Reference, Json]
"""The referenced objects that exist."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a pod learns about where it runs; `allocatable` holds quantities of the node."""

    node: str
    host_ip: str
    pod_ip: str
    allocatable: Mapping[str, str] = field(default_factory=dict)


def expand(text: str, values: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value if it has one, `$$` becomes `$`; everything else stays as it is."""
    parts: list[str] = []
    position = 0
    while (at := text.find("$", position)) >= 0:
        parts.append(text[position:at])
        follows = text[at + 1 : at + 2]
        end = text.find(")", at + 2) if follows == "(" else -1
        if end >= 0:
            name = text[at + 2 : end]
            parts.append(values.get(name, f"$({name})"))
            position = end + 1
        else:
            parts.append("$" if follows == "$" else f"${follows}")
            position = at + 2
    return "".join(parts) + text[position:]


def references(container: Json) -> set[Reference]:
    """What must be fetched before `container_environment` can tell."""
    found: set[Reference] = set()
    for source in container.get("envFrom") or ():
        if ref := source.get("configMapRef"):
            found.add(Reference("configmap", ref.get("name", "")))
        if ref := source.get("secretRef"):
            found.add(Reference("secret", ref.get("name", "")))
    for variable in container.get("env") or ():
        origin = variable.get("valueFrom") or {}
        if ref := origin.get("configMapKeyRef"):
            found.add(Reference("configmap", ref.get("name", "")))
        if ref := origin.get("secretKeyRef"):
            found.add(Reference("secret", ref.get("name", "")))
    return found


def contents(reference: Reference, source: Json) -> dict[str, bytes]:
    """The keys of a ConfigMap (`data` and `binaryData`) or Secret (`data`)."""
    if reference.kind == "secret":
        return {key: base64.b64decode(value) for key, value in (source.get("data") or {}).items()}
    values = {key: value.encode() for key, value in (source.get("data") or {}).items()}
    return values | {key: base64.b64decode(value) for key, value in (source.get("binaryData") or {}).items()}


def variables(reference: Reference, source: Json) -> dict[str, str]:
    """The keys that can become environment variables: kubelet takes `data` only, never `binaryData`."""
    plain = source if reference.kind == "secret" else {"data": source.get("data")}
    return {key: value.decode(errors="surrogateescape") for key, value in contents(reference, plain).items()}


def container_environment(pod: Json, container: Json, sources: Sources, here: Surroundings) -> dict[str, str]:
    """The variables that the pod's specification gives; later ones win. Raises `ConfigError`."""
    found = dict(_from_sources(container, sources))
    for variable in container.get("env") or ():
        if variable.get("valueFrom"):
            value = _value_from(variable["valueFrom"], pod, container, sources, here)
            if value is None:
                continue
            found[variable["name"]] = value
        else:
            found[variable["name"]] = expand(variable.get("value") or "", found)
    return found


def command_line(container: Json, environment: Mapping[str, str]) -> list[str]:
    """The container's `command` and `args`; args alone are the command of an image without entry point."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return [expand(word, environment) for word in words]


def _from_sources(container: Json, sources: Sources) -> Iterable[tuple[str, str]]:
    for origin in container.get("envFrom") or ():
        for kind, name in (("configmap", "configMapRef"), ("secret", "secretRef")):
            if not (ref := origin.get(name)):
                continue
            reference = Reference(kind, ref.get("name", ""))  # type: ignore[arg-type]  # one of the two above
            source = sources.get(reference)
            if source is None:
                if not ref.get("optional"):
                    raise ConfigError(f"{reference} not found")
                continue
            for key, value in variables(reference, source).items():
                yield f"{origin.get('prefix') or ''}{key}", value


def _value_from(origin: Json, pod: Json, container: Json, sources: Sources, here: Surroundings) -> str | None:
    if ref := origin.get("fieldRef"):
        return pod_field(pod, ref.get("fieldPath") or "", here)
    if ref := origin.get("resourceFieldRef"):
        return resource_field(pod, ref, here, default=container)
    if ref := origin.get("configMapKeyRef"):
        return _key(Reference("configmap", ref.get("name", "")), ref, pod, sources)
    if ref := origin.get("secretKeyRef"):
        return _key(Reference("secret", ref.get("name", "")), ref, pod, sources)
    raise ConfigError(f"valueFrom {sorted(origin)} is not supported")


def _key(reference: Reference, ref: Json, pod: Json, sources: Sources) -> str | None:
    source = sources.get(reference)
    values = variables(reference, source) if source is not None else {}
    if ref["key"] in values:
        return values[ref["key"]]
    if ref.get("optional"):
        return None
    if source is None:
        raise ConfigError(f"{reference} not found")
    kind = "ConfigMap" if reference.kind == "configmap" else "Secret"
    namespace = pod["metadata"].get("namespace", "")
    raise ConfigError(f"couldn't find key {ref['key']} in {kind} {namespace}/{reference.name}")


def pod_field(pod: Json, path: str, here: Surroundings) -> str:
    """The value of a downward API field path; raises `ConfigError` if there is no such field."""
    meta, spec = pod["metadata"], pod["spec"]
    plain = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta.get("namespace", ""),
        "metadata.uid": meta.get("uid", ""),
        "spec.nodeName": here.node,
        "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
        "status.hostIP": here.host_ip,
        "status.hostIPs": here.host_ip,
        "status.podIP": here.pod_ip,
        "status.podIPs": here.pod_ip,
    }
    if path in plain:
        return str(plain[path])
    if found := _SUBSCRIPT.fullmatch(path):
        return str((meta.get(found[1]) or {}).get(found[2], ""))
    if path in {"metadata.labels", "metadata.annotations"}:
        values: dict[str, str] = meta.get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{_quoted(value)}"' for key, value in sorted(values.items()))
    raise ConfigError(f"unsupported fieldPath: {path}")


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_field(pod: Json, ref: Json, here: Surroundings, default: Json | None = None) -> str:
    """A container's request or limit in units of the divisor, rounded up; without a limit what the node has."""
    container = default
    if name := ref.get("containerName"):
        everyone = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
        container = next((one for one in everyone if one["name"] == name), None)
        if container is None:
            raise ConfigError(f"container {name} not found")
    found = _RESOURCE.fullmatch(ref.get("resource") or "")
    if container is None or found is None:
        raise ConfigError(f"unsupported container resource : {ref.get('resource')}")
    kind, resource = found.groups()
    resources = container.get("resources") or {}
    stated = (resources.get(kind) or {}).get(resource)
    if stated is None and kind == "requests":  # the default that an API server writes: the limit
        stated = (resources.get("limits") or {}).get(resource)
    if stated is None:
        stated = here.allocatable.get(resource, "0") if kind == "limits" else "0"
    divisor = parse_quantity(str(ref.get("divisor") or "1")) or 1
    return str(math.ceil(parse_quantity(stated) / divisor))
