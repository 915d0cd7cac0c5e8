"""Follows jobs, their pods, logs and warnings on a cluster until every job is finished or cannot be started."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeAlias

from trainop.run.logview import LogView
from trainop.run.screen import JobView, Replica, Screen
from trainop.run.starting import StartWatch
from trainop.runtime.cache.cache import Cache
from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import SystemClock, parse_timestamp
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import Json, Key, Unstructured, decode_unstructured
from trainop.runtime.objects.resource import EVENTS, PODS, Resource

_NUMBERS = re.compile(r"\d+")
_JOB_NAME = "training.kubeflow.org/job-name"
_ROLE = "training.kubeflow.org/replica-type"
_INDEX = "training.kubeflow.org/replica-index"
_STARTED = frozenset({"Running", "Restarting", "Succeeded", "Failed"})
_LAST_WORDS = 2.0
"""Seconds for the logs of containers that run on when all jobs are over."""


@dataclass(slots=True)
class Followed:
    """One job that is waited for; `ended` is Succeeded, Failed, Deleted or NotStarted once it is over."""

    resource: Resource
    key: Key
    view: JobView
    uid: str = ""
    ended: str = ""
    reason: str = ""
    message: str = ""
    seen: set[str] = field(default_factory=set)
    """Conditions that were shown, each with the time it came."""
    told: set[str] = field(default_factory=set)
    """Their messages."""


KeepLog: TypeAlias = Callable[[Key, str], Path | None]
"""Makes the log of a pod's container outlive the pod: where it is then, if it can be kept."""


class Follower:
    """Shows on `screen` what happens to `jobs`; `run` returns when all are over and their logs are read."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        jobs: list[Followed],
        screen: Screen,
        *,
        keep_log: KeepLog,
        start_timeout: float,
    ) -> None:
        self._client = client
        self._screen = screen
        self._keep_log = keep_log
        self._clock = SystemClock()
        self._start_timeout = start_timeout
        self._begun = self._clock.now() - timedelta(seconds=1)  # times in the API are whole seconds
        self._jobs = {(job.resource.kind, job.key): job for job in jobs}
        self._streams: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self._ended: set[tuple[str, str, int]] = set()
        """Runs of containers whose log is complete."""
        self._pods: dict[str, Replica] = {}
        """By name."""
        self._warned: set[tuple[str, str, str]] = set()
        self._all_over = asyncio.Event()
        for resource in {job.resource for job in jobs}:
            cache.informer(resource, decode_unstructured).add_handler(
                _Each(partial(self.see_job, resource.kind), partial(self.lose_job, resource.kind))
            )
        cache.informer(PODS, decode_unstructured, label_selector=_JOB_NAME).add_handler(_Each(self.see_pod))
        cache.informer(EVENTS, decode_unstructured, field_selector="type=Warning").add_handler(_Each(self.see_warning))

    async def run(self) -> None:
        """Until every job is over and all that ended containers printed is shown."""
        watch = StartWatch(self._clock, self._start_timeout, partial(self._screen.note, style="yellow"))
        watching = asyncio.create_task(watch.run(self._open_jobs, self._give_up))
        try:
            await self._all_over.wait()
            if lasting := [stream for run, stream in self._streams.items() if run not in self._ended]:
                await asyncio.wait(lasting, timeout=_LAST_WORDS)
            if ended := [stream for run, stream in self._streams.items() if run in self._ended]:
                await asyncio.wait(ended)
        finally:
            tasks = {watching, *self._streams.values()}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _open_jobs(self) -> list[JobView]:
        return [job.view for job in self._jobs.values() if not job.ended]

    def _give_up(self, view: JobView, why: str) -> None:
        for job in self._jobs.values():
            if job.view is view:
                job.ended, job.message = "NotStarted", why
        self._screen.note(why, "bold red")
        self._check_over()

    def see_job(self, kind: str, seen: Unstructured) -> None:
        job = self._jobs.get((kind, seen.metadata.key))
        if job is None or job.ended:
            return
        job.uid = seen.metadata.uid
        conditions: list[Json] = (seen.raw.get("status") or {}).get("conditions") or []
        job.view.conditions = [c["type"] for c in conditions if c["status"] == "True"]
        job.view.started |= not _STARTED.isdisjoint(job.view.conditions)
        for condition in conditions:
            self._see_condition(job, condition)
        self._check_over()

    def _see_condition(self, job: Followed, condition: Json) -> None:
        kind, told = condition["type"], f"{condition['type']}/{condition.get('lastTransitionTime')}"
        if condition["status"] != "True" or told in job.seen:
            return
        job.seen.add(told)
        job.told.add(condition.get("message") or "")
        self._screen.condition(job.view, kind, condition.get("message") or "")
        if kind in {"Succeeded", "Failed"}:
            job.ended, job.reason, job.message = kind, condition.get("reason", ""), condition.get("message", "")

    def lose_job(self, kind: str, key: Key) -> None:
        job = self._jobs.get((kind, key))
        if job and not job.ended:
            job.ended, job.message = "Deleted", f"{kind} {key.name} was deleted before it finished"
        self._check_over()

    def _check_over(self) -> None:
        if all(job.ended for job in self._jobs.values()):
            self._all_over.set()

    def see_pod(self, pod: Unstructured) -> None:
        job, replica = self._replica_of(pod)
        if job is None or replica is None:
            return
        status: Json = pod.raw.get("status") or {}
        replica.phase = "Terminating" if pod.metadata.terminating else str(status.get("phase") or "Pending")
        containers: list[Json] = status.get("containerStatuses") or []
        replica.pods[pod.metadata.uid] = sum(c.get("restartCount", 0) for c in containers)
        everyone = containers + (status.get("initContainerStatuses") or [])
        replica.detail = _waiting(everyone)
        self._pods[pod.metadata.name] = replica
        if any(container.get("containerID") for container in everyone):
            job.view.started = True
            replica.warning = ""
        for container in containers:
            if self._is_past(container):
                continue
            self._see_exit(replica, container)
            self._open_log(pod, replica, container, sidecar=len(containers) > 1)

    def _replica_of(self, pod: Unstructured) -> tuple[Followed | None, Replica | None]:
        owner, labels = pod.metadata.controller, pod.metadata.labels
        if owner is None or _ROLE not in labels:
            return None, None
        job = self._jobs.get((owner.kind, Key(pod.metadata.namespace, owner.name)))
        if job is None:
            return None, None
        name = "-".join(filter(None, (labels[_ROLE], labels.get(_INDEX))))
        return job, job.view.replica(f"{job.key.name}/{name}" if len(self._jobs) > 1 else name)

    def _is_past(self, container: Json) -> bool:
        """It ended in an earlier session with the same data."""
        ended = (container.get("state") or {}).get("terminated")
        return bool(ended and parse_timestamp(ended["finishedAt"]) < self._begun)

    def _see_exit(self, replica: Replica, container: Json) -> None:
        ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
        if ended:
            replica.exit_code = ended.get("exitCode")
            replica.exit_reason = ": ".join(filter(None, (ended.get("reason"), ended.get("message"))))

    def _open_log(self, pod: Unstructured, replica: Replica, container: Json, *, sidecar: bool) -> None:
        state = container.get("state") or {}
        instance = (pod.metadata.uid, container["name"], container.get("restartCount", 0))
        if "terminated" in state:
            self._ended.add(instance)
        if instance in self._streams or not ("running" in state or "terminated" in state):
            return
        prefix = f"[{container['name']}] " if sidecar else ""
        copy = self._copy_log(pod.metadata.key, container["name"], replica, prefix)
        self._streams[instance] = asyncio.get_running_loop().create_task(copy)

    async def _copy_log(self, pod: Key, container: str, replica: Replica, prefix: str) -> None:
        """Print the log of one container until it ends; a pod that vanishes takes the rest of its log with it."""
        path = PODS.path(pod.namespace, pod.name, "log")
        kept = self._keep_log(pod, container) if self._screen.terminal else None
        view = LogView(self._screen, replica, prefix, str(kept or "the log of its pod"), self._clock)
        try:
            stream = await self._client.open(Request("GET", path, {"container": container, "follow": "true"}))
            await view.run(aiter(stream.chunks()))
        except (ApiError, ConnectionError, TimeoutError) as error:
            self._screen.note(f"{replica.name}: its log cannot be read further: {error}")
        finally:
            if kept and view.complete:
                kept.unlink(missing_ok=True)

    def see_warning(self, seen: Unstructured) -> None:
        """A warning about one of the jobs or its pods, once for each reason and text; numbers in it may grow."""
        event = seen.raw
        if (at := event.get("lastTimestamp")) and parse_timestamp(at) < self._begun:
            return  # of an earlier run with the same data
        about: Json = event.get("involvedObject") or {}
        name, reason, message = (str(text) for text in (about.get("name"), event.get("reason"), event.get("message")))
        if (replica := self._pods.get(name)) and replica.phase == "Pending":
            replica.warning = f"{reason}: {message}"
        told = name, reason, _NUMBERS.sub("", message)
        if told not in self._warned and self._concerns(about, message):
            self._warned.add(told)
            self._screen.note(f"{about.get('kind')} {name}: {reason}: {message}", "yellow")

    def _concerns(self, about: Json, message: str) -> bool:
        """What the operator says of a job's pods, and of its conditions, is on the screen already."""
        for job in self._jobs.values():
            if about.get("uid") == job.uid:
                return not message.startswith(("Error pod ", "(combined")) and message not in job.told
            if about.get("kind") == "Pod" and str(about.get("name")).startswith(f"{job.key.name}-"):
                return True
        return False


def _waiting(containers: list[Json]) -> str:
    """Why the first waiting container waits."""
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
    return ""


@dataclass(frozen=True, slots=True)
class _Each:
    """An informer's handler that looks at the newest state, and is told what is gone."""

    see: Callable[[Unstructured], None]
    lose: Callable[[Key], None] | None = None

    def add(self, obj: Unstructured, initial: bool) -> None:
        del initial
        self.see(obj)

    def update(self, old: Unstructured, new: Unstructured) -> None:
        del old
        self.see(new)

    def delete(self, obj: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        del final_state_unknown
        if obj is not None:
            self.see(obj)
        if self.lose:
            self.lose(key)
