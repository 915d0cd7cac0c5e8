"""Logs that were too long for the screen, kept beyond the pods that wrote them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainop.local import private
from trainop.runtime.objects.metadata import Key


class KeptLogs:
    """Hard links in `folder`, which is made when the first is: they cost no space, and outlive the cluster's files."""

    def __init__(self, folder: Path | None, find: Callable[[str, str, str], Path | None]) -> None:
        """`folder` None is a new one among the temporary files; `find` knows namespace, pod and container."""
        self._folder = folder
        self._find = find
        self._made: Path | None = None

    def keep(self, pod: Key, container: str) -> Path | None:
        """Where the log of the container is to be found from now on; None if it cannot be kept."""
        source = self._find(pod.namespace, pod.name, container)
        if source is None:
            return None
        kept = self._place() / f"{pod.namespace}_{pod.name}_{container}_{source.name}"
        with suppress(OSError):
            kept.unlink(missing_ok=True)
            os.link(source, kept, follow_symlinks=False)
            return kept
        return None

    def _place(self) -> Path:
        if self._made is None:
            self._made = self._folder or Path(tempfile.mkdtemp(prefix="trainop-logs-"))
            private.make_folder(self._made)
        return self._made

    def close(self) -> None:
        """Removes the folder if nothing had to be kept."""
        if self._made is not None:
            with suppress(OSError):
                self._made.rmdir()


@contextmanager
def kept_logs(folder: Path | None, find: Callable[[str, str, str], Path | None]) -> Iterator[KeptLogs]:
    """For a `with` block."""
    logs = KeptLogs(folder, find)
    try:
        yield logs
    finally:
        logs.close()
