"""Server-side apply: scenarios recorded step by step from a kube-apiserver 1.37.2, and choices of the embedded one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local.semantics.recordings import recorded
from trainop.local.api.fields.field_sets import compare, difference, intersection, paths, to_field_set, union
from trainop.local.api.fields.json_patch import json_patch, merge_patch, strategic_merge_patch
from trainop.local.api.fields.server_side_apply import (
    LAST_APPLIED,
    ApplyConflictError,
    InvalidApplyError,
    apply,
    track_update,
)
from trainop.local.api.schema.crd_schema import Schema
from trainop.local.api.schema.shapes import Shape, shape_of_kind

TIME = "2026-01-01T00:00:00Z"
THING = Schema(recorded("schema")["schema"])
STEPS = [
    (scenario["kind"], number, step) for scenario in recorded("apply") for number, step in enumerate(scenario["steps"])
]


def shape(kind: str) -> Shape:
    return THING.shape if kind == "Thing" else shape_of_kind("", kind)


def finished(kind: str, value: Any) -> Any:
    """With the defaults that the API server fills in."""
    if kind == "Thing":
        return THING.default(value)
    if kind == "Service":
        value = copy.deepcopy(value)
        for port in value["spec"].get("ports", ()):
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port["port"])
    return value


def comparable(value: Any) -> Any:
    """The object with its managers in a fixed order and without empty values, for comparison."""
    value = copy.deepcopy(value)
    managers = value["metadata"].get("managedFields", [])
    value["metadata"]["managedFields"] = sorted(managers, key=lambda entry: json.dumps(entry, sort_keys=True))
    return value


def take(kind: str, step: Any) -> Any:
    """The object after the step by our implementation."""
    before, body, manager = step["before"], step["body"], step["manager"]
    common: dict[str, Any] = {"manager": manager, "shape": shape(kind), "time": TIME}
    if step["op"] == "create":
        return track_update(None, finished(kind, body), **common)
    common["subresource"] = step["subresource"]
    if step["op"] == "apply":
        return finished(kind, apply(before, body, force=step["force"], ignored=step["ignored"], **common))
    patched = {
        "merge": lambda: merge_patch(before, body),
        "json": lambda: json_patch(before, body),
        "strategic": lambda: strategic_merge_patch(before, body, shape(kind)),
    }[step["op"]]()
    return track_update(before, finished(kind, patched), **common)


@pytest.mark.parametrize(
    ("kind", "number", "step"), STEPS, ids=[f"{k}-{n}-{s['op']}-{s['manager']}" for k, n, s in STEPS]
)
def test_steps_of_the_api_server(kind: str, number: int, step: Any):
    kept = copy.deepcopy(step)
    if step["code"] == 409:
        with pytest.raises(ApplyConflictError) as conflict:
            take(kind, step)
        assert conflict.value.message == step["after"]["message"]
        by_field = sorted(conflict.value.causes, key=lambda cause: (cause["field"], cause["message"]))
        assert by_field == sorted(step["after"]["causes"], key=lambda cause: (cause["field"], cause["message"]))
    elif step["code"] >= 400:
        with pytest.raises(InvalidApplyError) as malformed:
            take(kind, step)
        assert str(malformed.value) == step["after"]["message"]
    else:
        assert comparable(take(kind, step)) == comparable(step["after"])
    assert step == kept


# Choices of our own ---------------------------------------------------------------------------------------------------


def config(**data: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "ns"}, **data}


CONFIG = shape_of_kind("", "ConfigMap")
POD = shape_of_kind("", "Pod")


def put(current: Any, value: Any, manager: str, *, force: bool = False, kind: Shape = CONFIG) -> Any:
    return apply(current, value, manager=manager, force=force, shape=kind, time=TIME)


def test_a_map_emptied_by_an_apply_is_removed_unless_a_manager_owns_the_map_itself():
    first = put(None, config(data={"a": "1"}), "m")
    assert "data" not in put(first, config(), "m")
    assert put(first, config(data={}), "m")["data"] == {}
    second = put(first, config(data={}), "n")
    assert put(second, config(), "m")["data"] == {}


def test_the_metadata_of_the_server_survives_an_apply_that_names_none_of_its_labels_any_more():
    first = put(None, {**config(), "metadata": {"name": "c", "labels": {"a": "1"}}}, "m")
    first["metadata"] |= {"uid": "u", "resourceVersion": "5", "creationTimestamp": TIME, "generation": 1}
    second = put(first, {**config(), "metadata": {"name": "c"}}, "m")
    wanted = {"name": "c", "uid": "u", "resourceVersion": "5", "creationTimestamp": TIME, "generation": 1}
    assert second["metadata"] == wanted


def test_applying_the_same_again_changes_nothing():
    first = put(None, config(data={"a": "1"}), "m")
    again = apply(first, config(data={"a": "1"}), manager="m", force=False, shape=CONFIG, time="2027-01-01T00:00:00Z")
    assert again == first


def test_a_key_may_be_applied_once_only():
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    twice = {**pod, "spec": {"containers": [{"name": "a"}, {"name": "a", "image": "i"}]}}
    with pytest.raises(InvalidApplyError, match=r'\.spec\.containers: duplicate entries for key \[name="a"\]'):
        put(None, twice, "m", kind=POD)
    with pytest.raises(InvalidApplyError, match="omits all key fields"):
        put(None, {**pod, "spec": {"containers": [{"image": "i"}]}}, "m", kind=POD)


def test_a_missing_part_of_a_key_stands_for_its_default():
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    plain = {**pod, "spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]}}
    named = {
        **pod,
        "spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "x"}]}]},
    }
    ports = put(put(None, plain, "m", kind=POD), named, "n", kind=POD)["spec"]["containers"][0]["ports"]
    assert ports == [{"containerPort": 80, "protocol": "TCP", "name": "x"}]


def test_kubectl_takes_over_what_it_had_applied_client_side():
    last = json.dumps(config(data={"a": "1", "b": "1"}))
    created = track_update(
        None,
        {**config(data={"a": "1", "b": "1"}), "metadata": {"name": "c", "annotations": {LAST_APPLIED: last}}},
        manager="kubectl-client-side-apply",
        shape=CONFIG,
        time=TIME,
    )
    after = put(created, config(data={"a": "2"}), "kubectl")
    assert after["data"]["a"] == "2"
    assert json.loads(after["metadata"]["annotations"][LAST_APPLIED])["data"] == {"a": "2"}
    with pytest.raises(ApplyConflictError, match='1 conflict: conflict with "kubectl-client-side-apply" using v1'):
        put(created, config(data={"a": "2"}), "another")
    edited = track_update(created, {**created, "data": {"a": "9"}}, manager="ed", shape=CONFIG, time=TIME)
    with pytest.raises(ApplyConflictError):
        put(edited, config(data={"a": "2"}), "kubectl")


@pytest.mark.parametrize("annotation", ["no JSON", "[]"])
def test_an_annotation_that_cannot_be_read_gives_kubectl_nothing(annotation: str):
    body = {**config(data={"a": "1"}), "metadata": {"name": "c", "annotations": {LAST_APPLIED: annotation}}}
    created = track_update(None, body, manager="kubectl-client-side-apply", shape=CONFIG, time=TIME)
    with pytest.raises(ApplyConflictError):
        put(created, config(data={"a": "2"}), "kubectl")


def test_kubectl_keeps_its_annotation_out_of_itself():
    annotated = {"name": "c", "annotations": {LAST_APPLIED: "{}", "x": "y"}}
    first = put(None, {**config(), "metadata": annotated}, "kubectl")
    again = put(first, {**config(data={"a": "1"}), "metadata": annotated}, "kubectl")
    last = json.loads(again["metadata"]["annotations"][LAST_APPLIED])
    assert last["metadata"]["annotations"] == {"x": "y"}
    assert last["data"] == {"a": "1"}


def test_keys_that_a_live_list_names_twice_have_one_owner():
    def pod(*ports: dict[str, Any]) -> dict[str, Any]:
        spec = {"containers": [{"name": "a", "ports": list(ports)}]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}

    one, two = {"containerPort": 80, "name": "x"}, {"containerPort": 80, "name": "y"}
    value = track_update(None, pod(one, two), manager="m", shape=POD, time=TIME)
    key = 'k:{"containerPort":80,"protocol":"TCP"}'
    port = '.spec.containers[name="a"].ports[containerPort=80,protocol="TCP"]'
    assert port in set(paths(value["metadata"]["managedFields"][0]["fieldsV1"]))
    changed = track_update(
        value, {**value, **pod(one, one), "metadata": value["metadata"]}, manager="n", shape=POD, time=TIME
    )
    owners = {entry["manager"]: json.dumps(entry["fieldsV1"]) for entry in changed["metadata"]["managedFields"]}
    assert [name for name, owned in owners.items() if json.dumps(key)[1:-1] in owned] == ["n"]
    assert port in set(paths(to_field_set(POD, pod(one, two))))


def test_managed_fields_that_a_client_hands_over_count_unless_they_cannot_be_read():
    value = put(None, config(data={"a": "1"}), "m")

    def handed(entries: Any, subresource: str = "") -> list[str]:
        new = {**value, "metadata": {**value["metadata"], "managedFields": entries}}
        tracked = track_update(value, new, manager="n", shape=CONFIG, time=TIME, subresource=subresource)
        return [entry["manager"] for entry in tracked["metadata"].get("managedFields", [])]

    entry = {**value["metadata"]["managedFields"][0], "manager": "handed"}
    assert handed([entry]) == ["handed"]
    assert handed([{}]) == []
    assert handed([]) == []
    assert handed([{**entry, "fieldsType": "FieldsV9"}]) == ["m"]
    assert handed([{**entry, "operation": "Guess"}]) == ["m"]
    assert handed([entry], "status") == ["m"]


def test_a_set_holds_scalars_only():
    with pytest.raises(InvalidApplyError, match="an element that's no scalar"):
        put(None, {**config(), "metadata": {"name": "c", "finalizers": [["a"]]}}, "m")


def test_an_applying_manager_is_the_same_in_every_version_but_an_updating_one_is_not():
    def job(version: str, size: int) -> dict[str, Any]:
        return {
            "apiVersion": f"kubeflow.org/{version}",
            "kind": "MPIJob",
            "metadata": {"name": "j"},
            "spec": {"n": size},
        }

    applied = put(put(None, job("v1", 1), "m", kind=Shape()), job("v2beta1", 2), "m", kind=Shape())
    assert [entry["apiVersion"] for entry in applied["metadata"]["managedFields"]] == ["kubeflow.org/v2beta1"]
    updated: Any = None
    for version, size in (("v1", 1), ("v2beta1", 2)):
        body = {**job(version, size), f"x{size}": 1, "metadata": {**(updated or {}).get("metadata", {"name": "j"})}}
        updated = track_update(updated, {**(updated or {}), **body}, manager="m", shape=Shape(), time=TIME)
    versions = [entry["apiVersion"] for entry in updated["metadata"]["managedFields"]]
    assert versions == ["kubeflow.org/v1", "kubeflow.org/v2beta1"]


def test_more_than_ten_updaters_are_joined():
    value: Any = None
    for number in range(13):
        new = {**(value or config()), "data": {**((value or {}).get("data") or {}), f"k{number}": "1"}}
        time = f"2026-01-01T00:00:{number:02}Z"
        value = track_update(value, new, manager=f"m{number}", shape=CONFIG, time=time)
    managers = {entry["manager"]: entry for entry in value["metadata"]["managedFields"]}
    assert len(managers) == 10
    assert set(paths(managers["ancient-changes"]["fieldsV1"])) == {
        ".data",
        ".data.k0",
        ".data.k1",
        ".data.k2",
        ".data.k3",
    }


def test_an_update_with_a_list_that_names_a_key_badly_is_left_to_validation():
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": ["x"]}}
    tracked = track_update(None, pod, manager="m", shape=POD, time=TIME)
    assert tracked["spec"] == pod["spec"]


VALUES = st.recursive(
    st.booleans() | st.integers(0, 2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(st.integers(0, 2), max_size=2),
    max_leaves=8,
)
SPECS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def thing(spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}, "spec": spec}


@given(SPECS, SPECS)
def test_one_manager_alone_gets_exactly_what_it_applies(first: Any, second: Any):
    value = put(put(None, thing(first), "m", kind=Shape()), thing(second), "m", kind=Shape())
    assert value["spec"] == second
    assert put(value, thing(second), "m", kind=Shape()) == value


@given(SPECS, SPECS)
def test_with_force_all_that_is_applied_is_there(first: Any, second: Any):
    value = put(put(None, thing(first), "m", kind=Shape()), thing(second), "n", force=True, kind=Shape())
    assert includes(value["spec"], second)
    without = put(value, {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}}, "m", kind=Shape())
    assert includes(without.get("spec", {}), second)


def includes(whole: Any, part: Any) -> bool:
    """Whether every member of the part is in the whole, with its value."""
    if not isinstance(part, dict):
        return bool(whole == part)
    return isinstance(whole, dict) and all(name in whole and includes(whole[name], part[name]) for name in part)


@given(SPECS, SPECS)
def test_what_changed_and_what_was_removed(old: Any, new: Any):
    changed, removed = compare(Shape(), old, new)
    assert intersection(changed, removed) is None
    assert (changed is None and removed is None) == (old == new)
    back_changed, back_removed = compare(Shape(), new, old)
    added_back = difference(union(removed, None), back_changed)
    assert added_back is None
    assert difference(back_removed, changed) is None


@given(SPECS, SPECS)
def test_laws_of_sets(left: Any, right: Any):
    one, two = to_field_set(Shape(), left), to_field_set(Shape(), right)
    first, second = set(paths(one)), set(paths(two))
    assert set(paths(union(one, two))) == first | second
    assert set(paths(intersection(one, two))) == first & second
    assert set(paths(difference(one, two))) == first - second
