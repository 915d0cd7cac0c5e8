"""ObjectMeta: fields that the server sets, fields that clients cannot change, and validation.

Sources: apimachinery `pkg/api/validation/objectmeta.go`, apiserver `pkg/registry/rest`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from trainop.local.api.registry.kinds import Kind
from trainop.local.api.registry.names import label_value, qualified_name
from trainop.local.api.schema.field_errors import forbidden, from_message, immutable, invalid, required
from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldError

_STANDARD_FINALIZERS = {"kubernetes", "orphan", "foregroundDeletion", "customresourcecleanup.apiextensions.k8s.io"}
_ANNOTATIONS_LIMIT = 256 * 1024
_SERVER_SET = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")
_NAME_LIMIT = 63
_SUFFIX = 5


def initialize(metadata: Json, *, uid: str, now: str) -> None:
    """Replace the server-set fields of a client's metadata by those of a new object."""
    for field in _SERVER_SET:
        metadata.pop(field, None)
    metadata.pop("resourceVersion", None)
    metadata |= {"uid": uid, "creationTimestamp": now}


def restore_server_fields(metadata: Json, old: Json) -> None:
    """Restore the server-set fields from the old object, whatever the client sent."""
    for field in _SERVER_SET:
        if field in old:
            metadata[field] = old[field]
        else:
            metadata.pop(field, None)
    if "generateName" in old:
        metadata.setdefault("generateName", old["generateName"])


def drop_empty(metadata: Json) -> None:
    """Remove empty members, which are not stored."""
    for field in ("labels", "annotations", "ownerReferences", "finalizers", "managedFields"):
        if field in metadata and not metadata[field]:
            del metadata[field]
    if metadata.get("namespace") == "":
        del metadata["namespace"]


def generated_name(base: str, rng: random.Random) -> str:
    """A name for a `generateName`, truncated to the length of a DNS label (apiserver `pkg/storage/names/generate.go`).
    Letters and digits are those of apimachinery `pkg/util/rand`, without vowels and digits that look like them."""
    return base[: _NAME_LIMIT - _SUFFIX] + "".join(rng.choices("bcdfghjklmnpqrstvwxz2456789", k=_SUFFIX))


def validate(kind: Kind, metadata: Json) -> list[FieldError]:
    """Field errors of the metadata of an object that is to be stored."""
    errors: list[FieldError] = []
    name = metadata.get("name", "")
    prefix = metadata.get("generateName", "")
    if prefix:
        probe = prefix[:-1] + "a" if prefix.endswith("-") else prefix
        errors += [invalid("metadata.generateName", prefix, problem) for problem in kind.strategy.check_name(probe)]
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    else:
        errors += [invalid("metadata.name", name, problem) for problem in kind.strategy.check_name(name)]
    if not kind.resource.namespaced and metadata.get("namespace"):
        errors.append(forbidden("metadata.namespace", "not allowed on this type"))
    return errors + _validate_common(metadata)


def _validate_common(metadata: Json, path: str = "metadata") -> list[FieldError]:
    """Field errors of labels, annotations, ownerReferences and finalizers."""
    return [
        *validate_labels(metadata.get("labels") or {}, f"{path}.labels"),
        *_validate_annotations(metadata.get("annotations") or {}, f"{path}.annotations"),
        *_validate_owner_references(metadata.get("ownerReferences") or [], f"{path}.ownerReferences"),
        *_validate_finalizers(metadata.get("finalizers") or [], f"{path}.finalizers"),
    ]


def validate_update(metadata: Json, old: Json) -> list[FieldError]:
    """Field errors of changes of immutable fields, and of finalizers added during deletion."""
    errors: list[FieldError] = []
    fixed = ("name", "namespace", "uid", "creationTimestamp")
    changed = [field for field in fixed if metadata.get(field) != old.get(field)]
    errors += [immutable(f"metadata.{field}", metadata.get(field, "")) for field in changed]
    if old.get("deletionTimestamp"):
        added = sorted(set(metadata.get("finalizers") or ()) - set(old.get("finalizers") or ()))
        if added:
            shown = ", ".join(f'"{finalizer}"' for finalizer in added)
            reason = (
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{shown}}}"
            )
            errors += [forbidden("metadata.finalizers", reason)] * 2  # kube-apiserver returns this error twice
    return errors


def validate_labels(labels: Json, path: str) -> list[FieldError]:
    """Field errors of label keys and values."""
    errors: list[FieldError] = []
    for key, value in labels.items():
        errors += [invalid(path, key, problem) for problem in qualified_name(key)]
        errors += [invalid(path, value, problem) for problem in label_value(value)]
    return errors


def _validate_annotations(annotations: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for key in annotations:
        errors += [invalid(path, key, problem) for problem in qualified_name(key.lower())]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _ANNOTATIONS_LIMIT:
        message = f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes"
        errors.append(from_message(path, "FieldValueTooLong", message))
    return errors


def _validate_owner_references(owners: Iterable[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    controllers: list[Json] = []
    for index, owner in enumerate(owners):
        missing = [field for field in ("apiVersion", "kind", "name", "uid") if not owner.get(field)]
        errors += [required(f"{path}[{index}].{field}", "must not be empty") for field in missing]
        version = str(owner.get("apiVersion") or "")
        if version.count("/") > 1 or version.endswith("/"):
            errors.append(invalid(f"{path}[{index}].apiVersion", version, "must be <group>/<version> or <version>"))
        if owner.get("controller"):
            controllers.append(owner)
    for second in controllers[1:]:
        first = controllers[0]
        reason = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{first.get('kind')}/{first.get('name')} and {second.get('kind')}/{second.get('name')}"
        )
        errors.append(invalid(path, list(owners), reason))
    return errors


def _validate_finalizers(finalizers: list[str], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for finalizer in finalizers:
        errors += [invalid(path, finalizer, problem) for problem in qualified_name(finalizer)]
    reason = "name is neither a standard finalizer name nor is it fully qualified"
    errors += [
        invalid(f"{path}[{index}]", finalizer, reason)
        for index, finalizer in enumerate(finalizers)
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS
    ]
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        reason = "finalizer orphan and foregroundDeletion cannot be both set"
        errors.append(invalid(path, finalizers, reason))
    return errors
