"""Writes the folder of a run while it runs, in a thread, so that a slow disk never blocks the event loop.

What is not written because the disk is full, or the folder may not be written, is lost; the run goes on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from trainop.kept.folder import Run
from trainop.kept.logfile import LogFile
from trainop.local import private_files
from trainop.local.api.storage.versioned_store import Change, Table
from trainop.runtime import Json

MAX_LOG, MIN_LOG = 8 << 20, 64 << 10
"""Bytes of one log; the smaller limit holds for all logs of a run with very many."""
MAX_LOGS = 256 << 20
"""Bytes of all logs of a run."""
MAX_FILES = 2_000
"""Logs of a run; of a container that crashes every second the oldest are removed."""
MAX_OBJECTS = 16 << 20
"""Bytes of `objects.jsonl` from which it may be written anew with only the last state of each object."""
MAX_GONE = 5_000
"""Objects that do not exist any more of which the last state is kept."""
MAX_QUEUED = 32 << 20
"""Bytes of output that wait for the disk; more are left out, with a line that says so."""
_LOST = b"[%d bytes of this log are not kept: the disk was too slow]\n"
_LAST = 10.0
"""Seconds for the rest at the end."""

Task = Callable[[], None]


class Recorder:
    """Records objects and logs. It is a listener of the API server's store; call `close` at the end."""

    def __init__(self, run: Run, tables: Collection[str], failed: Callable[[str], None]) -> None:
        """`failed` is called once, from another thread, with the reason why the rest of the run is not kept."""
        self.run = run
        self._tables = tables
        self._failed = failed
        self._attempts: dict[tuple[str, str, str], int] = {}
        self._logs = _Logs()
        self._objects = _Objects(run.objects)
        self._queued = 0
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        self.broken = self._stops = False
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def __call__(self, table: Table, change: Change) -> None:
        if table.name in self._tables:
            stored, deleted = change.new or change.deleted or change.old, change.new is None
            if stored is not None:
                body, uid = stored.body, stored.uid
                self.submit(lambda: self._objects.add(table.name, uid, body, deleted=deleted))

    def log(self, metadata: Json, container: str) -> LogCopy:
        """The copy of the next run of a container in the pod with this metadata."""
        place = str(metadata["namespace"]), str(metadata["name"]), container
        attempt = self._attempts[place] = self._attempts.get(place, 0) + 1
        return LogCopy(self, self.run.logs.joinpath(*place[:2], f"{container}.{attempt}.log"))

    def submit(self, task: Task) -> None:
        """Queues something for the thread; it is left out after an error."""
        if not self.broken:
            self._queue.put(task)

    def write_log(self, path: Path, data: bytes, microseconds: int, *, always: bool = False) -> bool:
        """Queues output of a container; False if too much waits already."""
        if self._queued > MAX_QUEUED and not always:
            return False
        self._queued += len(data)

        def write() -> None:
            self._queued -= len(data)
            self._logs.append(path, data, microseconds)

        self.submit(write)
        return True

    def end_log(self, path: Path) -> None:
        self.submit(lambda: self._logs.end(path))

    def close(self) -> None:
        """Writes the rest, for at most ten seconds."""
        self._queue.put(None)
        self._thread.join(_LAST)

    def _work(self) -> None:
        try:
            while True:
                task = self._queue.get()
                self._stops = task is None
                while task is not None:
                    task()
                    task = self._next()
                self._objects.flush()
                if self._stops:
                    return
        except OSError as error:
            self.broken = True
            self._failed(f"{error.strerror or error} ({self.run.path})")
        finally:
            with suppress(OSError):
                self._logs.close()
            self._objects.close()

    def _next(self) -> Task | None:
        """The next task that waits already; None if there is none, or the end has come."""
        try:
            task = self._queue.get_nowait()
        except Empty:
            return None
        self._stops = task is None
        return task


class LogCopy:
    """What the node writes the output of one run of a container to."""

    def __init__(self, recorder: Recorder, path: Path) -> None:
        self._recorder = recorder
        self._path = path
        self._lost = self._last = 0

    def append(self, data: bytes, microseconds: int) -> None:
        """Whole lines, or a part of a line that is very long; `microseconds` since 1970."""
        if self._lost:
            if self._recorder.write_log(self._path, _LOST % self._lost + data, microseconds):
                self._lost = 0
                return
        elif self._recorder.write_log(self._path, data, microseconds):
            return
        self._lost, self._last = self._lost + len(data), microseconds

    def end(self) -> None:
        if self._lost:
            self._recorder.write_log(self._path, _LOST % self._lost, self._last, always=True)
        self._recorder.end_log(self._path)


class _Logs:
    """The logs of a run, with the limits of their sizes."""

    def __init__(self) -> None:
        self._files: dict[Path, LogFile] = {}
        self._limit = MAX_LOG
        self._total = 0

    def append(self, path: Path, data: bytes, microseconds: int) -> None:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = LogFile(path)
        self._total -= file.size
        file.append(data, microseconds, self._limit)
        self._total += file.size
        if self._total > MAX_LOGS:
            self._shrink()
        if len(self._files) > MAX_FILES:
            self._remove_oldest(lambda: len(self._files) > MAX_FILES)

    def _shrink(self) -> None:
        """Cuts the longest logs, or removes the oldest of attempts that have ended."""
        if self._limit > MIN_LOG:
            self._limit //= 2
            for file in self._files.values():
                if file.size > self._limit:
                    file.cut(self._limit)
            self._total = sum(file.size for file in self._files.values())
        else:
            self._remove_oldest(lambda: self._total > MAX_LOGS * 3 // 4)

    def _remove_oldest(self, too_many: Callable[[], bool]) -> None:
        for path, file in list(self._files.items()):
            if not too_many():
                return
            if file.ended:
                self._total -= file.size
                file.remove()
                del self._files[path]

    def end(self, path: Path) -> None:
        if path in self._files:
            self._files[path].end()

    def close(self) -> None:
        for file in self._files.values():
            file.end()


_BOOL = (b"false", b"true")


class _Objects:
    """Appends the state of objects to a file of lines, `{"table": "pods", "deleted": false, "object": {...}}`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._latest: dict[str, bytes] = {}
        """By UID, in the order of the last change."""
        self._gone: dict[str, None] = {}
        self._pending: dict[str, bytes] = {}
        self._size = self._live = 0
        self._file: Any = None

    def add(self, table: str, uid: str, body: bytes, *, deleted: bool) -> None:
        line = b'{"table": "%s", "deleted": %s, "object": %s}\n' % (table.encode(), _BOOL[deleted], body)
        self._pending[uid] = line
        self._live += len(line) - len(self._latest.pop(uid, b""))
        self._latest[uid] = line
        if deleted:
            self._gone[uid] = None
            if len(self._gone) > MAX_GONE:
                oldest = next(iter(self._gone))
                del self._gone[oldest]
                self._live -= len(self._latest.pop(oldest, b""))

    def flush(self) -> None:
        """Writes what has changed. Raises `OSError`."""
        if not self._pending:
            return
        if self._file is None:
            self._file = os.fdopen(private_files.open_file(self._path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)
        text = b"".join(self._pending.values())
        self._pending.clear()
        self._size += len(text)
        while text:
            text = text[self._file.write(text) :]
        if self._size > max(MAX_OBJECTS, 4 * self._live):
            self._rewrite()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _rewrite(self) -> None:
        fresh = self._path.with_name(f".{self._path.name}.new")
        fresh.unlink(missing_ok=True)
        file = os.fdopen(private_files.open_file(fresh, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)
        for line in self._latest.values():
            file.write(line)
        fresh.replace(self._path)
        self._file.close()
        self._file, self._size = file, self._live


def read_objects(path: Path) -> dict[str, tuple[str, bool, Json]]:
    """UID -> table, whether the object was deleted, and its last state, in the order of the last change. A line that
    was not written completely is left out."""
    found: dict[str, tuple[str, bool, Json]] = {}
    with suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            with suppress(msgspec.DecodeError, KeyError, TypeError):
                entry = msgspec.json.decode(line)
                uid = entry["object"]["metadata"]["uid"]
                found.pop(uid, None)
                found[uid] = entry["table"], entry["deleted"], entry["object"]
    return found


def read_states(path: Path, tables: Collection[str], namespace: str, name: str) -> Iterator[Json]:
    """The states of an object, one after the other, as far as they are kept. Raises `OSError`."""
    wanted = name.encode()
    with suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            with suppress(msgspec.DecodeError, KeyError, TypeError):
                if wanted not in line:  # decoding costs more
                    continue
                entry = msgspec.json.decode(line)
                metadata = entry["object"]["metadata"]
                if entry["table"] in tables and (metadata.get("namespace"), metadata["name"]) == (namespace, name):
                    yield entry["object"]
