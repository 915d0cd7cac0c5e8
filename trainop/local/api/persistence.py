"""Objects on disk: an SQLite file that follows the store a moment behind.

Writes are gathered and committed in batches by a thread of their own, so that no request waits for the disk. After a
crash the file holds a state that the store really had, at most one batch old; versions never go back, because the
counter is kept ahead of what was handed out.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from pathlib import Path

from trainop.local.api.store import Change, Key, Store, Stored, Table

Pending = dict[tuple[str, Key], Stored | None]
"""By table and key, the last state; None if it was deleted."""

_LEAD = 10_000
"""How far the saved counter runs ahead: versions handed out after the last batch before a crash are not reused."""

_TABLES = """
CREATE TABLE IF NOT EXISTS objects (
    resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (resource, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL);
"""


class Journal:
    """Follows the store; `run` writes what gathers, `close` the rest."""

    def __init__(self, path: Path, store: Store) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._store = store
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.executescript(_TABLES)
        self._pending: Pending = {}
        self._batches: deque[tuple[Pending, int]] = deque()
        self._writing = threading.Lock()
        self._filled = asyncio.Event()

    def __call__(self, table: Table, change: Change) -> None:
        self._pending[table.name, change.key] = change.new
        self._filled.set()

    def load(self) -> bool:
        """Put what is on disk into the store; False if the file is new."""
        row = self._database.execute("SELECT version FROM counter").fetchone()
        if row is None:
            return False
        rows = self._database.execute("SELECT resource, namespace, name, version, body FROM objects")
        for resource, namespace, name, version, body in rows:
            self._store.load(resource, Stored((namespace, name), version, body))
        self._store.resume(row[0])
        return True

    async def run(self) -> None:
        """Write batches until cancelled."""
        while True:
            await self._filled.wait()
            self._take(_LEAD)
            await asyncio.to_thread(self._write)

    def close(self) -> None:
        """Write what is left, with the counter as it is: nothing was handed out beyond."""
        self._take(0)
        self._write()
        self._database.close()

    def _take(self, lead: int) -> None:
        """Make a batch of what has gathered."""
        self._batches.append((self._pending, self._store.version + lead))
        self._pending = {}
        self._filled.clear()

    def _write(self) -> None:
        """Commit the batches in their order, whichever thread gets to it."""
        with self._writing:
            while self._batches:
                self._commit(*self._batches.popleft())

    def _commit(self, pending: Pending, version: int) -> None:
        kept = [
            (resource, *key, stored.version, stored.body)
            for (resource, key), stored in pending.items()
            if stored is not None
        ]
        gone = [(resource, *key) for (resource, key), stored in pending.items() if stored is None]
        database = self._database
        database.execute("BEGIN")
        database.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", kept)
        database.executemany("DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", gone)
        database.execute("INSERT OR REPLACE INTO counter VALUES (1, ?)", (version,))
        database.execute("COMMIT")
