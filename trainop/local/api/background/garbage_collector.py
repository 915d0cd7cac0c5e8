"""Garbage collection: deletes dependents of deleted owners, with background, foreground and orphan propagation.

Source: kubernetes `pkg/controller/garbagecollector/garbagecollector.go`. Unlike upstream, the owner graph is updated
within every write and therefore exact, so that no live lookup is needed before a deletion.
"""

from __future__ import annotations

from collections import defaultdict

from trainop.local.api.background.work_queue import WorkQueue
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.request.deletes import DeleteOptions, Deleter
from trainop.local.api.storage.versioned_store import Change, Key, Stored, Table
from trainop.runtime import Json

Node = tuple[str, Key]
"""A node of the graph: the table and key of an object."""

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class GarbageCollector:
    """A listener of the store that maintains the owner graph; `run` processes the queue of changed objects."""

    def __init__(self, backend: Backend, deleter: Deleter) -> None:
        self._backend = backend
        self._store = backend.store
        self._deleter = deleter
        self._dependents: dict[str, set[Node]] = defaultdict(set)
        self._queue: WorkQueue[Node] = WorkQueue()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            table, key = await self._queue.get()
            stored, kind = self._store.get(table, key), self._backend.registry.of_table(table)
            if stored is not None and kind is not None:
                self._process(kind, stored)

    def observe(self, stored: Stored, table: str) -> None:
        """Add an object that was loaded from disk to the graph and to the queue."""
        for owner in _owner_references(stored.value):
            self._dependents[owner["uid"]].add((table, stored.key))
        self._queue.add((table, stored.key))

    def __call__(self, table: Table, change: Change) -> None:
        node = (table.name, change.key)
        before = _owner_references(change.old.value) if change.old is not None else []
        after = _owner_references(change.new.value) if change.new is not None else []
        for owner in before:
            self._remove_edge(owner["uid"], node)
        for owner in after:
            self._dependents[owner["uid"]].add(node)
        if change.new is None:
            self._on_deletion(change, before)
        elif after != before or change.new.value["metadata"].get("deletionTimestamp"):
            self._queue.add(node)
            if after != before:  # a former owner in foreground deletion may be unblocked
                self._enqueue_owners(before)

    def _on_deletion(self, change: Change, owners: list[Json]) -> None:
        assert change.old is not None  # noqa: S101 - a deletion has an old state
        for dependent in sorted(self._dependents.get(change.old.uid, ())):
            self._queue.add(dependent)
        self._enqueue_owners(owners)

    def _enqueue_owners(self, owners: list[Json]) -> None:
        for owner in owners:
            if (found := self._store.find_by_uid(owner["uid"])) is not None:
                self._queue.add(found)

    def _remove_edge(self, uid: str, node: Node) -> None:
        dependents = self._dependents.get(uid)
        if dependents is not None:
            dependents.discard(node)
            if not dependents:
                del self._dependents[uid]

    def _process(self, kind: Kind, stored: Stored) -> None:
        metadata = stored.value["metadata"]
        if metadata.get("deletionTimestamp"):
            finalizers = metadata.get("finalizers") or []
            if ORPHAN in finalizers:
                self._orphan_dependents(kind, stored)
            elif FOREGROUND in finalizers:
                self._delete_dependents(kind, stored)
            return
        if _owner_references(stored.value):
            self._process_dependent(kind, stored)

    def _orphan_dependents(self, kind: Kind, stored: Stored) -> None:
        """Remove the owner from all dependents, then remove its finalizer `orphan`."""
        for table, key in sorted(self._dependents.get(stored.uid, ())):
            dependent, dependent_kind = self._store.get(table, key), self._backend.registry.of_table(table)
            if dependent is not None and dependent_kind is not None:
                self._remove_owner_references(dependent_kind, dependent, {stored.uid})
        self._remove_finalizer(kind, stored, ORPHAN)

    def _delete_dependents(self, kind: Kind, stored: Stored) -> None:
        """Queue the dependents; without blocking dependents, remove the finalizer `foregroundDeletion`."""
        blocking = False
        for table, key in sorted(self._dependents.get(stored.uid, ())):
            dependent = self._store.get(table, key)
            if dependent is None:
                continue
            if not dependent.value["metadata"].get("deletionTimestamp"):
                self._queue.add((table, key))
            blocking = blocking or any(
                owner.get("blockOwnerDeletion")
                for owner in _owner_references(dependent.value)
                if owner["uid"] == stored.uid
            )
        if not blocking:
            self._remove_finalizer(kind, stored, FOREGROUND)

    def _process_dependent(self, kind: Kind, stored: Stored) -> None:
        """Delete an object whose owners are all gone or in foreground deletion; else remove such owner references."""
        absent: set[str] = set()
        waiting: set[str] = set()
        for owner in _owner_references(stored.value):
            held = self._owner(owner, stored.key[0])
            if held is None:
                absent.add(owner["uid"])
            elif _is_foreground_deletion(held):
                waiting.add(owner["uid"])
        lost = absent | waiting
        if not lost:
            return
        if lost != {owner["uid"] for owner in _owner_references(stored.value)}:
            self._remove_owner_references(kind, stored, lost)
            return
        foreground = bool(waiting) and bool(self._dependents.get(stored.uid))
        if foreground and any(self._in_foreground_deletion(node) for node in self._dependents[stored.uid]):
            stored = self._unblock(kind, stored)  # a cycle of owners would block itself
        propagation = "Foreground" if foreground else ""
        self._deleter.delete_stored(kind, stored, DeleteOptions(uid=stored.uid, propagation=propagation))

    def _in_foreground_deletion(self, node: Node) -> bool:
        """Whether the object is in foreground deletion."""
        stored = self._store.get(*node)
        return stored is not None and _is_foreground_deletion(stored.value["metadata"])

    def _unblock(self, kind: Kind, stored: Stored) -> Stored:
        """Set blockOwnerDeletion to false in all owner references; returns the new revision."""
        owners = [{**owner, "blockOwnerDeletion": False} for owner in _owner_references(stored.value)]
        self._deleter.update_metadata(kind, stored, ownerReferences=owners)
        return self._store.table(kind.table).objects[stored.key]

    def _owner(self, owner: Json, namespace: str) -> Json | None:
        """The metadata of an owner; None if it does not exist or is in another namespace."""
        found = self._store.find_by_uid(owner["uid"])
        if found is None or found[1][0] not in {"", namespace}:
            return None
        stored = self._store.get(*found)
        return None if stored is None else stored.value["metadata"]

    def _remove_owner_references(self, kind: Kind, stored: Stored, uids: set[str]) -> None:
        kept = [owner for owner in _owner_references(stored.value) if owner["uid"] not in uids]
        self._deleter.update_metadata(kind, stored, ownerReferences=kept)

    def _remove_finalizer(self, kind: Kind, stored: Stored, finalizer: str) -> None:
        held = stored.value["metadata"].get("finalizers") or []
        self._deleter.update_metadata(kind, stored, finalizers=[name for name in held if name != finalizer])


def _owner_references(value: Json) -> list[Json]:
    return value["metadata"].get("ownerReferences") or []


def _is_foreground_deletion(metadata: Json) -> bool:
    return bool(metadata.get("deletionTimestamp")) and FOREGROUND in (metadata.get("finalizers") or [])
