"""Persistence of the store in an SQLite file: a write request is answered after its change is on disk.

Group commit: changes that arrive during a commit are part of the next one. A commit is one transaction with all changes
up to one resourceVersion, so that the file is consistent after a crash of the process. Commits are synced to disk
(`synchronous=FULL`), so that acknowledged writes also survive a crash of the machine.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from trainop.local.api.storage.versioned_store import Change, Key, Store, Stored, Table
from trainop.runtime import Clock

Pending = dict[tuple[str, Key], Stored | None]
"""The latest state by table and key; None for a deleted object."""

_COUNTER_LEAD = 10_000
"""How far the saved resourceVersion counter runs ahead, so that a version that a watch has sent is never reused."""
_RETRY_SECONDS = 1.0
"""Seconds until the background task retries a failed commit."""

_TABLES = """
CREATE TABLE IF NOT EXISTS objects (
    resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (resource, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS signing_key (id INTEGER PRIMARY KEY CHECK (id = 1), key BLOB NOT NULL);
"""

log = structlog.get_logger(__name__)


class StorageError(Exception):
    """A commit failed; its changes stay pending and are part of the next commit."""


class Journal:
    """Records all changes of the store. `flush` waits for the commit; `run` commits in the background."""

    def __init__(self, path: Path, store: Store, clock: Clock) -> None:
        """Raises `OSError` if the file cannot be used: damaged, locked, no database, no permission."""
        self._store = store
        self._clock = clock
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._thread = ThreadPoolExecutor(1, "journal")
        self._pending: Pending = {}
        self._commit_under_way: asyncio.Future[None] | None = None
        self._saved = 0
        """All changes up to this resourceVersion are on disk."""
        self._filled = asyncio.Event()
        self._last_commit_failed = False
        with self._as_os_error():
            self._database = sqlite3.connect(path, timeout=0, check_same_thread=False, isolation_level=None)
            self._prepare()

    def _prepare(self) -> None:
        """Lock the file exclusively, because two servers would overwrite each other's changes, and check it."""
        for setting in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.executescript(_TABLES)
        (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict.splitlines()[-1])

    @contextmanager
    def _as_os_error(self) -> Iterator[None]:
        """Turn SQLite and decoding errors into an `OSError` with instructions."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise OSError(f"{self._path} is in use by another cluster") from error
            raise OSError(f"{self._path} cannot be opened: {error}") from error
        except (sqlite3.DatabaseError, msgspec.DecodeError, KeyError, TypeError) as error:
            raise OSError(
                f"{self._path} is damaged ({error}): restore a copy of it, or remove it (with its -wal file) to "
                "start an empty cluster"
            ) from error

    def __call__(self, table: Table, change: Change) -> None:
        self._pending[table.name, change.key] = change.new
        self._filled.set()

    def load(self) -> bool:
        """Load all objects into the store; False if the file is new. Raises `OSError`."""
        with self._as_os_error():
            row = self._database.execute("SELECT version FROM counter").fetchone()
            if row is None:
                return False
            rows = self._database.execute("SELECT resource, namespace, name, version, body FROM objects")
            for resource, namespace, name, version, body in rows:
                self._store.load(resource, Stored((namespace, name), version, body))
        self._store.resume(row[0])
        self._saved = self._store.version
        return True

    def signing_key(self, size: int) -> bytes:
        """The key of service account tokens, made at the first start. Raises `OSError`."""
        with self._as_os_error():
            row = self._database.execute("SELECT key FROM signing_key").fetchone()
            if row is None or len(row[0]) != size:
                row = (secrets.token_bytes(size),)
                self._database.execute("INSERT OR REPLACE INTO signing_key VALUES (1, ?)", row)
            key: bytes = row[0]
            return key

    async def run(self) -> None:
        """Commit the changes of background tasks, until cancelled."""
        while True:
            await self._filled.wait()
            try:
                await self.flush()
            except StorageError:
                await self._clock.sleep(_RETRY_SECONDS)

    async def retry_failed_commit(self) -> None:
        """Retry a failed commit; raises `StorageError` if it fails again.

        Call it before a write request is executed, so that no further changes are accepted while the disk is full.
        """
        if self._last_commit_failed:
            await self.flush()

    async def flush(self) -> None:
        """Wait until all changes made so far are on disk; raises `StorageError`."""
        wanted = self._store.version
        while self._saved < wanted:
            if self._commit_under_way is None or self._commit_under_way.done():
                self._commit_under_way = asyncio.ensure_future(self._commit_all())
                self._commit_under_way.add_done_callback(_retrieve_error)
            under_way = self._commit_under_way
            await asyncio.wait((under_way,))  # cancelling the wait does not cancel the commit
            under_way.result()

    async def _commit_all(self) -> None:
        pending, version = self._take_pending()
        try:
            await asyncio.wrap_future(self._thread.submit(self._commit, pending, version + _COUNTER_LEAD))
        except sqlite3.Error as error:
            self._pending = {**pending, **self._pending}
            self._filled.set()
            if not self._last_commit_failed:
                log.warning("changes cannot be written to disk", file=str(self._path), error=str(error))
            self._last_commit_failed = True
            raise StorageError(str(error)) from error
        if self._last_commit_failed:
            log.info("changes are written to disk again", file=str(self._path))
        self._last_commit_failed, self._saved = False, max(self._saved, version)

    def close(self) -> None:
        """Commit the pending changes. The counter is saved without lead, because no more versions are assigned."""
        self._thread.shutdown()
        pending, version = self._take_pending()
        try:
            self._commit(pending, version)
            self._saved = version
        except sqlite3.Error as error:
            log.warning("changes cannot be written to disk", file=str(self._path), error=str(error))
        finally:
            self._database.close()

    def _take_pending(self) -> tuple[Pending, int]:
        """Remove and return the pending changes, with the resourceVersion that they lead to."""
        pending, self._pending = self._pending, {}
        self._filled.clear()
        return pending, self._store.version

    def _commit(self, pending: Pending, version: int) -> None:
        """Write one transaction, on the journal's thread. `version` is the counter to save."""
        kept = [
            (resource, *key, stored.version, stored.body)
            for (resource, key), stored in pending.items()
            if stored is not None
        ]
        gone = [(resource, *key) for (resource, key), stored in pending.items() if stored is None]
        database = self._database
        database.execute("BEGIN")
        try:
            database.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", kept)
            database.executemany("DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", gone)
            database.execute("INSERT OR REPLACE INTO counter VALUES (1, ?)", (version,))
            database.execute("COMMIT")
        except sqlite3.Error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise


def _retrieve_error(commit: asyncio.Future[None]) -> None:
    """Mark the error of a commit without waiters as retrieved; `_commit_all` has logged it."""
    if not commit.cancelled():
        commit.exception()
