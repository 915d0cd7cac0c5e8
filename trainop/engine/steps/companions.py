"""Companions: objects that a job owns in addition to pods and services, such as an autoscaler or a PodGroup.

They are created if missing, corrected if changed, and deleted if not needed any more. Most are written by server-side
apply, which makes this idempotent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from trainop.engine.actions import Action, Ensure, How, Need, Remove
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.framework import Companion, CompanionKind, selector
from trainop.engine.steps.builder import PlanBuilder
from trainop.runtime import Json, Unstructured

FINGERPRINT = ANNOTATION_PREFIX + "fingerprint"
"""Annotation with a hash of `Companion.inputs`. It shows that the content must change without comparing contents, which
the API server rewrites (quantities, defaults)."""


def reconcile_companions(builder: PlanBuilder, kinds: Iterable[CompanionKind], asked: Sequence[Companion]) -> bool:
    """Creates missing companions, corrects changed ones, and deletes those of these kinds that the job does not ask
    for. Returns whether pods may be created: none is held, and each with a `ready` function exists and is ready."""
    wanted = {(companion.kind.resource, companion.name): companion for companion in asked}
    for each in asked:
        builder.requeue_after(each.due_in)
    ready = not any(each.held for each in asked)
    for kind in kinds:
        for found in builder.seen.companions.get(kind.resource, ()):
            companion = wanted.pop((kind.resource, found.metadata.name), None)
            if action := _reconcile_one(builder, kind, companion, found):
                builder.actions.append(action)
            if companion is not None:
                ready &= builder.owns(found) and (companion.ready is None or companion.ready(found))
    builder.actions += [write_companion(builder, companion) for companion in wanted.values() if not companion.held]
    return ready and all(companion.ready is None for companion in wanted.values())


def _reconcile_one(builder: PlanBuilder, kind: CompanionKind, companion: Companion | None, found: Any) -> Action | None:
    """Corrects or deletes one existing object. `companion` is None if the job does not need it."""
    metadata = found.metadata
    if (companion is not None and companion.held) or (builder.owns(found) and metadata.terminating):
        return None  # the deletion of a terminating one triggers the next reconcile
    if not builder.owns(found):
        if companion is not None and not metadata.terminating:
            builder.warn_name_taken(kind.resource.kind, companion.name)
        return None
    if companion is None:
        kept, then = kind.need is Need.JOB, kind.removal(metadata.name)
        return None if kept else Remove(kind.resource, metadata.name, metadata.uid, then=then)
    if companion.correct is not None:
        return companion.correct(found)
    return write_companion(builder, companion, metadata.uid) if differs(companion, found) else None


def write_companion(builder: PlanBuilder, companion: Companion, uid: str = "") -> Ensure:
    """The action that writes a companion. The fingerprint of an applied one shows later whether its inputs have
    changed."""
    job, words, kind = builder.metadata, builder.words, companion.kind
    applied = companion.correct is None
    manifest = {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "metadata": {
            "name": companion.name,
            "namespace": job.namespace,
            "labels": {**companion.labels, **selector(words, job.name)},
            "annotations": {**companion.annotations, **({FINGERPRINT: _fingerprint(companion)} if applied else {})},
            "ownerReferences": [builder.owner],
        },
        **companion.content(),
    }
    how = How.APPLY if applied else How.POST
    return Ensure(
        kind.resource, companion.name, manifest=manifest, how=how, need=kind.need, uid=uid, posted=kind.posted
    )


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
