"""`trainop logs`: the logs of all replicas of a job, merged by time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import click

from trainop.commands.connection import Connection
from trainop.commands.jobs import complete_run, has_ended, open_job
from trainop.commands.loglines import Line, Position, blocks_of
from trainop.commands.logsink import Identity, Printer, Sink, Source
from trainop.commands.options import cluster_options, run_command
from trainop.commands.target import Replica, Target, replica_of
from trainop.engine.durations import parse_duration
from trainop.errors import StartError
from trainop.kept.folder import ATTEMPT
from trainop.runtime import PODS, ApiError, Json, NotFoundError
from trainop.runtime.lowlevel import Request, Stream, printable

MAX_REPLICAS = 64
"""Replicas whose logs are read at once, unless the user asks for more. Each is a connection."""

FAILED_LINES = 20
"""Lines of the replica that failed first which are shown before all others."""

PACED = 32
"""Logs that are read at the pace of the options. More are read more seldom, so that all cost as much as these."""

POLL = 2.0
"""Seconds between two looks at the pods and the job with --follow."""

ATTEMPTS = 3
"""To read the rest of a log that broke off, once the job has finished."""

FAILURES = (ApiError, ConnectionError, TimeoutError)
"""Of a request."""

Positions = dict[Identity, Position]


class End(Enum):
    """How the reading of a log that is followed has ended."""

    COMPLETE = 1
    BROKEN = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What the user asked for."""

    role: str = ""
    index: int | None = None
    rank: int | None = None
    container: str = ""
    tail: int | None = None
    since: float | None = None
    """Seconds."""
    previous: bool = False
    attempt: int | None = None
    timestamps: bool = False
    max_replicas: int = MAX_REPLICAS
    pace: float = 0.0
    """Seconds between two reads of a log that is followed, more if more than `PACED` are; 0: a line is read when it
    arrives."""

    def selects(self, replica: Replica) -> bool:
        return (
            (not self.role or replica.role == self.role.lower())
            and self.index in {None, replica.index}
            and self.rank in {None, replica.rank}
        )

    @property
    def query(self) -> dict[str, str]:
        """Parameters of the request for a log."""
        asked = {
            "tailLines": None if self.tail is None else str(self.tail),
            "sinceSeconds": None if self.since is None else str(max(1, round(self.since))),
            "previous": "true" if self.previous else None,
            ATTEMPT: None if self.attempt is None else str(self.attempt),
        }
        return {"timestamps": "true", **{name: value for name, value in asked.items() if value is not None}}


@click.command("logs")
@click.argument("job", shell_complete=complete_run)
@cluster_options
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has finished, replaced pods included.")
@click.option("--role", default="", help="Only replicas of this role, such as worker.")
@click.option("--index", type=click.IntRange(min=0), help="Only replicas with this index.")
@click.option("--rank", type=click.IntRange(min=0), help="Only the replica with this rank, as its variables say.")
@click.option("-c", "--container", default="", help="This container. Default: the first of each pod.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last lines of each replica.")
@click.option("--since", help="Only lines that are not older, such as 10m or 1h30m.")
@click.option("-p", "--previous", is_flag=True, help="The run of each container before its last restart.")
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    help="Of a kept run: this attempt of each container, from 1; restarts and replaced pods count.",
)
@click.option("--timestamps", is_flag=True, help="Show the time of each line.")
@click.option(
    "--max-replicas", type=click.IntRange(min=1), default=MAX_REPLICAS, show_default=True, help="Read at most so many."
)
def logs_command(job: str, follow: bool, since: str | None, **given: object) -> None:
    """Show the logs of JOB (NAME, KIND/NAME, or a kept run), merged by time, each line with its replica.

    If the job has failed, the last lines of the replica that failed first come before all others.
    """
    cluster = {name: _text(given.pop(name)) for name in ("kubeconfig", "context", "namespace")}
    seconds = _read_since(since)
    options = LogOptions(since=seconds, **given)  # type: ignore[arg-type]  # click has checked them

    run_command(_show(job, cluster, options, follow=follow))


async def _show(job: str, cluster: dict[str, str | None], options: LogOptions, *, follow: bool) -> int:
    """The log of a run that ends while it is followed goes on with what its folder has."""
    positions: Positions = {}
    while True:
        live = False
        try:
            async with open_job(job, cluster, kept=options.attempt is not None) as (connection, target):
                live = follow and connection.now is None
                return await Logs(connection, target, options, positions=positions).show(follow=live)
        except BrokenPipeError:
            raise
        except FAILURES:
            if not live or not await has_ended(job, cluster):
                raise


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _read_since(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: expected a duration such as 90s, 10m or 1h30m", param_hint="--since"
        ) from None


class Logs:
    """Passes the logs of one job to `sink`."""

    def __init__(
        self,
        connection: Connection,
        target: Target,
        options: LogOptions,
        sink: Sink | None = None,
        positions: Positions | None = None,
    ) -> None:
        """`positions`: how far the logs have been passed on before; they move on."""
        self._client = connection.client
        self._target = target
        self._options = options
        self._sink = sink or Printer(timestamps=options.timestamps)
        self._say = self._sink.note
        self._said: set[str] = set()
        self._positions: Positions = {} if positions is None else positions

    def _say_once(self, text: str) -> None:
        """For what is found at every look at the pods."""
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    async def show(self, *, follow: bool) -> int:
        """Returns the exit code: 1 if there is nothing to show."""
        replicas = await self._replicas()
        if not replicas and not follow:
            return self._explain_absence()
        failed = self._failed_first(replicas)
        self._sink.begin(failed.name if failed else "", [source.label for source in self._sources(replicas)])
        if follow:
            await self._follow()
            return 0
        if failed is not None and len(replicas) > 1 and self._options.tail is None and not self._positions:
            await self._show_failed(failed)
        await self._show_merged(self._sources(replicas))
        return 0

    async def _replicas(self) -> list[Replica]:
        """The selected replicas, at most as many as allowed; those that have failed first."""
        listing = await self._client.list(PODS, self._target.namespace, label_selector=self._target.pod_selector)
        found = sorted(map(replica_of, listing.items), key=lambda each: each.order)
        chosen = [each for each in found if self._options.selects(each)]
        if found and not chosen:
            names = ", ".join(
                f"{each.name}" + ("" if each.rank is None else f" (rank {each.rank})") for each in found[:20]
            )
            raise StartError(f"no replica of {self._target.title} is selected; it has: {printable(names)}")
        most = self._options.max_replicas
        if len(chosen) > most:
            chosen.sort(key=lambda each: (each.first_failure or "~", each.order))
            left = f"{len(chosen) - most} replicas are left out"
            self._say_once(f"{left}; choose with --role, --index or --rank, or raise --max-replicas")
        return chosen[:most]

    def _failed_first(self, replicas: Sequence[Replica]) -> Replica | None:
        """That which the operator blames, as times of the kubelet are in whole seconds; else that which ended first."""
        status: Json = self._target.raw.get("status") or {}
        blamed = status.get("lastFailure")
        name = blamed.get("pod") if isinstance(blamed, dict) else None
        failed = [each for each in replicas if each.first_failure]
        return min(failed, key=lambda each: (each.pod_name != name, each.first_failure), default=None)

    def _explain_absence(self) -> int:
        """The pods are gone, or do not exist yet. What the status kept of the log is shown."""
        status: Json = self._target.raw.get("status") or {}
        failure = status.get("lastFailure")
        failure = failure if isinstance(failure, dict) else {}
        lines = failure.get("log")
        if isinstance(lines, list) and lines:
            self._say(f"{self._target.title} has no pods any more; the last lines of {failure.get('pod')} are:")
            for line in lines:
                self._sink.rest(printable(str(line)))
            return 0
        self._say(f"{self._target.title} has no pods; see `kubectl describe` or the conditions of the job")
        return 1

    def _sources(self, replicas: Iterable[Replica]) -> list[Source]:
        """The containers to read: the named one, or the first of each pod."""
        found = []
        for replica in replicas:
            names = [each["name"] for each in replica.pod["spec"]["containers"]]
            name = self._options.container or names[0]
            if name not in names:
                self._say_once(f"{replica.pod_name} has no container {name}; it has: {', '.join(names)}")
                continue
            status: Json = next((each for each in replica.statuses() if each.get("name") == name), {})
            found.append(Source(replica, name, printable(replica.name), status.get("restartCount", 0)))
        return found

    async def _show_failed(self, replica: Replica) -> None:
        self._say(f"{replica.name} failed first; its last lines:")
        for source in self._sources([replica]):
            async for lines in self._read(source, tail=FAILED_LINES):
                self._sink.lines(source, lines)
        self._say("all replicas by time:")

    async def _show_merged(self, sources: Sequence[Source]) -> None:
        """Merges the logs by time, with one piece of each in memory."""
        streams = [_each_of(self._position(source).unread(self._read(source))) for source in sources]
        heads = await asyncio.gather(*(anext(stream, None) for stream in streams))
        heap = [(line.time, number, line) for number, line in enumerate(heads) if line is not None]
        heapq.heapify(heap)
        while heap:
            _, number, line = heap[0]
            self._sink.lines(sources[number], [line])
            following = await anext(streams[number], None)
            if following is None:
                heapq.heappop(heap)
            else:
                # a line is never older than the one before it, whatever its time stamp says
                heapq.heapreplace(heap, (max(following.time, line.time), number, following))

    async def _open(self, source: Source, query: dict[str, str], pace: float = 0.0) -> Stream:
        pod = source.replica.pod["metadata"]
        path = PODS.path(pod["namespace"], pod["name"], "log")
        return await self._client.open(Request("GET", path, query | {"container": source.container}, pace=pace))

    async def _read(self, source: Source, *, tail: int | None = None) -> AsyncIterator[Sequence[Line]]:
        """The lines of one log. What cannot be read is said, and the others go on."""
        try:
            query = self._options.query | ({} if tail is None else {"tailLines": str(tail)})
            stream = await self._open(source, query)
            try:
                async for lines in blocks_of(stream.chunks()):
                    yield lines
            finally:
                await stream.close()
        except BrokenPipeError:
            raise
        except FAILURES as error:
            self._say(f"{source.label}: {printable(str(error))}")

    async def _follow(self) -> None:
        """Follows all containers, those of replaced pods included, until the job has finished."""
        reads: dict[Identity, asyncio.Task[End]] = {}
        pause = asyncio.create_task(asyncio.Event().wait())  # never ends
        late = 0
        try:
            while True:
                finished = await self._is_finished()
                sources = self._sources(await self._replicas())
                pace = self._options.pace * max(1.0, len(sources) / PACED)
                for source in filter(_has_started, sources):
                    if self._is_to_be_read(source, reads.get(source.identity)):
                        reads[source.identity] = asyncio.create_task(self._show_followed(source, pace))
                if not finished:
                    await asyncio.wait({pause, *reads.values()}, timeout=POLL, return_when=asyncio.FIRST_EXCEPTION)
                elif reads:
                    await asyncio.wait(reads.values(), return_when=asyncio.FIRST_EXCEPTION)  # some may still run
                ends = [each.result() for each in reads.values() if each.done()]
                if finished:
                    late += 1
                    if End.BROKEN not in ends or late > ATTEMPTS:
                        return
                    await asyncio.sleep(POLL)
        finally:
            for task in (pause, *reads.values()):
                task.cancel()
            await asyncio.gather(pause, *reads.values(), return_exceptions=True)

    def _is_to_be_read(self, source: Source, read: asyncio.Task[End] | None) -> bool:
        """At first, and again if the log broke off. That of a container that runs has no end: a kubelet that restarts
        ends it as if it had."""
        if read is None:
            return True
        if not read.done() or read.result() is End.REFUSED:
            return False
        return read.result() is End.BROKEN or (_is_in(source, "running") and not self._options.previous)

    async def _show_followed(self, source: Source, pace: float) -> End:
        """Reads a log from where it is, to its end."""
        position = self._position(source)
        query = self._options.query | {"follow": "true"}
        if position.since:
            query = {name: value for name, value in query.items() if name not in {"tailLines", "sinceSeconds"}}
            query["sinceTime"] = position.since
        try:
            stream = await self._open(source, query, pace)
        except FAILURES as error:
            self._say_once(f"{source.label}: {printable(str(error))}")
            return End.REFUSED if isinstance(error, ApiError) and error.code < 500 else End.BROKEN
        try:
            async for lines in position.unread(blocks_of(stream.chunks())):
                self._sink.lines(source, lines)
        except BrokenPipeError:
            raise
        except FAILURES:
            return End.BROKEN
        finally:
            await stream.close()
        return End.COMPLETE

    def _position(self, source: Source) -> Position:
        return self._positions.setdefault(source.identity, Position())

    async def _is_finished(self) -> bool:
        with suppress(NotFoundError):
            job = await self._client.get(self._target.type.resource, self._target.name, self._target.namespace)
            status = job.get("status") or {}
            conditions = status.get("conditions") or ()
            true = {each.get("type") for each in conditions if each.get("status") == "True"}
            return bool(true & {"Succeeded", "Failed"}) or status.get("phase") in {"Succeeded", "Failed"}
        return True


async def _each_of(blocks: AsyncIterator[Sequence[Line]]) -> AsyncIterator[Line]:
    async for lines in blocks:
        for line in lines:
            yield line


def _has_started(source: Source) -> bool:
    return _is_in(source, "running", "terminated")


def _is_in(source: Source, *states: str) -> bool:
    status: Json = next((each for each in source.replica.statuses() if each.get("name") == source.container), {})
    return bool((status.get("state") or {}).keys() & set(states))
