"""What each request does: decode, resolve, check the caller, then change pods under the job's lease.

An operation returns its answer, which the caller sends before the lease is released. Nothing is half done: until all
pods exist they are deleted again on a failure, and from then on the request is completed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, TypeAlias

from trainop.diserver.admission import check_admitted, read_admission
from trainop.diserver.bodies import Demand, Failed, read_demand, read_failed
from trainop.diserver.caches import Caches, always, read_raw
from trainop.diserver.callers import Caller, CallerCheck
from trainop.diserver.dropped import DroppedFields, Tell
from trainop.diserver.journal import HeldLease, Journal
from trainop.diserver.records import JobKey
from trainop.diserver.replicas import (
    COLLECTORS,
    LEARNERS,
    FailedReplica,
    NewReplica,
    PodBuilder,
    PodSources,
    check_demand,
    check_replacement,
    labels_of,
    needs_aggregator,
    plan_creation,
    plan_replacement,
)
from trainop.diserver.replies import CREATED, DELETED, RECREATED, Answer, Refusal, Replicas, of_api, succeed
from trainop.diserver.retries import FAILURES, is_uncertain
from trainop.diserver.seen import PodId, SeenJob, SeenPod
from trainop.diserver.victims import choose_victims
from trainop.diserver.writer import PodWriter, each
from trainop.engine.kueue import QUEUE
from trainop.engine.queueing.placement import Placement
from trainop.kinds.dijob.names import DDP_MASTER, DDP_TYPE, REPLICA_TYPE, SUFFIX_CHARACTERS, SUFFIX_LENGTH, Role
from trainop.kinds.dijob.pods import PodOptions, pod_url
from trainop.runtime import Json

Progress: TypeAlias = tuple[Answer, HeldLease | None]
"""An answer, and the lease that is released once it is sent."""


class Rules(NamedTuple):
    """Settings of the operations."""

    pod_options: PodOptions
    config_namespace: str
    config_name: str
    max_pods: int
    """That one request may create or replace."""


class Call(NamedTuple):
    """One request that changes pods."""

    method: str
    path: str
    body: bytes
    caller: Caller
    is_gone: Callable[[], bool]
    """Whether the client has closed the connection."""

    @property
    def digest(self) -> str:
        """Equal for a repeated request of the same caller."""
        parts = (self.method, self.path, self.caller.address)
        return hashlib.sha256("\n".join(parts).encode() + b"\n" + self.body).hexdigest()


class Operations:
    """The three requests that change pods. Each is an asynchronous context manager that yields the answer and the lease
    under which it was made. They raise `Refusal`."""

    def __init__(
        self,
        caches: Caches,
        writer: PodWriter,
        journal: Journal,
        callers: CallerCheck,
        *,
        rules: Rules,
        rng: random.Random,
        tell: Tell,
    ) -> None:
        self._caches = caches
        self._writer = writer
        self._journal = journal
        self._callers = callers
        self._rules = rules
        self._rng = rng
        self._tell = tell

    @asynccontextmanager
    async def create(self, call: Call) -> AsyncIterator[Progress]:
        """POST /v1alpha1/replicas"""
        demand = read_demand(call.body)
        job = await self._job_of(call, demand.namespace, demand.coordinator)
        await self._callers.check(call.caller, job, demand.coordinator, ("create",))
        empty = Replicas(demand.namespace, demand.coordinator, [], [])

        async def work(held: HeldLease, current: SeenJob) -> Answer:
            sources = await self._sources_of(current, demand, held.record.request)
            replicas = plan_creation(demand, sources)
            urls = await self._make(replicas, held)
            done = Replicas(demand.namespace, demand.coordinator, urls[COLLECTORS], urls[LEARNERS])
            answer = succeed(CREATED, done)
            await self._decide(held, answer)
            return answer

        async with self._exclusively(call, job, empty, work) as progress:
            yield progress

    @asynccontextmanager
    async def delete(self, call: Call) -> AsyncIterator[Progress]:
        """DELETE /v1alpha1/replicas"""
        demand = read_demand(call.body)
        job = await self._job_of(call, demand.namespace, demand.coordinator)
        await self._callers.check(call.caller, job, demand.coordinator, ("delete",))
        empty = Replicas(demand.namespace, demand.coordinator, [], [])

        async def work(held: HeldLease, _current: SeenJob) -> Answer:
            pods = await self._writer.list_pods(held.record.key)
            victims = choose_victims(pods, demand.collectors.replicas, demand.learners.replicas)
            lists = ([pod.url for pod in chosen] for chosen in (victims.collectors, victims.learners))
            answer = succeed(DELETED, Replicas(demand.namespace, demand.coordinator, *lists))
            await self._decide(held, answer, victims.pods)
            return answer

        async with self._exclusively(call, job, empty, work) as progress:
            yield progress

    @asynccontextmanager
    async def replace(self, call: Call) -> AsyncIterator[Progress]:
        """POST /v1alpha1/replicas/failed"""
        failed = read_failed(call.body)
        names = tuple(dict.fromkeys((*failed.collectors, *failed.learners)))
        empty = Replicas(failed.namespace, failed.coordinator, [], [])
        if len(names) > self._rules.max_pods:
            raise Refusal(400, f"the request names {len(names)} pods, and at most {self._rules.max_pods} are allowed")
        if not names:
            yield succeed(RECREATED, empty), None
            return
        job, obstacle = await self._job_of_failed(call, failed)
        await self._callers.check(call.caller, job, failed.coordinator, ("create", "delete"))

        async def work(held: HeldLease, current: SeenJob) -> Answer:
            if obstacle is not None:
                raise obstacle
            self._refuse_ended(current)
            await self._admission_of(current, failed.coordinator)
            raw, block = read_raw(current), self._caches.block()
            sources = PodSources(raw, self._rules.pod_options, held.record.request, block=block)
            olds = await self._read_failed(failed, current)
            check_replacement(olds, sources, self._rules.max_pods)
            replicas = [plan_replacement(old, sources, names) for old in olds]
            urls = await self._make(replicas, held)
            done = Replicas(failed.namespace, failed.coordinator, urls[COLLECTORS], urls[LEARNERS])
            answer = succeed(RECREATED, done)
            await self._decide(held, answer, [pod for replica in replicas for pod in replica.replaces])
            return answer

        async with self._exclusively(call, job, empty, work) as progress:
            yield progress

    # Steps ------------------------------------------------------------------------------------------------------------

    async def _job_of(self, call: Call, namespace: str, coordinator: str) -> SeenJob:
        may_read = self._caches.may_read(call.caller.address)
        return await self._caches.job_of(await self._caches.pod(namespace, coordinator, may_read), may_read)

    async def _job_of_failed(self, call: Call, failed: Failed) -> tuple[SeenJob, Refusal | None]:
        """The job of the failed pods, and why they cannot be replaced. Pods that are gone may have been replaced by
        this very request before: the job is then that of the coordinator."""
        pods: list[SeenPod] = []
        jobs: dict[str, SeenJob] = {}
        may_read = self._caches.may_read(call.caller.address)
        try:
            for name in (*failed.collectors, *failed.learners):
                pods.append(await self._caches.pod(failed.namespace, name, may_read))
                job = await self._caches.job_of(pods[-1], may_read)  # before the next pod: each may cost a request
                jobs[job.metadata.uid] = job
        except Refusal as missing:
            try:
                return await self._job_of(call, failed.namespace, failed.coordinator), missing
            except Refusal:
                raise missing from None
        names = [pod.metadata.name for pod in pods if pod.role is Role.COORDINATOR]
        obstacle = Refusal(400, f"coordinator {names[0]} cannot be recreated") if names else None
        if len(jobs) > 1:
            raise Refusal(400, "the pods belong to more than one DIJob")
        return next(iter(jobs.values())), obstacle

    @asynccontextmanager
    async def _exclusively(
        self,
        call: Call,
        job: SeenJob,
        empty: Replicas,
        work: Callable[[HeldLease, SeenJob], Awaitable[Answer]],
    ) -> AsyncIterator[Progress]:
        """The answer of `work`, or that of the same request before. A failure undoes what was created."""
        try:
            metadata = job.metadata
            key = JobKey(metadata.namespace, metadata.name, metadata.uid)
            async with self._journal.hold(key, call.digest) as held:
                answer = held.record.answer
                if answer is None:
                    _refuse_absent(call)
                    current = self._caches.latest(job)  # it may have finished during the wait
                    answer = await self._undoing(held, lambda: work(held, current))
                yield answer, held
        except Refusal as refusal:
            raise refusal.about(empty) from None
        except FAILURES as error:
            raise of_api(error).about(empty) from None

    async def _undoing(self, held: HeldLease, work: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            return await work()
        except (Refusal, *FAILURES) as error:
            if held.unfinished and held.record.state == "open":
                uncertain = not isinstance(error, Refusal) and is_uncertain(error)
                await self._writer.undo(held.record.key, held.record.request, uncertain=uncertain)
                held.unfinished = False
            raise

    async def _sources_of(self, job: SeenJob, demand: Demand, request: str) -> PodSources:
        self._refuse_ended(job)
        raw, block, rules = read_raw(job), self._caches.block(), self._rules
        check_demand(demand, raw, block, rules.max_pods)
        admission = await self._admission_of(job, demand.coordinator)
        if admission is not None:
            key = JobKey(job.metadata.namespace, job.metadata.name, job.metadata.uid)
            check_admitted(demand, raw, admission, await self._writer.list_pods(key))
        config = None
        if needs_aggregator(demand.learners):
            config = await self._caches.aggregator_config(rules.config_namespace, rules.config_name)
        return PodSources(raw, rules.pod_options, request, config, admission or {}, block)

    async def _admission_of(self, job: SeenJob, coordinator: str) -> Mapping[str, Placement] | None:
        """What the queue of the job has admitted; None if it has none. Raises `Refusal` while the job is stopped."""
        if QUEUE not in job.metadata.labels:
            return None
        return read_admission(await self._caches.raw_pod(job, coordinator))

    @staticmethod
    def _refuse_ended(job: SeenJob) -> None:
        if job.ended:
            raise Refusal(400, f"DIJob {job.metadata.namespace}/{job.metadata.name} is finished")

    async def _read_failed(self, failed: Failed, job: SeenJob) -> list[FailedReplica]:
        """The failed pods as the API server has them; aggregators first, because their ddp learners go with them, and
        then masters of ddp groups."""
        sections = dict.fromkeys(failed.learners, LEARNERS) | dict.fromkeys(failed.collectors, COLLECTORS)
        read: dict[str, FailedReplica] = {}

        async def load(name: str) -> None:
            pod = await self._caches.raw_pod(job, name)
            read[name] = FailedReplica(sections[name], pod, await self._group(job, name, pod))

        await each(sections, load)
        found = {name: read[name] for name in (*failed.collectors, *failed.learners)}
        olds: list[FailedReplica] = []
        covered: set[str] = set()
        for name in sorted(found, key=lambda name: _rank(found[name])):
            if name not in covered:
                olds.append(found[name])
                covered.update(member["metadata"]["name"] for member in found[name].group)
        order = {name: place for place, name in enumerate(found)}
        return sorted(olds, key=lambda old: order[old.pod["metadata"]["name"]])

    async def _group(self, job: SeenJob, name: str, pod: Json) -> list[Json]:
        """The ddp learners that are replaced with a pod: those of an aggregator, and the workers of a master."""
        seen = await self._caches.pod(job.metadata.namespace, name, always)
        if seen.role is Role.AGGREGATOR:
            aggregator = name
        elif labels_of(pod).get(DDP_TYPE) == DDP_MASTER and seen.aggregator is not None:
            aggregator = seen.aggregator.name
        else:
            return []
        group = []
        for member in self._caches.group(job, aggregator):
            try:
                group.append(await self._caches.raw_pod(job, member.metadata.name))
            except Refusal:  # it is gone
                continue
        return group

    async def _make(self, replicas: Sequence[NewReplica], held: HeldLease) -> dict[str, list[str]]:
        """Creates the pods of all replicas. Returns the addresses for the response: section -> URLs, in the order of
        `replicas`."""
        held.unfinished = bool(replicas)
        dropped = DroppedFields(f"{self._rules.config_namespace}/{self._rules.config_name}")
        made: dict[int, list[str]] = {}

        async def make(numbered: tuple[int, NewReplica]) -> None:
            number, replica = numbered
            pods: list[Json] = []
            before: list[PodId] = []
            for build in replica.builders:
                created = await self._writer.create(partial(self._named, build, before), held, dropped.note)
                pods.append(created.pod)
                before.append(PodId(created.pod["metadata"]["name"], created.uid))
            made[number] = [pod_url(pods[index]) for index in replica.answers]

        try:
            await each(enumerate(replicas), make)
        finally:  # a dropped field may be why a pod is refused
            if message := dropped.message:
                self._tell(held.record.key, message)
        urls: dict[str, list[str]] = {COLLECTORS: [], LEARNERS: []}
        for number, replica in enumerate(replicas):
            urls[replica.section] += made[number]
        return urls

    def _named(self, build: PodBuilder, before: Sequence[PodId]) -> Json:
        return build("".join(self._rng.choices(SUFFIX_CHARACTERS, k=SUFFIX_LENGTH)), before)

    async def _decide(self, held: HeldLease, answer: Answer, delete: Sequence[PodId] = ()) -> None:
        """Records the outcome, and then deletes the pods that it says."""
        await held.decide(answer, delete)
        held.unfinished = bool(delete)
        await self._writer.delete_pods(held.record.key, delete)
        held.unfinished = False


def _rank(old: FailedReplica) -> int:
    labels = labels_of(old.pod)
    if labels.get(REPLICA_TYPE) == Role.AGGREGATOR.value:
        return 0
    return 1 if labels.get(DDP_TYPE) == DDP_MASTER else 2


def _refuse_absent(call: Call) -> None:
    """A client that left while it waited repeats its request, or does not want it any more."""
    if call.is_gone():
        raise Refusal(500, "the client has closed the connection")
