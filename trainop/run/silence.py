"""Notices jobs that have fallen silent, and prints once for each silence where their Python processes stand."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from trainop.explain.stacks import Process, render
from trainop.run.dumper import LOCALLY, Dumper, Target, rank_of
from trainop.run.screen import JobView
from trainop.runtime import Client, Clock, ConfigError, Json, load_config

DEFAULT_SILENCE = 300.0
"""Seconds."""

MAX_REPORTS = 3
"""Of one job in one run. A program that prints a line every ten minutes is not stuck."""

MAX_LINES = 200
"""Of one report."""

_PATIENCE = 60.0
"""Seconds for the stacks of one job."""
_LONGEST_PAUSE = 5.0
"""Seconds between two looks at most."""

Dump = Callable[[Sequence[Target]], Awaitable[list[Process]]]
"""The Python processes of running replicas."""


def local_dump(client: Client, kubeconfig: Path) -> Dump:
    """Asks the pods of an embedded cluster. py-spy is also found beside the interpreter that runs this."""

    async def dump(replicas: Sequence[Target]) -> list[Process]:
        config = load_config(str(kubeconfig))
        dumper = Dumper(client, config, search=str(Path(sys.executable).parent), hints=LOCALLY)
        return await dumper.dump(replicas)

    return dump


class Printer(Protocol):
    """The part of `Screen` that reports are printed to."""

    def note(self, text: str, style: str = ...) -> None: ...

    async def drained(self) -> None: ...


class _Running(NamedTuple):
    name: str
    pod: Json
    rank: int | None


class SilenceWatch:
    """Watches jobs until it is cancelled. `after` in seconds: a job with a running replica that has printed nothing for
    that long is silent; 0 disables the watch. A new line ends a silence."""

    def __init__(self, clock: Clock, after: float, dump: Dump, screen: Printer) -> None:
        self._clock = clock
        self._after = after
        self._dump = dump
        self._screen = screen
        self._reported: dict[int, float] = {}
        """By identity of the view: when the last line before the reported silence came."""
        self._reports: dict[int, int] = {}

    @asynccontextmanager
    async def watching(self, jobs: Callable[[], Sequence[JobView]]) -> AsyncIterator[None]:
        """Watches `jobs`, which returns the unfinished ones, during the `with` block; its end waits for no stacks."""
        task = asyncio.create_task(self.run(jobs)) if self._after > 0 else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()

    async def run(self, jobs: Callable[[], Sequence[JobView]]) -> None:
        while True:
            await self._screen.drained()  # while the reader of the output is slow, logs are not read
            await self._clock.sleep(min(self._after / 4, _LONGEST_PAUSE))
            for job in jobs():
                if self._is_silent(job):
                    await self._report(job, jobs)

    def _is_silent(self, job: JobView) -> bool:
        heard = _heard(job)
        return (
            bool(_running(job))
            and self._clock.monotonic() - heard >= self._after
            and self._reported.get(id(job)) != heard
            and self._reports.get(id(job), 0) < MAX_REPORTS
        )

    async def _report(self, job: JobView, jobs: Callable[[], Sequence[JobView]]) -> None:
        heard, seconds = _heard(job), self._clock.monotonic() - _heard(job)
        try:
            async with asyncio.timeout(_PATIENCE):
                processes = await self._dump(_running(job))
        except (ConfigError, OSError, TimeoutError) as error:
            processes = [Process("stacks", problem=str(error) or f"not read within {_PATIENCE:g} s")]
        self._reported[id(job)] = heard
        if job not in jobs() or (_heard(job) != heard and not any(each.signalled for each in processes)):
            return
        self._reported[id(job)] = _heard(job)  # a dump of faulthandler is in the log, and ends no silence
        self._reports[id(job)] = self._reports.get(id(job), 0) + 1
        for line, style in self._lines(job, processes, seconds):
            self._screen.note(line, style)

    def _lines(self, job: JobView, processes: Sequence[Process], seconds: float) -> Iterator[tuple[str, str]]:
        yield (
            f"{job.kind} {job.name} has printed nothing for {seconds:.0f} s. Stacks of its Python processes:",
            "yellow",
        )
        lines = list(islice(render(processes), MAX_LINES + 1))
        yield from ((f"  {line}".rstrip(), "") for line in lines[:MAX_LINES])
        if len(lines) > MAX_LINES:
            yield "  ... and more; trainop stacks shows all", ""
        if self._reports[id(job)] == MAX_REPORTS:
            yield f"  Further silences of {job.name} are not reported.", ""


def _running(job: JobView) -> list[Target]:
    running = (each for each in job.replicas.values() if each.phase == "Running" and each.pod is not None)
    return [_Running(each.name, each.pod or {}, rank_of(each.pod or {})) for each in running]


def _heard(job: JobView) -> float:
    """When a replica began or printed something last, on the monotonic clock."""
    return max((each.heard for each in job.replicas.values()), default=0.0)
