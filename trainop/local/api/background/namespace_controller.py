"""What a control plane does in the background besides collecting garbage.

Terminating namespaces and definitions are emptied before they go, namespaces get their default account, events expire.
"""

from __future__ import annotations

from collections import deque

from trainop.local.api.background.backlog import Backlog
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.crds import CLEANUP
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.request.deletes import DeleteOptions, Deleter
from trainop.local.api.storage.versioned_store import Change, Key, Stored, Table
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, NAMESPACES, SERVICE_ACCOUNTS

_EVENT_TTL = 3600.0


class NamespaceCleaner:
    """Deletes the content of a namespace that is being deleted, then the namespace."""

    def __init__(self, backend: Backend, deleter: Deleter) -> None:
        self._backend = backend
        self._deleter = deleter
        self._backlog: Backlog[str] = Backlog()

    def __call__(self, table: Table, change: Change) -> None:
        if table.name == NAMESPACES.plural:
            self._on_namespace(change)
        elif change.new is None and self._terminating(change.key[0]):
            self._backlog.add(change.key[0])

    def resume(self) -> None:
        """Look at what was terminating before a restart."""
        for _, name in self._backend.store.table(NAMESPACES.plural).keys():  # noqa: SIM118 - no mapping
            if self._terminating(name):
                self._backlog.add(name)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._empty(await self._backlog.take())

    def _on_namespace(self, change: Change) -> None:
        if change.new is None:
            return
        name = change.key[1]
        if change.old is None:
            make_default_account(self._backend, name)
        if change.new.value["metadata"].get("deletionTimestamp"):
            self._backlog.add(name)

    def _terminating(self, name: str) -> bool:
        stored = self._backend.store.get(NAMESPACES.plural, ("", name)) if name else None
        return stored is not None and bool(stored.value["metadata"].get("deletionTimestamp"))

    def _empty(self, name: str) -> None:
        store = self._backend.store
        left = 0
        for table in store.tables():
            kind = self._backend.registry.of_table(table.name)
            for key in table.keys(name) if kind is not None and kind.resource.namespaced else []:
                stored = table.objects.get(key)
                if stored is not None and kind is not None and not _delete(self._deleter, kind, stored):
                    left += 1
        namespace = store.get(NAMESPACES.plural, ("", name))
        kind = self._backend.registry.of_table(NAMESPACES.plural)
        if left or namespace is None or kind is None or not self._terminating(name):
            return
        spec = namespace.value.get("spec") or {}
        held = [item for item in spec.get("finalizers") or [] if item != "kubernetes"]
        spec = {**spec, "finalizers": held} if held else {}
        self._deleter.change(kind, namespace, {**namespace.value, "spec": spec})


def make_default_account(backend: Backend, namespace: str) -> None:
    """Every namespace has a service account `default`."""
    if backend.store.get(SERVICE_ACCOUNTS.plural, (namespace, "default")) is not None:
        return
    metadata: Json = {
        "name": "default",
        "namespace": namespace,
        "uid": backend.new_uid(),
        "creationTimestamp": backend.now(),
    }
    value = {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": metadata}
    backend.store.put(SERVICE_ACCOUNTS.plural, (namespace, "default"), value)


class DefinitionCleaner:
    """Deletes the objects of a definition that is being deleted, then the definition."""

    def __init__(self, backend: Backend, deleter: Deleter) -> None:
        self._backend = backend
        self._deleter = deleter
        self._backlog: Backlog[str] = Backlog()

    def __call__(self, table: Table, change: Change) -> None:
        if table.name == str(CUSTOM_RESOURCE_DEFINITIONS):
            if change.new is not None and _ending(change.new):
                self._backlog.add(change.key[1])
        elif change.new is None and (definition := self._definition(table.name)) is not None and _ending(definition):
            self._backlog.add(table.name)

    def resume(self) -> None:
        """Look at what was terminating before a restart."""
        for _, name in self._backend.store.table(str(CUSTOM_RESOURCE_DEFINITIONS)).keys():  # noqa: SIM118 - no mapping
            self._backlog.add(name)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._empty(await self._backlog.take())

    def _definition(self, name: str) -> Stored | None:
        return self._backend.store.get(str(CUSTOM_RESOURCE_DEFINITIONS), ("", name))

    def _empty(self, name: str) -> None:
        """A definition's name is the name of its objects' table."""
        definition = self._definition(name)
        if definition is None or not _ending(definition):
            return
        kind = self._backend.registry.of_table(name)
        table = self._backend.store.table(name)
        for key in list(table.keys()):
            stored = table.objects.get(key)
            if stored is not None and kind is not None:
                _delete(self._deleter, kind, stored)
        own = self._backend.registry.of_table(str(CUSTOM_RESOURCE_DEFINITIONS))
        if not table.objects and own is not None:
            held = definition.value["metadata"].get("finalizers") or []
            self._deleter.amend(own, definition, finalizers=[item for item in held if item != CLEANUP])


def _delete(deleter: Deleter, kind: Kind, stored: Stored) -> bool:
    """Whether the object is gone; one that is being deleted already is only waited for."""
    return not _ending(stored) and deleter.delete_stored(kind, stored, DeleteOptions())[1]


def _ending(stored: Stored) -> bool:
    return bool(stored.value["metadata"].get("deletionTimestamp"))


class EventExpiry:
    """Removes events an hour after they were last written."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._due: deque[tuple[float, Key, int]] = deque()
        self._filled = Backlog[None]()

    def __call__(self, table: Table, change: Change) -> None:
        if table.name == EVENTS.plural and change.new is not None:
            self.observe(change.new)

    def observe(self, stored: Stored) -> None:
        """Start the hour of this version."""
        self._due.append((self._backend.clock.monotonic() + _EVENT_TTL, stored.key, stored.version))
        self._filled.add(None)

    async def run(self) -> None:
        """Until cancelled."""
        clock, store = self._backend.clock, self._backend.store
        while True:
            if not self._due:
                await self._filled.take()
                continue
            at, key, version = self._due[0]
            if (left := at - clock.monotonic()) > 0:
                await clock.sleep(left)
                continue
            self._due.popleft()
            stored = store.get(EVENTS.plural, key)
            if stored is not None and stored.version == version:
                store.remove(EVENTS.plural, key)
