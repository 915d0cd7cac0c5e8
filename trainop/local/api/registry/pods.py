"""Pods: defaults, mutable fields and graceful deletion (kubernetes `pkg/registry/core/pod/strategy.go`)."""

from __future__ import annotations

from typing import Any

from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.kinds import Strategy
from trainop.local.api.registry.podspec import default_pod, validate_pod_spec
from trainop.local.api.schema.field_errors import forbidden
from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldError, canonical_quantity

_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TERMINAL = {"Succeeded", "Failed"}
_MUTABLE_FIELDS = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


class PodStrategy(Strategy):
    """The spec is immutable except for a few fields; the status is a subresource that the node writes."""

    has_generation = True
    has_status = True
    graceful = True
    returns_deleted = True

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def default(self, value: Json) -> None:
        default_pod(value.setdefault("spec", {}))

    def prepare_create(self, value: Json) -> None:
        spec = value.setdefault("spec", {})
        _add_default_tolerations(spec)
        spec.setdefault("priority", 0)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        value["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}

    def prepare_update(self, value: Json, old: Json) -> None:
        status = value.get("status")
        if isinstance(status, dict) and "qosClass" in old.get("status", {}):
            status.setdefault("qosClass", old["status"]["qosClass"])
        value["spec"] = {**value.get("spec", {})}
        for field in ("priority", "preemptionPolicy"):
            if field in old.get("spec", {}):
                value["spec"].setdefault(field, old["spec"][field])

    def validate(self, value: Json) -> list[FieldError]:
        return validate_pod_spec(value.get("spec") or {}, "spec")

    def validate_update(self, value: Json, old: Json) -> list[FieldError]:
        for field in ("containers", "initContainers"):
            before, after = old.get("spec", {}).get(field) or [], value.get("spec", {}).get(field) or []
            if len(before) != len(after):
                return [forbidden(f"spec.{field}", "pod updates may not add or remove containers")]
        if _immutable_fields(value.get("spec") or {}) != _immutable_fields(old.get("spec") or {}):
            return [forbidden("spec", _MUTABLE_FIELDS)]
        kept = old.get("spec", {}).get("tolerations") or []
        given = value.get("spec", {}).get("tolerations") or []
        if any(toleration not in given for toleration in kept):
            return [
                forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
            ]
        return []

    def grace_period(self, value: Json, wanted: int | None) -> int:
        """0 for a pod that is unscheduled or terminal, so that it is removed at once."""
        spec = value.get("spec") or {}
        if wanted == 0 or not spec.get("nodeName") or value.get("status", {}).get("phase") in _TERMINAL:
            return 0
        seconds = wanted if wanted is not None else spec.get("terminationGracePeriodSeconds", 30)
        return max(1, int(seconds))


def _add_default_tolerations(spec: Json) -> None:
    """Admission plugin DefaultTolerationSeconds: 300 s on a node that is not ready or unreachable."""
    held = spec.get("tolerations") or []
    keys = {toleration.get("key") for toleration in held if toleration.get("effect") in {None, "", "NoExecute"}}
    if any(not toleration.get("key") and toleration.get("operator") == "Exists" for toleration in held):
        return
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in _NODE_TAINTS
        if key not in keys
    ]
    if held or added:
        spec["tolerations"] = [*held, *added]


def _immutable_fields(spec: Json) -> Json:
    """The spec without its mutable fields."""
    fixed = {
        name: part
        for name, part in spec.items()
        if name not in {"activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"}
    }
    for name in ("containers", "initContainers"):
        if spec.get(name):
            fixed[name] = [{**container, "image": ""} for container in spec[name]]
    return fixed


def qos_class(spec: Json) -> str:
    """BestEffort, Burstable or Guaranteed (kubernetes `pkg/apis/core/helper/qos`)."""
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    resources = [container.get("resources") or {} for container in containers]
    asked = [_cpu_and_memory(part.get(field)) for part in resources for field in ("requests", "limits")]
    if not any(asked):
        return "BestEffort"
    for part in resources:
        limits, requests = _cpu_and_memory(part.get("limits")), _cpu_and_memory(part.get("requests"))
        if set(limits) != {"cpu", "memory"} or requests != limits:
            return "Burstable"
    return "Guaranteed"


def _cpu_and_memory(amounts: Any) -> dict[str, str]:
    return {
        name: canonical_quantity(str(amount)) for name, amount in (amounts or {}).items() if name in {"cpu", "memory"}
    }
