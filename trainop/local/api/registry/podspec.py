"""Defaulting and validation of PodSpec, with the messages of kube-apiserver.

Sources: kubernetes `pkg/apis/core/v1/defaults.go` and `pkg/apis/core/validation/validation.go`. Validation covers the
fields in which users make mistakes, not all fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainop.local.api.registry.names import dns_label, environment_name, port_name
from trainop.local.api.registry.written_volumes import validate_written_volume
from trainop.local.api.schema.field_errors import duplicate, invalid, not_found, not_supported, required
from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldError, canonical_quantity, parse_quantity

_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PORT_RANGE = "must be between 1 and 65535, inclusive"
_PROBE_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_DEFAULT_MODE = 0o644
_VOLUMES_WITH_MODE = ("secret", "configMap", "downwardAPI", "projected")


def default_pod_spec(spec: Json) -> None:
    """Set the defaults of a PodSpec in place."""
    for volume in spec.get("volumes") or []:
        _default_volume(volume)
    for container in _all_containers(spec):
        _default_container(container)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")


def default_pod(spec: Json) -> None:
    """Set the defaults of a pod's spec in place: those of a PodSpec, and those that templates do not get
    (`SetDefaults_Pod`)."""
    default_pod_spec(spec)
    for container in _all_containers(spec):
        if limits := container["resources"].get("limits"):
            container["resources"]["requests"] = {**limits, **(container["resources"].get("requests") or {})}
        for port in container.get("ports") or [] if spec.get("hostNetwork") else []:
            port.setdefault("hostPort", port.get("containerPort", 0))
    spec.setdefault("enableServiceLinks", True)


def _all_containers(spec: Json) -> Iterator[Json]:
    yield from spec.get("initContainers") or []
    yield from spec.get("containers") or []


def _default_container(container: Json) -> None:
    resources = container.setdefault("resources", {})
    for field in ("limits", "requests"):
        if amounts := resources.get(field):
            resources[field] = {name: canonical_quantity(str(amount)) for name, amount in amounts.items()}
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", _pull_policy(container.get("image") or ""))
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or []:
        if reference := (variable.get("valueFrom") or {}).get("fieldRef"):
            reference.setdefault("apiVersion", "v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe := container.get(name):
            _default_probe(probe)


def _pull_policy(image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in {"", "latest"} and "@" not in image else "IfNotPresent"


def _default_probe(probe: Json) -> None:
    for field, value in _PROBE_DEFAULTS.items():
        probe.setdefault(field, value)
    if request := probe.get("httpGet"):
        request.setdefault("path", "/")
        request.setdefault("scheme", "HTTP")


def _default_volume(volume: Json) -> None:
    if not any(field != "name" for field in volume):
        volume["emptyDir"] = {}
    for kind in _VOLUMES_WITH_MODE:
        if (source := volume.get(kind)) is not None:
            source.setdefault("defaultMode", _DEFAULT_MODE)
    if source := volume.get("hostPath"):
        source.setdefault("type", "")
    sources = (volume.get("projected") or {}).get("sources") or []
    for source in sources:
        if (token := source.get("serviceAccountToken")) is not None and token.get("expirationSeconds") is None:
            token["expirationSeconds"] = 3600
    for source in (volume, *sources):
        for item in (source.get("downwardAPI") or {}).get("items") or []:
            if reference := item.get("fieldRef"):
                reference.setdefault("apiVersion", "v1")


def validate_pod_spec(spec: Json, path: str) -> list[FieldError]:
    """All field errors of a PodSpec at `path`, in the order of kube-apiserver."""
    volumes, errors = _validate_volumes(spec.get("volumes") or [], f"{path}.volumes")
    containers = spec.get("containers") or []
    if not containers:
        errors.append(required(f"{path}.containers"))
    names: set[str] = set()
    errors += _validate_containers(containers, f"{path}.containers", volumes, names)
    errors += _validate_containers(spec.get("initContainers") or [], f"{path}.initContainers", volumes, names)
    restart = spec.get("restartPolicy")
    if restart not in _RESTART_POLICIES:
        errors.append(not_supported(f"{path}.restartPolicy", restart, _RESTART_POLICIES))
    if (dns := spec.get("dnsPolicy")) not in _DNS_POLICIES:
        errors.append(not_supported(f"{path}.dnsPolicy", dns, _DNS_POLICIES))
    grace = spec.get("terminationGracePeriodSeconds") or 0
    if grace < 0:
        errors.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        errors.append(invalid(f"{path}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive"))
    for field in ("hostname", "subdomain"):
        if name := spec.get(field):
            errors += [invalid(f"{path}.{field}", name, problem) for problem in dns_label(name)]
    return errors


def _validate_volumes(volumes: list[Json], path: str) -> tuple[set[str], list[FieldError]]:
    """The names of valid volumes, and all errors: a mount of an invalid volume is an error, too."""
    names: set[str] = set()
    errors: list[FieldError] = []
    for index, volume in enumerate(volumes):
        place = f"{path}[{index}]"
        found = validate_written_volume(volume, place) + _validate_volume_name(volume, f"{place}.name", names)
        if not found:
            names.add(volume["name"])
        errors += found
    return names, errors


def _validate_volume_name(volume: Json, field: str, names: set[str]) -> list[FieldError]:
    name = volume.get("name") or ""
    if not name:
        return [required(field)]
    if problems := dns_label(name):
        return [invalid(field, name, problem) for problem in problems]
    return [duplicate(field, name)] if name in names else []


def _validate_containers(containers: list[Json], path: str, volumes: set[str], names: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, container in enumerate(containers):
        place = f"{path}[{index}]"
        name = container.get("name") or ""
        errors += _validate_container(container, place, volumes)
        if name and name in names:
            errors.append(duplicate(f"{place}.name", name))
        names.add(name)
    return errors


def _validate_container(container: Json, path: str, volumes: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    name, image = container.get("name") or "", container.get("image") or ""
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += [invalid(f"{path}.name", name, problem) for problem in dns_label(name)]
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip():
        errors.append(invalid(f"{path}.image", image, "must not have leading or trailing whitespace"))
    if (policy := container.get("imagePullPolicy")) not in _PULL_POLICIES:
        errors.append(not_supported(f"{path}.imagePullPolicy", policy, _PULL_POLICIES))
    return [
        *errors,
        *_validate_ports(container.get("ports") or [], f"{path}.ports"),
        *_validate_env(container.get("env") or [], f"{path}.env"),
        *_validate_volume_mounts(container.get("volumeMounts") or [], f"{path}.volumeMounts", volumes),
        *_validate_resources(container.get("resources") or {}, f"{path}.resources"),
    ]


def _validate_ports(ports: list[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in enumerate(ports):
        place = f"{path}[{index}]"
        if name := port.get("name"):
            problems = port_name(name)
            errors += [invalid(f"{place}.name", name, problem) for problem in problems]
            if not problems and name in names:
                errors.append(duplicate(f"{place}.name", name))
            names.add(name)
        number = port.get("containerPort") or 0
        if not number:
            errors.append(required(f"{place}.containerPort"))
        elif not 1 <= number <= 65535:
            errors.append(invalid(f"{place}.containerPort", number, _PORT_RANGE))
        host = port.get("hostPort") or 0
        if host and not 1 <= host <= 65535:
            errors.append(invalid(f"{place}.hostPort", host, _PORT_RANGE))
        if (protocol := port.get("protocol")) not in _PROTOCOLS:
            errors.append(not_supported(f"{place}.protocol", protocol, _PROTOCOLS))
    return errors


def _validate_env(variables: list[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, variable in enumerate(variables):
        place = f"{path}[{index}]"
        name = variable.get("name") or ""
        if not name:
            errors.append(required(f"{place}.name"))
        else:
            errors += [invalid(f"{place}.name", name, problem) for problem in environment_name(name)]
        source = variable.get("valueFrom")
        if source is not None and variable.get("value"):
            errors.append(invalid(f"{place}.valueFrom", "", "may not be specified when `value` is not empty"))
        elif source is not None and len(source) != 1:
            detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
            several = "may not have more than one field specified at a time"
            errors.append(invalid(f"{place}.valueFrom", "", several if source else detail))
    return errors


def _validate_volume_mounts(mounts: list[Json], path: str, volumes: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    paths: set[str] = set()
    for index, mount in enumerate(mounts):
        place = f"{path}[{index}]"
        name, where = mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            errors.append(required(f"{place}.name"))
        elif name not in volumes:
            errors.append(not_found(f"{place}.name", name))
        if not where:
            errors.append(required(f"{place}.mountPath"))
        if where in paths:
            errors.append(invalid(f"{place}.mountPath", where, "must be unique"))
        paths.add(where)
    return errors


def _validate_resources(resources: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    limits: Json = resources.get("limits") or {}
    for field in ("limits", "requests"):
        for name, amount in (resources.get(field) or {}).items():
            if (number := _amount(amount)) is not None and number < 0:
                errors.append(invalid(f"{path}.{field}[{name}]", str(amount), "must be greater than or equal to 0"))
    for name, amount in (resources.get("requests") or {}).items():
        asked, most = _amount(amount), _amount(limits.get(name))
        if asked is not None and most is not None and asked > most:
            reason = f"must be less than or equal to {name} limit of {limits[name]}"
            errors.append(invalid(f"{path}.requests", str(amount), reason))
    return errors


def _amount(text: Any) -> Any:
    try:
        return parse_quantity(str(text))[0]
    except ValueError:
        return None
