"""Lists and watches: pages, versions, selectors, compacted history."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.local.api.support import CONFIG_MAPS, PODS, Api, Watching, config_map, pod, settle


@pytest.fixture
def api() -> Api:
    return Api(history=50)


async def version(api: Api) -> str:
    return str((await api("GET", CONFIG_MAPS)).json["metadata"]["resourceVersion"])


async def test_pages_show_one_moment(api: Api):
    for name in "abcde":
        await api.create(CONFIG_MAPS, config_map(name))
    first = await api("GET", CONFIG_MAPS, limit="2")
    assert first.items == ["a", "b"]
    assert first.json["metadata"]["remainingItemCount"] == 3
    await api("DELETE", f"{CONFIG_MAPS}/c")
    await api.create(CONFIG_MAPS, config_map("dd"))
    await api.patch(f"{CONFIG_MAPS}/e", {"data": {"a": "new"}})
    second = await api("GET", CONFIG_MAPS, limit="2", **{"continue": first.json["metadata"]["continue"]})
    third = await api("GET", CONFIG_MAPS, limit="2", **{"continue": second.json["metadata"]["continue"]})
    assert second.items + third.items == ["c", "d", "e"]
    assert third.json["items"][0]["data"] == {"a": "b"}
    assert third.json["metadata"] == {"resourceVersion": first.json["metadata"]["resourceVersion"]}


async def test_a_page_after_compaction_is_gone_and_says_how_to_continue(api: Api):
    for name in "abc":
        await api.create(CONFIG_MAPS, config_map(name))
    first = await api("GET", CONFIG_MAPS, limit="1")
    await api("DELETE", f"{CONFIG_MAPS}/b")
    api.server.compact()
    gone = await api("GET", CONFIG_MAPS, limit="1", **{"continue": first.json["metadata"]["continue"]})
    assert (gone.code, gone.json["reason"]) == (410, "Expired")
    rest = await api("GET", CONFIG_MAPS, **{"continue": gone.json["metadata"]["continue"]})
    assert rest.items == ["c"]


async def test_lists_the_past_exactly(api: Api):
    await api.create(CONFIG_MAPS, config_map("a"))
    then = await version(api)
    await api("DELETE", f"{CONFIG_MAPS}/a")
    await api.create(CONFIG_MAPS, config_map("b"))
    past = await api("GET", CONFIG_MAPS, resourceVersion=then, resourceVersionMatch="Exact")
    assert past.items == ["a"]
    assert (await api("GET", CONFIG_MAPS, resourceVersion=then, resourceVersionMatch="NotOlderThan")).items == ["b"]
    api.server.compact()
    gone = await api("GET", CONFIG_MAPS, resourceVersion=then, resourceVersionMatch="Exact")
    assert gone.code == 410


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ({"resourceVersion": "9999"}, 504, "Timeout: Too large resource version: 9999, current: "),
        ({"resourceVersion": "x"}, 400, 'invalid resource version: resourceVersion: Invalid value: "x"'),
        ({"limit": "x"}, 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ({"continue": "xx"}, 400, "invalid continue token"),
        ({"labelSelector": "a b"}, 400, "unable to parse requirement: found 'b', expected: in, notin"),
        ({"fieldSelector": "spec.foo=x"}, 400, "field label not supported: spec.foo"),
        (
            {"resourceVersionMatch": "Exact"},
            422,
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden',
        ),
        ({"sendInitialEvents": "true"}, 422, 'ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden'),
        (
            {"watch": "1", "sendInitialEvents": "true"},
            422,
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch',
        ),
        ({"watch": "1", "resourceVersion": "x"}, 500, 'resourceVersion: Invalid value: "x"'),
    ],
)
async def test_refuses_lists(api: Api, query: dict[str, str], code: int, message: str):
    answer = await api("GET", CONFIG_MAPS, **query)
    assert answer.code == code
    assert answer.json["message"].startswith(message)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"labelSelector": "a=1"}, ["one"]),
        ({"labelSelector": "a in (1,2),!b"}, ["one"]),
        ({"labelSelector": "a!=1"}, ["bare", "two"]),
        ({"fieldSelector": "metadata.name=two"}, ["two"]),
        ({"fieldSelector": "spec.nodeName=n1,status.phase=Pending"}, ["two"]),
        ({"fieldSelector": "metadata.name!=two", "labelSelector": "a"}, ["one"]),
    ],
)
async def test_selects(api: Api, query: dict[str, str], names: list[str]):
    await api.create(PODS, pod("one", labels={"a": "1"}))
    await api.create(PODS, pod("two", labels={"a": "2", "b": "x"}, node="n1"))
    await api.create(PODS, pod("bare"))
    assert (await api("GET", PODS, **query)).items == names


async def test_watches_what_happens_after_a_version(api: Api):
    start = await version(api)
    await api.create(CONFIG_MAPS, config_map("a"))
    watch = await api.watch(CONFIG_MAPS, resourceVersion=start)
    await api.patch(f"{CONFIG_MAPS}/a", {"data": {"x": "y"}})
    await api("DELETE", f"{CONFIG_MAPS}/a")
    assert await watch.next_events(3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_without_version_begins_with_existing_objects(api: Api):
    await api.create(CONFIG_MAPS, config_map("a"))
    watch = await api.watch("/api/v1/configmaps")
    await api.create(CONFIG_MAPS, config_map("b"))
    assert await watch.next_events(2) == [("ADDED", "a"), ("ADDED", "b")]


async def test_entering_and_leaving_a_selection_is_being_added_and_deleted(api: Api):
    await api.create(CONFIG_MAPS, config_map("a"))
    watch = await api.watch(CONFIG_MAPS, resourceVersion=await version(api), labelSelector="in=yes")
    for labels in ({"in": "yes"}, {"in": "yes", "x": "y"}, {"in": "no"}, {"in": "yes"}):
        await api.patch(f"{CONFIG_MAPS}/a", {"metadata": {"labels": labels}})
    events = [await watch.next() for _ in range(4)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    assert events[2]["object"]["metadata"]["labels"] == {"in": "yes", "x": "y"}, "the last state that was selected"
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(versions)


async def test_a_deletion_has_a_version_of_its_own(api: Api):
    made = await api.create(CONFIG_MAPS, config_map("a"))
    watch = await api.watch(CONFIG_MAPS, resourceVersion=made["metadata"]["resourceVersion"])
    await api("DELETE", f"{CONFIG_MAPS}/a")
    event = await watch.next()
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


STREAMED = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}


async def test_streams_a_list_and_says_where_it_ends(api: Api):
    for name in "ab":
        await api.create(CONFIG_MAPS, config_map(name))
    watch = await api.watch(CONFIG_MAPS, **STREAMED)
    await api.create(CONFIG_MAPS, config_map("c"))
    assert await watch.next_events(2) == [("ADDED", "a"), ("ADDED", "b")]
    mark = await watch.next()
    assert (mark["type"], mark["object"]["kind"]) == ("BOOKMARK", "ConfigMap")
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert await watch.next_events(1) == [("ADDED", "c")]


async def test_a_streamed_list_of_the_future_is_refused_in_the_stream(api: Api):
    watch = await api.watch(CONFIG_MAPS, **STREAMED, resourceVersion="9999")
    error = await watch.next()
    assert (error["type"], error["object"]["code"]) == ("ERROR", 504)
    assert error["object"]["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert await watch.next() is None


async def test_a_forgotten_version_is_gone(api: Api):
    start = await version(api)
    await api.create(CONFIG_MAPS, config_map("a"))
    api.server.compact()
    watch = await api.watch(CONFIG_MAPS, resourceVersion=start)
    error = await watch.next()
    assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert error["object"]["message"].startswith(f"too old resource version: {start} (")
    assert await watch.next() is None


async def test_history_is_bounded_and_a_slow_watch_ends(api: Api):
    await api.create(CONFIG_MAPS, config_map("a"))
    watch = await api.watch(CONFIG_MAPS, resourceVersion=await version(api))
    for number in range(100):
        await api.patch(f"{CONFIG_MAPS}/a", {"data": {"n": str(number)}})
    error = await watch.next()
    assert (error["type"], error["object"]["code"]) == ("ERROR", 410)


async def lines(watch: Watching, into: list[Any]) -> None:
    while (event := await watch.next()) is not None:
        into.append(event)
    into.append("end")


async def test_bookmarks_come_every_minute_and_before_the_end(api: Api):
    watch = await api.watch(CONFIG_MAPS, resourceVersion="1", allowWatchBookmarks="true", timeoutSeconds="100")
    seen: list[Any] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(lines(watch, seen))
        await api.clock.advance(59)
        assert seen == []
        await api.clock.advance(1)
        await api.create(PODS, pod())  # moves the version without being watched
        await api.clock.advance(37)
        assert [event["type"] for event in seen] == ["BOOKMARK"]
        await api.clock.advance(1)
        await api.clock.advance(2)
    assert [event if event == "end" else event["type"] for event in seen] == ["BOOKMARK", "BOOKMARK", "end"]
    assert seen[1]["object"]["metadata"]["resourceVersion"] == await version(api)


async def test_ends_when_its_time_is_over(api: Api):
    watch = await api.watch(CONFIG_MAPS, resourceVersion="1", timeoutSeconds="5")
    seen: list[Any] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(lines(watch, seen))
        await api.clock.advance(4.9)
        assert seen == []
        await api.clock.advance(0.1)
    assert seen == ["end"]


async def test_ends_when_closed_by_either_side(api: Api):
    one, two = [await api.watch(CONFIG_MAPS) for _ in range(2)]
    seen: list[Any] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(lines(one, seen))
        group.create_task(lines(two, seen))
        await settle()
        await one.stream.close()
        await settle()
        assert seen == ["end"]
        await api.server.close()
    assert seen == ["end", "end"]
    with pytest.raises(ConnectionError):
        await api("GET", PODS)


async def test_shows_metadata_alone(api: Api):
    await api.create(CONFIG_MAPS, config_map("a", labels={"x": "y"}))
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    one = (await api("GET", f"{CONFIG_MAPS}/a", accept=accept)).json
    assert (one["kind"], one["apiVersion"], "data" in one) == ("PartialObjectMetadata", "meta.k8s.io/v1", False)
    many = (await api("GET", CONFIG_MAPS, accept=accept.replace("Metadata;", "MetadataList;"))).json
    assert (many["kind"], many["items"][0]["metadata"]["labels"]) == ("PartialObjectMetadataList", {"x": "y"})


async def test_shows_tables(api: Api):
    await api.create(PODS, pod("a"))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    shown = (await api("GET", PODS, accept=accept)).json
    assert [column["name"] for column in shown["columnDefinitions"]][:4] == ["Name", "Ready", "Status", "Restarts"]
    assert shown["rows"][0]["cells"][:4] == ["a", "0/1", "Pending", "0"]
