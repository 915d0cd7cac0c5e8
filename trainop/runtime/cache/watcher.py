"""What a reflector does next: a pure state machine over list and watch.

`begin` and `step` take a state and what came of the last action, and give the next state and action. They do no I/O and
read no clock. The machine knows resourceVersions and delays, never objects.

    STREAM (list as events) ──end bookmark──> READ ──closed──> WATCH ──410, error──> STREAM or PAGE
      └─ refused by the server ─> PAGE (list) ──last page──> WATCH

A list names no resourceVersion, so that it is never stale. Failures are answered from one table per phase.
After client-go `tools/cache/reflector.go` and kube-rs `watcher.rs`, without their restarts of the back-off and with a
memory of what the server refused.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

from trainop.runtime.errors import ApiError, DecodeError

FIRST_BACKOFF = 0.8
MAX_BACKOFF = 30.0
CALM = 120.0
"""Seconds without a failure after which the back-off starts anew."""

MIN_WATCH, MAX_WATCH = 300, 600
BRIEF = 5.0
"""Seconds that a watch has to last. The next one after one that did not waits for a back-off; if it brought something,
which any server may cut short once, only from the second time in a row."""

MUTE_AFTER = 90.0
STRIKES = 3
"""So many watches in a row that bring nothing end the trust in the last version."""


class Phase(enum.Enum):
    """What the last action was for."""

    STREAMING = "streaming"
    LISTING = "listing"
    WATCHING = "watching"


class Verb(enum.Enum):
    """What to do: STREAM opens a watch that begins with the list, PAGE fetches a page of the list, WATCH opens a watch
    at a version, READ goes on reading the open one."""

    STREAM = "stream"
    PAGE = "page"
    WATCH = "watch"
    READ = "read"


class Cause(enum.Enum):
    """How an action ended; the value labels metrics."""

    CLOSED = "closed"
    BRIEF = "brief"
    SHORT = "short"
    MUTE = "mute"
    SILENT = "silent"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"
    TOO_LARGE = "too-large-version"
    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    REJECTED = "rejected"
    ERROR = "error-event"
    UNREADABLE = "unreadable"
    REWOUND = "rewound"


@dataclass(frozen=True, slots=True)
class Paged:
    """A page came; `token` asks for the next one, empty after the last."""

    token: str
    version: str


@dataclass(frozen=True, slots=True)
class Listed:
    """The bookmark that ends a streamed list came: the stream goes on as a watch."""

    version: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A request failed or a stream ended; `version` is the last one seen, `made_progress` if any event came."""

    cause: Cause
    version: str = ""
    made_progress: bool = False
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Action:
    """`delay` in seconds comes first; `timeout` in seconds is asked of the server for watches."""

    verb: Verb
    delay: float = 0.0
    version: str = ""
    token: str = ""
    timeout: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """Where the reflector stands. `streams`: the server has not refused streamed lists; `brief`: so many watches in a
    row brought something and ended at once."""

    phase: Phase
    streams: bool = True
    version: str = ""
    token: str = ""
    restarted: bool = False
    hurried: bool = False
    brief: int = 0
    strikes: int = 0
    failures: int = 0
    failed_at: float = float("-inf")


class Next(enum.Enum):
    """What a failure asks for."""

    REWATCH = enum.auto()
    RETRY = enum.auto()
    SLOW_DOWN = enum.auto()
    STRIKE = enum.auto()
    DOUBT = enum.auto()
    RELIST = enum.auto()
    HURRY = enum.auto()
    RESTART = enum.auto()
    PAGE_ONCE = enum.auto()
    PAGE_ALWAYS = enum.auto()


_WATCHING = {
    Cause.CLOSED: Next.REWATCH,
    Cause.SILENT: Next.REWATCH,
    Cause.BRIEF: Next.SLOW_DOWN,
    Cause.SHORT: Next.STRIKE,
    Cause.MUTE: Next.DOUBT,
    Cause.UNAVAILABLE: Next.STRIKE,
    Cause.DISCONNECTED: Next.RETRY,
    Cause.THROTTLED: Next.RETRY,
    Cause.UNAUTHORIZED: Next.RETRY,
    Cause.FORBIDDEN: Next.RETRY,
    Cause.EXPIRED: Next.RELIST,
    Cause.NOT_FOUND: Next.RELIST,
    Cause.REJECTED: Next.RELIST,
    Cause.ERROR: Next.RELIST,
    Cause.UNREADABLE: Next.RELIST,
    Cause.REWOUND: Next.RELIST,
    Cause.TOO_LARGE: Next.HURRY,
}

_STREAMING = {
    Cause.CLOSED: Next.STRIKE,
    Cause.BRIEF: Next.STRIKE,
    Cause.SHORT: Next.STRIKE,
    Cause.MUTE: Next.STRIKE,
    Cause.ERROR: Next.STRIKE,
    Cause.EXPIRED: Next.STRIKE,
    Cause.REWOUND: Next.STRIKE,
    Cause.UNAVAILABLE: Next.RETRY,
    Cause.DISCONNECTED: Next.RETRY,
    Cause.THROTTLED: Next.RETRY,
    Cause.UNAUTHORIZED: Next.RETRY,
    Cause.FORBIDDEN: Next.RETRY,
    Cause.NOT_FOUND: Next.RETRY,
    Cause.TOO_LARGE: Next.HURRY,
    Cause.SILENT: Next.PAGE_ONCE,
    Cause.UNREADABLE: Next.PAGE_ONCE,
    Cause.REJECTED: Next.PAGE_ALWAYS,
}

_LISTING = dict.fromkeys(Cause, Next.RETRY) | {
    Cause.EXPIRED: Next.RESTART,
    Cause.TOO_LARGE: Next.HURRY,
    Cause.UNREADABLE: Next.RELIST,
    Cause.NOT_FOUND: Next.RELIST,
    Cause.REJECTED: Next.RELIST,
}

_ANSWERS = {Phase.WATCHING: _WATCHING, Phase.STREAMING: _STREAMING, Phase.LISTING: _LISTING}


def begin(rng: random.Random, *, streams: bool = True) -> tuple[State, Action]:
    """The first action: a list, streamed unless `streams` is false."""
    return _list(State(Phase.LISTING, streams=streams), rng)


def step(state: State, outcome: Paged | Listed | Ended, now: float, rng: random.Random) -> tuple[State, Action]:
    """What follows `outcome` at monotonic time `now`."""
    match outcome:
        case Paged(token, version) if token:
            state = replace(state, token=token)
            return state, Action(Verb.PAGE, token=token)
        case Paged(_, version):
            return _watch(replace(state, version=version, strikes=0), rng)
        case Listed(version):
            state = replace(state, phase=Phase.WATCHING, version=version, strikes=0, hurried=False)
            return state, Action(Verb.READ)
        case Ended():
            return _after_end(state, outcome, now, rng)


def _after_end(state: State, ended: Ended, now: float, rng: random.Random) -> tuple[State, Action]:
    if state.phase is Phase.WATCHING:
        state = replace(state, version=ended.version or state.version)
        if ended.made_progress:
            state = replace(state, strikes=0, hurried=False)
    answer = _ANSWERS[state.phase][ended.cause]
    if answer in (Next.REWATCH, Next.SLOW_DOWN, Next.DOUBT):
        return _after_close(state, answer, rng)
    state = replace(state, brief=0)
    if answer is Next.HURRY and not state.hurried:
        return _list(replace(state, hurried=True), rng)
    if answer is Next.RESTART and state.token and not state.restarted:
        return _page(replace(state, restarted=True))
    if answer is Next.PAGE_ALWAYS:
        # A server that does not know streamed lists is well: no reason to wait.
        return _page(replace(state, streams=False))
    state, delay = _back_off(state, now, ended.retry_after, rng)
    return _after_failure(state, answer, delay, rng)


def _after_close(state: State, answer: Next, rng: random.Random) -> tuple[State, Action]:
    """A watch came to its end, which is no failure."""
    if answer is Next.SLOW_DOWN:
        state = replace(state, brief=state.brief + 1)
        return _watch(state, rng, _exponential(state.brief - 2, rng) if state.brief > 1 else 0.0)
    strikes = state.strikes + 1 if answer is Next.DOUBT else 0
    state = replace(state, brief=0, strikes=strikes % STRIKES)
    # Even those that brought nothing took their time: a delay would only make the next event late.
    return _list(state, rng) if strikes >= STRIKES else _watch(state, rng)


def _after_failure(state: State, answer: Next, delay: float, rng: random.Random) -> tuple[State, Action]:
    if answer is Next.PAGE_ONCE:
        return _page(state, delay)
    if answer is Next.STRIKE:
        state = replace(state, strikes=state.strikes + 1)
        if state.strikes < STRIKES:
            return _again(state, delay, rng)
        state = replace(state, strikes=0)
        return _page(state, delay) if state.phase is Phase.STREAMING else _list(state, rng, delay)
    if answer is Next.RETRY:
        return _again(state, delay, rng)
    return _list(state, rng, delay)


def _again(state: State, delay: float, rng: random.Random) -> tuple[State, Action]:
    """The same action: the page that failed, the watch at the last version, or a fresh stream."""
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
    """The first page of a list."""
    return replace(state, phase=Phase.LISTING, token=""), Action(Verb.PAGE, delay)


def _watch(state: State, rng: random.Random, delay: float = 0.0) -> tuple[State, Action]:
    state = replace(state, phase=Phase.WATCHING, token="")
    return state, Action(Verb.WATCH, delay, version=state.version, timeout=_watch_seconds(rng))


def _watch_seconds(rng: random.Random) -> int:
    """Drawn anew for every watch, so that those of many clients do not end together."""
    return int(rng.uniform(MIN_WATCH, MAX_WATCH))


def _back_off(state: State, now: float, at_least: float, rng: random.Random) -> tuple[State, float]:
    """Counts a failure: U(d, 2d) seconds with d = 0.8, 1.6, 3.2 … 30, from the beginning after a calm time."""
    failures = 0 if now - state.failed_at > CALM else state.failures
    delay = max(_exponential(failures, rng), at_least)
    return replace(state, failures=failures + 1, failed_at=now + delay), delay


def _exponential(failures: int, rng: random.Random) -> float:
    exact = min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures, 10))
    return rng.uniform(exact, 2 * exact)


def cause_of_close(*, made_progress: bool, seconds: float) -> Cause:
    """The cause of a watch that ended without an error after `seconds`.

    One that lasted long without even a bookmark was perhaps at a version that a restored server has yet to reach, and
    would stay mute for ever: after three of them in a row everything is listed.
    """
    if seconds < BRIEF:
        return Cause.BRIEF if made_progress else Cause.SHORT
    return Cause.MUTE if seconds >= MUTE_AFTER and not made_progress else Cause.CLOSED


def cause_of_silence(*, made_progress: bool, seconds: float) -> Cause:
    """The same for a watch that we left, since nothing came any more."""
    if seconds < BRIEF:
        return Cause.BRIEF if made_progress else Cause.SHORT
    return Cause.SILENT if made_progress else Cause.MUTE


def cause_of(error: Exception, *, in_stream: bool = False) -> Cause:
    """The cause that an `ApiError`, `ConnectionError` or `TimeoutError` stands for; `in_stream`: of an ERROR event."""
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
