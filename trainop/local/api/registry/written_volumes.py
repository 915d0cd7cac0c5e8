"""Validation of volumes whose files the node writes: configMap, secret, downwardAPI and projected.

Messages and field paths are those of kube-apiserver, also where it leaves out an index or element (kubernetes
`pkg/apis/core/validation/validation.go`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainop.local.api.registry.names import qualified_name
from trainop.local.api.schema.field_errors import forbidden, invalid, not_supported, required
from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldError

_MODE = "must be a number between 0 and 0777 (octal), both inclusive"
_MIN_SECONDS, _MAX_SECONDS = 600, 2**32
_FIELDS = ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
_OTHER_FIELDS = (
    *("spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "spec.schedulerName"),
    *("status.phase", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
"""Fields that variables may show, but files may not."""
_SUBSCRIPT = re.compile(r"(.*)\['(.*)'\]", re.DOTALL)
_NAMES = {"configMap": "name", "secret": "secretName"}


def validate_written_volume(volume: Json, path: str) -> list[FieldError]:
    """All field errors of a volume at `path`; none for a volume of another kind."""
    errors: list[FieldError] = []
    for kind, name in _NAMES.items():
        if (source := volume.get(kind)) is not None:
            errors += _validate_object(source, f"{path}.{kind}", name)
            errors += _validate_mode(source.get("defaultMode"), f"{path}.{kind}.defaultMode")
    if (source := volume.get("downwardAPI")) is not None:
        errors += _validate_mode(source.get("defaultMode"), f"{path}.downwardAPI.defaultMode")
        for item in source.get("items") or []:
            errors += _validate_field(item, f"{path}.downwardAPI")
    if (source := volume.get("projected")) is not None:
        errors += _validate_mode(source.get("defaultMode"), f"{path}.projected.defaultMode")
        errors += _validate_sources(source.get("sources") or [], f"{path}.projected")
    return errors


def _validate_mode(mode: int | None, path: str) -> list[FieldError]:
    return [invalid(path, mode, _MODE)] if mode is not None and not 0 <= mode <= 0o777 else []


def _validate_object(source: Json, path: str, name: str = "name") -> Iterator[FieldError]:
    """A ConfigMap or Secret as source of files."""
    if not source.get(name):
        yield required(f"{path}.{name}")
    for index, item in enumerate(source.get("items") or []):
        place = f"{path}.items[{index}]"
        if not item.get("key"):
            yield required(f"{place}.key")
        yield from _validate_path(item.get("path") or "", f"{place}.path")
        yield from _validate_mode(item.get("mode"), f"{place}.mode")


def _validate_path(target: str, path: str) -> Iterator[FieldError]:
    """The path of a file relative to its volume."""
    if not target:
        yield required(path)
    if target.startswith("/"):
        yield invalid(path, target, "must be a relative path")
    if ".." in target.split("/"):
        yield invalid(path, target, "must not contain '..'")
    if target.startswith("..") and not target.startswith("../"):
        yield invalid(path, target, "must not start with '..'")


def _validate_field(item: Json, path: str) -> Iterator[FieldError]:
    """A field of the pod or of its containers' resources as a file."""
    yield from _validate_path(item.get("path") or "", f"{path}.path")
    if (field := item.get("fieldRef")) is not None:
        yield from _validate_field_path(field.get("fieldPath") or "", f"{path}.fieldRef")
        if item.get("resourceFieldRef") is not None:
            yield invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
    elif (resource := item.get("resourceFieldRef")) is None:
        yield required(path, "one of fieldRef and resourceFieldRef is required")
    else:
        missing = next((name for name in ("containerName", "resource") if not resource.get(name)), "")
        if missing:
            yield required(f"{path}.resourceFieldRef.{missing}")
    yield from _validate_mode(item.get("mode"), f"{path}.mode")


def _validate_field_path(field: str, path: str) -> list[FieldError]:
    place = f"{path}.fieldPath"
    if not field:
        return [required(place)]
    if subscript := _SUBSCRIPT.fullmatch(field):
        if subscript[1] not in {"metadata.annotations", "metadata.labels"}:
            why = f"error converting fieldPath: field label does not support subscript: {field}"
            return [invalid(place, field, why)]
        key = subscript[2].lower() if subscript[1].endswith("annotations") else subscript[2]
        return [invalid(path, key, problem) for problem in qualified_name(key)]
    if field in _OTHER_FIELDS:
        return [not_supported(place, field, _FIELDS)]
    if field not in _FIELDS:
        return [invalid(place, field, f"error converting fieldPath: field label not supported: {field}")]
    return []


def _validate_sources(sources: list[Json], path: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, source in enumerate(sources):
        place = f"{path}.sources[{index}]"
        given = [kind for kind, value in source.items() if value is not None]
        for kind in ("secret", "configMap"):
            if kind in given:
                yield from _validate_object(source[kind], f"{place}.{kind}")
                yield from _duplicates(source[kind], seen, path, source[kind].get("name") or "")
        if "downwardAPI" in given:
            for item in source["downwardAPI"].get("items") or []:
                yield from _validate_field(item, f"{place}.downwardAPI")
                yield from _duplicates({"items": [item]}, seen, path, item.get("path") or "")
        if "serviceAccountToken" in given:
            yield from _validate_token(source["serviceAccountToken"], f"{place}.serviceAccountToken", path)
        if len(given) > 1:
            yield forbidden(place, "may not specify more than 1 volume type per source")


def _duplicates(source: Json, seen: set[str], path: str, shown: str) -> Iterator[FieldError]:
    for item in source.get("items") or []:
        target = item.get("path") or ""
        if target in seen:
            yield invalid(path, shown, "conflicting duplicate paths")
        elif target:
            seen.add(target)


def _validate_token(token: Json, path: str, volume: str) -> Iterator[FieldError]:
    """The path is validated at the volume, as upstream does."""
    seconds = token.get("expirationSeconds", 3600)
    if seconds < _MIN_SECONDS:
        yield invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    if seconds > _MAX_SECONDS:
        yield invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
    yield from _validate_path(token.get("path") or "", f"{volume}.path")
