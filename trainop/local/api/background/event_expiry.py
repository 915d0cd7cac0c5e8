"""Expiry of Events, like the TTL that kube-apiserver sets in etcd (`--event-ttl`)."""

from __future__ import annotations

from collections import deque

from trainop.local.api.background.work_queue import WorkQueue
from trainop.local.api.registry.backend import Backend
from trainop.local.api.storage.versioned_store import Change, Key, Stored, Table
from trainop.runtime import EVENTS

_EVENT_TTL = 3600.0


class EventExpiry:
    """A listener of the store; `run` removes Events one hour after their last write."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._due: deque[tuple[float, Key, int]] = deque()
        self._wake_up = WorkQueue[None]()

    def __call__(self, table: Table, change: Change) -> None:
        if table.name == EVENTS.plural and change.new is not None:
            self.observe(change.new)

    def observe(self, stored: Stored) -> None:
        """Schedule the expiry of this revision; a later write of the Event supersedes it."""
        self._due.append((self._backend.clock.monotonic() + _EVENT_TTL, stored.key, stored.version))
        self._wake_up.add(None)

    async def run(self) -> None:
        """Until cancelled."""
        clock, store = self._backend.clock, self._backend.store
        while True:
            if not self._due:
                await self._wake_up.get()
                continue
            at, key, version = self._due[0]
            if (left := at - clock.monotonic()) > 0:
                await clock.sleep(left)
                continue
            self._due.popleft()
            stored = store.get(EVENTS.plural, key)
            if stored is not None and stored.version == version:
                store.remove(EVENTS.plural, key)
