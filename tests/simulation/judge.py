"""Safety rules. Every write is checked when it is sent or stored, against etcd and against what its author had been
shown by then."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from structlog.contextvars import get_contextvars

from tests.simulation.facts import (
    Facts,
    essence,
    facts_of,
    finished,
    is_misplaced,
    is_true,
    message_of,
    owner_of,
    phase,
    place_of,
    precondition,
    slot_of,
    terminating,
)
from tests.simulation.families import MPI
from tests.simulation.oracle.kinds import KINDS, Job
from tests.simulation.reports import is_progress
from trainop.engine.extensions import CHECKPOINT_ALL, IN_PLACE, ON_DISRUPTION, RESTART_MODE, RESTART_SCOPE, SCOPES
from trainop.engine.framework import Framework
from trainop.engine.parse import ignored
from trainop.engine.restart_history import RestartHistory
from trainop.local.api.storage.versioned_store import Change, Table
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.clock import parse_timestamp
from trainop.runtime.objects.metadata import LEASES, Json, Unstructured

if TYPE_CHECKING:
    from tests.simulation.world import World


class Violation(NamedTuple):
    at: float
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:9.3f}  {self.rule}: {self.text}"


class Judge:
    """Observes the store, the requests of each process, and the responses and watch events that it receives."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[Violation] = []
        self._kinds = {str(framework.resource): framework for framework in world.frameworks}
        self._paths = {
            path: framework
            for framework in world.frameworks
            for path in (framework.resource.path(), framework.resource.path("ns"))
        }
        self._shown: dict[tuple[str, str], list[tuple[float, Facts]]] = defaultdict(list)
        """By process and job UID: what it was shown of the job, and when."""
        self._begun: dict[tuple[str, str], float] = {}
        """By process and reconcile: when it first wrote."""
        self._asked: dict[tuple[str, str], float] = {}
        """By process and reconcile: when it first asked for anything, which is when it began, or when it did not yet
        know more than then."""
        self._author = ("", "")
        """Process and reconcile whose request is judged; the id of a reconcile is a context variable, like those of all
        log lines."""
        self._gone: dict[str, int] = {}
        """By job UID: the version from which on it was gone, or going."""
        self._orphaned: dict[tuple[str, str], float] = {}
        """By process and job UID: when it was first shown that a child has followed its job."""
        self._born: dict[str, int] = {}
        """By job UID: the how many-th it is."""
        self._versions: dict[str, int] = {}
        """The same, by resourceVersion of a job."""
        self._acted: dict[tuple[str, str, str], int] = defaultdict(int)
        """By process, controller and name of a job: the latest of that name on whose behalf it has written."""
        self._made: dict[tuple[str, str, str], str] = {}
        """By process, path and job UID: the UID of a child that the process knows to have created."""
        self._deleted: set[tuple[str, str]] = set()
        """Process and UID of children that the process knows to have deleted."""

    def flag(self, rule: str, text: str) -> None:
        violation = Violation(self._world.loop.time(), rule, text)
        self.violations.append(violation)
        self._world.note("judge", f"{rule}: {text}")

    # What is written --------------------------------------------------------------------------------------------------

    def __call__(self, table: Table, change: Change) -> None:
        framework = self._kinds.get(table.name)
        if framework is not None:
            self._on_job(framework, change)

    def _on_job(self, framework: Framework, change: Change) -> None:
        if change.old is not None and (change.new is None or terminating(change.new.value)):
            self._gone.setdefault(change.old.uid, change.version)
        if change.new is not None:
            number = self._born.setdefault(change.new.uid, len(self._born))
            self._versions[str(change.version)] = number
        if change.old is None or change.new is None or change.old.uid != change.new.uid:
            return
        old, new = change.old.value, change.new.value
        name = change.key[1]
        if ignored(Unstructured(new), framework.managers) and (new.get("status") or {}) != (old.get("status") or {}):
            self.flag("foreign job", f"somebody wrote the status of {name}, which another controller manages")
        for type_ in ("Succeeded", "Failed"):
            if is_true(old, type_) and not is_true(new, type_):
                self.flag("terminal is for ever", f"{name} was {type_} and is not any more")
        if is_true(new, "Succeeded") and is_true(new, "Failed"):
            self.flag("not both", f"{name} is Succeeded and Failed")
        if finished(new) and is_true(new, "Running"):
            self.flag("not both", f"{name} is finished and Running")
        self._on_completion(name, old, new)

    def _on_completion(self, name: str, old: Json, new: Json) -> None:
        before, after = (value.get("status", {}).get("completionTime") for value in (old, new))
        if before is not None and after != before:
            self.flag("completed once", f"completionTime of {name} was {before} and is {after}")
        if finished(new) and not finished(old):
            if after is None:
                self.flag("completed once", f"{name} is finished without completionTime")
            self._on_deadline(name, new)

    def _on_deadline(self, name: str, job: Json) -> None:
        """Check that a deadline is neither early nor late."""
        policy = job["spec"].get("runPolicy") or {}
        if (
            message_of(job, "Failed") == f"Job {name} has failed because it was active longer than specified deadline"
            and not self._world.script.jumps
        ):
            due = parse_timestamp(job["status"]["startTime"]) + timedelta(seconds=policy["activeDeadlineSeconds"])
            late = (self._world.clock.now() - due).total_seconds()
            if not -0.01 <= late <= self._world.rest.patience(due, 2.0):
                self.flag("deadline on time", f"{name} failed at its deadline {late:.2f} s late")

    # What a process knows ---------------------------------------------------------------------------------------------

    def received(self, process: str, request: Request, answer: Response) -> None:
        """A process has received a response."""
        if not 200 <= answer.status < 300:
            return
        if request.method == "POST":
            made = msgspec.json.decode(answer.body)
            owner = owner_of(made)
            if owner is not None:
                path = f"{request.path}/{made['metadata']['name']}"
                self._made[process, path, owner["uid"]] = made["metadata"]["uid"]
        elif request.method == "DELETE":
            uid = precondition(request)
            if uid:
                self._deleted.add((process, uid))
        if request.query.get("limit") == "1":
            return  # a probe of whether lists are answered, whose content is not read
        for path, framework in self._paths.items():
            if request.path.startswith(path):
                found = msgspec.json.decode(answer.body)
                items: Iterable[Json] = found.get("items", [found])
                self._learn(process, framework, (item for item in items if "spec" in item))
                return

    def shows(self, process: str, path: str, part: bytes) -> None:
        """A process has received lines of a watch, the last one possibly incomplete."""
        framework = self._paths.get(path)
        if framework is None and b'"DELETED"' not in part:
            return
        events = [msgspec.json.decode(line) for line in part.split(b"\n")[:-1]]
        if framework is None:
            self._mourn(process, (event["object"] for event in events if event["type"] == "DELETED"))
            return
        seen = [event["object"] for event in events if event["type"] in {"ADDED", "MODIFIED"}]
        self._learn(process, framework, seen)

    def _mourn(self, process: str, children: Iterable[Json]) -> None:
        for child in children:
            uid = (owner_of(child) or {}).get("uid", "")
            if int(child["metadata"]["resourceVersion"]) > self._gone.get(uid, 1 << 62):
                self._orphaned.setdefault((process, uid), self._world.loop.time())

    def _learn(self, process: str, framework: Framework, jobs: Iterable[Json]) -> None:
        now = self._world.loop.time()
        for job in jobs:
            facts = facts_of(framework, job)
            self._shown[process, facts.uid].append((now, facts))

    def _knew(self, process: str, uid: str) -> list[Facts]:
        """The state that the process may act upon: what it knew when the reconcile began, and what it was shown
        since. That of an MPIJob also reads between its plan and its first write."""
        seen = self._shown.get((process, uid), [])
        begun = self._begun[self._author]
        since = self._asked[self._author] if self._world.script.family == MPI else begun
        before = [facts for at, facts in seen if at < since][-1:]
        return before + [facts for at, facts in seen if since <= at <= begun]

    # What a process sends ---------------------------------------------------------------------------------------------

    def asks(self, process: str) -> None:
        """A process is about to send a request of any kind."""
        self._author = (process, str(get_contextvars().get("reconcile_id", "")))
        self._asked.setdefault(self._author, self._world.loop.time())

    def sends(self, process: str, request: Request) -> None:
        """A process is about to send a write."""
        if request.path.startswith(LEASES.path()[: -len("/leases")]):
            return
        if self._world.reports is not None and is_progress(request):
            self._world.reports.sends(process, request)
            return
        self._begun.setdefault(self._author, self._world.loop.time())
        self._world.count_write(process)
        body = msgspec.json.decode(request.body) if request.body else {}
        self._world.note(process, f"{request.method} {request.path} {essence(request.method, body)}")
        if "/events" in request.path:
            return
        self._check_lead(process, request)
        match request.method:
            case "POST":
                self._check_create(process, request, body)
            case "DELETE":
                self._check_delete(process, request, body)
            case "PATCH" | "PUT" if any(request.path.startswith(path) for path in self._paths):
                version = body["metadata"].get("resourceVersion")
                if not version:
                    self.flag("over what was seen", f"{process} writes {request.path} whatever it is by now")
                self._check_order(process, place_of(request.path)[1][1], self._versions.get(version, 0))
            case "PATCH" if (body.get("spec") or {}).get("suspend") is False:
                launcher = self._world.store.get(*place_of(request.path))
                if launcher is not None:
                    owner = owner_of(launcher.value) or {"uid": ""}
                    self._check_active(process, owner["uid"], f"resumes {launcher.key[1]}")

    def _check_lead(self, process: str, request: Request) -> None:
        holder = self._world.lease_holder()
        if holder and holder != process:
            self.flag("one leader", f"{process} sends {request.method} {request.path} while {holder} leads")

    def _check_order(self, process: str, name: str, number: int) -> None:
        """A process that has acted for a job must not act for its predecessor of the same name afterwards."""
        actor = (process, str(get_contextvars().get("controller", "")), name)
        if number < self._acted[actor]:
            self.flag("time goes forward", f"{process} writes for {name} as it was before the present one was made")
        self._acted[actor] = max(number, self._acted[actor])

    def _check_create(self, process: str, request: Request, body: Json) -> None:
        owner = owner_of(body)
        name = body["metadata"]["name"]
        if owner is None:
            self.flag("ours", f"{process} creates {name}, which belongs to nobody")
            return
        if self._orphaned.get((process, owner["uid"]), math.inf) < self._asked[self._author]:
            self.flag("nothing for a deleted job", f"{process} makes {name} anew, which went because its job is gone")
        self._check_order(process, owner["name"], self._born.get(owner["uid"], 0))
        path = f"{request.path}/{name}"
        uid = self._made.get((process, path, owner["uid"]))
        table, key = place_of(path)
        found = self._world.store.get(table, key)
        taken = found is not None and (owner_of(found.value) != owner or is_misplaced(found.value, owner))  # by others
        if uid is not None and found is not None and found.uid == uid and not taken:
            self.flag("reads its own writes", f"{process} creates {name} again, which it has created and which lives")
        if table == "pods" or (table == "jobs.batch" and not body["spec"].get("suspend")):
            self._check_active(process, owner["uid"], f"creates {name}")
        if table == "pods":
            self._check_restart_group(process, body, owner["uid"])

    def _check_active(self, process: str, uid: str, what: str) -> None:
        """A process starts a pod or a launcher only for a job that is active as far as it knows."""
        if not self._kinds:
            return  # of DIJobs, whose observer has a rule of its own
        known = self._knew(process, uid)
        if all(facts.stopped for facts in known):
            why = known[-1].stopped if known else "unknown"
            self.flag("no pod for a stopped job", f"{process} {what} though the job is {why}")

    def _check_restart_group(self, process: str, pod: Json, owner: str) -> None:
        """Pods that restart together must all be gone, except surplus ones, before any of them is recreated."""
        job = self._world.job_of(pod)
        if job is None or not self._kinds or _scope(job) == "pod":
            return
        place, history = slot_of(pod), RestartHistory(owner, job["metadata"].get("annotations") or {})
        known = [facts_of(self._world.framework_of(job["kind"]), job), *self._knew(process, owner)]
        for stored in self._world.store.table("pods").objects.values():
            if (owner_of(stored.value) or {}).get("uid") != owner or not history.is_counted(stored.uid):
                continue
            other = slot_of(stored.value)
            if other is None or any(other[1] >= facts.replicas.get(other[0], 0) for facts in known):
                continue
            if _scope(job) == "job" or (place is not None and place[0] == other[0]):
                name = pod["metadata"]["name"]
                self.flag("restarts together", f"{process} creates {name} before {stored.key[1]} has gone")

    def _check_delete(self, process: str, request: Request, body: Json) -> None:
        uid, table, key = precondition(request), *place_of(request.path)
        if not uid:
            self.flag("delete by UID", f"{process} deletes {request.path} whoever that is")
            return
        stored = self._world.store.get(table, key)
        if stored is None or stored.uid != uid:
            return
        forced = b'"gracePeriodSeconds":0' in request.body
        if (process, uid) in self._deleted and not forced:
            self.flag("reads its own writes", f"{process} deletes {key[1]} again")
        if table == "pods":
            self._check_grace(process, stored.value, body)
        if table == "pods" and not terminating(stored.value):
            self._check_delete_pod(process, stored.value)
        elif table in self._kinds:
            self._check_expired(stored.value)

    def _check_grace(self, process: str, pod: Json, options: Json) -> None:
        """A pod that runs has the grace period that its job asks for, unless it is stuck or the job has succeeded."""
        job = self._world.job_of(pod)
        if job is None or job["kind"] not in KINDS or phase(pod) != "Running":
            return
        if terminating(pod) or is_true(job, "Succeeded"):
            return
        grace = options.get("gracePeriodSeconds", pod["spec"].get("terminationGracePeriodSeconds", 30))
        if grace < (asked := Job(job).grace):
            self.flag("time to save", f"{process} gives {pod['metadata']['name']} {grace} s, and {asked} are asked for")

    def _check_delete_pod(self, process: str, pod: Json) -> None:
        """A pod may be deleted only if its job has no use for it, and a failed one only after its restart was
        counted."""
        owner = owner_of(pod)
        job = self._world.job_of(pod)
        if owner is None or job is None or terminating(job) or not self._kinds:
            return
        framework, name = self._world.framework_of(owner["kind"]), pod["metadata"]["name"]
        now = facts_of(framework, job)
        place = slot_of(pod)
        for facts in (now, *self._knew(process, owner["uid"])):
            if facts.suspended or facts.paused or place is None or facts.replicas.get(place[0], 0) <= place[1]:
                return
        if now.finished or is_misplaced(pod, owner) or self._is_double(pod, owner["uid"]):
            return
        history = RestartHistory(owner["uid"], job["metadata"].get("annotations") or {})
        counted = history.is_counted(pod["metadata"]["uid"])
        if phase(pod) != "Failed" and not (counted and (_scope(job) != "pod" or history.whole)):
            self.flag(
                "clean up after the end", f"{process} deletes {name}, {phase(pod)}, of a job that is not finished"
            )
        elif not counted:
            self.flag("restarts once", f"{process} deletes {name}, which failed, before that is counted")

    def _is_double(self, pod: Json, owner: str) -> bool:
        others = (stored.value for stored in self._world.store.table("pods").objects.values())
        return any(
            other["metadata"]["uid"] != pod["metadata"]["uid"]
            and slot_of(other) == slot_of(pod)
            and (owner_of(other) or {}).get("uid") == owner
            for other in others
        )

    def _check_expired(self, job: Json) -> None:
        name, policy = job["metadata"]["name"], job["spec"].get("runPolicy") or {}
        ttl, end = policy.get("ttlSecondsAfterFinished"), job.get("status", {}).get("completionTime")
        if ttl is None or end is None or not finished(job):
            self.flag("TTL on time", f"{name} is deleted although its time is not limited, or has not begun")
            return
        due = parse_timestamp(end) + timedelta(seconds=ttl)
        late = (self._world.clock.now() - due).total_seconds()
        if not self._world.script.jumps and not -0.01 <= late <= self._world.rest.patience(due, 2.0):
            self.flag("TTL on time", f"{name} is deleted {late:.2f} s late")


def _scope(job: Json) -> str:
    """The restart scope of the job."""
    annotations = job["metadata"].get("annotations") or {}
    if annotations.get(ON_DISRUPTION) == CHECKPOINT_ALL or annotations.get(RESTART_MODE) == IN_PLACE:
        return "job"
    scope = str(annotations.get(RESTART_SCOPE, "pod")).lower()
    return scope if scope in SCOPES else "pod"
