"""Companions: objects that a job owns in addition to pods and services, such as an autoscaler.

They are applied if missing, applied again if changed, and deleted if not needed any more. Server-side apply makes this
idempotent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from trainop.engine.actions import Ensure, How, Need, Remove
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.framework import Companion, CompanionKind, selector
from trainop.engine.steps.builder import PlanBuilder
from trainop.runtime import Json, Unstructured

FINGERPRINT = ANNOTATION_PREFIX + "fingerprint"
"""Annotation with a hash of `Companion.inputs`. It shows that the content must change without comparing contents, which
the API server rewrites (quantities, defaults)."""


def reconcile_companions(builder: PlanBuilder, kinds: Iterable[CompanionKind], asked: Sequence[Companion]) -> bool:
    """Applies missing and changed companions and deletes those of these kinds that the job does not ask for. Returns
    whether pods may be created: every companion with a `ready` function exists and is ready."""
    wanted = {(companion.kind.resource, companion.name): companion for companion in asked}
    for each in asked:
        builder.requeue_after(each.due_in)
    ready = True
    for kind in kinds:
        for found in builder.seen.companions.get(kind.resource, ()):
            companion = wanted.pop((kind.resource, found.metadata.name), None)
            _reconcile_one(builder, kind, companion, found)
            if companion is not None:
                ready &= builder.owns(found) and (companion.ready is None or companion.ready(found))
    builder.actions += [apply_companion(builder, companion) for companion in wanted.values()]
    return ready and all(companion.ready is None for companion in wanted.values())


def _reconcile_one(builder: PlanBuilder, kind: CompanionKind, companion: Companion | None, found: Unstructured) -> None:
    """Applies or deletes one existing object. `companion` is None if the job does not need it."""
    metadata = found.metadata
    if not builder.owns(found):
        if companion is not None and not metadata.terminating:
            builder.warn_name_taken(kind.resource.kind, companion.name)
    elif metadata.terminating:
        pass  # its deletion triggers the next reconcile
    elif companion is None:
        if not kind.needed_by_pods:
            builder.actions.append(Remove(kind.resource, metadata.name, metadata.uid))
    elif not companion.create_only and differs(companion, found):
        builder.actions.append(apply_companion(builder, companion, metadata.uid))


def apply_companion(builder: PlanBuilder, companion: Companion, uid: str = "") -> Ensure:
    """The action that writes a companion. The fingerprint shows later whether its inputs have changed."""
    job, words, resource = builder.metadata, builder.words, companion.kind.resource
    manifest = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": companion.name,
            "namespace": job.namespace,
            "labels": {**companion.labels, **selector(words, job.name)},
            "annotations": {**companion.annotations, FINGERPRINT: _fingerprint(companion)},
            "ownerReferences": [builder.owner],
        },
        **companion.content(),
    }
    need, posted = Need.JOB if companion.kind.needed_by_pods else Need.NONE, companion.kind.posted
    return Ensure(resource, companion.name, manifest=manifest, how=How.APPLY, need=need, uid=uid, posted=posted)


def _fingerprint(companion: Companion) -> str:
    return hashlib.blake2s(companion.inputs.encode("utf-8", "replace"), digest_size=16).hexdigest()


def differs(companion: Companion, found: Unstructured) -> bool:
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
