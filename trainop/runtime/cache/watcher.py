"""The decisions of a reflector: a pure state machine over list and watch.

`begin` and `step` map a state and the outcome of the last action to the next state and action. They do no I/O and read
no clock; they know resourceVersions and delays, but no objects.

    STREAM (list as events) ──end bookmark──> READ ──closed──> WATCH ──410, error──> STREAM or PAGE
      └─ not supported ─> PAGE (list) ──last page──> WATCH

Lists are requested without a resourceVersion, so that they are never stale. One table per phase maps the cause of a
failure to a reaction. Modelled on client-go `tools/cache/reflector.go` and kube-rs `watcher.rs`; unlike these, the
back-off survives short successes, and an unsupported streamed list is not tried again.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

from trainop.runtime.errors import ApiError, DecodeError

FIRST_BACKOFF = 0.8
MAX_BACKOFF = 30.0
BACKOFF_RESET = 120.0
"""Seconds without a failure after which the back-off starts again from `FIRST_BACKOFF`."""

MIN_WATCH, MAX_WATCH = 300, 600
"""Range in seconds of the `timeoutSeconds` of watches (client-go `minWatchTimeout`)."""

EARLY = 5.0
"""Seconds. A server keeps a watch open for minutes; one that ends sooner than this has ended early, and something is
wrong with the server or the connection. The next watch is opened

- after a back-off that begins with `FIRST_BACKOFF`, if the watch had no events (`Cause.EARLY_WITHOUT_EVENTS`);
- at once the first time, because any server may do this once, and then after a back-off that begins with
  `FIRST_EARLY_BACKOFF`, if it had events (`Cause.EARLY`);
- always at once, if it had at least `BUSY` events.
"""

FIRST_EARLY_BACKOFF = 0.05
"""The first back-off in seconds after the second early end in a row of watches that had events."""

BUSY = 10
"""Number of events. An API server under load closes watches whose events are not read fast enough; it buffers at least
this many. To wait before the next watch would delay the events of that time."""

MUTE_AFTER = 90.0
"""Seconds after which a watch without events or bookmarks is suspicious: servers send bookmarks every minute."""

MAX_WITHOUT_PROGRESS = 3
"""Consecutive attempts without progress after which the last resourceVersion is no longer trusted."""


class Phase(enum.Enum):
    """What the open request is for."""

    STREAMING = "streaming"
    LISTING = "listing"
    WATCHING = "watching"


class Verb(enum.Enum):
    """The action to take: STREAM opens a watch that begins with a list (`sendInitialEvents`), PAGE requests a page of a
    list, WATCH opens a watch from a resourceVersion, READ continues to read the open watch."""

    STREAM = "stream"
    PAGE = "page"
    WATCH = "watch"
    READ = "read"


class Cause(enum.Enum):
    """Why an action ended; the value is a metric label."""

    CLOSED = "closed"  # the stream ended normally
    EARLY = "brief"  # ended within `EARLY` seconds of its start, with events or bookmarks
    EARLY_WITHOUT_EVENTS = "short"  # the same, without any event or bookmark
    MUTE = "mute"  # ended, or was abandoned, after a long time without any event or bookmark
    SILENT = "silent"  # abandoned because no further events or bookmarks arrived
    DISCONNECTED = "disconnected"  # no connection, or a timeout
    EXPIRED = "expired"  # 410: the resourceVersion or continue token is too old
    TOO_LARGE = "too-large-version"  # 504: the server has not reached the resourceVersion yet
    THROTTLED = "throttled"  # 429
    UNAVAILABLE = "unavailable"  # 5xx
    UNAUTHORIZED = "unauthorized"  # 401
    FORBIDDEN = "forbidden"  # 403
    NOT_FOUND = "not-found"  # 404
    REJECTED = "rejected"  # any other 4xx
    ERROR = "error-event"  # an ERROR event in the stream, other than 410 and 429
    UNREADABLE = "unreadable"  # data that cannot be decoded
    REWOUND = "rewound"  # the resourceVersion went backwards: etcd was restored


@dataclass(frozen=True, slots=True)
class Paged:
    """A page of a list was received. `token` is the continue token, empty after the last page."""

    token: str
    version: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A streamed list is complete; the stream continues as a watch from `version`."""

    version: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A request failed or a stream ended. `version` is the last one seen; `made_progress` if any event or bookmark has
    arrived; `retry_after` is the server's minimum delay in seconds; `events` is the number of events of a watch."""

    cause: Cause
    version: str = ""
    made_progress: bool = False
    retry_after: float = 0.0
    events: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """The next action. Wait `delay` seconds first; `timeout` is the `timeoutSeconds` of a watch."""

    verb: Verb
    delay: float = 0.0
    version: str = ""
    token: str = ""
    timeout: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """The memory of the state machine."""

    phase: Phase
    streams: bool = True
    """The server has not rejected streamed lists so far."""
    version: str = ""
    token: str = ""
    restarted: bool = False
    """The paged list was already restarted after an expired token."""
    relisted_at_once: bool = False
    """A list without delay was already tried since the last progress."""
    early_ends: int = 0
    """Consecutive watches that ended early, with events, but fewer than `BUSY`."""
    without_progress: int = 0
    """Consecutive attempts without progress."""
    failures: int = 0
    """Number of failures that determines the back-off."""
    failed_at: float = float("-inf")
    """Monotonic time at which the back-off after the last failure ends."""


class Reaction(enum.Enum):
    """The reaction to the end of an action."""

    REWATCH = enum.auto()  # watch from the last version, at once
    REWATCH_AFTER_EARLY_END = enum.auto()  # the same, with a back-off from the second early end in a row
    REWATCH_UNTIL_LIMIT = enum.auto()  # the same at once, but list after `MAX_WITHOUT_PROGRESS` in a row
    RETRY = enum.auto()  # repeat the action after a back-off
    RETRY_UNTIL_LIMIT = enum.auto()  # the same, but list after `MAX_WITHOUT_PROGRESS` in a row
    RELIST = enum.auto()  # list after a back-off
    RELIST_AT_ONCE = enum.auto()  # list without delay the first time, else as RELIST
    RESTART_PAGES = enum.auto()  # restart a paged list without delay the first time, else as RELIST
    PAGE_ONCE = enum.auto()  # use a paged list this time, after a back-off
    PAGE_ALWAYS = enum.auto()  # use paged lists from now on


_WATCHING = {
    Cause.CLOSED: Reaction.REWATCH,
    Cause.SILENT: Reaction.REWATCH,
    Cause.EARLY: Reaction.REWATCH_AFTER_EARLY_END,
    Cause.EARLY_WITHOUT_EVENTS: Reaction.RETRY_UNTIL_LIMIT,
    Cause.MUTE: Reaction.REWATCH_UNTIL_LIMIT,
    Cause.UNAVAILABLE: Reaction.RETRY_UNTIL_LIMIT,
    Cause.DISCONNECTED: Reaction.RETRY,
    Cause.THROTTLED: Reaction.RETRY,
    Cause.UNAUTHORIZED: Reaction.RETRY,
    Cause.FORBIDDEN: Reaction.RETRY,
    Cause.EXPIRED: Reaction.RELIST,
    Cause.NOT_FOUND: Reaction.RELIST,
    Cause.REJECTED: Reaction.RELIST,
    Cause.ERROR: Reaction.RELIST,
    Cause.UNREADABLE: Reaction.RELIST,
    Cause.REWOUND: Reaction.RELIST,
    Cause.TOO_LARGE: Reaction.RELIST_AT_ONCE,
}

_STREAMING = {
    Cause.CLOSED: Reaction.RETRY_UNTIL_LIMIT,
    Cause.EARLY: Reaction.RETRY_UNTIL_LIMIT,
    Cause.EARLY_WITHOUT_EVENTS: Reaction.RETRY_UNTIL_LIMIT,
    Cause.MUTE: Reaction.RETRY_UNTIL_LIMIT,
    Cause.ERROR: Reaction.RETRY_UNTIL_LIMIT,
    Cause.EXPIRED: Reaction.RETRY_UNTIL_LIMIT,
    Cause.REWOUND: Reaction.RETRY_UNTIL_LIMIT,
    Cause.UNAVAILABLE: Reaction.RETRY,
    Cause.DISCONNECTED: Reaction.RETRY,
    Cause.THROTTLED: Reaction.RETRY,
    Cause.UNAUTHORIZED: Reaction.RETRY,
    Cause.FORBIDDEN: Reaction.RETRY,
    Cause.NOT_FOUND: Reaction.RETRY,
    Cause.TOO_LARGE: Reaction.RELIST_AT_ONCE,
    Cause.SILENT: Reaction.PAGE_ONCE,
    Cause.UNREADABLE: Reaction.PAGE_ONCE,
    Cause.REJECTED: Reaction.PAGE_ALWAYS,
}

_LISTING = dict.fromkeys(Cause, Reaction.RETRY) | {
    Cause.EXPIRED: Reaction.RESTART_PAGES,
    Cause.TOO_LARGE: Reaction.RELIST_AT_ONCE,
    Cause.UNREADABLE: Reaction.RELIST,
    Cause.NOT_FOUND: Reaction.RELIST,
    Cause.REJECTED: Reaction.RELIST,
}

_REACTIONS = {Phase.WATCHING: _WATCHING, Phase.STREAMING: _STREAMING, Phase.LISTING: _LISTING}


def begin(rng: random.Random, *, streams: bool = True) -> tuple[State, Action]:
    """The initial state and action: a list, streamed unless `streams` is false."""
    return _list(State(Phase.LISTING, streams=streams), rng)


def step(state: State, outcome: Paged | Listed | Ended, now: float, rng: random.Random) -> tuple[State, Action]:
    """The state and action that follow `outcome`, which was observed at monotonic time `now`."""
    match outcome:
        case Paged(token, version) if token:
            state = replace(state, token=token)
            return state, Action(Verb.PAGE, token=token)
        case Paged(_, version):
            return _watch(replace(state, version=version, without_progress=0), rng)
        case Listed(version):
            state = replace(state, phase=Phase.WATCHING, version=version, without_progress=0, relisted_at_once=False)
            return state, Action(Verb.READ)
        case Ended():
            return _after_end(state, outcome, now, rng)


def _after_end(state: State, ended: Ended, now: float, rng: random.Random) -> tuple[State, Action]:
    busy = ended.events >= BUSY and ended.version != state.version  # a server may repeat the same events for ever
    if state.phase is Phase.WATCHING:
        state = replace(state, version=ended.version or state.version)
        if ended.made_progress:
            state = replace(state, without_progress=0, relisted_at_once=False)
    reaction = _REACTIONS[state.phase][ended.cause]
    if reaction in (Reaction.REWATCH, Reaction.REWATCH_AFTER_EARLY_END, Reaction.REWATCH_UNTIL_LIMIT):
        return _after_close(state, reaction, rng, busy=busy)
    state = replace(state, early_ends=0)
    if reaction is Reaction.RELIST_AT_ONCE and not state.relisted_at_once:
        return _list(replace(state, relisted_at_once=True), rng)
    if reaction is Reaction.RESTART_PAGES and state.token and not state.restarted:
        return _page(replace(state, restarted=True))
    if reaction is Reaction.PAGE_ALWAYS:
        # No delay: the server works, it merely does not support streamed lists.
        return _page(replace(state, streams=False))
    state, delay = _back_off(state, now, ended.retry_after, rng)
    return _after_failure(state, reaction, delay, rng)


def _after_close(state: State, reaction: Reaction, rng: random.Random, *, busy: bool) -> tuple[State, Action]:
    """A watch ended without an error."""
    if reaction is Reaction.REWATCH_AFTER_EARLY_END:
        state = replace(state, early_ends=0 if busy else state.early_ends + 1)
        return _watch(state, rng, _delay_after_early_ends(state.early_ends, rng))
    without_progress = state.without_progress + 1 if reaction is Reaction.REWATCH_UNTIL_LIMIT else 0
    state = replace(state, early_ends=0, without_progress=without_progress % MAX_WITHOUT_PROGRESS)
    # No delay: these watches lasted long, and a delay would only make the next event late.
    return _list(state, rng) if without_progress >= MAX_WITHOUT_PROGRESS else _watch(state, rng)


def _after_failure(state: State, reaction: Reaction, delay: float, rng: random.Random) -> tuple[State, Action]:
    if reaction is Reaction.PAGE_ONCE:
        return _page(state, delay)
    if reaction is Reaction.RETRY_UNTIL_LIMIT:
        state = replace(state, without_progress=state.without_progress + 1)
        if state.without_progress < MAX_WITHOUT_PROGRESS:
            return _repeat(state, delay, rng)
        state = replace(state, without_progress=0)
        return _page(state, delay) if state.phase is Phase.STREAMING else _list(state, rng, delay)
    if reaction is Reaction.RETRY:
        return _repeat(state, delay, rng)
    return _list(state, rng, delay)


def _repeat(state: State, delay: float, rng: random.Random) -> tuple[State, Action]:
    """Repeats the action: the page that failed, a watch from the last version, or a new streamed list."""
    if state.phase is Phase.WATCHING:
        return _watch(state, rng, delay)
    if state.phase is Phase.LISTING:
        return state, Action(Verb.PAGE, delay, token=state.token)
    return _list(state, rng, delay)


def _list(state: State, rng: random.Random, delay: float = 0.0) -> tuple[State, Action]:
    if not state.streams:
        return _page(replace(state, restarted=False), delay)
    state = replace(state, phase=Phase.STREAMING, token="", restarted=False)
    return state, Action(Verb.STREAM, delay, timeout=_watch_seconds(rng))


def _page(state: State, delay: float = 0.0) -> tuple[State, Action]:
    """Requests the first page of a list."""
    return replace(state, phase=Phase.LISTING, token=""), Action(Verb.PAGE, delay)


def _watch(state: State, rng: random.Random, delay: float = 0.0) -> tuple[State, Action]:
    state = replace(state, phase=Phase.WATCHING, token="")
    return state, Action(Verb.WATCH, delay, version=state.version, timeout=_watch_seconds(rng))


def _watch_seconds(rng: random.Random) -> int:
    """The timeout of a watch, jittered per watch so that the watches of many clients do not end together."""
    return int(rng.uniform(MIN_WATCH, MAX_WATCH))


def _back_off(state: State, now: float, at_least: float, rng: random.Random) -> tuple[State, float]:
    """Counts a failure and returns the delay: uniform in [d, 2d] seconds with d = 0.8, 1.6, 3.2 … 30, starting again
    after `BACKOFF_RESET`."""
    failures = 0 if now - state.failed_at > BACKOFF_RESET else state.failures
    delay = max(_exponential(failures, rng), at_least)
    return replace(state, failures=failures + 1, failed_at=now + delay), delay


def _delay_after_early_ends(in_a_row: int, rng: random.Random) -> float:
    return _exponential(in_a_row - 2, rng, first=FIRST_EARLY_BACKOFF) if in_a_row > 1 else 0.0


def _exponential(failures: int, rng: random.Random, *, first: float = FIRST_BACKOFF) -> float:
    exact = min(MAX_BACKOFF, first * 2.0 ** min(failures, 10))
    return rng.uniform(exact, 2 * exact)


def cause_of_close(*, made_progress: bool, seconds: float) -> Cause:
    """The cause for a watch that ended without an error after `seconds`.

    A long watch without even a bookmark (MUTE) may start from a version that the server, after a restore of etcd, has
    not reached again; it would stay silent. After three of these in a row, the objects are listed again.
    """
    if seconds < EARLY:
        return Cause.EARLY if made_progress else Cause.EARLY_WITHOUT_EVENTS
    return Cause.MUTE if seconds >= MUTE_AFTER and not made_progress else Cause.CLOSED


def cause_of_silence(*, made_progress: bool, seconds: float) -> Cause:
    """The cause for a watch that was abandoned after its idle timeout, `seconds` after it was opened."""
    if seconds < EARLY:
        return Cause.EARLY if made_progress else Cause.EARLY_WITHOUT_EVENTS
    return Cause.SILENT if made_progress else Cause.MUTE


def cause_of(error: Exception, *, in_stream: bool = False) -> Cause:
    """The cause for an `ApiError`, `ConnectionError` or `TimeoutError`; `in_stream`: it is from an ERROR event."""
    if isinstance(error, DecodeError):
        return Cause.UNREADABLE
    if isinstance(error, ApiError):
        return _cause_of_refusal(error, in_stream)
    if isinstance(error, TimeoutError | ConnectionError):
        return Cause.DISCONNECTED
    return Cause.UNREADABLE


def _cause_of_refusal(error: ApiError, in_stream: bool) -> Cause:
    if error.too_large_resource_version:
        return Cause.TOO_LARGE
    if error.code == 429:
        return Cause.THROTTLED
    if error.code == 410 or error.reason in ("Expired", "Gone"):
        return Cause.EXPIRED
    if in_stream:
        return Cause.ERROR
    by_code = {401: Cause.UNAUTHORIZED, 403: Cause.FORBIDDEN, 404: Cause.NOT_FOUND}
    return by_code.get(error.code, Cause.UNAVAILABLE if error.code >= 500 else Cause.REJECTED)
