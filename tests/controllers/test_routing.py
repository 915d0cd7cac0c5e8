"""Routing of child events to kinds, which share the informers of their children."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from tests.controllers.shell import DictClient
from trainop.controllers.routing import ChildDispatchers
from trainop.engine.framework import OPERATOR_NAME, Framework
from trainop.engine.kind import kind_of
from trainop.kinds.pytorch import PYTORCH
from trainop.kinds.tensorflow import TENSORFLOW
from trainop.runtime.cache.informer import Informer
from trainop.runtime.objects.metadata import PODS, Key, Metadata, OwnerReference, PartialObject

FRAMEWORKS = (PYTORCH, TENSORFLOW)
ALL = ["add", "update", "delete"]


class Heard(list[str]):
    """A handler of one kind that records its calls."""

    def add(self, obj: PartialObject, initial: bool) -> None:
        self.append("add")

    def update(self, old: PartialObject, new: PartialObject) -> None:
        self.append("update")

    def delete(self, obj: PartialObject | None, key: Key, final_state_unknown: bool) -> None:
        self.append("delete")


def child(version: int, owner: Framework | None, label: Framework | None = None) -> PartialObject:
    owners = (OwnerReference("kubeflow.org/v1", owner.kind, "j", "job", controller=True),) if owner else ()
    labels = {OPERATOR_NAME: label.controller} if label else {}
    return PartialObject(Metadata("a", "ns", "uid", str(version), labels=labels, owner_references=owners))


@pytest.fixture
def pods() -> Informer[PartialObject]:
    decode: Any = None  # the client is not used
    return Informer(DictClient(), PODS, decode)


def listen(pods: Informer[PartialObject]) -> dict[str, Heard]:
    dispatchers, heard = ChildDispatchers(), {framework.kind: Heard() for framework in FRAMEWORKS}
    for framework in FRAMEWORKS:
        dispatchers.children_of(kind_of(framework), pods).add_handler(heard[framework.kind])
    return heard


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        (child(1, PYTORCH), child(2, PYTORCH), {"PyTorchJob": ALL, "TFJob": []}),
        (child(1, None, TENSORFLOW), child(2, None, TENSORFLOW), {"PyTorchJob": [], "TFJob": ALL}),
        (child(1, PYTORCH, TENSORFLOW), child(2, PYTORCH), {"PyTorchJob": ALL, "TFJob": []}),
        (child(1, PYTORCH), child(2, TENSORFLOW), {"PyTorchJob": ["add", "update"], "TFJob": ["update", "delete"]}),
        (child(1, PYTORCH), child(2, None), {"PyTorchJob": ["add", "update"], "TFJob": []}),
        (child(1, None), child(2, None), {"PyTorchJob": [], "TFJob": []}),
    ],
    ids=["owned", "orphan", "owner-before-label", "changes-hands", "set-free", "nobodys"],
)
def test_child_events_reach_only_their_kind(
    pods: Informer[PartialObject], before: PartialObject, after: PartialObject, reported: dict[str, list[str]]
) -> None:
    heard = listen(pods)
    pods.put(before, listing=False, initial=False)
    pods.put(after, listing=False, initial=False)
    pods.remove(after)
    assert heard == reported


@pytest.mark.parametrize("fails", ["add", "update", "delete"])
def test_a_handler_that_raises_does_not_affect_others(pods: Informer[PartialObject], fails: str) -> None:
    class Faulty(Heard):
        def append(self, call: str, /) -> None:
            super().append(call)
            if call == fails:
                raise KeyError("a mistake")

    dispatchers, heard = ChildDispatchers(), [Faulty(), Heard(), Faulty(), Heard()]
    for framework, handler in zip((PYTORCH, PYTORCH, TENSORFLOW, TENSORFLOW), heard, strict=True):
        dispatchers.children_of(kind_of(framework), pods).add_handler(handler)
    before, moved = child(1, PYTORCH), child(2, TENSORFLOW)
    with structlog.testing.capture_logs() as logs:
        pods.put(before, listing=False, initial=False)
        pods.put(moved, listing=False, initial=False)
        pods.remove(moved)
    assert heard == [["add", "update"], ["add", "update"], ["update", "delete"], ["update", "delete"]]
    assert [entry["event"] for entry in logs] == ["handler failed"], (
        "counted once per event, however many handlers failed"
    )
    assert isinstance(logs[0]["exc_info"], ExceptionGroup if fails == "update" else KeyError)
