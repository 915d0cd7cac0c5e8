"""Owner references set by `set_controller` (controller-runtime
`pkg/controller/controllerutil/controllerutil_test.go`)."""

from __future__ import annotations

import copy

import pytest

from trainop.runtime.controller.owners import OwnerError, set_controller
from trainop.runtime.errors import ReconcileError
from trainop.runtime.objects.metadata import Json, Metadata, PartialObject, Resource, owner_reference

JOBS = Resource("example.com", "v1", "jobs", "Job")
FLEETS = Resource("example.com", "v1", "fleets", "Fleet", namespaced=False)
OURS = owner_reference("example.com/v1", "Job", "job", "u1")


def owner(name: str = "job", namespace: str = "ns", uid: str = "u1") -> PartialObject:
    return PartialObject(Metadata(name=name, namespace=namespace, uid=uid))


def child(*references: Json, namespace: str | None = "ns") -> Json:
    metadata: Json = {"name": "child", "labels": {"a": "b"}}
    if namespace is not None:
        metadata["namespace"] = namespace
    if references:
        metadata["ownerReferences"] = list(references)
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"x": "y"}}


def test_the_owner_becomes_the_controller_and_the_argument_is_not_mutated():
    before = child({**OURS, "uid": "other", "controller": False})
    kept = copy.deepcopy(before)
    made = set_controller(owner(), JOBS, before)
    assert before == kept
    assert made["metadata"]["ownerReferences"] == [{**OURS, "uid": "other", "controller": False}, OURS]
    assert {**made, "metadata": None} == {**kept, "metadata": None}
    assert set_controller(owner(), JOBS, made) == made


@pytest.mark.parametrize(
    "reference",
    [
        {**OURS, "controller": False},
        {**OURS, "apiVersion": "example.com/v1beta1"},
        {key: OURS[key] for key in ("apiVersion", "kind", "name", "uid")},
    ],
)
def test_an_older_reference_to_the_same_owner_is_replaced(reference: Json):
    assert set_controller(owner(), JOBS, child(reference))["metadata"]["ownerReferences"] == [OURS]


def test_a_cluster_scoped_owner_may_own_anything():
    fleet = owner("fleet", "")
    for namespace in ("ns", None):
        made = set_controller(fleet, FLEETS, child(namespace=namespace))
        assert made["metadata"]["ownerReferences"] == [owner_reference("example.com/v1", "Fleet", "fleet", "u1")]
    assert set_controller(fleet, FLEETS, {"kind": "Node"})["metadata"]["ownerReferences"]


@pytest.mark.parametrize(
    ("of", "to", "why"),
    [
        (owner(namespace="elsewhere"), child(), "in namespace elsewhere cannot own a child in namespace ns"),
        (owner(), child(namespace=None), "cannot own a cluster-scoped child"),
        (owner(namespace=""), child(), "has no namespace"),
        (owner(uid=""), child(), "no name or no UID"),
        (owner(name=""), child(), "no name or no UID"),
        (owner(), child({**OURS, "name": "other", "uid": "u2"}), "already controlled by Job other"),
        (owner(), child({**OURS, "uid": "of a predecessor"}), "already controlled by Job job"),
    ],
)
def test_references_that_controller_runtime_refuses_are_refused(of: PartialObject, to: Json, why: str):
    with pytest.raises(OwnerError, match=why) as caught:
        set_controller(of, JOBS, to)
    assert isinstance(caught.value, ReconcileError), "a ReconcileError is logged in one line and retried with back-off"
