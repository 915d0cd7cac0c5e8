"""Deletion of CRDs: deletes their custom resources, then removes the CRD's finalizer.

Source: apiextensions-apiserver `pkg/controller/finalizer/crd_finalizer.go`.
"""

from __future__ import annotations

from trainop.local.api.background.terminating import delete_unless_terminating, is_terminating
from trainop.local.api.background.work_queue import WorkQueue
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.crds import CLEANUP_FINALIZER
from trainop.local.api.request.deletes import Deleter
from trainop.local.api.storage.versioned_store import Change, Stored, Table
from trainop.runtime import CUSTOM_RESOURCE_DEFINITIONS


class CrdFinalizer:
    """A listener of the store; `run` deletes the custom resources of terminating CRDs, then the CRDs."""

    def __init__(self, backend: Backend, deleter: Deleter) -> None:
        self._backend = backend
        self._deleter = deleter
        self._queue: WorkQueue[str] = WorkQueue()

    def __call__(self, table: Table, change: Change) -> None:
        if table.name == str(CUSTOM_RESOURCE_DEFINITIONS):
            if change.new is not None and is_terminating(change.new):
                self._queue.add(change.key[1])
        elif change.new is None and (crd := self._crd(table.name)) is not None and is_terminating(crd):
            self._queue.add(table.name)

    def resume(self) -> None:
        """Queue all CRDs after a restart; those that are not terminating are ignored."""
        for _, name in self._backend.store.table(str(CUSTOM_RESOURCE_DEFINITIONS)).keys():  # noqa: SIM118 - no mapping
            self._queue.add(name)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._delete_content(await self._queue.get())

    def _crd(self, name: str) -> Stored | None:
        return self._backend.store.get(str(CUSTOM_RESOURCE_DEFINITIONS), ("", name))

    def _delete_content(self, name: str) -> None:
        """The name of a CRD is also the name of the table of its custom resources."""
        crd = self._crd(name)
        if crd is None or not is_terminating(crd):
            return
        kind = self._backend.registry.of_table(name)
        table = self._backend.store.table(name)
        for key in list(table.keys()):
            stored = table.objects.get(key)
            if stored is not None and kind is not None:
                delete_unless_terminating(self._deleter, kind, stored)
        crd_kind = self._backend.registry.of_table(str(CUSTOM_RESOURCE_DEFINITIONS))
        if not table.objects and crd_kind is not None:
            held = crd.value["metadata"].get("finalizers") or []
            self._deleter.update_metadata(
                crd_kind, crd, finalizers=[item for item in held if item != CLEANUP_FINALIZER]
            )
