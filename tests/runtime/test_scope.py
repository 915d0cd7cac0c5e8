"""Watch scopes per namespace: their selectors, the effect of a list on other scopes, and page sizes."""

from __future__ import annotations

import pytest

from tests.runtime.scripted import HANG, Streamed, added, bookmark, deleted, page, pod, refusal
from tests.runtime.test_informer import Scene
from tests.runtime.virtual_time import virtual_time
from trainop.runtime.cache.scope import ALL_OTHERS, Namespaces, Scope, Selector, scopes_of
from trainop.runtime.client.transport import AnswerTooLongError
from trainop.runtime.objects.metadata import NODES, PODS, Json


@pytest.mark.parametrize(
    ("namespaces", "scopes"),
    [
        ((), [Scope(None, "a=b", "x=y")]),
        (("one", "two", "one"), [Scope("one", "a=b", "x=y"), Scope("two", "a=b", "x=y")]),
        (
            {"one": Selector(labels="c=d"), "two": Selector(fields=""), ALL_OTHERS: Selector("", "z=1")},
            [
                Scope("one", "c=d", "x=y"),
                Scope("two", "a=b", ""),
                Scope(None, "", "z=1,metadata.namespace!=one,metadata.namespace!=two", frozenset({"one", "two"})),
            ],
        ),
    ],
)
def test_each_namespace_has_its_selectors(namespaces: Namespaces, scopes: list[Scope]):
    assert scopes_of(PODS, namespaces, "a=b", "x=y") == scopes
    assert scopes_of(NODES, namespaces, "a=b", "x=y") == [Scope(None, "a=b", "x=y")], "nodes have no namespace"


@pytest.mark.parametrize("term", ["metadata.namespace=one", "metadata.namespace==one"])
def test_a_field_selector_for_one_namespace_needs_rights_only_there(term: str):
    (scope,) = scopes_of(PODS, field_selector=f"spec.nodeName=n,{term}")
    assert scope.namespace == "one"
    assert scopes_of(PODS, field_selector="metadata.namespace!=one")[0].namespace is None


def in_namespace(event: Json, namespace: str) -> Json:
    event["object"]["metadata"]["namespace"] = namespace
    return event


@virtual_time
async def test_a_list_of_all_other_namespaces_does_not_affect_the_named_ones():
    ours = Streamed([in_namespace(added("a", 1), "one"), bookmark(5, end=True), HANG])
    others = Streamed([in_namespace(added("b", 2), "two"), bookmark(5, end=True), refusal_event()])
    scene = Scene(
        ours,
        others,
        Streamed([in_namespace(added("c", 8), "three"), bookmark(9, end=True), HANG]),
        namespaces={"one": Selector(), ALL_OTHERS: Selector()},
    )
    async with scene.running():
        await scene.informer.wait_synced()
        await scene.until(lambda: len(scene.handler.calls) == 4)
    assert scene.handler.calls == ["+a@1!", "+b@2!", "+c@8", "-b?"]
    paths = [(request.path, request.query.get("fieldSelector")) for request in scene.transport.requests]
    assert paths[0] == ("/api/v1/namespaces/one/pods", None)
    assert paths[1] == paths[2] == ("/api/v1/pods", "metadata.namespace!=one")
    assert scene.informer.covers("one")
    assert scene.informer.covers("elsewhere")


def refusal_event() -> Json:
    return {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}


@virtual_time
async def test_a_page_that_is_too_large_is_requested_again_with_fewer_objects():
    """A pod may have 1.5 MiB, so a page of 250 might exceed the memory of the process."""
    too_long = AnswerTooLongError("the answer is longer than 16 MiB")
    scene = Scene(refusal(422), too_long, too_long, page(pod("a"), token="t"), page(pod("b")))
    await scene.play()
    asked = [
        (each.query.get("limit"), each.query.get("continue"), each.max_answer) for each in scene.transport.requests
    ]
    assert asked[1:5] == [
        ("250", None, 16 << 20),
        ("62", None, 16 << 20),
        ("15", None, 16 << 20),
        ("15", "t", 16 << 20),
    ]


@virtual_time
async def test_a_single_object_that_is_too_large_fails_the_list():
    """A server without paging may answer with more objects, up to the size of 250 of the largest ones."""
    too_long = AnswerTooLongError("the answer is too long")
    scene = Scene(refusal(422), *[too_long] * 5, page(pod("a")))
    await scene.play()
    asked = [(each.query.get("limit"), each.max_answer >> 20) for each in scene.transport.requests]
    assert asked[1:7] == [("250", 16), ("62", 16), ("15", 16), ("3", 16), ("1", 375), ("250", 16)]
    assert set(scene.names) == {"a"}


@virtual_time
async def test_pages_of_large_objects_become_shorter():
    large = [pod(f"p{number}", x="y" * (1 << 20)) for number in range(8)]
    scene = Scene(refusal(422), page(*large, token="t"), page(pod("last"), token="u"), page(pod("end")))
    await scene.play()
    limits = [request.query.get("limit") for request in scene.transport.requests[1:4]]
    assert limits == ["250", "124", "124"]
    assert len(scene.informer.store) == 10


@virtual_time
async def test_pages_are_never_shorter_than_one_object():
    large = "y" * (6 << 20)
    pages = [page(pod(f"p{number}", x=large), token=f"t{number}") for number in range(20)]
    scene = Scene(refusal(422), *pages, page(pod("end")))
    await scene.play()
    limits = [int(request.query["limit"]) for request in scene.transport.requests[1:22]]
    assert limits == sorted(limits, reverse=True)
    assert limits[-3:] == [1, 1, 1]
    assert len(scene.informer.store) == 21


@virtual_time
async def test_deletions_in_one_scope_do_not_affect_the_other():
    scene = Scene(
        Streamed([in_namespace(added("a", 1), "one"), bookmark(5, end=True), in_namespace(deleted("a", 6), "one")]),
        Streamed([in_namespace(added("a", 2), "two"), bookmark(5, end=True), HANG]),
        namespaces=("one", "two"),
    )
    await scene.play()
    assert scene.handler.calls == ["+a@1!", "+a@2!", "-a"]
    assert [obj.metadata.namespace for obj in scene.informer.store.list()] == ["two"]
