"""The cache of Evictions, and the writes of their status (`trainop.engine.evictions`).

The cache is opened for the first job that asks for it: before, and where no job asks, the operator sends no request
about Evictions. Where the kind is not served, or may not be read, the informer looks again from time to time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec
import structlog

from trainop.controllers.outcome import Outcome
from trainop.engine.actions import Answer
from trainop.engine.extensions import read_checkpoint
from trainop.engine.seen import EVICTIONS, Eviction, Pod, SeenEvictions, Snapshot
from trainop.runtime import (
    PODS,
    ApiError,
    Cache,
    Client,
    Clock,
    ConflictError,
    Informer,
    Key,
    NotFoundError,
    Store,
    Unstructured,
)
from trainop.runtime.lowlevel import HandlerFunctions

SYNC_CHECK, SYNC_LIMIT = 0.1, 10.0
"""Seconds between two looks at a cache that is new, and until its jobs go on without it."""
RETRY = 20.0
"""Seconds until an answer that was refused is tried again."""

_KeysOf = Callable[[Pod], Iterable[Key]]
"""The keys of the jobs of a pod."""

decode_eviction: Callable[[bytes], Eviction] = msgspec.json.Decoder(Eviction).decode

log = structlog.get_logger(__name__)


def by_namespace(eviction: Eviction) -> tuple[str, ...]:
    """Index: the namespace, of those that wait for the operator."""
    return (eviction.metadata.namespace,) if eviction.active else ()


class EvictionCache:
    """One per process."""

    def __init__(self, cache: Cache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._listeners: list[tuple[Store[Pod], _KeysOf, Callable[[Key], None]]] = []
        self._opened_at = 0.0
        self.informer: Informer[Eviction] | None = None
        """None until a job has asked."""

    def listen(self, pods: Store[Pod], keys_of: _KeysOf, add: Callable[[Key], None]) -> None:
        """`add` is called with the keys of the cached `pods` of which an Eviction is created or changed."""
        self._listeners.append((pods, keys_of, add))

    def seconds_to_wait(self) -> float:
        """Seconds until the cache may be complete; 0 if it is, or takes too long. Opens it at the first call."""
        if self.informer is None:
            indices = {"active": by_namespace}
            self.informer = self._cache.informer(
                EVICTIONS, decode_eviction, indices=indices, optional=True, permission_optional=True
            )
            self.informer.may_be_forbidden = True
            self.informer.add_handler(HandlerFunctions(self._tell, lambda _, new: self._tell(new)))
            self._opened_at = self._clock.monotonic()
        waited = self._clock.monotonic() - self._opened_at
        return 0.0 if self.informer.synced or waited >= SYNC_LIMIT else SYNC_CHECK

    def _tell(self, eviction: Eviction) -> None:
        target = eviction.pod
        for pods, keys_of, add in self._listeners:
            pod = pods.get(Key(eviction.metadata.namespace, target.name))
            for key in keys_of(pod) if pod is not None and pod.metadata.uid == target.uid else ():
                add(key)

    def show(self, seen: Snapshot, pods: Store[Pod]) -> Snapshot:
        """Adds the Evictions of the job's pods, and whether new pods get the operator as a responder. `pods`: all that
        are cached."""
        informer = self.informer
        if informer is None:
            return seen
        asks = read_checkpoint(seen.job.metadata.annotations).responds
        namespace, prefix = seen.job.metadata.namespace, f"{seen.job.metadata.name}-"
        uids = {pod.metadata.uid for pod in seen.pods}
        active = informer.store.by_index("active", namespace)
        found = tuple(each for each in active if _concerns(each, uids, prefix, pods))
        if not asks and not found:
            return seen
        obstacle = _find_obstacle(informer, namespace, seen.options.installation)
        options = replace(seen.options, answers_evictions=asks and not obstacle)
        return replace(seen, options=options, evictions=SeenEvictions(obstacle, found))


def _concerns(eviction: Eviction, uids: set[str], prefix: str, pods: Store[Pod]) -> bool:
    """Whether its target is one of these pods, or may have been one: it is not cached, and has a name with the
    prefix."""
    pod = eviction.pod
    if pod.uid in uids:
        return True
    known = pods.get(Key(eviction.metadata.namespace, pod.name)) if pod.name.startswith(prefix) else None
    return pod.name.startswith(prefix) and (known is None or known.metadata.uid != pod.uid)


def _find_obstacle(informer: Informer[Eviction], namespace: str, installation: str) -> str:
    """Why Evictions cannot be answered; empty if they can."""
    if not informer.permitted_in(namespace):
        component = "eviction-responder-namespaced" if installation == "namespaced" else "eviction-responder"
        return f"it has no permission to list and watch {EVICTIONS}, which its component {component} grants"
    if not informer.served:
        what = f"the API server does not serve {EVICTIONS.api_version} {EVICTIONS.kind}"
        return f"{what}, which Kubernetes 1.37 has with the feature gate EvictionRequestAPI"
    return "" if informer.synced else f"{EVICTIONS} cannot be read yet"


async def answer_eviction(client: Client, job: Unstructured, action: Answer, outcome: Outcome) -> None:
    """Writes the answer. The Eviction may have been changed or deleted meanwhile: its event comes soon."""
    namespace = job.metadata.namespace
    try:
        if action.unless_pod is not None and await _exists(client, namespace, *action.unless_pod):
            return
        body = {"metadata": {"resourceVersion": action.version}, **action.body}
        await client.patch(EVICTIONS, action.name, namespace, body, subresource="status", metadata_only=True)
        log.debug("eviction answered", eviction=action.name)
    except (NotFoundError, ConflictError):
        return
    except (ApiError, ConnectionError, TimeoutError) as error:
        log.warning("eviction not answered", eviction=action.name, error=str(error))
        outcome.wait(RETRY)


async def _exists(client: Client, namespace: str, name: str, uid: str) -> bool:
    try:
        found = await client.get(PODS, name, namespace)
    except NotFoundError:
        return False
    return bool(found["metadata"]["uid"] == uid)
