"""Saves log files beyond the lifetime of their pods, for logs that were not fully shown on the terminal."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainop.local import private_files
from trainop.runtime import Key


class SavedLogs:
    """Saves logs as hard links in a folder. Links use no extra space and survive the removal of the pod's files."""

    def __init__(self, folder: Path | None, find: Callable[[str, str, str], Path | None]) -> None:
        """`folder` is created on first use; None means a new temporary folder. `find` returns the log file of a
        container by namespace, pod and container name."""
        self._folder = folder
        self._find = find
        self._created: Path | None = None

    def save(self, pod: Key, container: str) -> Path | None:
        """Links the log of the container and returns the link; None if that is impossible."""
        source = self._find(pod.namespace, pod.name, container)
        if source is None:
            return None
        target = self._create_folder() / f"{pod.namespace}_{pod.name}_{container}_{source.name}"
        with suppress(OSError):
            target.unlink(missing_ok=True)
            os.link(source, target, follow_symlinks=False)
            return target
        return None

    def _create_folder(self) -> Path:
        if self._created is None:
            self._created = self._folder or Path(tempfile.mkdtemp(prefix="trainop-logs-"))
            private_files.ensure_directory(self._created)
        return self._created

    def close(self) -> None:
        """Removes the folder if it is empty."""
        if self._created is not None:
            with suppress(OSError):
                self._created.rmdir()


@contextmanager
def saved_logs(folder: Path | None, find: Callable[[str, str, str], Path | None]) -> Iterator[SavedLogs]:
    """A `SavedLogs` that is closed at the end of the `with` block."""
    logs = SavedLogs(folder, find)
    try:
        yield logs
    finally:
        logs.close()
