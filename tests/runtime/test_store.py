"""The object store: changes reported by put, remove and prune, and look-ups by index."""

from __future__ import annotations

import pytest

from trainop.runtime.cache.store import Change, Store, by_controller, by_label, by_namespace, is_older
from trainop.runtime.objects.metadata import Key, Metadata, OwnerReference, PartialObject

OWNER = OwnerReference("kubeflow.org/v1", "PyTorchJob", "job", "job-uid", controller=True)
OTHER = OwnerReference("v1", "Node", "n", "node-uid")


def make(name: str, version: str = "1", uid: str = "", **fields: object) -> PartialObject:
    metadata = Metadata(name=name, namespace="ns", uid=uid or name, resource_version=version, **fields)  # type: ignore[arg-type]  # fields of Metadata
    return PartialObject(metadata)


A, KEY = make("a", "5"), Key("ns", "a")


@pytest.mark.parametrize(
    ("version", "than", "older"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("10", "10", False),
        ("99999999999999999999998", "99999999999999999999999", True),
        ("", "10", False),
        ("x", "y", False),
    ],
)
def test_versions_compare_as_numbers(version: str, than: str, older: bool):
    assert is_older(version, than) is older


@pytest.mark.parametrize(
    ("new", "any_version", "changes"),
    [
        (make("b"), False, [Change(Key("ns", "b"), None, make("b"))]),
        (make("a", "5"), False, []),
        (make("a", "5"), True, []),
        (make("a", "6"), False, [Change(KEY, A, make("a", "6"))]),
        (make("a", "4"), False, None),
        (make("a", "4"), True, [Change(KEY, A, make("a", "4"))]),
        (
            make("a", "6", "other"),
            False,
            [Change(KEY, A, None, final_state_unknown=True), Change(KEY, None, make("a", "6", "other"))],
        ),
        (make("a", "4", "other"), False, None),
    ],
)
def test_put_reports_changes(new: PartialObject, any_version: bool, changes: list[Change[PartialObject]] | None):
    store: Store[PartialObject] = Store()
    store.put(A)
    assert store.put(new, any_version=any_version) == changes
    assert store.get(new.metadata.key) == (A if changes in (None, []) else new)


def test_remove_applies_to_one_uid_only():
    store: Store[PartialObject] = Store()
    store.put(A)
    assert store.remove(make("a", "9", "other")) == []
    assert store.remove(make("b")) == []
    final = make("a", "9")
    assert store.remove(final) == [Change(KEY, final, None)]
    assert len(store) == 0


def test_prune_affects_only_its_namespace():
    store: Store[PartialObject] = Store()
    elsewhere = PartialObject(Metadata(name="c", namespace="other", resource_version="1"))
    for obj in (A, make("b"), elsewhere):
        store.put(obj)
    assert store.prune({KEY}, "ns".__eq__) == [Change(Key("ns", "b"), make("b"), None, final_state_unknown=True)]
    assert [obj.metadata.name for obj in store.list()] == ["a", "c"]
    assert store.list("other") == [elsewhere]
    assert len(store.prune(())) == 2


def test_indices_follow_every_change():
    store: Store[PartialObject] = Store({"owner": by_controller, "namespace": by_namespace})
    owned = make("a", "1", owner_references=(OTHER, OWNER))
    store.put(owned)
    store.put(make("b"))
    store.add_index("job", by_label("job"))
    assert store.by_index("owner", "job-uid") == [owned]
    assert store.by_index("owner", "node-uid") == []
    assert len(store.by_index("namespace", "ns")) == 2
    store.put(make("a", "2", labels={"job": "x"}))
    assert store.by_index("owner", "job-uid") == []
    assert [obj.metadata.name for obj in store.by_index("job", "x")] == ["a"]
    store.remove(make("a", "3"))
    assert store.by_index("job", "x") == []
    assert not store._buckets["job"], "empty index buckets are removed"


def test_unknown_and_duplicate_index_names_are_refused():
    store: Store[PartialObject] = Store({"owner": by_controller})
    with pytest.raises(KeyError):
        store.by_index("nope", "x")
    store.add_index("owner", by_controller)
    with pytest.raises(ValueError, match="exists with another function"):
        store.add_index("owner", by_namespace)


def test_failing_index_finds_nothing_and_does_not_affect_others(capsys: pytest.CaptureFixture[str]):
    store: Store[PartialObject] = Store({"broken": lambda obj: (obj.metadata.labels["absent"],)})
    store.put(A)
    assert store.get(KEY) is A
    assert store.by_index("broken", "x") == []
    assert "index failed" in capsys.readouterr().out
