"""Objects on disk: an SQLite file that holds every change before the request that made it is answered.

Changes that come while a commit is under way go into the next one, so that many clients share the price of a commit.
A commit is one transaction with everything that the store held at one moment: after a crash the file holds a state that
the store really had. Each commit is flushed to the disk, so that a crash of the machine loses nothing either.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from trainop.local.api.storage.store import Change, Key, Store, Stored, Table
from trainop.runtime.clock import Clock

Pending = dict[tuple[str, Key], Stored | None]
"""By table and key, the last state; None if it was deleted."""

_LEAD = 10_000
"""How far the saved counter runs ahead: versions that only a watch has seen before a crash are not reused."""
_RETRY = 1.0
"""Seconds until a failed commit is tried again without a request that asks for it."""

_TABLES = """
CREATE TABLE IF NOT EXISTS objects (
    resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (resource, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL);
"""

log = structlog.get_logger(__name__)


class StorageError(Exception):
    """Changes could not be written to disk; they are tried again with the next ones."""


class Journal:
    """Follows the store. `settle` waits until the disk has it all; `run` writes what no request waits for."""

    def __init__(self, path: Path, store: Store, clock: Clock) -> None:
        """Raises `OSError` if the file cannot be had: damaged, held by another process, no database, no permission."""
        self._store = store
        self._clock = clock
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._thread = ThreadPoolExecutor(1, "journal")
        self._pending: Pending = {}
        self._commit_under_way: asyncio.Future[None] | None = None
        self._saved = 0
        """The version up to which everything is on disk."""
        self._filled = asyncio.Event()
        self._failed = False
        with self._explained():
            self._database = sqlite3.connect(path, timeout=0, check_same_thread=False, isolation_level=None)
            self._prepare()

    def _prepare(self) -> None:
        """Hold the file alone, as two servers on it would overwrite each other's changes."""
        for setting in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.executescript(_TABLES)
        (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict.splitlines()[-1])

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the errors of opening and reading into one that says what to do."""
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
        """Put what is on disk into the store; False if the file is new. Raises `OSError`."""
        with self._explained():
            row = self._database.execute("SELECT version FROM counter").fetchone()
            if row is None:
                return False
            rows = self._database.execute("SELECT resource, namespace, name, version, body FROM objects")
            for resource, namespace, name, version, body in rows:
                self._store.load(resource, Stored((namespace, name), version, body))
        self._store.resume(row[0])
        self._saved = self._store.version
        return True

    async def run(self) -> None:
        """Write what the background tasks change, until cancelled."""
        while True:
            await self._filled.wait()
            try:
                await self.settle()
            except StorageError:
                await self._clock.sleep(_RETRY)

    async def recover(self) -> None:
        """Write what could not be written before; raises `StorageError` while that is still so.

        To be awaited before a change is made, so that a full disk lets no more changes in.
        """
        if self._failed:
            await self.settle()

    async def settle(self) -> None:
        """Wait until every change up to now is on disk; raises `StorageError`."""
        wanted = self._store.version
        while self._saved < wanted:
            if self._commit_under_way is None or self._commit_under_way.done():
                self._commit_under_way = asyncio.ensure_future(self._commit_all())
                self._commit_under_way.add_done_callback(_retrieve)
            under_way = self._commit_under_way
            await asyncio.wait((under_way,))  # cancelling the wait does not cancel the commit
            under_way.result()

    async def _commit_all(self) -> None:
        pending, version = self._take()
        try:
            await asyncio.wrap_future(self._thread.submit(self._commit, pending, version + _LEAD))
        except sqlite3.Error as error:
            self._pending = {**pending, **self._pending}
            self._filled.set()
            if not self._failed:
                log.warning("changes cannot be written to disk", file=str(self._path), error=str(error))
            self._failed = True
            raise StorageError(str(error)) from error
        if self._failed:
            log.info("changes are written to disk again", file=str(self._path))
        self._failed, self._saved = False, max(self._saved, version)

    def close(self) -> None:
        """Write what is left, with the counter as it is: nothing was handed out beyond."""
        self._thread.shutdown()
        pending, version = self._take()
        try:
            self._commit(pending, version)
            self._saved = version
        except sqlite3.Error as error:
            log.warning("changes cannot be written to disk", file=str(self._path), error=str(error))
        finally:
            self._database.close()

    def _take(self) -> tuple[Pending, int]:
        """What has gathered, and the version of the store that it makes."""
        pending, self._pending = self._pending, {}
        self._filled.clear()
        return pending, self._store.version

    def _commit(self, pending: Pending, version: int) -> None:
        """One transaction; on the journal's thread. `version` is that of the saved counter."""
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


def _retrieve(commit: asyncio.Future[None]) -> None:
    """Look at the error of a commit for which nobody waits any more: it is logged already."""
    if not commit.cancelled():
        commit.exception()
