"""Strategies of built-in kinds that need only defaulting and validation, such as ConfigMap, Secret and Lease."""

from __future__ import annotations

import base64
import binascii

from trainop.local.api.registry.kinds import Strategy
from trainop.local.api.registry.names import config_key, path_segment
from trainop.local.api.schema.field_errors import forbidden, from_message, immutable, invalid, required
from trainop.local.api.status_errors import bad_request
from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldError, canonical_quantity

_IMMUTABLE = "field is immutable when `immutable` is set"
_NO_WEBHOOKS = "this cluster calls no admission webhooks"
_SIZE_LIMIT = 1024 * 1024


class StoredOnlyStrategy(Strategy):
    """A kind that is only stored."""

    def __init__(self, *, generation: bool = False, status: bool = False) -> None:
        self.has_generation = generation
        self.has_status = status


class NodeStrategy(Strategy):
    """Nodes. The kubelet sets the status when it registers the node, so the status is not reset at creation."""

    has_status = False

    def default(self, value: Json) -> None:
        value.setdefault("spec", {})


class RbacStrategy(Strategy):
    """RBAC objects, whose names may be any URL path segment."""

    def check_name(self, name: str) -> list[str]:
        return path_segment(name)


class WebhookStrategy(StoredOnlyStrategy):
    """Webhook configurations. Admission webhooks are not called, which is what a validating one with failure policy
    Ignore permits, as if its service were down: it is stored with a warning. Any other one is rejected."""

    def __init__(self, *, ignorable: bool) -> None:
        """`ignorable`: a call may be skipped without an effect on the object, as with validating webhooks."""
        super().__init__(generation=True)
        self._ignorable = ignorable

    def validate(self, value: Json) -> list[FieldError]:
        if all(self._ignorable and webhook.get("failurePolicy") == "Ignore" for webhook in value.get("webhooks") or ()):
            return []
        return [forbidden("webhooks", f"{_NO_WEBHOOKS}; try them on a kube-apiserver")]

    def warnings(self, value: Json) -> list[str]:
        return [f"{_NO_WEBHOOKS}: as failurePolicy Ignore permits, they are skipped"] if value.get("webhooks") else []


class ServiceAccountStrategy(Strategy):
    """Service accounts."""

    returns_deleted = True


class EventStrategy(Strategy):
    """Events, whose involved object must be in the namespace of the event."""

    create_on_update = True

    def default(self, value: Json) -> None:
        value.setdefault("eventTime", None)
        value.setdefault("reportingComponent", "")
        value.setdefault("reportingInstance", "")

    def validate(self, value: Json) -> list[FieldError]:
        about = (value.get("involvedObject") or {}).get("namespace") or ""
        own = value["metadata"].get("namespace", "")
        if about != own and (about or own != "default"):
            return [invalid("involvedObject.namespace", about, "does not match event.namespace")]
        return []


class LeaseStrategy(Strategy):
    """Leases, for leader election and node heartbeats."""

    create_on_update = True

    def validate(self, value: Json) -> list[FieldError]:
        spec = value.get("spec") or {}
        errors: list[FieldError] = []
        seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        if seconds is not None and seconds <= 0:
            errors.append(invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
        if transitions is not None and transitions < 0:
            errors.append(invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
        return errors


class ConfigMapStrategy(Strategy):
    """ConfigMaps, with at most 1 MiB of data."""

    def validate(self, value: Json) -> list[FieldError]:
        errors: list[FieldError] = []
        data, binary = value.get("data") or {}, value.get("binaryData") or {}
        for field, part in (("data", data), ("binaryData", binary)):
            for key in part:
                errors += [invalid(f"{field}[{key}]", key, problem) for problem in config_key(key)]
        for key in sorted(data.keys() & binary.keys()):
            errors.append(invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
        size = sum(len(text.encode()) for text in data.values()) + sum(len(text) * 3 // 4 for text in binary.values())
        if size > _SIZE_LIMIT:
            errors.append(from_message("", "FieldValueTooLong", f"Too long: may not be more than {_SIZE_LIMIT} bytes"))
        return errors

    def validate_update(self, value: Json, old: Json) -> list[FieldError]:
        return _check_immutable(value, old, ("data", "binaryData"))


class SecretStrategy(Strategy):
    """Secrets; the write-only `stringData` is merged into `data`."""

    def default(self, value: Json) -> None:
        value.setdefault("type", "Opaque")
        for text in (value.get("data") or {}).values():
            try:
                base64.b64decode(text or "", validate=True)
            except binascii.Error as error:
                detail = "illegal base64 data at input byte 0"
                raise bad_request(f'Secret in version "v1" cannot be handled as a Secret: {detail}') from error
        plain = value.pop("stringData", None) or {}
        if plain:
            encoded = {key: base64.b64encode(text.encode()).decode() for key, text in plain.items()}
            value["data"] = {**(value.get("data") or {}), **encoded}

    def validate(self, value: Json) -> list[FieldError]:
        data = value.get("data") or {}
        errors: list[FieldError] = []
        for key in data:
            errors += [invalid(f"data[{key}]", key, problem) for problem in config_key(key)]
        if value["type"] == "kubernetes.io/tls":
            errors += [required(f"data[{key}]") for key in ("tls.crt", "tls.key") if key not in data]
        return errors

    def validate_update(self, value: Json, old: Json) -> list[FieldError]:
        if value["type"] != old.get("type"):
            return [immutable("type", value["type"])]
        return _check_immutable(value, old, ("data",))


def _check_immutable(value: Json, old: Json, fields: tuple[str, ...]) -> list[FieldError]:
    if not old.get("immutable"):
        return []
    errors = [] if value.get("immutable") else [forbidden("immutable", _IMMUTABLE)]
    return errors + [forbidden(field, _IMMUTABLE) for field in fields if value.get(field) != old.get(field)]


class VolumeClaimStrategy(Strategy):
    """PersistentVolumeClaims, which stay Pending, because there is no volume provisioner."""

    has_status = True
    returns_deleted = True

    def default(self, value: Json) -> None:
        spec = value.setdefault("spec", {})
        spec.setdefault("volumeMode", "Filesystem")
        requests = (spec.get("resources") or {}).get("requests")
        if requests:
            spec["resources"]["requests"] = {name: canonical_quantity(str(amount)) for name, amount in requests.items()}

    def prepare_create(self, value: Json) -> None:
        value["status"] = {"phase": "Pending"}

    def validate(self, value: Json) -> list[FieldError]:
        spec = value["spec"]
        errors: list[FieldError] = []
        if not spec.get("accessModes"):
            errors.append(required("spec.accessModes", "at least 1 access mode is required"))
        if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
            errors.append(required("spec.resources[storage]"))
        return errors
