"""Who may change the replicas of a job: its own coordinator and aggregators, and users with the permission.

A pod is known by its IP address: the peer of the connection, never a header. A pod on the network of its node is not,
because other pods and processes of the node, and clients behind its address translation, have the same address.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from trainop.diserver.caches import Caches
from trainop.diserver.metrics import DiServerMetrics
from trainop.diserver.replies import Refusal, of_api
from trainop.diserver.retries import FAILURES
from trainop.diserver.seen import ENDED, SeenJob, SeenPod
from trainop.runtime.lowlevel import Authorizer

START_PATIENCE = 10.0
"""Seconds for which a request waits for the address of the pod that it names. A kubelet reports the address after the
containers have started, often later than the first request of a program."""
START_INTERVAL = 0.1
MAX_STARTING = 4
"""Requests of one address that wait so. Each has a connection, which others need."""


class Caller(NamedTuple):
    """The sender of a request."""

    address: str
    """IP address of the peer."""
    token: str = ""
    """Its bearer token."""


def read_caller(peer: str, authorization: str) -> Caller:
    """The caller with this peer address and header. IPv4 addresses that are mapped to IPv6 are written as IPv4."""
    scheme, _, token = authorization.partition(" ")
    return Caller(normal(peer), token.strip() if scheme.lower() == "bearer" else "")


def normal(address: str) -> str:
    """The canonical form of an IP address; anything else is returned unchanged."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def is_pod(pods: Iterable[SeenPod], address: str, job: SeenJob) -> bool:
    """Whether the address is that of a coordinator or aggregator of the job among `pods`. The address of a finished pod
    may belong to another by now."""
    return any(address in map(normal, pod.addresses) for pod in pods if _may_call(pod, job))


def _may_call(pod: SeenPod, job: SeenJob) -> bool:
    return (
        pod.is_caller
        and pod.job is not None
        and pod.job.uid == job.metadata.uid
        and pod.metadata.namespace == job.metadata.namespace
        and pod.phase not in ENDED
        and not pod.host_network
    )


class CallerCheck:
    """Checks the caller of each request that changes pods."""

    def __init__(
        self, caches: Caches, authorizer: Authorizer, metrics: DiServerMetrics, *, enabled: bool = True
    ) -> None:
        self._caches = caches
        self._authorizer = authorizer
        self._metrics = metrics
        self._enabled = enabled
        self._starting: Counter[str] = Counter()

    async def check(self, caller: Caller, job: SeenJob, named: str, verbs: Iterable[str]) -> None:
        """Raises `Refusal` with 403 unless the caller may do this. `named` is the pod that the request names as its
        sender; `verbs` are what a user needs the permission for, on pods."""
        if not self._enabled or is_pod(self._caches.callers(job), caller.address, job):
            return
        if caller.token:
            if await self._is_allowed(caller.token, job.metadata.namespace, verbs):
                return
        elif await self._is_new_pod(caller, job, named):
            return
        self._metrics.callers_refused.inc()
        raise Refusal(403, self._reason(caller, job, named))

    async def _is_new_pod(self, caller: Caller, job: SeenJob, named: str) -> bool:
        """The cache may not have the address of a pod that has just started."""
        namespace, may_read = job.metadata.namespace, self._caches.may_read(caller.address)
        pod: SeenPod | None
        try:
            pod = await self._caches.pod(namespace, named, may_read, live=True)
        except Refusal:
            pod = next((pod for pod in self._caches.callers(job) if pod.metadata.name == named), None)
        except FAILURES as error:
            raise of_api(error) from None
        if pod is not None and is_pod([pod], caller.address, job):
            return True
        if pod is None or pod.addresses or not _may_call(pod, job):
            return False
        if self._starting[caller.address] >= MAX_STARTING:
            return False
        self._starting[caller.address] += 1
        try:
            return await self._has_started(caller, job, named)
        finally:
            self._starting[caller.address] -= 1
            self._starting += Counter()  # forgets those without any

    async def _has_started(self, caller: Caller, job: SeenJob, named: str) -> bool:
        """Waits until the named pod has an address, and returns whether it is the caller's."""
        for _ in range(round(START_PATIENCE / START_INTERVAL)):
            await asyncio.sleep(START_INTERVAL)
            pod = next((pod for pod in self._caches.callers(job) if pod.metadata.name == named), None)
            if pod is None or pod.addresses or not _may_call(pod, job):
                break
        return is_pod(self._caches.callers(job), caller.address, job)

    async def _is_allowed(self, token: str, namespace: str, verbs: Iterable[str]) -> bool:
        try:
            user = await self._authorizer.user_of(token)
            if user is None:
                return False
            for verb in verbs:
                attributes = {"namespace": namespace, "verb": verb, "version": "v1", "resource": "pods"}
                if not await self._authorizer.allows(user, {"resourceAttributes": attributes}):
                    return False
        except FAILURES as error:
            raise of_api(error) from None
        return True

    def _reason(self, caller: Caller, job: SeenJob, named: str) -> str:
        key = f"{job.metadata.namespace}/{job.metadata.name}"
        if caller.token:
            return f"the token has no permission to change the pods of DIJob {key}"
        pod = next((pod for pod in self._caches.callers(job) if pod.metadata.name == named), None)
        if pod is not None and pod.host_network:
            return f"pod {named} uses the network of its node and must send a bearer token"
        return f"caller {caller.address} is not the coordinator or an aggregator of DIJob {key}"
