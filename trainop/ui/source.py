"""Reads what the page shows through one connection: a cluster with the user's rights, or a kept run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import yaml

from trainop.commands.connection import Connection
from trainop.commands.evidence import Collector
from trainop.commands.logs import LogOptions, Logs, Positions
from trainop.commands.logsink import Sink
from trainop.commands.ps import read_rows
from trainop.commands.target import Target, find_job, job_types, replica_of
from trainop.explain.stacks import render
from trainop.explain.story import tell
from trainop.explain.why import diagnose
from trainop.kept.folder import Run
from trainop.kept.recorder import read_states
from trainop.run.dumper import Dumper
from trainop.runtime import PODS, Json
from trainop.runtime.lowlevel import cut, printable, read_time
from trainop.ui.model import Plots, clean, job_view, why_view

MAX_JOBS = 500
"""In the list; the newest."""
MAX_YAML = 256 * 1024
PACE = 0.2
"""Seconds between two reads of the logs: a read for each line would take two thirds of the time."""
KEPT_LINES = 20_000
"""Last lines of each replica of a run that has ended."""


class JobId(NamedTuple):
    """Names one job."""

    namespace: str
    kind: str
    name: str


def read_id(text: str) -> JobId:
    """Of `NAMESPACE/KIND/NAME`. Raises `ValueError`."""
    namespace, _, rest = text.partition("/")
    kind, _, name = rest.partition("/")
    known = {each.resource.kind for each in job_types()}
    if not namespace or kind not in known or not name or any(part in {".", ".."} for part in (namespace, name)):
        raise ValueError(f"{printable(text)[:200]!r}: expected NAMESPACE/KIND/NAME of a job")
    return JobId(namespace, kind, name)


@dataclass(slots=True)
class Source:
    """What is read. The `connection` may be replaced, by one to what a run has left.

    All methods raise `StartError` if the job is not there, `ApiError`, `ConnectionError` and `TimeoutError`.
    """

    connection: Connection
    namespace: str | None
    """None: all."""
    title: str
    run: Run | None = None
    """Which keeps the reports of progress."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing changes any more."""
        return self.connection.now is not None

    async def jobs(self) -> Json:
        """The list of jobs, the newest first."""
        rows, notes = await read_rows(self.connection, self.namespace)
        left = f"{len(rows) - MAX_JOBS} older jobs are left out; choose a namespace"
        return {
            "title": clean(self.title),
            "ended": self.has_ended,
            "jobs": [{name: clean(value) for name, value in asdict(row).items()} for row in rows[:MAX_JOBS]],
            "notes": [clean(each) for each in self._explain(notes)] + [left] * (len(rows) > MAX_JOBS),
        }

    def _explain(self, notes: list[str]) -> list[str]:
        """What could not be read. Who may not read any kind is told so once, and what to do."""
        if len(notes) < len(job_types()):
            return notes
        if self.namespace is None:
            start = "you may not list the jobs of all namespaces: choose one, or ask for the right"
        else:
            start = f"you may not list jobs in namespace {self.namespace}: choose another, or ask for the right"
        return [f"{start} ({notes[0]})"]

    async def job(self, wanted: JobId) -> tuple[Json, Json]:
        """What the page shows of a job, and the job."""
        target = await self._find(wanted)
        evidence = await Collector(self.connection, target).collect_story()
        return job_view(evidence, tell(evidence)), target.raw

    def plots(self, wanted: JobId) -> Plots:
        """The reports of before, as far as they are kept."""
        found = Plots()
        for job in self._states(wanted):
            status = job.get("status") or {}
            reported = status.get("trainerStatus") if isinstance(status, dict) else None
            at = read_time(reported.get("lastUpdatedTime")) if isinstance(reported, dict) else None
            if at is not None:
                found.take(status, at.timestamp())
        return found

    def _states(self, wanted: JobId) -> Iterator[Json]:
        if self.run is not None:
            tables = {str(each.resource) for each in job_types() if each.resource.kind == wanted.kind}
            yield from read_states(self.run.objects, tables, wanted.namespace, wanted.name)

    async def why(self, wanted: JobId) -> Json:
        """The explanation of `trainop why`."""
        return why_view(diagnose(await Collector(self.connection, await self._find(wanted)).collect()))

    async def yaml(self, wanted: JobId) -> Json:
        """The manifest, without `managedFields`."""
        raw = (await self._find(wanted)).raw
        metadata = {name: value for name, value in raw["metadata"].items() if name != "managedFields"}
        text = yaml.safe_dump({**raw, "metadata": metadata}, sort_keys=False, allow_unicode=True)
        return {"text": cut(printable(text), MAX_YAML)}

    async def stacks(self, wanted: JobId) -> Json:
        """Where the Python processes stand, as `trainop stacks`."""
        if self.has_ended or self.connection.config is None:
            return {
                "text": "The processes have ended." if self.has_ended else "They can be read over the network only."
            }
        target = await self._find(wanted)
        listing = await self.connection.client.list(PODS, target.namespace, label_selector=target.pod_selector)
        running = [each for each in listing.items if (each.get("status") or {}).get("phase") == "Running"]
        if not running:
            return {"text": "No replica is running."}
        processes = await Dumper(self.connection.client, self.connection.config).dump(list(map(replica_of, running)))
        return {"text": cut(printable("\n".join(render(processes))), MAX_YAML)}

    async def logs(self, wanted: JobId, sink: Sink, positions: Positions) -> None:
        """Passes the merged logs on, from `positions`, until the job has finished; those of a run that has ended by
        time."""
        target = await self._find(wanted)
        if self.has_ended:
            options = LogOptions(tail=KEPT_LINES)
            sink.note(f"of each replica at most the last {KEPT_LINES:,} lines of its last attempt")
            await Logs(self.connection, target, options, sink, positions).show(follow=False)
        else:
            await Logs(self.connection, target, LogOptions(pace=PACE), sink, positions).show(follow=True)

    async def _find(self, wanted: JobId) -> Target:
        return await find_job(self.connection, f"{wanted.kind}/{wanted.name}", wanted.namespace)
