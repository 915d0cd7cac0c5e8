"""What di-server reads: from its caches, and on a miss from the API server, as far as the sender of the request may
cause such requests. Anybody may send any name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from trainop.diserver.limits import CallerLimiter
from trainop.diserver.replies import Refusal, Replicas, missing
from trainop.diserver.retries import persist
from trainop.diserver.seen import (
    INDICES,
    SeenJob,
    SeenNode,
    SeenPod,
    by_job,
    decode_job,
    decode_node,
    decode_pod,
    in_order,
    job_key,
)
from trainop.kinds.dijob.gpus import counted_gpus, majority
from trainop.kinds.dijob.names import AGGREGATOR_CONFIGS, DIJOBS, OUR_PODS, Role
from trainop.runtime import NODES, PODS, Cache, Client, Clock, DecodeError, Json, Key, NotFoundError, Resource
from trainop.runtime.lowlevel import UNREADABLE, Request

T = TypeVar("T")
MayRead: TypeAlias = Callable[[], bool]
"""Asked on a miss: whether a request may be sent to the API server."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Names become part of URLs: nothing else may reach the API server."""

READS, READS_OF_CALLER = (20.0, 40), (1.0, 5)
"""Requests to the API server per second, and at a time, for callers who are not known yet: of all, and of each."""

ARRIVAL = 1.0
"""Seconds for which a request waits for the watch event of what it names."""
ARRIVAL_INTERVAL = 0.05
MAX_WAITING = 64
"""Requests that wait at a time: each has a connection."""


def never() -> bool:
    """`MayRead` of requests that are answered to anybody."""
    return False


def always() -> bool:
    """`MayRead` of requests whose caller is known."""
    return True


class Caches:
    """The pods of all DIJobs, the jobs, and the nodes."""

    def __init__(self, cache: Cache, client: Client, clock: Clock) -> None:
        self.cache = cache
        self._client = client
        self._clock = clock
        self._waiting = 0
        self._reads, self._reads_of_callers = CallerLimiter(clock, *READS), CallerLimiter(clock, *READS_OF_CALLER)
        self.pods = cache.informer(PODS, decode_pod, label_selector=OUR_PODS, indices=INDICES)
        self.jobs = cache.informer(DIJOBS, decode_job)
        self.nodes = cache.informer(NODES, decode_node, namespaces=(), permission_optional=True)
        self._listed: dict[str, tuple[Sequence[str], Sequence[str]]] = {}
        self.pods.add_handler(_Forget(self._listed))

    async def pod(self, namespace: str, name: str, may_read: MayRead = never, *, live: bool = False) -> SeenPod:
        """The pod; with `live` only from the API server. Raises `Refusal` if it does not exist."""
        key = Key(namespace, name)
        found = None if live else self.pods.store.get(key)
        if found is None and may_read():
            found = await self._read(PODS, namespace, name, decode_pod)
        elif found is None and not live:
            found = await self._wait_for(lambda: self.pods.store.get(key))
        if found is None:
            raise missing("pod", namespace, name)
        return found

    async def job_of(self, pod: SeenPod, may_read: MayRead = never) -> SeenJob:
        """The DIJob that owns the pod. Raises `Refusal`."""
        owner, namespace, name = pod.job, pod.metadata.namespace, pod.metadata.name
        if owner is None:
            raise Refusal(404, f"module {name} is not owned by any DIJob")
        key = Key(namespace, owner.name)
        job = self.jobs.store.get(key)
        if (job is None or job.metadata.uid != owner.uid) and may_read():
            job = await self._read(DIJOBS, namespace, owner.name, decode_job)
        elif job is None:
            job = await self._wait_for(lambda: self.jobs.store.get(key))
        if job is None:
            raise missing("DIJob", namespace, owner.name)
        if job.metadata.uid != owner.uid:
            raise Refusal(404, f"coordinator {name} is owned by stale DIJob")
        return job

    def may_read(self, caller: str) -> MayRead:
        """For requests of a caller who may be anybody."""
        return lambda: self._reads_of_callers.allows(caller) and self._reads.allows("")

    async def _wait_for(self, find: Callable[[], T | None]) -> T | None:
        """What is in a cache, or arrives there soon: the watch event of a new object may be on its way. While many
        requests wait already, there is no wait."""
        found = find()
        if found is not None or self._waiting >= MAX_WAITING:
            return found
        self._waiting += 1
        try:
            for _ in range(round(ARRIVAL / ARRIVAL_INTERVAL)):
                await asyncio.sleep(ARRIVAL_INTERVAL)
                if (found := find()) is not None:
                    break
        finally:
            self._waiting -= 1
        return found

    def latest(self, job: SeenJob) -> SeenJob:
        """The job as the cache has it now, if it is there."""
        found = self.jobs.store.get(job.metadata.key)
        return found if found is not None and found.metadata.uid == job.metadata.uid else job

    async def raw_pod(self, job: SeenJob, name: str) -> Json:
        """The whole pod of the job, from the API server. Raises `Refusal`, also if the name belongs to another pod by
        now."""
        namespace = job.metadata.namespace
        try:
            found: Json = await persist(lambda: self._client.get(PODS, name, namespace), self._clock)
        except NotFoundError:
            raise missing("pod", namespace, name) from None
        if job.metadata.uid not in (owner.get("uid") for owner in found["metadata"].get("ownerReferences") or ()):
            raise Refusal(404, f"module {name} is not owned by DIJob {namespace}/{job.metadata.name}")
        return found

    def group(self, job: SeenJob, aggregator: str) -> list[SeenPod]:
        """The ddp learners of an aggregator of the job."""
        pods = self.pods.store.by_index("aggregator", f"{job.metadata.namespace}/{aggregator}")
        ours = (pod for pod in pods if pod.job is not None and pod.job.uid == job.metadata.uid)
        return in_order(pod for pod in ours if not pod.metadata.terminating)

    async def aggregator_config(self, namespace: str, name: str) -> Json:
        """The AggregatorConfig. It is not cached, because few requests need it. Raises `Refusal`."""
        try:
            return await persist(lambda: self._client.get(AGGREGATOR_CONFIGS, name, namespace), self._clock)
        except NotFoundError:
            raise missing("AGConfig", namespace, name) from None

    def block(self) -> int:
        """The majority of GPUs per node."""
        nodes: Sequence[SeenNode] = self.nodes.store.list()
        return majority(counted_gpus(node.gpus for node in nodes))

    def callers(self, job: SeenJob) -> Sequence[SeenPod]:
        """The pods of a job that may send requests: its coordinator and its aggregators."""
        return self.pods.store.by_index("caller", job_key(job.metadata.namespace, job.metadata.uid))

    # Answers of GET ---------------------------------------------------------------------------------------------------

    def replicas(self, job: SeenJob, coordinator: str) -> Replicas:
        """The replicas of a job. The lists are kept until a pod of the job changes, because every coordinator asks for
        them once per second."""
        key = job_key(job.metadata.namespace, job.metadata.uid)
        if key not in self._listed:
            pods = [pod for pod in self.pods.store.by_index("job", key) if not pod.metadata.terminating]
            by_role: dict[Role | None, list[str]] = {}
            for pod in in_order(pods):
                by_role.setdefault(pod.role, []).append(pod.url)
            learners = [*by_role.get(Role.LEARNER, ()), *by_role.get(Role.AGGREGATOR, ())]
            self._listed[key] = (by_role.get(Role.COLLECTOR, []), learners)
        collectors, learners = map(list, self._listed[key])
        return Replicas(job.metadata.namespace, coordinator, collectors, learners)

    def ddp_learners(self, job: SeenJob, aggregator: str) -> Replicas:
        """The processes of the ddp learners of an aggregator."""
        pods = self.group(job, aggregator)
        return Replicas(job.metadata.namespace, aggregator, [], [url for pod in pods for url in pod.urls])

    def coordinators(self, namespace: str) -> list[Replicas]:
        """The replicas of every coordinator of a namespace; of all namespaces if it is empty. Coordinators without
        their job are left out."""
        answers = []
        for pod in in_order(self.pods.store.by_index("coordinator", namespace)):
            owner = pod.job
            job = self.jobs.store.get(Key(pod.metadata.namespace, owner.name)) if owner else None
            if owner and job and job.metadata.uid == owner.uid:
                answers.append(self.replicas(job, pod.metadata.name))
        return answers

    async def _read(self, resource: Resource, namespace: str, name: str, decode: Callable[[bytes], T]) -> T | None:
        """The object on the API server; None if there is none, or none of this name can exist."""
        if not (_NAMESPACE.fullmatch(namespace) and _NAME.fullmatch(name)):
            return None
        request = Request("GET", resource.path(namespace, name))
        try:
            return decode((await persist(lambda: self._client.request(request), self._clock)).body)
        except NotFoundError:
            return None
        except UNREADABLE as error:
            raise Refusal(500, str(DecodeError("", str(error), resource=str(resource)))) from None


class _Forget:
    """Drops the lists of a job whenever one of its pods changes."""

    def __init__(self, listed: dict[str, tuple[Sequence[str], Sequence[str]]]) -> None:
        self._listed = listed

    def add(self, obj: SeenPod, initial: bool) -> None:
        self._forget(obj)

    def update(self, old: SeenPod, new: SeenPod) -> None:
        if old is not new:
            self._forget(old)
            self._forget(new)

    def delete(self, obj: SeenPod | None, key: Key, final_state_unknown: bool) -> None:
        self._forget(obj)

    def _forget(self, pod: SeenPod | None) -> None:
        if pod is None:  # unknown: it may be of any job
            self._listed.clear()
        for key in by_job(pod) if pod else ():
            self._listed.pop(key, None)


def read_raw(job: SeenJob) -> Json:
    """The job as JSON. Raises `Refusal` if it cannot be decoded."""
    try:
        return job.raw
    except (msgspec.MsgspecError, RecursionError):
        raise Refusal(500, f"DIJob {job.metadata.key} cannot be read") from None
