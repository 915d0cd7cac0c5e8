"""Watches jobs, their pods, logs and warning events until every job has finished or failed to start.

Informer handlers update the `JobView`s of the screen; one task per container run streams its log.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeAlias

from trainop.engine.children import TRAINING_CHILDREN, ChildSelection
from trainop.engine.framework import JOB_NAME
from trainop.engine.restart_history import RestartHistory
from trainop.explain import Failure, describe, describe_cause
from trainop.explain.why.reported import read_reported
from trainop.local.node.pods.container import NO_COMMAND
from trainop.run.ending import wait_for_all
from trainop.run.exits import Exits
from trainop.run.logview import LogView
from trainop.run.screen import JobView, Replica, Screen
from trainop.run.silence import SilenceWatch
from trainop.run.speaker import Speaker
from trainop.run.starting import StartWatch
from trainop.runtime import (
    EVENTS,
    PODS,
    ApiError,
    Cache,
    Client,
    Json,
    Key,
    Resource,
    SystemClock,
    Unstructured,
    decode_unstructured,
)
from trainop.runtime.lowlevel import Handler, HandlerFunctions, Request, parse_timestamp

_NUMBERS = re.compile(r"\d+")
_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_JOB_ROLE = "training.kubeflow.org/job-role"
"""Pods of MPIJobs with transport ssh have no replica type, and their launcher belongs to a Job of the MPIJob."""
_INDEX = "training.kubeflow.org/replica-index"
_UNFINISHED = frozenset({"Pending", "Running"})
"""Phases of pods."""
_STARTED = frozenset({"Running", "Restarting", "Succeeded", "Failed"})
_BACK_OFF = re.compile(r"back-off (\S+) restarting")
_NO_COMMAND = NO_COMMAND.partition(":")[0]
_LOG_GRACE = 2.0
"""Seconds for the logs of containers that are still running after all jobs have ended."""


@dataclass(slots=True)
class FollowedJob:
    """The state of one job. `ended` is Succeeded, Failed, Deleted, NotStarted or Hopeless after its end, empty
    before."""

    resource: Resource
    key: Key
    view: JobView
    children: ChildSelection = TRAINING_CHILDREN
    uid: str = ""
    ended: str = ""
    reason: str = ""
    message: str = ""
    shown: set[str] = field(default_factory=set)
    """Conditions that were printed, as `<type>/<lastTransitionTime>`."""
    messages: set[str] = field(default_factory=set)
    """Messages of the printed conditions."""
    exits: Exits = field(init=False)
    failures: set[str] = field(default_factory=set)
    """Root causes of restarts that were printed."""

    def __post_init__(self) -> None:
        self.exits = Exits(self.view.kind)


SaveLog: TypeAlias = Callable[[Key, str], Path | None]
"""Saves the log of a container beyond the lifetime of its pod; returns the path, None if that is impossible."""


class Follower:
    """Shows the progress of `jobs` on `screen`, with handlers that it adds to informers of `cache`.

    `start_timeout` in seconds: a job without a started container by then counts as failed; 0 disables the timeout.
    `every_replica`: a job that has succeeded is followed until its last replica has ended, and must not have failed.
    `since`: when the session began, if not now.
    """

    def __init__(
        self,
        client: Client,
        cache: Cache,
        jobs: list[FollowedJob],
        screen: Screen,
        *,
        save_log: SaveLog,
        start_timeout: float,
        silence: SilenceWatch,
        every_replica: bool = False,
        since: datetime | None = None,
    ) -> None:
        self._silence = silence
        self._client = client
        self._screen = screen
        self._save_log = save_log
        self._clock = SystemClock()
        self._start_timeout = start_timeout
        self._started_at = (since or self._clock.now()) - timedelta(seconds=1)  # API timestamps are in whole seconds
        self._jobs = {(job.resource.kind, job.key): job for job in jobs}
        self._streams: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self._ended_runs: set[tuple[str, str, int]] = set()
        """Container runs that have ended, so that their logs are complete."""
        self._pods: dict[str, Replica] = {}
        """By pod name."""
        self._warned: set[tuple[str, str, str]] = set()
        self._all_ended, self._moved = asyncio.Event(), asyncio.Event()  # all jobs have ended; a pod has changed
        self._every_replica = every_replica
        self._speaker = Speaker(lambda: [log for run, log in self._streams.items() if run in self._ended_runs])
        for resource in {job.resource for job in jobs}:
            cache.informer(resource, decode_unstructured).add_handler(
                _handler(partial(self.on_job, resource.kind), partial(self.on_job_deleted, resource.kind))
            )
        for label in sorted({job.children.job_label for job in jobs}):
            pods = cache.informer(PODS, decode_unstructured, label_selector=label)
            pods.add_handler(_handler(self.on_pod, self.on_pod_deleted))
        cache.informer(EVENTS, decode_unstructured, field_selector="type=Warning").add_handler(
            _handler(self.on_warning)
        )

    async def run(self) -> None:
        """Returns when every job has ended and the logs of all ended containers are shown."""
        watch = StartWatch(self._clock, self._start_timeout, partial(self._screen.note, style="yellow"))
        watching = asyncio.create_task(watch.run(self._open_jobs, self._mark_not_started))
        try:
            async with self._silence.watching(self._open_jobs):
                await self._all_ended.wait()
            if self._every_replica:
                await self._wait_for_replicas()
            if still_running := [stream for run, stream in self._streams.items() if run not in self._ended_runs]:
                await asyncio.wait(still_running, timeout=_LOG_GRACE)
            if ended := [stream for run, stream in self._streams.items() if run in self._ended_runs]:
                await asyncio.wait(ended)
            await self._speaker.finish()
        finally:
            tasks = {watching, *self._streams.values()}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _wait_for_replicas(self) -> None:
        """The state of a job depends on one replica only, and the others may still be at work."""
        if any(job.ended != "Succeeded" for job in self._jobs.values()):
            return
        unfinished = partial(_in_phases, self._pods.values(), _UNFINISHED)
        await wait_for_all(unfinished, self._moved, partial(self._screen.note, style="yellow"), _LOG_GRACE)
        for job in self._jobs.values():
            if failed := _in_phases(job.view.replicas.values(), {"Failed"}):
                job.ended = "Failed"
                self._screen.note(f"{failed} failed after the job had succeeded", style="bold red")

    def _open_jobs(self) -> list[JobView]:
        return [job.view for job in self._jobs.values() if not job.ended]

    def _mark_not_started(self, view: JobView, why: str) -> None:
        for job in self._jobs.values():
            if job.view is view:
                self._give_up(job, "NotStarted", why)

    def _give_up(self, job: FollowedJob, ended: str, why: str) -> None:
        job.ended, job.message = ended, why
        self._speaker.say(partial(self._screen.note, why, "bold red"))
        self._check_all_ended()

    def on_job(self, kind: str, seen: Unstructured) -> None:
        job = self._jobs.get((kind, seen.metadata.key))
        if job is None or job.ended:
            return
        job.uid = seen.metadata.uid
        conditions: list[Json] = (seen.raw.get("status") or {}).get("conditions") or []
        job.view.conditions = [c["type"] for c in conditions if c["status"] == "True"]
        job.view.started |= not _STARTED.isdisjoint(job.view.conditions)
        job.exits.take_job(seen)
        goes_on = _describe_pause(seen, self._clock.now())
        for condition in conditions:
            self._show_condition(job, condition, goes_on)
        self._show_restart(job, goes_on)
        self._show_progress(job, seen)
        self._check_all_ended()

    def _show_progress(self, job: FollowedJob, seen: Unstructured) -> None:
        pace, now = job.view.pace, self._clock.monotonic()
        if pace.take(read_reported(seen.raw.get("status") or {}), now) and pace.text and pace.is_line_due(now):
            self._screen.progress(job.view)

    def _show_condition(self, job: FollowedJob, condition: Json, goes_on: str) -> None:
        kind, identity = condition["type"], f"{condition['type']}/{condition.get('lastTransitionTime')}"
        if condition["status"] != "True" or identity in job.shown:
            return
        job.shown.add(identity)
        message = condition.get("message") or ""
        job.messages.add(message)
        if kind == "Restarting":
            job.failures.add(_identity(job.exits.cause))
            message = f"{message} ({goes_on})"
        self._speaker.say(partial(self._screen.condition, job.view, kind, message), partial(_is_explained, job))
        if kind in {"Succeeded", "Failed"}:
            job.ended, job.reason, job.message = kind, condition.get("reason", ""), condition.get("message", "")

    def _show_restart(self, job: FollowedJob, goes_on: str) -> None:
        """Prints the root cause of a restart while the job is Restarting already, whose condition does not change."""
        cause = job.exits.cause
        if job.ended or cause is None or not cause.role or "Restarting" not in job.view.conditions:
            return
        if _identity(cause) not in job.failures:
            job.failures.add(_identity(cause))
            show = partial(self._screen.condition, job.view, "Restarting", f"{describe_cause(cause)} ({goes_on})")
            self._speaker.say(show, partial(_is_explained, job))

    def on_job_deleted(self, kind: str, key: Key) -> None:
        job = self._jobs.get((kind, key))
        if job and not job.ended:
            job.ended, job.message = "Deleted", f"{kind} {key.name} was deleted before it finished"
        self._check_all_ended()

    def _check_all_ended(self) -> None:
        if all(job.ended for job in self._jobs.values()):
            self._all_ended.set()

    def on_pod(self, pod: Unstructured) -> None:
        job, replica = self._replica_of(pod)
        if job is None or replica is None:
            return
        status: Json = pod.raw.get("status") or {}
        replica.pod = pod.raw
        replica.phase = "Terminating" if pod.metadata.terminating else str(status.get("phase") or "Pending")
        containers: list[Json] = status.get("containerStatuses") or []
        replica.pods[pod.metadata.uid] = sum(c.get("restartCount", 0) for c in containers)
        all_containers = containers + (status.get("initContainerStatuses") or [])
        replica.detail = _waiting(all_containers)
        self._pods[pod.metadata.name] = replica
        if any(container.get("containerID") for container in all_containers):
            job.view.started = True
            replica.warning = ""
        for container in containers:
            if self._is_from_earlier_session(container):
                continue
            self._open_log(pod, replica, container, sidecar=len(containers) > 1)
        if not any(self._is_from_earlier_session(container) for container in containers):
            self._record_exit(job, replica, pod)
        self._check_startable(job, replica, all_containers)
        self._speaker.notify()
        self._moved.set()

    def on_pod_deleted(self, key: Key) -> None:
        """Marks a replica whose pod was deleted while it ran, until it has a new pod."""
        replica = self._pods.get(key.name)
        if replica is not None and replica.phase not in {"Succeeded", "Failed"}:
            replica.phase = "Deleted"
        self._moved.set()

    def _replica_of(self, pod: Unstructured) -> tuple[FollowedJob | None, Replica | None]:
        owner, labels = pod.metadata.controller, pod.metadata.labels
        if owner is None:
            return None, None
        kind, name = ("MPIJob", labels.get(JOB_NAME, "")) if owner.kind == "Job" else (owner.kind, owner.name)
        job = self._jobs.get((kind, Key(pod.metadata.namespace, name)))
        if job is None:
            return None, None
        name = pod.metadata.name.removeprefix(f"{name}-")
        if role := labels.get(_REPLICA_TYPE) or labels.get(_JOB_ROLE):
            name = "-".join(filter(None, (role, labels.get(_INDEX))))
        return job, job.view.replica(f"{job.key.name}/{name}" if len(self._jobs) > 1 else name)

    def _is_from_earlier_session(self, container: Json) -> bool:
        """Whether the container ended in an earlier session with the same `--data` folder."""
        ended = (container.get("state") or {}).get("terminated")
        return bool(ended and parse_timestamp(ended["finishedAt"]) < self._started_at)

    def _record_exit(self, job: FollowedJob, replica: Replica, pod: Unstructured) -> None:
        """Records how the pod failed, and prints a restart by the kubelet. Those by the operator are conditions."""
        earlier, now = len(replica.pods) - 1, self._clock.now()
        failure = job.exits.record(pod, replica.name, earlier, now, ended=bool(job.ended))
        if failure is None or job.ended:
            replica.lost |= failure is not None
            return
        if job.exits.is_hopeless(failure):
            why = f"{job.view.kind} {job.key.name} cannot succeed here: {replica.name} has failed twice in the same way"
            self._give_up(job, "Hopeless", why)
        elif replica.phase == "Running":
            pause = _BACK_OFF.search(replica.detail)
            text = f"{replica.name}: {describe(failure)} (restarted {f'in {pause[1]}' if pause else 'at once'})"
            self._speaker.say(partial(self._screen.note, text, "yellow"))

    def _check_startable(self, job: FollowedJob, replica: Replica, containers: list[Json]) -> None:
        """A container without a command can never start here."""
        if not job.ended and _NO_COMMAND in replica.detail:
            name = next(each["name"] for each in containers if _NO_COMMAND in _waiting([each]))
            self._give_up(job, "Hopeless", f"{replica.name}: container {name} cannot start: {replica.detail}")

    def _open_log(self, pod: Unstructured, replica: Replica, container: Json, *, sidecar: bool) -> None:
        state = container.get("state") or {}
        instance = (pod.metadata.uid, container["name"], container.get("restartCount", 0))
        if "terminated" in state:
            self._ended_runs.add(instance)
        if instance in self._streams or not ("running" in state or "terminated" in state):
            return
        replica.heard = self._clock.monotonic()
        prefix = f"[{container['name']}] " if sidecar else ""
        show_log = self._show_log(pod.metadata.key, container["name"], replica, prefix)
        self._streams[instance] = asyncio.get_running_loop().create_task(show_log)

    async def _show_log(self, pod: Key, container: str, replica: Replica, prefix: str) -> None:
        """Prints the log of one container until it ends. If the pod is deleted, the rest of its log is lost."""
        path = PODS.path(pod.namespace, pod.name, "log")
        saved = self._save_log(pod, container) if self._screen.terminal else None
        view = LogView(self._screen, replica, prefix, str(saved or "the log of the pod"), self._clock)
        try:
            stream = await self._client.open(Request("GET", path, {"container": container, "follow": "true"}))
            await view.run(aiter(stream.chunks()))
        except (ApiError, ConnectionError, TimeoutError) as error:
            self._screen.note(f"{replica.name}: log stream failed: {error}")
        finally:
            if saved and view.all_shown:
                saved.unlink(missing_ok=True)

    def on_warning(self, seen: Unstructured) -> None:
        """Prints a warning event about a job or its pods, once per object, reason and message without its digits."""
        event = seen.raw
        if (at := event.get("lastTimestamp")) and parse_timestamp(at) < self._started_at:
            return  # from an earlier session with the same `--data` folder
        about: Json = event.get("involvedObject") or {}
        name, reason, message = (str(text) for text in (about.get("name"), event.get("reason"), event.get("message")))
        if (replica := self._pods.get(name)) and replica.phase == "Pending":
            replica.warning = f"{reason}: {message}"
        identity = name, reason, _NUMBERS.sub("", message)
        if identity not in self._warned and self._is_relevant(about, message):
            self._warned.add(identity)
            text = f"{about.get('kind')} {name}: {reason}: {message}"
            self._speaker.say(partial(self._screen.note, text, "yellow"))

    def _is_relevant(self, about: Json, message: str) -> bool:
        """Whether an event concerns a followed job and adds information: events of the operator about pods and
        conditions of a job repeat what the screen already shows."""
        for job in self._jobs.values():
            if about.get("uid") == job.uid:
                return not message.startswith(("Error pod ", "(combined")) and message not in job.messages
            if about.get("kind") == "Pod" and str(about.get("name")).startswith(f"{job.key.name}-"):
                return True
        return False


def _in_phases(replicas: Iterable[Replica], phases: Collection[str]) -> str:
    return ", ".join(sorted(each.name for each in replicas if each.outcome in phases))


def _identity(cause: Failure | None) -> str:
    return "" if cause is None else f"{cause.pod}/{cause.attempt}/{cause.at}"


def _is_explained(job: FollowedJob) -> bool:
    """Whether the end of the pod that the job's status blames is known, and with it the end of its log."""
    cause = job.exits.cause
    return cause is None or not cause.pod or job.exits.has(cause.pod)


def _describe_pause(job: Unstructured, now: datetime) -> str:
    """When the operator creates new pods after a restart."""
    metadata = job.metadata
    pause = RestartHistory(metadata.uid, metadata.annotations).longest_wait(now)
    return f"it goes on in {pause:.0f} s" if pause >= 1 else "it goes on at once"


def _waiting(containers: list[Json]) -> str:
    """Reason and message of the first container in state `waiting`."""
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
    return ""


def _handler(
    on_state: Callable[[Unstructured], None], on_deleted: Callable[[Key], None] = lambda _key: None
) -> Handler[Unstructured]:
    """Calls `on_state` with each new state, also with the last one, and `on_deleted` after a deletion."""

    def delete(obj: Unstructured | None, key: Key) -> None:
        if obj is not None:
            on_state(obj)
        on_deleted(key)

    return HandlerFunctions(on_state, lambda _, new: on_state(new), delete)
