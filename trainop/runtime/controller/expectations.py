"""What a controller has written and its caches do not show yet, by identity.

A reconcile that looks at a cache older than its own writes would create pods twice. So it says what it is about to
create and delete, and waits until the cache shows it. Nothing is counted: whether an expectation is met is read from
the cache, so that relists, tombstones and repeated events need no care (kubernetes `pkg/controller/controller_utils.go`
counts). Expectations belong to the owner's UID: a job recreated under its old name starts clean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from trainop.runtime.clock import Clock
from trainop.runtime.objects.metadata import Key, Metadata
from trainop.runtime.objects.resource import Resource

EXPECTATION_TIMEOUT = 300.0
"""Seconds after which an event is taken as lost (kubernetes `ExpectationsTimeout`)."""

Look: TypeAlias = Callable[[Resource, Key], Metadata | None]
"""What the cache holds under a key now; None if nothing."""


class Steps(Protocol):
    """A counter."""

    def inc(self) -> None: ...


@dataclass(slots=True)
class _Create:
    since: float
    uid: str | None = None
    """None until the API server has answered."""


@dataclass(slots=True)
class _Outstanding:
    """Everything one owner waits for."""

    creates: dict[tuple[Resource, Key], _Create] = field(default_factory=dict)
    deletes: dict[tuple[Resource, Key, str], float] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """UIDs of children whose deletion was seen while creates are outstanding: created and deleted in one breath."""

    def since(self) -> float | None:
        times = [create.since for create in self.creates.values()]
        times.extend(self.deletes.values())
        return min(times, default=None)


class Expectations:
    """Of one controller. `expired` counts the expectations that were given up."""

    def __init__(self, clock: Clock, expired: Steps | None = None, *, timeout: float = EXPECTATION_TIMEOUT) -> None:
        self._clock = clock
        self._expired = expired
        self._timeout = timeout
        self._owners: dict[str, _Outstanding] = {}

    # Before and after a write -----------------------------------------------------------------------------------------

    def expect_create(self, owner_uid: str, resource: Resource, key: Key) -> None:
        """To be called before the POST is sent."""
        creates = self._owners.setdefault(owner_uid, _Outstanding()).creates
        creates[resource, key] = _Create(self._clock.monotonic())

    def created(self, owner_uid: str, resource: Resource, key: Key, uid: str) -> None:
        """The POST was answered: this UID has to show up."""
        outstanding = self._owners.get(owner_uid)
        create = outstanding.creates.get((resource, key)) if outstanding else None
        if create is not None:
            create.uid = uid

    def create_failed(self, owner_uid: str, resource: Resource, key: Key) -> None:
        """Nothing was created, or nobody knows: the next reconcile finds out by the deterministic name."""
        outstanding = self._owners.get(owner_uid)
        if outstanding is not None:
            outstanding.creates.pop((resource, key), None)

    def expect_delete(self, owner_uid: str, resource: Resource, key: Key, uid: str) -> None:
        """To be called before the DELETE is sent."""
        deletes = self._owners.setdefault(owner_uid, _Outstanding()).deletes
        deletes[resource, key, uid] = self._clock.monotonic()

    def delete_failed(self, owner_uid: str, resource: Resource, key: Key, uid: str) -> None:
        """The object stays; or it was gone already (404), which the cache will show."""
        outstanding = self._owners.get(owner_uid)
        if outstanding is not None:
            outstanding.deletes.pop((resource, key, uid), None)

    # What the watch shows ---------------------------------------------------------------------------------------------

    def observe_deleted(self, metadata: Metadata) -> None:
        """For the delete handler of each child kind: a child that came and went between two looks was seen too."""
        owner = metadata.controller
        outstanding = self._owners.get(owner.uid) if owner else None
        if outstanding is not None and outstanding.creates:
            outstanding.gone.add(metadata.uid)

    def satisfied(self, owner_uid: str, look: Look) -> bool:
        """Whether the cache shows all of the owner's writes; those it shows are forgotten."""
        outstanding = self._owners.get(owner_uid)
        if outstanding is None:
            return True
        for place, create in list(outstanding.creates.items()):
            if _shows_create(create, look(*place), owner_uid, outstanding.gone):
                del outstanding.creates[place]
        for resource, key, uid in list(outstanding.deletes):
            found = look(resource, key)
            if found is None or found.uid != uid or found.terminating:
                del outstanding.deletes[resource, key, uid]
        if outstanding.creates or outstanding.deletes:
            return False
        del self._owners[owner_uid]
        return True

    def expires_in(self, owner_uid: str) -> float | None:
        """Seconds until the oldest outstanding expectation is too old to be waited for, not above 0 if it is now.
        None if nothing is outstanding."""
        outstanding = self._owners.get(owner_uid)
        since = outstanding.since() if outstanding else None
        return None if since is None else since + self._timeout - self._clock.monotonic()

    def expire(self, owner_uid: str) -> list[str]:
        """Gives up on all that the owner waits for and tells what that was, for the log. The caller has to go on from
        a live LIST: its cache has missed something."""
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
        """The owner is gone."""
        self._owners.pop(owner_uid, None)

    def __len__(self) -> int:
        """Owners with something outstanding."""
        return len(self._owners)


def _shows_create(create: _Create, found: Metadata | None, owner_uid: str, gone: set[str]) -> bool:
    if create.uid is not None:
        return create.uid in gone or (found is not None and found.uid == create.uid)
    # The answer never came, so only the owner tells our object from a predecessor of the same name.
    return found is not None and found.controller is not None and found.controller.uid == owner_uid
