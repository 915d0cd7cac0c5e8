"""The folders of kept runs: `$XDG_STATE_HOME/trainop/runs/NAME`. This module owns their layout.

| file | what it has |
|---|---|
| `run.json` | the version of the format, the command, the process, when it began and ended, the exit code |
| `objects.jsonl` | jobs, pods, events and more, each whenever it changed: the last line of a UID is its final state |
| `logs/NAMESPACE/POD/CONTAINER.ATTEMPT.log` | the output, each line with its time (`logfile`) |
| `kubeconfig` | of the run's API server, while it runs |

Folders have mode 0700 and files 0600. A run that is killed leaves a folder that can be read.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from trainop.errors import StartError
from trainop.kept.process import ProcessIdentity, this_process
from trainop.local import private_files

VERSION = 1
"""Of the format. Folders of newer ones are neither read nor removed, unless they are named."""

KEEP_RUNS, KEEP_BYTES = 20, 1 << 30
"""Of all runs together; the oldest that have ended are removed. Variables TRAINOP_KEEP_RUNS and TRAINOP_KEEP_BYTES."""

ATTEMPT = "attempt"
"""A parameter of requests for logs that Kubernetes lacks: from 1, over restarted containers and replaced pods."""

_RECORD, _REMOVED = "run.json", ".removed-"
_MAX_STEM = 40
_ABANDONED_AFTER = 3600.0
"""Seconds after which a folder without a record, of a process that was killed at once, may be removed."""


class JobName(msgspec.Struct, frozen=True):
    """Names one job of a run."""

    api_version: str
    kind: str
    namespace: str
    name: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `run.json`. Times in RFC 3339."""

    version: int
    command: list[str]
    """The arguments of `trainop run`."""
    folder: str
    """In which it was called."""
    jobs: list[JobName]
    process: ProcessIdentity
    began: str
    ended: str = ""
    code: int | None = None


class _Version(msgspec.Struct):
    version: int


@dataclass(frozen=True, slots=True)
class Run:
    """A kept run. `record` is None if it cannot be read, and `problem` says why."""

    path: Path
    record: Record | None = None
    problem: str = ""
    is_newer: bool = False

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def objects(self) -> Path:
        return self.path / "objects.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def state(self) -> str:
        """Running, Succeeded, Failed, Stopped (by a signal), Killed, Elsewhere or Unreadable."""
        record = self.record
        if record is None:
            return "Unreadable"
        if record.code is not None:
            return "Succeeded" if not record.code else "Stopped" if record.code > 128 else "Failed"
        if record.process.is_elsewhere:
            return "Elsewhere"
        return "Running" if record.process.lives else "Killed"

    @property
    def may_run(self) -> bool:
        return self.state in {"Running", "Elsewhere"}

    def begin(self, record: Record) -> Run:
        """Writes the record. Raises `OSError`."""
        private_files.replace_text(self.path / _RECORD, msgspec.json.encode(record).decode() + "\n")
        return replace(self, record=record, problem="")

    def finish(self, code: int) -> Run:
        """Writes how it ended, and removes what only a living run needs. Raises `OSError`."""
        self.kubeconfig.unlink(missing_ok=True)
        if self.record is None:
            return self
        return self.begin(msgspec.structs.replace(self.record, ended=_now(), code=code))

    def remove(self) -> None:
        """Removes the folder; others see it at once as gone. Without effect if another process has removed it."""
        hidden = self.path.with_name(f"{_REMOVED}{self.name}-{os.getpid()}")
        with suppress(OSError):
            self.path.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)

    def size(self) -> int:
        """Bytes of its files."""
        found = 0
        for file in self.path.rglob("*"):
            with suppress(OSError):
                found += file.stat(follow_symlinks=False).st_size
        return found


def runs_folder(variables: Mapping[str, str] = os.environ) -> Path:
    """Where runs are kept. Raises `OSError` without a home."""
    given = variables.get("XDG_STATE_HOME", "")
    if Path(given).is_absolute():  # the specification of XDG says that others are ignored
        return Path(given) / "trainop" / "runs"
    try:
        return Path.home() / ".local" / "state" / "trainop" / "runs"
    except RuntimeError:
        raise OSError("this user has no home folder; set XDG_STATE_HOME") from None


def create_run(stem: str, command: Sequence[str], jobs: Sequence[JobName]) -> Run:
    """A new folder `STEM-N` for a run of this process. Raises `OSError`."""
    root = runs_folder()
    private_files.ensure_directory(root)
    stem = re.sub("[^a-z0-9]+", "-", stem.lower())[:_MAX_STEM].strip("-") or "run"
    pattern = re.compile(rf"{re.escape(stem)}-([0-9]{{1,9}})")
    number = max((int(found[1]) for each in os.listdir(root) if (found := pattern.fullmatch(each))), default=0)  # noqa: PTH208  # names only
    record = Record(
        version=VERSION, command=[*command], folder=str(Path.cwd()), jobs=[*jobs], process=this_process(), began=_now()
    )
    while True:
        number += 1
        run = Run(root / f"{stem}-{number}")
        with suppress(FileExistsError):  # another process was faster
            run.path.mkdir(mode=0o700)
            return run.begin(record)


def list_runs() -> list[Run]:
    """All runs, the newest first. Raises `StartError` if the folder cannot be read."""
    try:
        root = runs_folder()
        found = [read_run(each) for each in root.iterdir() if each.is_dir() and not each.name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StartError(f"kept runs cannot be read: {error}") from error
    return sorted(found, key=lambda run: run.record.began if run.record else "", reverse=True)


def find_run(name: str) -> Run | None:
    """The run of this name; None if there is none. Raises `StartError` if it cannot be read, or is of a newer
    version."""
    try:
        path = runs_folder() / name
        if not name or "/" in name or name.startswith(".") or not path.is_dir():
            return None
    except (OSError, ValueError):
        return None
    run = read_run(path)
    if run.record is None:
        raise StartError(f"run {name} cannot be read: {run.problem}")
    return run


def read_run(path: Path) -> Run:
    """Reads the record of a folder; what cannot be read is said in the result."""
    try:
        content = private_files.read_start(path / _RECORD, 1 << 20)
        version = msgspec.json.decode(content, type=_Version).version
        if version > VERSION:
            text = f"it has format {version}, and this trainop reads {VERSION}: upgrade trainop, or remove {path}"
            return Run(path, problem=text, is_newer=True)
        return Run(path, msgspec.json.decode(content, type=Record))
    except FileNotFoundError:
        return Run(path, problem=f"{path / _RECORD} is missing")
    except OSError as error:
        return Run(path, problem=str(error))
    except msgspec.MsgspecError as error:
        return Run(path, problem=f"{path / _RECORD} is damaged: {error}")


def prune(keep: int, max_bytes: int) -> None:
    """Removes the oldest runs that have ended, until at most `keep` runs of at most `max_bytes` remain."""
    root = runs_folder()
    for left in root.glob(f"{_REMOVED}*"):
        shutil.rmtree(left, ignore_errors=True)
    runs = list_runs()
    count, size = len(runs), 0
    sizes = {run.name: run.size() for run in runs}
    size = sum(sizes.values())
    for run in reversed(runs):
        if count <= keep and size <= max_bytes:
            return
        if not run.may_run and not run.is_newer and not _is_fresh(run):
            run.remove()
            count, size = count - 1, size - sizes[run.name]


def limits(variables: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """How many runs and bytes are kept. Raises `ValueError` that names the variable."""
    return tuple(_limits(variables))  # type: ignore[return-value]  # there are two


def _limits(variables: Mapping[str, str]) -> Iterator[int]:
    for name, default in (("TRAINOP_KEEP_RUNS", KEEP_RUNS), ("TRAINOP_KEEP_BYTES", KEEP_BYTES)):
        text = variables.get(name, "")
        if text and not text.isdecimal():
            raise ValueError(f"{name}={text!r}: expected a whole number from 0")
        yield int(text) if text else default


def _is_fresh(run: Run) -> bool:
    """Whether a process may be about to write its record."""
    if run.record is not None:
        return False
    with suppress(OSError):
        return time.time() - run.path.stat().st_mtime < _ABANDONED_AFTER
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
