"""The steps of the replicas: scheduled, image pulled, initialized, started, ended. Pods that are gone are known by
their events only."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median, median_low

from trainop.engine.fields import as_object
from trainop.engine.pod_status import CLOCK_TOLERANCE
from trainop.explain.story.timeline import Spread, Step
from trainop.explain.why.evidence import ContainerFacts, EventFacts, Evidence, PodFacts

Clocks = Mapping[str, timedelta]
"""Node -> by how much its clock is ahead of the API server's. Clocks that are right are left out."""

_FIELDS = {"Scheduled": "scheduled", "Pulling": "pulling", "Pulled": "pulled", "Started": "started"}
"""Reason of an event about a pod -> the field of its `Life`."""


@dataclass(slots=True)
class Life:
    """What is known of the course of one pod, by the clock of the API server."""

    label: str
    node: str = ""
    gone: bool = False
    has_init: bool = False
    created: datetime | None = None
    scheduled: datetime | None = None
    pulling: datetime | None = None
    pulled: datetime | None = None
    initialized: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    exit_code: int | None = None

    @property
    def born(self) -> datetime | None:
        """The earliest that is known of it."""
        times = (self.created, self.scheduled, self.pulling, self.pulled, self.started)
        return min((each for each in times if each is not None), default=None)

    def before_start(self) -> datetime | None:
        """When its containers could have been started."""
        times = (self.scheduled, self.pulled, self.initialized)
        return max((each for each in times if each is not None), default=None)


# Clocks ---------------------------------------------------------------------------------------------------------------


def find_clocks(seen: Evidence) -> Clocks:
    """The nodes whose clocks are wrong. An event has the time of the kubelet and that at which the API server stored
    it; without events, a kubelet that saw a pod before it was scheduled shows it, or an end in the future."""
    by_node: dict[str, list[timedelta]] = defaultdict(list)
    for event in seen.events:
        if event.host and event.first and event.created:
            by_node[event.host].append(event.first - event.created)
    found = {node: median_low(offsets) for node, offsets in by_node.items()}
    for pod in seen.pods:
        if pod.node and pod.node not in by_node and pod.seen_at and (bound := pod.scheduled_at or pod.created):
            ahead, latest = pod.seen_at - bound, max(_times(pod), default=pod.seen_at)
            if ahead < timedelta() or latest > seen.now + CLOCK_TOLERANCE:
                found.setdefault(pod.node, ahead)
    return {node: ahead for node, ahead in found.items() if abs(ahead) > CLOCK_TOLERANCE}


def _times(pod: PodFacts) -> Iterator[datetime]:
    for each in pod.containers:
        yield from filter(None, (each.started, each.finished, each.last_finished))


def correct(at: datetime | None, node: str, clocks: Clocks) -> datetime | None:
    """A time of a node by the clock of the API server."""
    try:
        return at - clocks[node] if at is not None and node in clocks else at
    except OverflowError:
        return None


# Lives ----------------------------------------------------------------------------------------------------------------


def read_lives(seen: Evidence, clocks: Clocks) -> list[Life]:
    """One for each pod that exists, and for each that events tell of."""
    lives: dict[str, Life] = {}
    for pod in seen.pods:
        lives[pod.uid or pod.name] = _read_life(pod, clocks)
    is_replica = _names_of_replicas(seen)
    for event in seen.events:
        if event.kind != "Pod" or event.reason not in _FIELDS or event.part.startswith("spec.initContainers"):
            continue
        key = event.uid or event.name
        if key not in lives and (found := is_replica(event.name)):
            lives[key] = Life(found, gone=True)
        if key in lives:
            _add_event(lives[key], event, clocks)
    return list(lives.values())


def _names_of_replicas(seen: Evidence) -> Callable[[str], str]:
    """A function that returns `worker-0` for the name of a pod of the job, and an empty text for any other name."""
    roles = {
        role.lower() for name, specs in seen.spec.items() if name.endswith("ReplicaSpecs") for role in as_object(specs)
    }
    known = "|".join(sorted(map(re.escape, roles))) or "(?!)"
    pattern = re.compile(rf"{re.escape(seen.name)}-((?:{known})-\d+|launcher|coordinator)(?:-[a-z0-9]{{5}})?")

    def label(name: str) -> str:
        found = pattern.fullmatch(name)
        return found[1] if found else ""

    return label


def _read_life(pod: PodFacts, clocks: Clocks) -> Life:
    main = [each for each in pod.containers if not each.init]
    ended = [each for each in main if each.state == "terminated"]
    failed = next((each for each in ended if each.exit_code), ended[0] if ended else None)
    has_init = any(each.init for each in pod.containers)
    done = len(ended) == len(main) and ended

    def by_server(times: Sequence[datetime | None], choose: Callable[..., datetime | None]) -> datetime | None:
        return correct(choose((each for each in times if each is not None), default=None), pod.node, clocks)

    return Life(
        label=pod.label,
        node=pod.node,
        has_init=has_init,
        created=pod.created,
        scheduled=pod.scheduled_at,
        initialized=correct(pod.initialized_at, pod.node, clocks) if has_init else None,
        started=None if any(each.restarts for each in main) else by_server([each.started for each in main], min),
        ended=by_server([each.finished for each in ended], max) if done else None,
        exit_code=failed.exit_code if done and failed else None,
    )


def _add_event(life: Life, event: EventFacts, clocks: Clocks) -> None:
    """Adds the time of an event where the pod does not say it. The events come by their last time: those of later runs
    of a container come later."""
    life.node = life.node or event.host
    name = _FIELDS[event.reason]
    if getattr(life, name) is None:
        setattr(life, name, correct(event.first or event.at, event.host, clocks))


# Steps ----------------------------------------------------------------------------------------------------------------


def steps_of(lives: Sequence[Life]) -> Iterator[Step]:
    """The steps of the replicas of one start."""
    total = len(lives)
    yield from _step(lives, "scheduled", "scheduled", lambda each: each.scheduled, lambda each: each.created)
    yield from _step(
        lives, "pulled", "images pulled", lambda each: each.pulled, lambda each: each.pulling or each.scheduled
    )
    yield from _step(
        [each for each in lives if each.has_init],
        "initialized",
        "init containers ended",
        lambda each: each.initialized,
        lambda each: each.scheduled,
    )
    yield from _step(lives, "started", "containers started", lambda each: each.started, Life.before_start)
    ended = [each for each in lives if each.ended]
    if ended:
        at, until = _range([each.ended for each in ended if each.ended])
        codes = Counter(each.exit_code for each in ended)
        said = ", ".join(_count_codes(codes, ended))
        yield Step(at, "ended", f"{_count(ended, total)}: ended {said}", of_replicas=True, until=until)


def _count_codes(codes: Counter[int | None], ended: Sequence[Life]) -> Iterator[str]:
    for code, count in codes.most_common(4):
        names = [each.label for each in ended if each.exit_code == code]
        who = "" if len(codes) == 1 else f"{names[0]} " if count == 1 else f"{count:,} "
        yield f"{who}with code {code}" if code is not None else f"{who}with an unknown code"


def _count(some: Sequence[Life], total: int) -> str:
    if total == 1:
        return some[0].label
    return f"all {total:,} pods" if len(some) == total else f"{len(some):,} of {total:,} pods"


def _range(times: Sequence[datetime]) -> tuple[datetime, datetime | None]:
    first, last = min(times), max(times)
    return first, last if last != first else None


def _step(
    lives: Sequence[Life],
    name: str,
    what: str,
    when: Callable[[Life], datetime | None],
    since: Callable[[Life], datetime | None],
) -> Iterator[Step]:
    times = [(each, at) for each in lives if (at := when(each)) is not None]
    if not times:
        return
    at, until = _range([moment for _, moment in times])
    took = [
        (max(0.0, (moment - began).total_seconds()), each.label) for each, moment in times if (began := since(each))
    ]
    spread = _spread(took)
    where = f" to {times[0][0].node}" if name == "scheduled" and len(lives) == 1 and times[0][0].node else ""
    text = f"{_count([each for each, _ in times], len(lives))}: {what}{where}"
    if spread is not None and spread.count > 1 and spread.first != spread.last:
        text += (
            f"; first {spread.first:.0f} s, median {spread.median:.0f} s, last {spread.last:.0f} s ({spread.slowest})"
        )
        text += f"; {spread.outlier} is far behind" if spread.outlier else ""
    seconds = spread.last if spread else None
    yield Step(at, name, text, seconds, of_replicas=True, spread=spread if len(lives) > 1 else None, until=until)


def _spread(took: list[tuple[float, str]]) -> Spread | None:
    if not took:
        return None
    slowest = max(took)
    seconds = [each for each, _ in took]
    return Spread(len(took), min(seconds), float(median(seconds)), slowest[0], slowest[1])


# Restarts in place ----------------------------------------------------------------------------------------------------


def restarted_in_place(seen: Evidence, clocks: Clocks) -> Iterator[Step]:
    """Containers that the kubelet has restarted, in one step."""
    found = [(pod, each) for pod in seen.pods for each in pod.containers if each.restarts and not each.init]
    if not found:
        return
    pod, container = max(found, key=lambda pair: pair[1].restarts)
    ends = (correct(each.last_finished, of.node, clocks) for of, each in found)
    at = max((each for each in ends if each is not None), default=None)
    total = sum(each.restarts for _, each in found)
    many = f"; {len(found):,} containers {total:,} times in all" if len(found) > 1 else ""
    text = (
        f"{pod.label}: container {container.name} was restarted in place {_times_of(container)}{many}{_why(container)}"
    )
    yield Step(at, "restarted_in_place", text, evidence=tuple(container.log.splitlines()[-3:]))


def _times_of(container: ContainerFacts) -> str:
    return "once" if container.restarts == 1 else f"{container.restarts:,} times"


def _why(container: ContainerFacts) -> str:
    code = f" with code {container.exit_code}" if container.exit_code is not None else ""
    reason = f" ({container.last_reason})" if container.last_reason else ""
    return f"; it ended{code}{reason} last" if code or reason else ""
