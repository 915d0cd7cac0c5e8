"""The environment, command line and object references of a container, computed as by kubelet. Pure functions.

Sources: kubelet `pkg/kubelet/kubelet_pods.go` (makeEnvironmentVariables), `third_party/forked/golang/expansion`.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from trainop.runtime import Json
from trainop.runtime.lowlevel import exact_amount

_ENTRY_POINTS = {
    "kubectl-delivery": (
        "/bin/sh",
        "-c",
        """kubectl=$(command -v kubectl) || { echo "kubectl is not installed on this machine" >&2; exit 1; }
ln -sf "$kubectl" "$TARGET_DIR/kubectl\"""",
    )
}
"""By name of an image, its command if a pod states none. kubectl-delivery copies kubectl to launchers of MPIJobs
(training-operator `build/images/kubectl-delivery`); containers share the files of this machine, so that a link does.
"""
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_RESOURCE = re.compile(r"(requests|limits)\.(.+)")


class ConfigError(Exception):
    """The container's configuration refers to something that does not exist; the message is kubelet's."""


class Reference(NamedTuple):
    """A ConfigMap or Secret in the pod's namespace."""

    kind: Literal["configmap", "secret"]
    name: str

    def __str__(self) -> str:
        return f'{self.kind} "{self.name}"'


Sources: TypeAlias = Mapping[Reference, Json]
"""The referenced ConfigMaps and Secrets; a missing key means that the object does not exist."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod runs, for the downward API: node name, addresses, and the node's allocatable resources."""

    node: str
    host_ip: str
    pod_ip: str
    allocatable: Mapping[str, str] = field(default_factory=dict)


def expand(text: str, values: Mapping[str, str]) -> str:
    """Expands `$(NAME)` if `values` has NAME, and `$$` to `$`; all other text is unchanged."""
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
    """The ConfigMaps and Secrets that `container_environment` needs for this container."""
    found: set[Reference] = set()
    for source in container.get("envFrom") or ():
        if ref := source.get("configMapRef"):
            found.add(Reference("configmap", ref.get("name", "")))
        if ref := source.get("secretRef"):
            found.add(Reference("secret", ref.get("name", "")))
    for variable in container.get("env") or ():
        source_spec = variable.get("valueFrom") or {}
        if ref := source_spec.get("configMapKeyRef"):
            found.add(Reference("configmap", ref.get("name", "")))
        if ref := source_spec.get("secretKeyRef"):
            found.add(Reference("secret", ref.get("name", "")))
    return found


def contents(reference: Reference, source: Json) -> dict[str, bytes]:
    """The decoded values of a ConfigMap (`data` and `binaryData`) or Secret (`data`) by key."""
    if reference.kind == "secret":
        return {key: base64.b64decode(value) for key, value in (source.get("data") or {}).items()}
    values = {key: value.encode() for key, value in (source.get("data") or {}).items()}
    return values | {key: base64.b64decode(value) for key, value in (source.get("binaryData") or {}).items()}


def variables(reference: Reference, source: Json) -> dict[str, str]:
    """The values that can become environment variables: of a ConfigMap only `data`, as with kubelet."""
    plain = source if reference.kind == "secret" else {"data": source.get("data")}
    return {key: value.decode(errors="surrogateescape") for key, value in contents(reference, plain).items()}


def container_environment(pod: Json, container: Json, sources: Sources, placement: Placement) -> dict[str, str]:
    """The variables from `envFrom` and `env`; later definitions win. Raises `ConfigError`."""
    found = dict(_from_sources(container, sources))
    for variable in container.get("env") or ():
        if variable.get("valueFrom"):
            value = _value_from(variable["valueFrom"], pod, container, sources, placement)
            if value is None:
                continue
            found[variable["name"]] = value
        else:
            found[variable["name"]] = expand(variable.get("value") or "", found)
    return found


def command_line(container: Json, environment: Mapping[str, str]) -> list[str]:
    """The container's `command` and `args`, expanded. `args` alone are the command: images are not used.

    Without both, the entry point of a known image.
    """
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not words:
        words += _ENTRY_POINTS.get(str(container.get("image") or "").rpartition("/")[2].partition(":")[0], ())
    return [expand(word, environment) for word in words]


def _from_sources(container: Json, sources: Sources) -> Iterable[tuple[str, str]]:
    for source_spec in container.get("envFrom") or ():
        for kind, name in (("configmap", "configMapRef"), ("secret", "secretRef")):
            if not (ref := source_spec.get(name)):
                continue
            reference = Reference(kind, ref.get("name", ""))  # type: ignore[arg-type]  # one of the two above
            source = sources.get(reference)
            if source is None:
                if not ref.get("optional"):
                    raise ConfigError(f"{reference} not found")
                continue
            for key, value in variables(reference, source).items():
                yield f"{source_spec.get('prefix') or ''}{key}", value


def _value_from(source_spec: Json, pod: Json, container: Json, sources: Sources, placement: Placement) -> str | None:
    if ref := source_spec.get("fieldRef"):
        return pod_field(pod, ref.get("fieldPath") or "", placement)
    if ref := source_spec.get("resourceFieldRef"):
        return resource_field(pod, ref, placement, default=container)
    if ref := source_spec.get("configMapKeyRef"):
        return _key(Reference("configmap", ref.get("name", "")), ref, pod, sources)
    if ref := source_spec.get("secretKeyRef"):
        return _key(Reference("secret", ref.get("name", "")), ref, pod, sources)
    raise ConfigError(f"valueFrom {sorted(source_spec)} is not supported")


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


def pod_field(pod: Json, path: str, placement: Placement) -> str:
    """The value of a downward API `fieldPath`. Raises `ConfigError` if the path is not supported."""
    meta, spec = pod["metadata"], pod["spec"]
    plain = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta.get("namespace", ""),
        "metadata.uid": meta.get("uid", ""),
        "spec.nodeName": placement.node,
        "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
        "status.hostIP": placement.host_ip,
        "status.hostIPs": placement.host_ip,
        "status.podIP": placement.pod_ip,
        "status.podIPs": placement.pod_ip,
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


def memory_limit(container: Json) -> int:
    """In bytes; 0: none."""
    return int(exact_amount(((container.get("resources") or {}).get("limits") or {}).get("memory") or 0))


def resource_field(pod: Json, ref: Json, placement: Placement, default: Json | None = None) -> str:
    """A container's request or limit divided by `divisor` and rounded up, for `resourceFieldRef`.

    A missing limit defaults to the node's allocatable amount. Raises `ConfigError`.
    """
    container = default
    if name := ref.get("containerName"):
        containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
        container = next((one for one in containers if one["name"] == name), None)
        if container is None:
            raise ConfigError(f"container {name} not found")
    found = _RESOURCE.fullmatch(ref.get("resource") or "")
    if container is None or found is None:
        raise ConfigError(f"unsupported container resource : {ref.get('resource')}")
    kind, resource = found.groups()
    resources = container.get("resources") or {}
    quantity = (resources.get(kind) or {}).get(resource)
    if quantity is None and kind == "requests":  # API servers default a request to the limit
        quantity = (resources.get("limits") or {}).get(resource)
    if quantity is None:
        quantity = placement.allocatable.get(resource, "0") if kind == "limits" else "0"
    divisor = exact_amount(str(ref.get("divisor") or "1")) or 1
    return str(math.ceil(exact_amount(quantity) / divisor))
