"""Pods that report progress to any replica of the operator; each write is checked, and what is shown at the end.

The endpoint itself is the operator's, but for HTTP and the review of tokens: the loop has no sockets.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tests.simulation.facts import finished, owner_of, phase, place_of
from tests.simulation.loop import Pause
from tests.simulation.script import NAMESPACE
from trainop.controllers.progress.payload import read_report
from trainop.controllers.progress.reporters import Reporter
from trainop.controllers.progress.server import ProgressServer, Refused
from trainop.controllers.progress.writer import FIELD_MANAGER, INTERVAL, Job, ProgressWriter
from trainop.engine.progress import TRAINER_STATUS, ProgressEndpoint
from trainop.local.api.storage.versioned_store import Change, Stored, Table
from trainop.programs.progress import _watch
from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import timestamp
from trainop.runtime.errors import ConflictError
from trainop.runtime.manager.manager import Group
from trainop.runtime.objects.metadata import PODS, Json, Key

if TYPE_CHECKING:
    from tests.simulation.replica import Replica
    from tests.simulation.world import World

PAUSE = (1.0, 6.0)
"""Seconds between two reports of one run, whichever pods send them."""
STRAYS = 0.25
"""Share of reports that name another job than that of their pod."""
MOST_PENDING = 700.0
"""Seconds without faults within which everything is written: two of the longest pauses after failures."""
ENDPOINT = ProgressEndpoint("https://op", everywhere=True)


def is_progress(request: Request) -> bool:
    """Whether it is a write of progress, which every replica may send."""
    return request.query.get("fieldManager") == FIELD_MANAGER


class Asked(Client):
    """Notes each write that the writer asks for; what the client sends again after a 429 is the same write."""

    def __init__(self, replica: Replica, reports: Reports) -> None:
        super().__init__(replica.wire, user_agent="trainop")
        self._wire, self._reports = replica.wire, reports

    async def patch(self, resource: Any, name: str, namespace: Any, patch: Any, **how: Any) -> Any:
        begun, body = self._reports.begins(self._wire.name, patch), patch
        try:
            answer = await super().patch(resource, name, namespace, patch, **how)
        except ConflictError:  # nothing is written
            raise
        except Exception:
            self._reports.ends(self._wire.name, body, begun)
            raise
        self._reports.ends(self._wire.name, body, begun)
        return answer


class Writer(ProgressWriter):
    """Says when its process ends: what it writes then is written at once."""

    ending = False

    async def _write_rest(self) -> None:
        self.ending = True
        await super()._write_rest()


class Reports:
    """Sends reports while there are faults, and observes the store."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"{world.script.seed}/reports")
        self._numbers: Counter[str] = Counter()
        """Reports by UID of the job."""
        self._taken: dict[str, dict[int, str]] = defaultdict(dict)
        """By UID of the job: the life of the operator that has accepted a report, by its number."""
        self._tables = {str(kind.resource) for kind in world.kinds}
        self._asked: dict[tuple[str, str], float] = {}
        """When a life has begun its last write of a job."""
        self._authors: dict[tuple[str, int], str] = {}
        """The life that has sent a report, by UID of the job and number."""
        self._servers: dict[str, ProgressServer] = {}
        self._writers: dict[str, Writer] = {}
        self.written = self.refused = 0

    # The operator's side ----------------------------------------------------------------------------------------------

    def attach(self, replica: Replica) -> None:
        """Adds to a replica that is about to start what its endpoint consists of."""
        manager = replica.manager
        ((_, cache),) = manager._runnables[Group.CACHES]
        writer = Writer(Asked(replica, self), replica.clock)
        server = ProgressServer(
            [_watch(kind, cast("Any", cache)) for kind in self._world.kinds],
            endpoint=ENDPOINT,
            tokens=cast("Any", None),
            writer=writer,
            clock=replica.clock,
        )
        manager.add(writer, "progress writer")
        self._servers[replica.process.name], self._writers[replica.process.name] = server, writer

    async def _receive(self, life: str, pod: Stored, job: Json, number: int, body: bytes) -> None:
        """What the endpoint does with a report whose token has passed the review."""
        server, writer = self._servers[life], self._writers[life]
        group, version = job["apiVersion"].split("/")
        of_kind = next(
            found
            for where, found in server._kinds.items()
            if where[:2] == (group, version) and any(each.kind.resource.kind == job["kind"] for each in found)
        )
        reporter = Reporter(NAMESPACE, pod.key[1], pod.uid)
        try:
            found, kind = server._find_job(of_kind, Key(NAMESPACE, job["metadata"]["name"]), reporter)
        except Refused:
            self.refused += 1
            return
        status = read_report(body)
        assert status is not None, "it has one"
        version = found.metadata.resource_version
        writer.put(Job(kind.source, found.metadata.key, found.metadata.uid), status, version)
        self._taken[found.metadata.uid][number] = life

    # The pods' side ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._world.loop.outside(self._rng.uniform(*PAUSE), self._report)

    def _report(self) -> None:
        world, rng = self._world, self._rng
        if world.calm:
            return
        self.begin()
        pods = [
            stored
            for stored in world.store.table(str(PODS)).objects.values()
            if phase(stored.value) == "Running" and owner_of(stored.value) is not None
        ]
        lives = [each for each in world.replicas if each.runs and each.process not in world.loop._parked]
        if not pods or not lives:
            return
        pod, replica = rng.choice(sorted(pods, key=lambda stored: stored.key)), rng.choice(lives)
        own = (owner_of(pod.value) or {})["uid"]
        jobs = [job for job in world.jobs() if (job["metadata"]["uid"] == own) != (rng.random() < STRAYS)]
        if not jobs:
            return
        job = rng.choice(jobs)
        self._numbers[own] += 1
        number = self._numbers[own]
        metrics = [{"name": "job", "value": own}, {"name": "number", "value": str(number)}]
        said = {"lastUpdatedTime": timestamp(world.clock.now()), "metrics": metrics}
        body = msgspec.json.encode({"trainerStatus": said})
        world.loop.spawn(replica.process, self._receive(replica.process.name, pod, job, number, body), "report")

    # Checks -----------------------------------------------------------------------------------------------------------

    def sends(self, life: str, request: Request) -> None:
        """A life of the operator is about to send a write of progress."""
        world = self._world
        uid, number = _read(msgspec.json.decode(request.body or b"{}"))
        world.note(life, f"reports {number} of {uid}")
        if not request.path.endswith("/status") or place_of(request.path)[0] not in self._tables:
            world.judge.flag("only progress", f"{life} writes {request.path} as {FIELD_MANAGER}")

    def begins(self, life: str, body: Json) -> float:
        """The writer of that life is about to write; returns the time."""
        self._authors[_read(body)] = life
        return self._world.loop.time()

    def ends(self, life: str, body: Json, begun: float) -> None:
        """It has written, or does not know."""
        world, (uid, _) = self._world, _read(body)
        before = self._asked.get((life, uid))
        if before is not None and begun - before < INTERVAL - 1e-6 and not self._writers[life].ending:
            world.judge.flag("rare writes", f"{life} writes {body['metadata']['name']} after {begun - before:.1f} s")
        self._asked[life, uid] = begun

    def __call__(self, table: Table, change: Change) -> None:
        old, new = change.old, change.new
        if old is None or new is None or old.uid != new.uid or table.name not in self._tables:
            return
        before, after = (dict(each.value.get("status") or {}) for each in (old, new))
        was, is_ = before.pop(TRAINER_STATUS, None), after.pop(TRAINER_STATUS, None)
        if was == is_:
            return
        judge, name = self._world.judge, new.key[1]
        self.written += 1
        if is_ is None:
            judge.flag("progress stays", f"somebody removed the progress of {name}")
            return
        if before != after:
            judge.flag("only progress", f"a write of progress of {name} changed the rest of its status")
        uid, number = _read({"status": {TRAINER_STATUS: is_}})
        if uid != new.uid:
            judge.flag("its own job", f"{name} shows the progress of {uid}")
        if was is None:
            return
        _, earlier = _read({"status": {TRAINER_STATUS: was}})
        if number < earlier and self._authors.get((uid, number)) == self._authors.get((uid, earlier)):
            judge.flag("the newest wins", f"{name} showed report {earlier}, and shows {number}")

    async def finish(self) -> None:
        """Without faults, all that a life has taken which is still there is written, and the newest is shown."""
        world = self._world
        begun = world.loop.time()
        while any(self._writers[each.process.name].pending for each in world.replicas if each.runs):
            if world.loop.time() - begun > MOST_PENDING:
                world.judge.flag("the last is written", f"something is pending after {MOST_PENDING:g} s")
                return
            await Pause(world.loop, 1.0)
        await Pause(world.loop, 2 * INTERVAL)
        lives = {each.process.name for each in world.replicas if each.runs}
        for job in world.jobs():
            taken = [number for number, life in self._taken[job["metadata"]["uid"]].items() if life in lives]
            shown = (job.get("status") or {}).get(TRAINER_STATUS)
            found = _read({"status": {TRAINER_STATUS: shown}})[1] if shown else 0
            if taken and found < max(taken):
                name, state = job["metadata"]["name"], "finished" if finished(job) else "unfinished"
                world.judge.flag("the last is written", f"{state} {name} shows report {found} of {max(taken)}")


def _read(job: Json) -> tuple[str, int]:
    """The job and the number of a report, as it said itself."""
    said = {each["name"]: each["value"] for each in job["status"][TRAINER_STATUS]["metrics"]}
    return said["job"], int(said["number"])
