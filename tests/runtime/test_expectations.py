"""Expectations against a cache that the test writes directly.

For case runtime-35, these tests prove when a controller may continue; the tests of the reconciler prove that it waits
until then, and lists from the API server after five minutes.
"""

from __future__ import annotations

import pytest

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import PODS, SERVICES, Key, Metadata, OwnerReference, Resource

JOB = "uid-of-job"


def key(name: str) -> Key:
    return Key("ns", name)


def owned(name: str, uid: str, owner: str = JOB, *, terminating: bool = False) -> Metadata:
    reference = OwnerReference("kubeflow.org/v1", "PyTorchJob", "job", owner, controller=True)
    return Metadata(
        name=name,
        namespace="ns",
        uid=uid,
        owner_references=(reference,),
        deletion_timestamp="2026-01-01T00:00:00Z" if terminating else None,
    )


class FakeCache:
    def __init__(self) -> None:
        self.objects: dict[tuple[Resource, Key], Metadata] = {}

    def put(self, resource: Resource, metadata: Metadata) -> None:
        self.objects[resource, metadata.key] = metadata

    def drop(self, resource: Resource, name: str) -> None:
        del self.objects[resource, key(name)]

    def look(self, resource: Resource, key: Key) -> Metadata | None:
        return self.objects.get((resource, key))


@pytest.mark.case("runtime-35", "b")
@virtual_time
async def test_creates_are_expected_until_the_cache_shows_each_uid():
    cache, expectations = FakeCache(), Expectations(VirtualClock())
    for name in ("a", "b", "c"):
        expectations.expect_create(JOB, PODS, key(name))
    expectations.created(JOB, PODS, key("a"), "1")
    expectations.created(JOB, PODS, key("b"), "2")
    expectations.create_failed(JOB, PODS, key("c"))
    assert not expectations.satisfied(JOB, cache.look)
    cache.put(PODS, owned("a", "1"))
    assert not expectations.satisfied(JOB, cache.look)
    cache.put(PODS, owned("b", "2"))
    assert expectations.satisfied(JOB, cache.look)
    assert expectations.expires_in(JOB) is None
    assert len(expectations) == 0


@virtual_time
async def test_expectations_of_all_kinds_have_to_be_satisfied():
    cache, expectations = FakeCache(), Expectations(VirtualClock())
    expectations.expect_create(JOB, PODS, key("a"))
    expectations.created(JOB, PODS, key("a"), "1")
    expectations.expect_create(JOB, SERVICES, key("a"))
    expectations.created(JOB, SERVICES, key("a"), "2")
    cache.put(PODS, owned("a", "1"))
    assert not expectations.satisfied(JOB, cache.look)
    cache.put(SERVICES, owned("a", "2"))
    assert expectations.satisfied(JOB, cache.look)


@virtual_time
async def test_a_predecessor_under_the_same_name_is_not_the_created_object():
    cache, expectations = FakeCache(), Expectations(VirtualClock())
    cache.put(PODS, owned("a", "old", owner="predecessor"))
    expectations.expect_create(JOB, PODS, key("a"))
    assert not expectations.satisfied(JOB, cache.look)
    expectations.created(JOB, PODS, key("a"), "new")
    assert not expectations.satisfied(JOB, cache.look)
    cache.put(PODS, owned("a", "new"))
    assert expectations.satisfied(JOB, cache.look)


@virtual_time
async def test_a_create_without_an_answer_is_met_by_our_object_of_that_name():
    cache, expectations = FakeCache(), Expectations(VirtualClock())
    expectations.expect_create(JOB, PODS, key("a"))
    cache.put(PODS, owned("a", "1"))
    assert expectations.satisfied(JOB, cache.look)


@virtual_time
async def test_a_child_created_and_deleted_between_two_checks_was_observed():
    cache, expectations = FakeCache(), Expectations(VirtualClock())
    expectations.expect_create(JOB, PODS, key("a"))
    expectations.observe_deleted(owned("a", "1"))  # the watch event arrives before the response to the POST
    expectations.created(JOB, PODS, key("a"), "1")
    assert expectations.satisfied(JOB, cache.look)
    expectations.expect_create(JOB, PODS, key("b"))
    expectations.created(JOB, PODS, key("b"), "2")
    expectations.observe_deleted(owned("b", "other"))
    assert not expectations.satisfied(JOB, cache.look)
    expectations.observe_deleted(owned("b", "2"))
    assert expectations.satisfied(JOB, cache.look)


@pytest.mark.case("runtime-35", "de")
@pytest.mark.parametrize("how", ["terminating", "gone", "replaced"])
def test_a_delete_is_met_when_the_object_terminates_or_is_no_longer_there(how: str):
    @virtual_time
    async def scenario() -> None:
        cache, expectations = FakeCache(), Expectations(VirtualClock())
        cache.put(PODS, owned("a", "1"))
        expectations.expect_delete(JOB, PODS, key("a"), "1")
        assert not expectations.satisfied(JOB, cache.look)
        if how == "terminating":
            cache.put(PODS, owned("a", "1", terminating=True))
        elif how == "gone":
            cache.drop(PODS, "a")
        else:
            cache.put(PODS, owned("a", "2"))
        assert expectations.satisfied(JOB, cache.look)
        if how == "terminating":
            cache.drop(PODS, "a")
            expectations.observe_deleted(owned("a", "1"))
        assert expectations.satisfied(JOB, cache.look)
        assert len(expectations) == 0

    scenario()


@virtual_time
async def test_a_failed_delete_is_not_expected():
    cache, expectations = FakeCache(), Expectations(VirtualClock())
    cache.put(PODS, owned("a", "1"))
    expectations.expect_delete(JOB, PODS, key("a"), "1")
    assert expectations.expires_in(JOB) == pytest.approx(300)
    expectations.delete_failed(JOB, PODS, key("a"), "1")
    assert expectations.expires_in(JOB) is None
    assert expectations.satisfied(JOB, cache.look)


@virtual_time
async def test_a_lost_event_expires_after_five_minutes_with_the_oldest():
    metrics, clock = Metrics(), VirtualClock()
    cache, expectations = FakeCache(), Expectations(clock, metrics.controller("test").expectations_expired)
    expectations.expect_create(JOB, PODS, key("a"))
    expectations.created(JOB, PODS, key("a"), "1")
    await clock.sleep(100)
    expectations.expect_delete(JOB, PODS, key("b"), "2")
    cache.put(PODS, owned("b", "2"))
    assert expectations.expires_in(JOB) == pytest.approx(200)
    clock.jump(3600)  # a jump of the wall clock has no effect
    assert expectations.expires_in(JOB) == pytest.approx(200)
    await clock.sleep(200)
    assert not expectations.satisfied(JOB, cache.look)
    assert expectations.expires_in(JOB) == pytest.approx(0)
    assert expectations.expire(JOB) == ["create pods ns/a", "delete pods ns/b"]
    assert metrics.registry.get_sample_value("runtime_expectations_expired_total", {"controller": "test"}) == 2
    assert expectations.satisfied(JOB, cache.look)
    assert expectations.expire(JOB) == []


@pytest.mark.case("runtime-35", "f")
@virtual_time
async def test_a_job_recreated_under_its_name_inherits_nothing():
    cache, expectations = FakeCache(), Expectations(VirtualClock())
    expectations.expect_create(JOB, PODS, key("a"))
    assert expectations.satisfied("uid-of-successor", cache.look)
    assert not expectations.satisfied(JOB, cache.look)
    expectations.forget(JOB)
    assert expectations.satisfied(JOB, cache.look)
    assert len(expectations) == 0
