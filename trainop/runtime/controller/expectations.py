"""Expectations: writes of a controller that its caches do not reflect yet.

A reconcile that reads a cache older than its own writes would create children twice. Controllers therefore register
each create and delete, and wait until the cache reflects it. Unlike kubernetes `pkg/controller/controller_utils.go`,
nothing is counted: expectations are compared with the cache by name and UID, so that relists, tombstones and repeated
events cannot distort them. They are kept per owner UID, so that a recreated owner of the same name starts without any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from trainop.runtime.clock import Clock
from trainop.runtime.objects.metadata import Key, Metadata, Resource

EXPECTATION_TIMEOUT = 300.0
"""Seconds after which the awaited event is considered lost (kubernetes `ExpectationsTimeout`)."""

CacheLookup: TypeAlias = Callable[[Resource, Key], Metadata | None]
"""Returns the metadata that the cache currently holds for a key, or None."""


class Steps(Protocol):
    """A counter metric."""

    def inc(self) -> None:
        """Adds one."""
        ...


@dataclass(slots=True)
class _Create:
    since: float
    uid: str | None = None
    """The UID in the answer to the POST; None before the answer."""


@dataclass(slots=True)
class _Outstanding:
    """The outstanding expectations of one owner; values of `deletes` are the times of registration."""

    creates: dict[tuple[Resource, Key], _Create] = field(default_factory=dict)
    deletes: dict[tuple[Resource, Key, str], float] = field(default_factory=dict)
    deleted_uids: set[str] = field(default_factory=set)
    """UIDs of children whose deletion was observed while creates were outstanding. A child that is created and deleted
    quickly may never be seen in the cache."""

    def since(self) -> float | None:
        """The time of the oldest outstanding expectation."""
        times = [create.since for create in self.creates.values()]
        times.extend(self.deletes.values())
        return min(times, default=None)


class Expectations:
    """The expectations of one controller. `timeout` is in seconds; `expired` counts the expectations that timed out."""

    def __init__(self, clock: Clock, expired: Steps | None = None, *, timeout: float = EXPECTATION_TIMEOUT) -> None:
        self._clock = clock
        self._expired = expired
        self._timeout = timeout
        self._owners: dict[str, _Outstanding] = {}

    # Before and after a write -----------------------------------------------------------------------------------------

    def expect_create(self, owner_uid: str, resource: Resource, key: Key) -> None:
        """Registers a create. Call before the POST is sent."""
        creates = self._owners.setdefault(owner_uid, _Outstanding()).creates
        creates[resource, key] = _Create(self._clock.monotonic())

    def created(self, owner_uid: str, resource: Resource, key: Key, uid: str) -> None:
        """The POST succeeded: the cache must show this UID, or its deletion."""
        outstanding = self._owners.get(owner_uid)
        create = outstanding.creates.get((resource, key)) if outstanding else None
        if create is not None:
            create.uid = uid

    def create_failed(self, owner_uid: str, resource: Resource, key: Key) -> None:
        """The POST failed, or its outcome is unknown. The next reconcile detects an existing child by its deterministic
        name."""
        outstanding = self._owners.get(owner_uid)
        if outstanding is not None:
            outstanding.creates.pop((resource, key), None)

    def expect_delete(self, owner_uid: str, resource: Resource, key: Key, uid: str) -> None:
        """Registers a delete. Call before the DELETE is sent."""
        deletes = self._owners.setdefault(owner_uid, _Outstanding()).deletes
        deletes[resource, key, uid] = self._clock.monotonic()

    def delete_failed(self, owner_uid: str, resource: Resource, key: Key, uid: str) -> None:
        """The DELETE failed: the object remains, or is already gone (404), as the cache will show."""
        outstanding = self._owners.get(owner_uid)
        if outstanding is not None:
            outstanding.deletes.pop((resource, key, uid), None)

    # What the watch shows ---------------------------------------------------------------------------------------------

    def observe_deleted(self, metadata: Metadata) -> None:
        """Records a deletion; call from the delete handler of each child kind. Without this, a child that was created
        and deleted between two reconciles would never satisfy its expectation."""
        owner = metadata.controller
        outstanding = self._owners.get(owner.uid) if owner else None
        if outstanding is not None and outstanding.creates:
            outstanding.deleted_uids.add(metadata.uid)

    def satisfied(self, owner_uid: str, lookup: CacheLookup) -> bool:
        """Whether the cache reflects all writes of the owner. Expectations that are met are dropped."""
        outstanding = self._owners.get(owner_uid)
        if outstanding is None:
            return True
        for place, create in list(outstanding.creates.items()):
            if _shows_create(create, lookup(*place), owner_uid, outstanding.deleted_uids):
                del outstanding.creates[place]
        for resource, key, uid in list(outstanding.deletes):
            found = lookup(resource, key)
            if found is None or found.uid != uid or found.terminating:
                del outstanding.deletes[resource, key, uid]
        if outstanding.creates or outstanding.deletes:
            return False
        del self._owners[owner_uid]
        return True

    def expires_in(self, owner_uid: str) -> float | None:
        """Seconds until the oldest outstanding expectation expires, 0 or less if it has; None if there is none."""
        outstanding = self._owners.get(owner_uid)
        since = outstanding.since() if outstanding else None
        return None if since is None else since + self._timeout - self._clock.monotonic()

    def expire(self, owner_uid: str) -> list[str]:
        """Drops all expectations of the owner and returns a description of each for the log. The cache has missed an
        event, so the caller must continue with a live LIST."""
        outstanding = self._owners.pop(owner_uid, None)
        if outstanding is None:
            return []
        missing = [f"create {resource} {key}" for resource, key in outstanding.creates]
        missing += [f"delete {resource} {key}" for resource, key, _ in outstanding.deletes]
        if self._expired is not None:
            for _ in missing:
                self._expired.inc()
        return missing

    def forget(self, owner_uid: str) -> None:
        """Drops the expectations of an owner that no longer exists."""
        self._owners.pop(owner_uid, None)

    def __len__(self) -> int:
        """The number of owners with outstanding expectations."""
        return len(self._owners)


def _shows_create(create: _Create, found: Metadata | None, owner_uid: str, deleted_uids: set[str]) -> bool:
    if create.uid is not None:
        return create.uid in deleted_uids or (found is not None and found.uid == create.uid)
    # Without an answer the UID is unknown; the owner distinguishes the object from a predecessor of the same name.
    return found is not None and found.controller is not None and found.controller.uid == owner_uid
