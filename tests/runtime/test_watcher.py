"""The state machine of list and watch as tables; `test_informer.py` tests sequences of its steps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainop.runtime.cache.watcher import (
    BUSY,
    MAX_BACKOFF,
    Action,
    Cause,
    Ended,
    Listed,
    Paged,
    Phase,
    State,
    Verb,
    begin,
    cause_of,
    cause_of_close,
    step,
)
from trainop.runtime.client.transport import NotConnectedError
from trainop.runtime.errors import error_of_status

WATCHING = State(Phase.WATCHING, streams=False, version="10")
STREAMING = State(Phase.STREAMING)
LISTING = State(Phase.LISTING, streams=False, token="t")
AT_ONCE = (0.0, 0.0)
BACKS_OFF = (0.8, 1.6)


def follow(state: State, outcome: Paged | Listed | Ended, now: float = 0.0) -> tuple[State, Action]:
    return step(state, outcome, now, random.Random(1))


@pytest.mark.parametrize(
    ("state", "cause", "verb", "delay"),
    [
        (WATCHING, Cause.CLOSED, Verb.WATCH, AT_ONCE),
        (WATCHING, Cause.SILENT, Verb.WATCH, AT_ONCE),
        (WATCHING, Cause.EARLY_WITHOUT_EVENTS, Verb.WATCH, BACKS_OFF),
        (WATCHING, Cause.MUTE, Verb.WATCH, AT_ONCE),
        (WATCHING, Cause.EARLY, Verb.WATCH, AT_ONCE),
        (WATCHING, Cause.DISCONNECTED, Verb.WATCH, BACKS_OFF),
        (WATCHING, Cause.THROTTLED, Verb.WATCH, BACKS_OFF),
        (WATCHING, Cause.UNAVAILABLE, Verb.WATCH, BACKS_OFF),
        (WATCHING, Cause.UNAUTHORIZED, Verb.WATCH, BACKS_OFF),
        (WATCHING, Cause.FORBIDDEN, Verb.WATCH, BACKS_OFF),
        (WATCHING, Cause.EXPIRED, Verb.PAGE, BACKS_OFF),
        (WATCHING, Cause.TOO_LARGE, Verb.PAGE, AT_ONCE),
        (WATCHING, Cause.NOT_FOUND, Verb.PAGE, BACKS_OFF),
        (WATCHING, Cause.REJECTED, Verb.PAGE, BACKS_OFF),
        (WATCHING, Cause.ERROR, Verb.PAGE, BACKS_OFF),
        (WATCHING, Cause.UNREADABLE, Verb.PAGE, BACKS_OFF),
        (WATCHING, Cause.REWOUND, Verb.PAGE, BACKS_OFF),
        (STREAMING, Cause.CLOSED, Verb.STREAM, BACKS_OFF),
        (STREAMING, Cause.EARLY_WITHOUT_EVENTS, Verb.STREAM, BACKS_OFF),
        (STREAMING, Cause.SILENT, Verb.PAGE, BACKS_OFF),
        (STREAMING, Cause.DISCONNECTED, Verb.STREAM, BACKS_OFF),
        (STREAMING, Cause.THROTTLED, Verb.STREAM, BACKS_OFF),
        (STREAMING, Cause.FORBIDDEN, Verb.STREAM, BACKS_OFF),
        (STREAMING, Cause.NOT_FOUND, Verb.STREAM, BACKS_OFF),
        (STREAMING, Cause.TOO_LARGE, Verb.STREAM, AT_ONCE),
        (STREAMING, Cause.REJECTED, Verb.PAGE, AT_ONCE),
        (STREAMING, Cause.UNREADABLE, Verb.PAGE, BACKS_OFF),
        (LISTING, Cause.EXPIRED, Verb.PAGE, AT_ONCE),
        (LISTING, Cause.TOO_LARGE, Verb.PAGE, AT_ONCE),
        (LISTING, Cause.DISCONNECTED, Verb.PAGE, BACKS_OFF),
        (LISTING, Cause.UNAVAILABLE, Verb.PAGE, BACKS_OFF),
        (LISTING, Cause.FORBIDDEN, Verb.PAGE, BACKS_OFF),
    ],
)
def test_answers_to_failures(state: State, cause: Cause, verb: Verb, delay: tuple[float, float]):
    _, action = follow(state, Ended(cause, state.version))
    assert action.verb is verb
    assert delay[0] <= action.delay <= delay[1]
    if verb is Verb.WATCH:
        assert action.version == "10"


@pytest.mark.parametrize("cause", [Cause.DISCONNECTED, Cause.THROTTLED, Cause.UNAVAILABLE])
def test_failed_page_is_requested_again(cause: Cause):
    assert follow(LISTING, Ended(cause))[1].token == "t"


@pytest.mark.parametrize("cause", [Cause.EXPIRED, Cause.TOO_LARGE, Cause.UNREADABLE])
def test_list_that_cannot_continue_restarts(cause: Cause):
    assert follow(LISTING, Ended(cause))[1].token == ""


def test_first_action_is_a_streamed_list_unless_refused_before():
    assert begin(random.Random(1))[1].verb is Verb.STREAM
    assert begin(random.Random(1), streams=False)[1] == Action(Verb.PAGE)


def test_retry_after_is_the_minimum_delay():
    assert follow(WATCHING, Ended(Cause.THROTTLED, retry_after=7))[1].delay == 7
    assert follow(WATCHING, Ended(Cause.THROTTLED, retry_after=0.1))[1].delay >= 0.8


def test_an_event_restores_the_trust_in_a_watch():
    state = WATCHING
    for _ in range(2):
        state, _ = follow(state, Ended(Cause.EARLY_WITHOUT_EVENTS, "10"))
    state, action = follow(state, Ended(Cause.CLOSED, "12", made_progress=True))
    assert (action.verb, action.version) == (Verb.WATCH, "12")
    _, action = follow(state, Ended(Cause.EARLY_WITHOUT_EVENTS, "12"))
    assert action.verb is Verb.WATCH


def test_an_event_restores_the_trust_also_if_the_watch_breaks_off_then():
    state = WATCHING
    for _ in range(2):
        state, _ = follow(state, Ended(Cause.EARLY_WITHOUT_EVENTS, "10"))
    state, _ = follow(state, Ended(Cause.DISCONNECTED, "12", made_progress=True))
    for _ in range(2):
        state, action = follow(state, Ended(Cause.EARLY_WITHOUT_EVENTS, "12"))
        assert (action.verb, action.version) == (Verb.WATCH, "12")
    _, action = follow(state, Ended(Cause.EARLY_WITHOUT_EVENTS, "12"))
    assert action.verb is Verb.PAGE


@pytest.mark.parametrize("streams", [True, False])
def test_each_list_may_restart_once(streams: bool):
    """A list restarts its pages once at once, then with back-off; the next list has a new attempt."""
    expired = Ended(Cause.EXPIRED)
    state, action = follow(LISTING, expired)
    assert (action.verb, action.token, action.delay) == (Verb.PAGE, "", 0)
    assert follow(replace(state, token="t"), expired)[1].delay > 0
    state, _ = follow(replace(state, streams=streams), Paged("", "10"))
    state, action = follow(state, expired)
    assert action.verb is (Verb.STREAM if streams else Verb.PAGE)
    if streams:
        state, _ = follow(state, Ended(Cause.SILENT))
    state, _ = follow(state, Paged("t", "20"))
    _, action = follow(state, expired)
    assert (action.verb, action.token, action.delay) == (Verb.PAGE, "", 0)


def test_each_watch_with_events_may_restart_at_once_once():
    state, action = follow(WATCHING, Ended(Cause.TOO_LARGE))
    assert (action.verb, action.delay) == (Verb.PAGE, 0)
    state, _ = follow(state, Paged("", "5"))
    _, action = follow(state, Ended(Cause.TOO_LARGE))
    assert action.delay > 0, "not in a hot loop"
    _, action = follow(state, Ended(Cause.TOO_LARGE, "6", made_progress=True))
    assert action.delay == 0


def test_watches_that_end_at_once_back_off_until_one_lasts():
    """A busy API server ends several watches in a row: until the sixth, events are late by less than a second."""
    state, delays = WATCHING, []
    for version in range(11, 18):
        state, action = follow(state, Ended(Cause.EARLY, str(version), made_progress=True))
        assert (action.verb, action.version) == (Verb.WATCH, str(version))
        delays.append(action.delay)
    assert delays[0] == 0, "a server may end one watch early"
    for delay, least in zip(delays[1:], (0.05, 0.1, 0.2, 0.4, 0.8, 1.6), strict=True):
        assert least <= delay <= 2 * least
    state, _ = follow(state, Ended(Cause.CLOSED, "30", made_progress=True))
    assert follow(state, Ended(Cause.EARLY, "31", made_progress=True))[1].delay == 0


def test_watches_that_end_at_once_after_many_events_are_opened_again_without_delay():
    """A busy API server ends watches whose events are not read fast enough."""
    state = WATCHING
    for version in range(11, 31):
        state, action = follow(state, Ended(Cause.EARLY, str(version), made_progress=True, events=BUSY))
        assert (action.verb, action.version, action.delay) == (Verb.WATCH, str(version), 0)
    for events in (BUSY - 1, BUSY):
        again = state
        for delayed in (False, True):
            again, action = follow(again, Ended(Cause.EARLY, "30", made_progress=True, events=events))
            assert (action.delay > 0) == delayed, "not in a hot loop if these are the same events again"


def test_three_consecutive_silent_watches_cause_a_relist():
    state, action = follow(WATCHING, Ended(Cause.MUTE))
    state, action = follow(state, Ended(Cause.MUTE))
    state, action = follow(state, Ended(Cause.SILENT, "12", made_progress=True))
    for verb in (Verb.WATCH, Verb.WATCH, Verb.PAGE):
        state, action = follow(state, Ended(Cause.MUTE))
        assert (action.verb, action.delay) == (verb, 0)


def test_a_long_delay_is_no_calm_time():
    """The calm time starts after the delay that the last failure requested."""
    state, action = follow(WATCHING, Ended(Cause.THROTTLED, retry_after=300), now=0)
    assert action.delay == 300
    state, action = follow(state, Ended(Cause.THROTTLED), now=301)
    assert 1.6 <= action.delay <= 3.2
    _, action = follow(state, Ended(Cause.THROTTLED), now=301 + action.delay + 121)
    assert 0.8 <= action.delay <= 1.6


def test_watch_timeouts_are_jittered():
    rng = random.Random(1)
    timeouts = {step(WATCHING, Ended(Cause.CLOSED), 0.0, rng)[1].timeout for _ in range(100)}
    assert min(timeouts) >= 300
    assert max(timeouts) <= 600
    assert len(timeouts) > 50


@given(
    st.lists(
        st.one_of(
            st.builds(Paged, st.sampled_from(["", "t"]), st.just("9")),
            st.builds(Ended, st.sampled_from(Cause), st.just("8"), st.booleans(), st.sampled_from([0.0, 5.0])),
        ),
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_no_sequence_of_outcomes_causes_a_hot_loop(outcomes: list[Paged | Ended], rng: random.Random):
    """Whatever happens, two consecutive actions without progress are never both immediate."""
    state, action = begin(rng)
    immediate, now = 0, 0.0
    for outcome in outcomes:
        if isinstance(outcome, Paged) and action.verb is not Verb.PAGE:
            continue
        state, action = step(state, outcome, now, rng)
        now += action.delay
        assert 0 <= action.delay <= max(2 * MAX_BACKOFF, 5.0)
        long = (Cause.CLOSED, Cause.SILENT, Cause.MUTE)  # each action took seconds
        progress = isinstance(outcome, Paged) or outcome.made_progress or outcome.cause in long
        immediate = 0 if action.delay or progress else immediate + 1
        assert immediate <= 2


@pytest.mark.parametrize(
    ("status", "in_stream", "cause"),
    [
        ({"code": 410, "reason": "Gone"}, False, Cause.EXPIRED),
        ({"code": 500, "reason": "Expired"}, True, Cause.EXPIRED),
        ({"code": 429}, True, Cause.THROTTLED),
        ({"code": 401}, False, Cause.UNAUTHORIZED),
        ({"code": 403}, False, Cause.FORBIDDEN),
        ({"code": 403}, True, Cause.ERROR),
        ({"code": 404}, False, Cause.NOT_FOUND),
        ({"code": 422}, False, Cause.REJECTED),
        ({"code": 400}, False, Cause.REJECTED),
        ({"code": 503}, False, Cause.UNAVAILABLE),
        ({"code": 504, "reason": "Timeout"}, False, Cause.UNAVAILABLE),
        (
            {"code": 504, "reason": "Timeout", "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}},
            False,
            Cause.TOO_LARGE,
        ),
        (
            {"code": 504, "reason": "Timeout", "details": {"causes": [{"message": "Too large resource version: 9"}]}},
            True,
            Cause.TOO_LARGE,
        ),
        ({}, True, Cause.ERROR),
    ],
)
def test_causes_of_refusals(status: dict[str, object], in_stream: bool, cause: Cause):
    assert cause_of(error_of_status(status), in_stream=in_stream) is cause


@pytest.mark.parametrize("error", [NotConnectedError(), ConnectionResetError(), TimeoutError()])
def test_causes_of_broken_connections(error: Exception):
    assert cause_of(error) is Cause.DISCONNECTED


@pytest.mark.parametrize(
    ("made_progress", "seconds", "cause"),
    [
        (True, 0.1, Cause.EARLY),
        (True, 4.9, Cause.EARLY),
        (True, 5.0, Cause.CLOSED),
        (False, 0.9, Cause.EARLY_WITHOUT_EVENTS),
        (False, 4.9, Cause.EARLY_WITHOUT_EVENTS),
        (False, 5.0, Cause.CLOSED),
        (False, 90.0, Cause.MUTE),
        (True, 600.0, Cause.CLOSED),
    ],
)
def test_causes_of_closed_watches(made_progress: bool, seconds: float, cause: Cause):
    assert cause_of_close(made_progress=made_progress, seconds=seconds) is cause
