"""Children that the API server refused while their job goes on: each is tried again ever later, and told of once.

What refuses one pod (an admission policy, a LimitRange, PodSecurity, a PriorityClass that is still missing) mostly
refuses its siblings too, and lasts until somebody changes it: minutes, not milliseconds. Whoever has changed it and
does not want to wait edits the job: a new spec or annotation of others is tried at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainop.engine.actions import Action, Apply, CreatePod, CreateService
from trainop.engine.restart_history import RESTARTS
from trainop.runtime.clock import Clock
from trainop.runtime.controller.ratelimit import ExponentialLimiter
from trainop.runtime.objects.metadata import Metadata

SOONEST, LATEST = 60.0, 900.0
"""Seconds until what was refused is tried again: at first, and at most."""

OTHERS_AFTER = 1.0
"""Seconds until the others are tried, after as many refusals as one pass accepts."""

MOST_TEXTS = 20
"""Different refusals of one job that are told."""


class RefusedChild(NamedTuple):
    """One child of the kind that could not be made, and the API server's words without the child's name, as they are
    the same for its siblings."""

    kind: str
    name: str
    text: str


@dataclass(slots=True)
class _Held:
    edition: int
    """Of the job that was refused."""
    until: float = 0.0
    names: set[tuple[str, str]] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)


class RefusedChildren:
    """Of one controller, by the job's UID. Nothing of it outlives the process: then all is tried once more."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._delays: ExponentialLimiter[str] = ExponentialLimiter(clock, rng, base=SOONEST, cap=LATEST)
        self._held: dict[str, _Held] = {}

    def allow(self, job: Metadata, actions: Sequence[Action]) -> tuple[Sequence[Action], float | None]:
        """The actions without those that have to wait, and the seconds until these are due."""
        held = self._held.get(job.uid)
        if held is None:
            return actions, None
        if held.edition != (edition := _edition(job)):
            held.edition, held.until = edition, 0.0
            self._delays.forget(job.uid)
        wait = held.until - self._clock.monotonic()
        if wait <= 0:
            held.names.clear()
            return actions, None
        allowed = [action for action in actions if _place(action) not in held.names]
        return allowed, wait if len(allowed) < len(actions) else None

    def note(self, job: Metadata, refused: Iterable[RefusedChild]) -> tuple[list[RefusedChild], float | None]:
        """Those whose words are new, and the seconds until all that was refused is due again."""
        uid = job.uid
        fresh: list[RefusedChild] = []
        wait: float | None = None
        for each in refused:
            held = self._held.setdefault(uid, _Held(_edition(job)))
            if wait is None:
                wait = self._delays.delay(uid)
                held.until = self._clock.monotonic() + wait
            held.names.add((each.kind, each.name))
            if each.text not in held.texts and len(held.texts) < MOST_TEXTS:
                held.texts.add(each.text)
                fresh.append(each)
        if wait is None and uid in self._held and not self._held[uid].names:
            self.forget(uid)  # what was due has been made: the next refusal is a new one
        return fresh, wait

    def forget(self, uid: str) -> None:
        self._held.pop(uid, None)
        self._delays.forget(uid)


def _edition(job: Metadata) -> int:
    """Changes with the spec and with annotations that are not our own, and not with the status."""
    return hash((job.generation, frozenset(item for item in job.annotations.items() if item[0] != RESTARTS)))


def _place(action: Action) -> tuple[str, str] | None:
    match action:
        case CreatePod(name):
            return "Pod", name
        case CreateService(name):
            return "Service", name
        case Apply(resource, manifest):
            return resource.kind, manifest["metadata"]["name"]
    return None
