"""Companions: objects that a job owns in addition to pods and services, such as an autoscaler.

They are applied if missing, applied again if changed, and deleted if not needed any more. Server-side apply makes this
idempotent.
"""

from __future__ import annotations

import hashlib

from trainop.engine.actions import Apply, Delete
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.framework import Companion, CompanionKind, selector
from trainop.engine.steps.builder import PlanBuilder
from trainop.runtime.objects.metadata import Json, Unstructured, owner_reference

FINGERPRINT = ANNOTATION_PREFIX + "fingerprint"
"""Annotation with a hash of `Companion.inputs`. It shows that the content must change without comparing contents, which
the API server rewrites (quantities, defaults)."""


def reconcile_companions(builder: PlanBuilder, *, active: bool) -> bool:
    """Applies missing and changed companions and deletes those that are not needed any more. A job that is not `active`
    needs none. Returns whether pods may be created: every companion with a `ready` function exists and is ready."""
    job, framework, seen = builder.job, builder.framework, builder.seen
    asked = framework.companions(job, seen) if active and framework.companion_kinds else ()
    wanted = {(companion.kind.resource, companion.name): companion for companion in asked}
    for each in asked:
        builder.requeue_after(each.due_in)
    ready = True
    for kind in framework.companion_kinds:
        for found in seen.companions.get(kind.resource, ()):
            companion = wanted.pop((kind.resource, found.metadata.name), None)
            _reconcile_one(builder, kind, companion, found)
            if companion is not None:
                ready &= _is_ours(builder, found) and (companion.ready is None or companion.ready(found))
    builder.actions += [_apply(builder, companion) for companion in wanted.values()]
    return ready and all(companion.ready is None for companion in wanted.values())


def _reconcile_one(builder: PlanBuilder, kind: CompanionKind, companion: Companion | None, found: Unstructured) -> None:
    """Applies or deletes one existing object. `companion` is None if the job does not need it."""
    metadata = found.metadata
    if not _is_ours(builder, found):
        if companion is not None and not metadata.terminating:
            builder.warn_name_taken(kind.resource.kind, companion.name)
    elif metadata.terminating:
        pass  # its deletion triggers the next reconcile
    elif companion is None:
        if not kind.needed_by_pods:
            builder.actions.append(Delete(kind.resource, metadata.name, metadata.uid))
    elif not companion.create_only and _differs(companion, found):
        builder.actions.append(_apply(builder, companion, metadata.uid))


def _is_ours(builder: PlanBuilder, found: Unstructured) -> bool:
    owner = found.metadata.controller
    return owner is not None and owner.uid == builder.job.metadata.uid


def _apply(builder: PlanBuilder, companion: Companion, uid: str = "") -> Apply:
    """The action that writes a companion. The fingerprint shows later whether its inputs have changed."""
    job, framework, resource = builder.job, builder.framework, companion.kind.resource
    owner = owner_reference(framework.resource.api_version, framework.kind, job.name, job.metadata.uid)
    manifest = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": companion.name,
            "namespace": job.namespace,
            "labels": {**companion.labels, **selector(framework, job.name)},
            "annotations": {**companion.annotations, FINGERPRINT: _fingerprint(companion)},
            "ownerReferences": [owner],
        },
        **companion.content(),
    }
    kind = companion.kind
    return Apply(resource, manifest, uid, essential=kind.needed_by_pods, posted=kind.posted)


def _fingerprint(companion: Companion) -> str:
    return hashlib.blake2s(companion.inputs.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _differs(companion: Companion, found: Unstructured) -> bool:
    """Whether the object was made from other inputs, or another client has changed a scalar field that we manage."""
    if found.metadata.annotations.get(FINGERPRINT) != _fingerprint(companion):
        return True
    return not companion.kind.metadata_only and _deviates(companion.content(), found.raw)


def _deviates(wanted: object, found: object) -> bool:
    """Whether any scalar in `wanted` has another value in `found`. Lists are not compared."""
    if isinstance(wanted, dict):
        inner: Json = found if isinstance(found, dict) else {}
        return any(_deviates(value, inner.get(name)) for name, value in wanted.items())
    return not isinstance(wanted, list) and wanted != found
