"""Namespaces: deletion of their content, and their default service account.

Sources: kubernetes `pkg/controller/namespace` and `pkg/controller/serviceaccount/serviceaccounts_controller.go`.
"""

from __future__ import annotations

from trainop.local.api.background.terminating import delete_unless_terminating
from trainop.local.api.background.work_queue import WorkQueue
from trainop.local.api.registry.backend import Backend
from trainop.local.api.request.deletes import Deleter
from trainop.local.api.storage.versioned_store import Change, Table
from trainop.runtime import NAMESPACES, SERVICE_ACCOUNTS, Json


class NamespaceController:
    """A listener of the store; `run` deletes the content of terminating namespaces, then the namespaces."""

    def __init__(self, backend: Backend, deleter: Deleter) -> None:
        self._backend = backend
        self._deleter = deleter
        self._queue: WorkQueue[str] = WorkQueue()

    def __call__(self, table: Table, change: Change) -> None:
        if table.name == NAMESPACES.plural:
            self._on_namespace(change)
        elif change.new is None and self._terminating(change.key[0]):
            self._queue.add(change.key[0])

    def resume(self) -> None:
        """Queue the namespaces that were terminating before a restart."""
        for _, name in self._backend.store.table(NAMESPACES.plural).keys():  # noqa: SIM118 - no mapping
            if self._terminating(name):
                self._queue.add(name)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._delete_content(await self._queue.get())

    def _on_namespace(self, change: Change) -> None:
        if change.new is None:
            return
        name = change.key[1]
        if change.old is None:
            _create_default_service_account(self._backend, name)
        if change.new.value["metadata"].get("deletionTimestamp"):
            self._queue.add(name)

    def _terminating(self, name: str) -> bool:
        stored = self._backend.store.get(NAMESPACES.plural, ("", name)) if name else None
        return stored is not None and bool(stored.value["metadata"].get("deletionTimestamp"))

    def _delete_content(self, name: str) -> None:
        store = self._backend.store
        left = 0
        for table in store.tables():
            kind = self._backend.registry.of_table(table.name)
            for key in table.keys(name) if kind is not None and kind.resource.namespaced else []:
                stored = table.objects.get(key)
                if (
                    stored is not None
                    and kind is not None
                    and not delete_unless_terminating(self._deleter, kind, stored)
                ):
                    left += 1
        namespace = store.get(NAMESPACES.plural, ("", name))
        kind = self._backend.registry.of_table(NAMESPACES.plural)
        if left or namespace is None or kind is None or not self._terminating(name):
            return
        spec = namespace.value.get("spec") or {}
        held = [item for item in spec.get("finalizers") or [] if item != "kubernetes"]
        spec = {**spec, "finalizers": held} if held else {}
        self._deleter.update_stored(kind, namespace, {**namespace.value, "spec": spec})


def _create_default_service_account(backend: Backend, namespace: str) -> None:
    """Create the service account `default` of a namespace, unless it exists."""
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
