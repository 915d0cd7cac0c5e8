"""Helpers for objects with a deletionTimestamp."""

from __future__ import annotations

from trainop.local.api.registry.kinds import Kind
from trainop.local.api.request.deletes import DeleteOptions, Deleter
from trainop.local.api.storage.versioned_store import Stored


def delete_unless_terminating(deleter: Deleter, kind: Kind, stored: Stored) -> bool:
    """Delete an object unless it is terminating already; returns whether it was removed from the store."""
    return not is_terminating(stored) and deleter.delete_stored(kind, stored, DeleteOptions())[1]


def is_terminating(stored: Stored) -> bool:
    """Whether the object has a deletionTimestamp."""
    return bool(stored.value["metadata"].get("deletionTimestamp"))
