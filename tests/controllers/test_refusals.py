"""The back-off of refused children, and what the results of a pass add up to."""

from __future__ import annotations

import random

import pytest

from tests.engine.builders import apply, create_once
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.controllers.job_state import JobStates
from trainop.controllers.outcome import (
    CALM,
    DISPUTED,
    FIRST_REPEAT,
    FIRST_RETRY,
    MAX_MESSAGES,
    MAX_REFUSALS,
    Disputes,
    Outcome,
    Refusals,
    Refused,
)
from trainop.engine.actions import Action, Ensure, Need, Remove
from trainop.engine.restart_history import RESTARTS
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.objects.metadata import CONFIG_MAPS, PODS, SECRETS, SERVICES, Metadata

MANIFEST = {"metadata": {"name": "c"}}
CREATES: dict[str, Action] = {
    "Pod": Ensure(PODS, "c", lambda: b""),
    "Service": Ensure(SERVICES, "c", lambda: b""),
    "ConfigMap": apply(CONFIG_MAPS, MANIFEST),
    "Secret": create_once(SECRETS, MANIFEST),
}
"""By the kind of the child `c`."""
OTHERS: list[Action] = [Ensure(PODS, "d", lambda: b""), Remove(PODS, "c", "u")]


def job(generation: int = 1, annotations: dict[str, str] | None = None) -> Metadata:
    return Metadata(name="j", namespace="ns", uid="u", generation=generation, annotations=annotations or {})


def refusal(kind: str = "Pod", name: str = "c", message: str = "no") -> Refused:
    return Refused(kind, name, message)


class Here:
    """With a clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.children = Refusals(JobStates(Expectations(self.clock)), self.clock, random.Random(1))

    def refuse(self, *refused: Refused, of: Metadata | None = None) -> float:
        """The seconds until the retry."""
        _, wait = self.children.record(of or job(), refused or [refusal()])
        assert wait is not None
        return wait

    def waits(self, kind: str = "Pod", of: Metadata | None = None) -> bool:
        """Whether the child is withheld; all other actions never are."""
        actions = [CREATES[kind], *OTHERS]
        allowed, wait = self.children.allow(of or job(), actions)
        assert list(allowed)[-2:] == OTHERS
        assert (wait is None) == (len(allowed) == 3)
        return len(allowed) < 3


@pytest.mark.parametrize("kind", CREATES)
@virtual_time
async def test_a_refused_child_of_any_kind_waits_and_nothing_else_does(kind: str) -> None:
    here = Here()
    wait = here.refuse(refusal(kind))
    assert here.waits(kind)
    assert not any(here.waits(other) for other in CREATES if other != kind)
    await here.clock.sleep(wait - 1)
    assert here.waits(kind)
    await here.clock.sleep(1)
    assert not here.waits(kind)


@virtual_time
async def test_a_pass_is_one_failure_however_many_children_it_refuses() -> None:
    here = Here()
    assert here.refuse(*(refusal(name=f"c{index}") for index in range(5))) < 1.2 * FIRST_RETRY
    assert here.refuse() == pytest.approx(2 * FIRST_RETRY, rel=0.2)
    assert here.refuse() == pytest.approx(4 * FIRST_RETRY, rel=0.2)


@pytest.mark.parametrize("edited", [job(2), job(1, {"a": "b"})], ids=["spec", "annotations"])
@virtual_time
async def test_an_edit_begins_the_back_off_anew_and_once(edited: Metadata) -> None:
    here = Here()
    for _ in range(4):
        here.refuse()
    assert here.waits()
    assert not here.waits(of=edited)
    assert here.refuse(of=edited) == pytest.approx(FIRST_RETRY, rel=0.2)
    assert here.waits(of=edited), "the edit has had its try"


@virtual_time
async def test_the_operators_own_annotation_is_no_edit() -> None:
    here = Here()
    here.refuse()
    assert here.waits(of=job(1, {RESTARTS: "{}"}))


@virtual_time
async def test_after_a_success_the_next_refusal_waits_as_the_first() -> None:
    here = Here()
    for _ in range(3):
        wait = here.refuse()
    await here.clock.sleep(wait)
    assert not here.waits()
    assert here.children.record(job(), []) == ([], None)
    assert here.refuse() == pytest.approx(FIRST_RETRY, rel=0.2)


@virtual_time
async def test_a_pass_without_a_try_is_no_success() -> None:
    here = Here()
    here.refuse()
    assert here.children.record(job(), []) == ([], None)
    assert here.waits()
    assert here.refuse() == pytest.approx(2 * FIRST_RETRY, rel=0.2)


@virtual_time
async def test_each_message_is_reported_once_and_not_endlessly_many() -> None:
    here = Here()
    fresh, _ = here.children.record(job(), [refusal(name="c"), refusal(name="d")])
    assert [each.name for each in fresh] == ["c"]
    many = [refusal(message=f"no {number}") for number in range(100)]
    fresh, _ = here.children.record(job(), many)
    assert len(fresh) == MAX_MESSAGES - 1
    assert here.children.record(job(), many)[0] == []


# What another client undoes -------------------------------------------------------------------------------------------


def disputed(times: int) -> tuple[Disputes, VirtualClock]:
    """The object of `job()` has been written so often, one time after the other."""
    clock = VirtualClock()
    disputes = Disputes(JobStates(Expectations(clock)), clock, random.Random(1))
    for _ in range(times):
        disputes.record(job())
    return disputes, clock


@pytest.mark.parametrize("edited", [job(2), job(1, {"a": "b"})], ids=["spec", "annotations"])
@virtual_time
async def test_an_edit_is_no_dispute_and_is_written_at_once(edited: Metadata) -> None:
    disputes, _ = disputed(DISPUTED + 3)
    assert disputes.seconds_to_write(job()) > 10 * FIRST_REPEAT
    assert disputes.seconds_to_write(edited) == 0
    assert not disputes.record(edited)
    assert disputes.seconds_to_write(edited) == pytest.approx(FIRST_REPEAT, rel=0.2)


@virtual_time
async def test_after_a_calm_the_next_write_counts_as_the_first() -> None:
    disputes, clock = disputed(DISPUTED + 3)
    await clock.sleep(disputes.seconds_to_write(job()) + CALM + 1)
    assert not disputes.record(job())
    assert disputes.seconds_to_write(job()) == pytest.approx(FIRST_REPEAT, rel=0.2)


# What the results of a pass add up to ---------------------------------------------------------------------------------


@pytest.mark.parametrize("need", Need)
def test_only_what_the_job_needs_halts_a_pass(need: Need) -> None:
    outcome = Outcome()
    outcome.halt(need)
    assert outcome.halted == outcome.should_stop == (need is Need.JOB)


def test_many_refusals_end_a_pass() -> None:
    outcome = Outcome()
    for number in range(MAX_REFUSALS):
        assert not outcome.should_stop
        outcome.refuse(refusal(name=str(number)))
    assert outcome.should_stop
    assert outcome.requeue_after == 1.0


DISTURBED = [
    Outcome(errors=[TimeoutError()]),
    Outcome(refused="no"),
    Outcome(refused_children=[refusal()]),
    Outcome(blocked=True),
    Outcome(pods_wait=True),
    Outcome(halted=True),
]


@pytest.mark.parametrize("part", DISTURBED)
def test_what_went_wrong_in_a_part_went_wrong(part: Outcome) -> None:
    """A status is held back only if nothing did."""
    whole = Outcome()
    assert whole.undisturbed
    whole.merge(part)
    for found in (part, whole):
        assert not found.undisturbed
    for name in ("errors", "refused", "refused_children", "blocked", "pods_wait", "halted"):
        assert getattr(whole, name) == getattr(part, name)


def test_the_earliest_part_decides_when_to_look_again() -> None:
    whole = Outcome(requeue_after=5.0)
    for seconds in (None, 7.0, 3.0):
        whole.merge(Outcome(requeue_after=seconds))
    assert whole.requeue_after == 3.0
