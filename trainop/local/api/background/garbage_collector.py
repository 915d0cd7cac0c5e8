"""Garbage collection: who is gone takes along what it owned, as its deletion asked for.

Source of the rules: kubernetes `pkg/controller/garbagecollector/garbagecollector.go`. Unlike there, the graph is exact,
because it is kept within every write; so nothing has to be looked up again before it is deleted.
"""

from __future__ import annotations

from collections import defaultdict

from trainop.local.api.background.backlog import Backlog
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.request.deletes import DeleteOptions, Deleter
from trainop.local.api.storage.versioned_store import Change, Key, Stored, Table
from trainop.runtime.objects.metadata import Json

Node = tuple[str, Key]
"""A table and the key of an object in it."""

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class GarbageCollector:
    """Follows all tables; `run` acts on what it saw."""

    def __init__(self, backend: Backend, deleter: Deleter) -> None:
        self._backend = backend
        self._store = backend.store
        self._deleter = deleter
        self._dependents: dict[str, set[Node]] = defaultdict(set)
        self._backlog: Backlog[Node] = Backlog()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            table, key = await self._backlog.take()
            stored, kind = self._store.get(table, key), self._backend.registry.of_table(table)
            if stored is not None and kind is not None:
                self._attend(kind, stored)

    def observe(self, stored: Stored, table: str) -> None:
        """Take in an object that was there before."""
        for owner in _owners(stored.value):
            self._dependents[owner["uid"]].add((table, stored.key))
        self._backlog.add((table, stored.key))

    def __call__(self, table: Table, change: Change) -> None:
        node = (table.name, change.key)
        before = _owners(change.old.value) if change.old is not None else []
        after = _owners(change.new.value) if change.new is not None else []
        for owner in before:
            self._forget(owner["uid"], node)
        for owner in after:
            self._dependents[owner["uid"]].add(node)
        if change.new is None:
            self._on_gone(change, before)
        elif after != before or change.new.value["metadata"].get("deletionTimestamp"):
            self._backlog.add(node)
            if after != before:  # an owner that waits for its dependents may have one less to wait for
                self._look_at_owners(before)

    def _on_gone(self, change: Change, owners: list[Json]) -> None:
        assert change.old is not None  # noqa: S101 - a deletion has an old state
        for dependent in sorted(self._dependents.get(change.old.uid, ())):
            self._backlog.add(dependent)
        self._look_at_owners(owners)

    def _look_at_owners(self, owners: list[Json]) -> None:
        for owner in owners:
            if (found := self._store.find_by_uid(owner["uid"])) is not None:
                self._backlog.add(found)

    def _forget(self, uid: str, node: Node) -> None:
        dependents = self._dependents.get(uid)
        if dependents is not None:
            dependents.discard(node)
            if not dependents:
                del self._dependents[uid]

    def _attend(self, kind: Kind, stored: Stored) -> None:
        metadata = stored.value["metadata"]
        if metadata.get("deletionTimestamp"):
            finalizers = metadata.get("finalizers") or []
            if ORPHAN in finalizers:
                self._orphan_dependents(kind, stored)
            elif FOREGROUND in finalizers:
                self._delete_dependents(kind, stored)
            return
        if _owners(stored.value):
            self._judge(kind, stored)

    def _orphan_dependents(self, kind: Kind, stored: Stored) -> None:
        """Nobody is to belong to it any more; then it may go."""
        for table, key in sorted(self._dependents.get(stored.uid, ())):
            dependent, dependent_kind = self._store.get(table, key), self._backend.registry.of_table(table)
            if dependent is not None and dependent_kind is not None:
                self._disown(dependent_kind, dependent, {stored.uid})
        self._release(kind, stored, ORPHAN)

    def _delete_dependents(self, kind: Kind, stored: Stored) -> None:
        """It goes when nothing that blocks it is left."""
        blocking = False
        for table, key in sorted(self._dependents.get(stored.uid, ())):
            dependent = self._store.get(table, key)
            if dependent is None:
                continue
            if not dependent.value["metadata"].get("deletionTimestamp"):
                self._backlog.add((table, key))
            blocking = blocking or any(
                owner.get("blockOwnerDeletion") for owner in _owners(dependent.value) if owner["uid"] == stored.uid
            )
        if not blocking:
            self._release(kind, stored, FOREGROUND)

    def _judge(self, kind: Kind, stored: Stored) -> None:
        """Delete what has no owner left; what has another one only forgets those that are gone."""
        absent: set[str] = set()
        waiting: set[str] = set()
        for owner in _owners(stored.value):
            held = self._owner(owner, stored.key[0])
            if held is None:
                absent.add(owner["uid"])
            elif _is_deleting_dependents(held):
                waiting.add(owner["uid"])
        lost = absent | waiting
        if not lost:
            return
        if lost != {owner["uid"] for owner in _owners(stored.value)}:
            self._disown(kind, stored, lost)
            return
        cascade = bool(waiting) and bool(self._dependents.get(stored.uid))
        if cascade and any(self._waits(node) for node in self._dependents[stored.uid]):
            stored = self._unblock(kind, stored)  # a circle of owners: each would wait for the next for ever
        propagation = "Foreground" if cascade else ""
        self._deleter.delete_stored(kind, stored, DeleteOptions(uid=stored.uid, propagation=propagation))

    def _waits(self, node: Node) -> bool:
        """Whether the object is being deleted and waits for its dependents."""
        stored = self._store.get(*node)
        return stored is not None and _is_deleting_dependents(stored.value["metadata"])

    def _unblock(self, kind: Kind, stored: Stored) -> Stored:
        """Let the owners of an object go before it; returns its next version."""
        owners = [{**owner, "blockOwnerDeletion": False} for owner in _owners(stored.value)]
        self._deleter.amend(kind, stored, ownerReferences=owners)
        return self._store.table(kind.table).objects[stored.key]

    def _owner(self, owner: Json, namespace: str) -> Json | None:
        """The owner's metadata; an owner in another namespace does not count."""
        found = self._store.find_by_uid(owner["uid"])
        if found is None or found[1][0] not in {"", namespace}:
            return None
        stored = self._store.get(*found)
        return None if stored is None else stored.value["metadata"]

    def _disown(self, kind: Kind, stored: Stored, uids: set[str]) -> None:
        kept = [owner for owner in _owners(stored.value) if owner["uid"] not in uids]
        self._deleter.amend(kind, stored, ownerReferences=kept)

    def _release(self, kind: Kind, stored: Stored, finalizer: str) -> None:
        held = stored.value["metadata"].get("finalizers") or []
        self._deleter.amend(kind, stored, finalizers=[name for name in held if name != finalizer])


def _owners(value: Json) -> list[Json]:
    return value["metadata"].get("ownerReferences") or []


def _is_deleting_dependents(metadata: Json) -> bool:
    return bool(metadata.get("deletionTimestamp")) and FOREGROUND in (metadata.get("finalizers") or [])
