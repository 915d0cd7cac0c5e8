"""Deletion, garbage collection and namespaces: which objects are deleted, in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from tests.local.api.support import (
    CONFIG_MAPS,
    DEFINITIONS,
    PODS,
    SERVICES,
    TASKS,
    Api,
    config_map,
    definition,
    pod,
    settle,
    task,
)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """An API server with its background controllers running."""
    api = Api()
    task = asyncio.create_task(api.server.run())
    yield api
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def names(api: Api, path: str = CONFIG_MAPS) -> list[str]:
    await settle()
    return (await api("GET", path)).items


async def gone(api: Api, path: str) -> bool:
    await settle()
    return (await api("GET", path)).code == 404


async def test_answers_with_a_status_or_the_object(api: Api):
    made = await api.create(CONFIG_MAPS, config_map())
    assert (await api("DELETE", f"{CONFIG_MAPS}/c")).json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "c", "kind": "configmaps", "uid": made["metadata"]["uid"]},
    }
    await api.create(SERVICES, {"metadata": {"name": "s"}, "spec": {"clusterIP": "None"}})
    assert (await api("DELETE", f"{SERVICES}/s")).json["kind"] == "Service"
    assert (await api("DELETE", f"{CONFIG_MAPS}/c")).code == 404


@pytest.mark.parametrize(
    ("preconditions", "message"),
    [
        ({"uid": "x"}, "the UID in the precondition (x) does not match the UID in record"),
        ({"resourceVersion": "1"}, "the ResourceVersion in the precondition (1) does not match"),
    ],
)
async def test_keeps_to_preconditions(api: Api, preconditions: dict[str, str], message: str):
    made = await api.create(CONFIG_MAPS, config_map())
    refused = await api("DELETE", f"{CONFIG_MAPS}/c", {"preconditions": preconditions})
    assert (refused.code, refused.json["reason"]) == (409, "Conflict")
    assert message in refused.json["message"]
    held = made["metadata"]
    right = {"uid": held["uid"], "resourceVersion": held["resourceVersion"]}
    assert (await api("DELETE", f"{CONFIG_MAPS}/c", {"preconditions": right})).code == 200


async def test_finalizers_are_waited_for(api: Api):
    await api.create(CONFIG_MAPS, config_map("c", finalizers=["a/b"]))
    marked = (await api("DELETE", f"{CONFIG_MAPS}/c")).json
    assert (marked["kind"], marked["metadata"]["deletionTimestamp"]) == ("ConfigMap", "2026-01-02T03:04:05Z")
    again = (await api("DELETE", f"{CONFIG_MAPS}/c")).json
    assert again["metadata"]["resourceVersion"] == marked["metadata"]["resourceVersion"]
    added = await api.patch(f"{CONFIG_MAPS}/c", {"metadata": {"finalizers": ["a/b", "c/d"]}})
    assert "no new finalizers can be added if the object is being deleted" in added.json["message"]
    taken = await api("POST", CONFIG_MAPS, config_map())
    assert taken.json["message"] == 'object is being deleted: configmaps "c" already exists'
    await api.patch(f"{CONFIG_MAPS}/c", {"metadata": {"finalizers": None}})
    assert await gone(api, f"{CONFIG_MAPS}/c")


async def test_a_pod_on_a_node_ends_in_its_own_time(api: Api):
    await api.create(PODS, pod("p", node="n"))
    marked = (await api("DELETE", f"{PODS}/p")).json["metadata"]
    assert (marked["deletionTimestamp"], marked["deletionGracePeriodSeconds"]) == ("2026-01-02T03:04:35Z", 30)
    assert marked["generation"] == 2
    longer = (await api("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 60})).json["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 30
    shorter = (await api("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 10})).json["metadata"]
    assert (shorter["deletionTimestamp"], shorter["generation"]) == ("2026-01-02T03:04:15Z", 2)
    assert (await api("DELETE", f"{PODS}/p")).json["metadata"]["deletionGracePeriodSeconds"] == 10
    await api("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
    assert await gone(api, f"{PODS}/p")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", ""])
async def test_a_pod_that_does_not_run_goes_at_once(api: Api, phase: str):
    await api.create(PODS, pod("p", node="n" if phase else ""))
    if phase:
        await api.patch(f"{PODS}/p/status", {"status": {"phase": phase}})
    await api("DELETE", f"{PODS}/p")
    assert await gone(api, f"{PODS}/p")


async def test_deletes_a_collection(api: Api):
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {"x": "1"})):
        await api.create(CONFIG_MAPS, config_map(name, labels=labels))
    answer = await api("DELETE", CONFIG_MAPS, labelSelector="x=1")
    assert (answer.json["kind"], answer.items) == ("ConfigMapList", ["a", "c"])
    assert await names(api) == ["b"]


async def owned(api: Api, *, block: bool = True) -> None:
    """`own` with the dependents `a` and `b`."""
    made = await api.create(CONFIG_MAPS, config_map("own"))
    for name in "ab":
        await api.create(CONFIG_MAPS, config_map(name, ownerReferences=[reference(made, block=block)]))


def reference(owner: Any, *, block: bool = False) -> dict[str, Any]:
    metadata = owner["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "blockOwnerDeletion": block,
    }


@pytest.mark.parametrize(("policy", "left"), [("", []), ("Background", []), ("Foreground", []), ("Orphan", ["a", "b"])])
async def test_dependents_follow_their_owner(api: Api, policy: str, left: list[str]):
    await owned(api)
    await api("DELETE", f"{CONFIG_MAPS}/own", {"propagationPolicy": policy} if policy else {})
    assert await names(api) == left
    if left:
        assert "ownerReferences" not in (await api("GET", f"{CONFIG_MAPS}/a")).json["metadata"]


async def test_a_foreground_deletion_waits_for_blocking_dependents(api: Api):
    made = await api.create(CONFIG_MAPS, config_map("own"))
    held = config_map("a", ownerReferences=[reference(made, block=True)], finalizers=["x/y"])
    await api.create(CONFIG_MAPS, held)
    await api("DELETE", f"{CONFIG_MAPS}/own", {"propagationPolicy": "Foreground"})
    assert await names(api) == ["a", "own"]
    assert (await api("GET", f"{CONFIG_MAPS}/own")).json["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert "deletionTimestamp" in (await api("GET", f"{CONFIG_MAPS}/a")).json["metadata"]
    await api.patch(f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": None}})
    assert await names(api) == []


async def test_one_owner_that_is_left_is_enough(api: Api):
    one, two = [await api.create(CONFIG_MAPS, config_map(name)) for name in ("one", "two")]
    await api.create(CONFIG_MAPS, config_map("a", ownerReferences=[reference(one), reference(two)]))
    await api("DELETE", f"{CONFIG_MAPS}/one")
    assert await names(api) == ["a", "two"]
    left = (await api("GET", f"{CONFIG_MAPS}/a")).json["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in left] == ["two"]


async def test_an_owner_of_another_uid_or_namespace_does_not_count(api: Api):
    other = await api.create("/api/v1/namespaces/kube-system/configmaps", config_map("own"))
    impostor = await api.create(CONFIG_MAPS, config_map("own"))
    stranger = {**reference(impostor), "uid": "never-was"}
    await api.create(CONFIG_MAPS, config_map("a", ownerReferences=[stranger]))
    await api.create(CONFIG_MAPS, config_map("b", ownerReferences=[reference(other)]))
    assert await names(api) == ["own"]


async def test_a_namespace_takes_its_content_along(api: Api):
    await api.create("/api/v1/namespaces", {"metadata": {"name": "n"}})
    assert (await api("GET", "/api/v1/namespaces/n/serviceaccounts")).items == ["default"]
    inside = "/api/v1/namespaces/n/configmaps"
    await api.create(inside, config_map("free"))
    await api.create(inside, config_map("held", finalizers=["x/y"]))
    going = (await api("DELETE", "/api/v1/namespaces/n")).json
    assert going["status"] == {"phase": "Terminating"}
    assert await names(api, inside) == ["held"]
    refused = await api("POST", inside, config_map("new"))
    assert (refused.code, refused.json["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    assert refused.json["message"] == (
        'configmaps "new" is forbidden: unable to create new content in namespace n because it is being terminated'
    )
    await api.patch(f"{inside}/held", {"metadata": {"finalizers": None}})
    assert await gone(api, "/api/v1/namespaces/n")


async def version(api: Api) -> int:
    """The server's resourceVersion, which counts its writes, once its controllers are idle."""
    await settle()
    return int((await api("GET", CONFIG_MAPS)).json["metadata"]["resourceVersion"])


CLUSTER_ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


@pytest.mark.parametrize(
    ("collection", "body", "content"),
    [
        ("/api/v1/namespaces", {"metadata": {"name": "n"}}, "/api/v1/namespaces/n/configmaps"),
        (DEFINITIONS, definition(), TASKS),
        (CLUSTER_ROLE, {"metadata": {"name": "r"}}, ""),
        (CONFIG_MAPS, config_map("m"), ""),
    ],
    ids=["namespace", "definition", "cluster role", "config map"],
)
@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
@pytest.mark.parametrize("holding", ["owner", "content"])
async def test_a_deletion_that_is_held_is_not_written_again_and_again(
    api: Api, collection: str, body: dict[str, Any], content: str, policy: str, holding: str
):
    """Regression test: the loop caused 5,000 writes per second."""
    holder, held = (["example.com/mine"], []) if holding == "owner" else ([], ["example.com/mine"])
    made = await api.create(collection, {**body, "metadata": {**body["metadata"], "finalizers": holder}})
    name = f"{collection}/{body['metadata']['name']}"
    if content:
        inside = task("t") if content == TASKS else config_map("t")
        await api.create(content, {**inside, "metadata": {"name": "t", "finalizers": held}})
    before = await version(api)
    await api("DELETE", name, {"propagationPolicy": policy})
    after = await version(api)
    assert after - before <= 6
    for _ in range(3):
        assert await version(api) == after
    if await gone(api, name):
        return  # nothing held it
    if content and held:
        await api.patch(f"{content}/t", {"metadata": {"finalizers": None}})
    left = [*(f for f in made["metadata"].get("finalizers", ()) if f not in holder)]
    if holder:
        await api.patch(name, {"metadata": {"finalizers": left or None}})
    assert await gone(api, name)


async def test_a_namespace_that_is_held_by_a_finalizer_of_its_spec_is_not_written_again_and_again(api: Api):
    made = await api.create("/api/v1/namespaces", {"metadata": {"name": "n"}})
    held = {**made, "spec": {"finalizers": ["kubernetes", "example.com/mine"]}}
    assert (await api("PUT", "/api/v1/namespaces/n/finalize", held)).code == 200
    before = await version(api)
    await api("DELETE", "/api/v1/namespaces/n")
    assert await version(api) - before <= 4
    seen = (await api("GET", "/api/v1/namespaces/n")).json
    assert seen["spec"] == {"finalizers": ["example.com/mine"]}
    assert (await api("PUT", "/api/v1/namespaces/n/finalize", {**seen, "spec": {}})).code == 200
    assert await gone(api, "/api/v1/namespaces/n")


async def circle(api: Api, size: int) -> None:
    """Objects `c0`, `c1` ... each of which owns the next, and the last the first; each blocks its owner's deletion."""
    made = [await api.create(CONFIG_MAPS, config_map(f"c{number}")) for number in range(size)]
    for number, owner in enumerate(made):
        change = {"metadata": {"ownerReferences": [reference(owner, block=True)]}}
        await api.patch(f"{CONFIG_MAPS}/c{(number + 1) % size}", change)


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
@pytest.mark.parametrize("size", [2, 3, 40])
async def test_a_circle_of_owners_is_deleted(api: Api, size: int, policy: str):
    await circle(api, size)
    before = await version(api)
    await api("DELETE", f"{CONFIG_MAPS}/c0", {"propagationPolicy": policy})
    for _ in range(size):
        await settle()
    assert await names(api) == (
        [] if policy != "Orphan" else [f"c{number}" for number in sorted(range(1, size), key=str)]
    )
    assert await version(api) - before <= 4 * size


async def test_a_foreground_deletion_continues_when_a_dependent_changes_its_owner(api: Api):
    await owned(api)
    for name in "ab":
        await api.patch(f"{CONFIG_MAPS}/{name}", {"metadata": {"finalizers": ["x/y"]}})
    await api("DELETE", f"{CONFIG_MAPS}/own", {"propagationPolicy": "Foreground"})
    assert await names(api) == ["a", "b", "own"]
    for name in "ab":
        await api.patch(f"{CONFIG_MAPS}/{name}", {"metadata": {"ownerReferences": None}})
    assert await names(api) == ["a", "b"]


@pytest.mark.parametrize("name", ["default", "kube-system"])
async def test_some_namespaces_stay(api: Api, name: str):
    refused = await api("DELETE", f"/api/v1/namespaces/{name}")
    assert refused.json["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'


async def test_events_expire_an_hour_after_they_were_last_written(api: Api):
    path = "/api/v1/namespaces/default/events"
    for name in ("old", "kept"):
        await api.create(path, {"metadata": {"name": name}, "involvedObject": {"namespace": "default"}})
    await api.clock.advance(1800)
    await api.patch(f"{path}/kept", {"count": 2})
    await api.clock.advance(1801)
    assert await names(api, path) == ["kept"]
    await api.clock.advance(1800)
    assert await names(api, path) == []


async def test_binds_and_evicts_pods(api: Api):
    await api.create(PODS, pod("p"))
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    assert (await api("POST", f"{PODS}/p/binding", binding)).code == 201
    bound = (await api("GET", f"{PODS}/p")).json
    assert (bound["spec"]["nodeName"], bound["status"]["conditions"][0]["type"]) == ("n", "PodScheduled")
    again = await api("POST", f"{PODS}/p/binding", binding)
    assert again.json["message"] == (
        'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n"'
    )
    assert (await api("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})).code == 201
    evicted = (await api("GET", f"{PODS}/p")).json
    assert "deletionTimestamp" in evicted["metadata"]
    announced = evicted["status"]["conditions"][-1]
    assert (announced["type"], announced["status"]) == ("DisruptionTarget", "True")
    assert (announced["reason"], announced["message"]) == ("EvictionByEvictionAPI", "Eviction API: evicting")


async def test_an_eviction_that_is_refused_or_tried_announces_nothing(api: Api):
    await api.create(PODS, pod("p"))
    for options in ({"dryRun": ["All"]}, {"preconditions": {"uid": "other"}}):
        await api("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}, "deleteOptions": options})
        found = (await api("GET", f"{PODS}/p")).json
        assert "deletionTimestamp" not in found["metadata"]
        assert not [each for each in found["status"].get("conditions", []) if each["type"] == "DisruptionTarget"]
