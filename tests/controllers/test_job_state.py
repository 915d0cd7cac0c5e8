"""The lifetime of a controller's in-memory state per job."""

from __future__ import annotations

import pytest

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.controllers.job_state import MAX_OBSERVED, JobStates
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.objects.metadata import PODS, Key


@pytest.fixture
def states() -> JobStates:
    return JobStates(Expectations(VirtualClock()))


@virtual_time
async def test_a_job_is_forgotten_in_one_step_with_its_expectations() -> None:
    expectations = Expectations(VirtualClock())
    states = JobStates(expectations)
    for uid in ("gone", "other"):
        states.ensure(uid).unfinished = True
        expectations.expect_create(uid, PODS, Key("ns", uid))
    states.observe("gone").owner_unconfirmed = True
    states.forget("gone")
    states.forget("never seen")
    assert states.find("gone") is None
    assert (len(states), len(expectations)) == (1, 1)
    assert expectations.expires_in("gone") is None


def test_an_observed_job_keeps_its_state_when_it_is_reconciled(states: JobStates) -> None:
    observed = states.observe("a")
    assert states.find("a") is states.ensure("a") is states.observe("a") is observed
    assert len(states) == 1
    states.forget("a")
    assert states.ensure("a") is not observed


def test_only_observed_states_are_bounded_and_the_oldest_goes_first(states: JobStates) -> None:
    states.observe("promoted")
    kept = [states.ensure("promoted"), *(states.ensure(f"used {n}") for n in range(MAX_OBSERVED))]
    for number in range(MAX_OBSERVED):
        states.observe(str(number))
    states.observe("0")  # a look-up does not change the order of eviction
    states.observe("new")
    assert states.find("0") is None
    assert None not in [states.find("1"), states.find("new")]
    assert len(states) == len(kept) + MAX_OBSERVED


def test_a_forgotten_observed_state_frees_its_place(states: JobStates) -> None:
    for number in range(MAX_OBSERVED):
        states.observe(str(number))
    states.forget("7")
    states.observe("new")
    assert states.find("0") is not None
