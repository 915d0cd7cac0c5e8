"""Objects in the cache: decoding keeps every field that is read, and equal values are shared."""

from __future__ import annotations

import msgspec
import pytest

from trainop.runtime.objects.metadata import (
    Key,
    Metadata,
    PartialObject,
    Unstructured,
    decode_complete,
    decode_unstructured,
    owner_reference,
)

DECODE = msgspec.json.Decoder(PartialObject).decode
OWNER = owner_reference("kubeflow.org/v1", "PyTorchJob", "job", "u1")


def child(name: str) -> bytes:
    labels = {"app": "train", "replica-type": "worker"}
    metadata = {"name": name, "namespace": "team-a", "labels": labels, "ownerReferences": [OWNER]}
    return msgspec.json.encode({"metadata": metadata, "spec": {"nobody": "reads this"}})


def test_equal_values_of_many_objects_are_shared():
    first, second = (DECODE(child(name)).metadata for name in ("a", "b"))
    assert first.namespace is second.namespace
    assert first.owner_references is second.owner_references
    pairs = zip(first.labels.items(), second.labels.items(), strict=True)
    assert all(one[0] is two[0] and one[1] is two[1] for one, two in pairs)
    assert first.labels is not second.labels, "shared values must be immutable"


def test_metadata_keeps_the_fields_that_controllers_read():
    raw = {
        "name": "a",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-01T00:01:00Z",
        "deletionGracePeriodSeconds": 30,
        "annotations": {"a": "b"},
        "finalizers": ["f"],
        "somethingNew": {"x": 1},
    }
    metadata = DECODE(msgspec.json.encode({"metadata": raw})).metadata
    assert metadata.key == Key("ns", "a")
    assert (metadata.uid, metadata.resource_version, metadata.generation) == ("u", "7", 3)
    assert (metadata.annotations, metadata.finalizers) == ({"a": "b"}, ("f",))
    assert (metadata.deletion_timestamp, metadata.deletion_grace_period_seconds) == ("2026-01-01T00:01:00Z", 30)
    assert metadata.terminating
    assert not Metadata().terminating
    assert Metadata().controller is None


@pytest.mark.parametrize("controls", [0, 1, None])
def test_the_controller_is_the_owner_that_says_so(controls: int | None):
    owners = [{**OWNER, "uid": f"u{n}", "controller": n == controls} for n in range(2)]
    controller = msgspec.convert({"ownerReferences": owners}, Metadata).controller
    assert (controller.uid if controller else None) == (None if controls is None else f"u{controls}")


@pytest.mark.parametrize(
    "body",
    [{}, {"metadata": {}}, {"metadata": {"annotations": {}}}],
    ids=["no metadata", "empty", "no annotations"],
)
def test_objects_with_missing_fields_are_decoded(body: dict[str, object]):
    raw = msgspec.json.encode(body)
    assert decode_unstructured(raw).raw == decode_complete(raw).raw == body
    assert decode_unstructured(raw).metadata.key == Key("", "")


def test_representations_of_objects():
    named = Unstructured({"kind": "PyTorchJob", "metadata": {"name": "a", "namespace": "ns"}})
    assert repr(named) == "<PyTorchJob ns/a>"
    assert repr(Unstructured({"metadata": {"name": "n"}})) == "<object n>"
