"""Rows about patches of every type, server-side apply, subresources, schemas of custom kinds, and dry run."""

from __future__ import annotations

from typing import Any

from tests.conformance.client import (
    ABSENT,
    APPLY,
    JSON_PATCH,
    MERGE,
    PRESENT,
    STRATEGIC,
    Call,
    Holding,
    Row,
    Text,
    row,
)
from tests.conformance.objects import CRD, CRDS, GROUP, JOBS, MAPS, PODS, WIDGETS, config_map, pod, pytorch_job, widget


def patch(path: str, body: Any, kind: str, status: int = 200, **expects: Any) -> Call:
    """`expects` as a mapping under the name `of`, because dotted paths are no names."""
    return Call("PATCH", path, body, status, expects.get("of", {}), expects.get("keeps", {}), kind)


def owner(name: str, uid: str) -> dict[str, str]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}


STATUS_ONLY = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "status": {"phase": "Good"}}

MADE = Call("POST", MAPS, config_map(data={"a": "1", "b": "2"}), 201, keeps={"rv": "metadata.resourceVersion"})

PATCHES = [
    row(
        "merge", MADE, patch(f"{MAPS}/a", {"data": {"b": None, "c": "3"}}, MERGE, of={"data": {"b": ABSENT, "c": "3"}})
    ),
    row(
        "merge that changes nothing",
        MADE,
        patch(f"{MAPS}/a", {"data": {"a": "1"}}, MERGE, of={"metadata.resourceVersion": "$rv"}),
    ),
    row(
        "merge with an old version",
        MADE,
        patch(f"{MAPS}/a", {"data": {"a": "9"}}, MERGE),
        patch(
            f"{MAPS}/a",
            {"metadata": {"resourceVersion": "$rv"}, "data": {"a": "8"}},
            MERGE,
            409,
            of={"reason": "Conflict"},
        ),
    ),
    row(
        "merge with another UID",
        MADE,
        patch(
            f"{MAPS}/a",
            {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}},
            MERGE,
            422,
            of={"reason": "Invalid", "message": Text("metadata.uid: Invalid value: .*: field is immutable")},
        ),
    ),
    row(
        "merge of a name",
        MADE,
        patch(f"{MAPS}/a", {"metadata": {"name": "b"}}, MERGE, 400, of={"reason": "BadRequest"}),
    ),
    row("merge of what is not there", patch(f"{MAPS}/a", {}, MERGE, 404, of={"reason": "NotFound"})),
    row("no patch at all", MADE, patch(f"{MAPS}/a", "{nope", MERGE, 400, of={"reason": "BadRequest"})),
    row(
        "a patch of an unknown type",
        MADE,
        patch(f"{MAPS}/a", {}, "application/json", 415, of={"reason": "UnsupportedMediaType"}),
    ),
    row(
        "JSON patch",
        MADE,
        patch(
            f"{MAPS}/a",
            [
                {"op": "test", "path": "/data/a", "value": "1"},
                {"op": "replace", "path": "/data/a", "value": "9"},
                {"op": "remove", "path": "/data/b"},
                {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}},
                {"op": "copy", "from": "/data/a", "path": "/data/c"},
                {"op": "add", "path": "/metadata/labels/a~1b", "value": "z"},
            ],
            JSON_PATCH,
            of={"data": {"a": "9", "b": ABSENT, "c": "9"}, "metadata.labels": {"x": "y", "a~b": "z"}},
        ),
    ),
    row(
        "JSON patch whose test fails",
        MADE,
        patch(
            f"{MAPS}/a", [{"op": "test", "path": "/data/a", "value": "7"}], JSON_PATCH, 422, of={"reason": "Invalid"}
        ),
    ),
    row(
        "JSON patch of a path that is not there",
        MADE,
        patch(f"{MAPS}/a", [{"op": "remove", "path": "/data/zz"}], JSON_PATCH, 422, of={"reason": "Invalid"}),
    ),
    row(
        "strategic merge by key",
        Call("POST", PODS, pod(containers=[{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]), 201),
        patch(
            f"{PODS}/p",
            {"spec": {"containers": [{"name": "b", "image": "9"}]}},
            STRATEGIC,
            of={
                "spec.containers.#": 2,
                "spec.containers": Holding(({"name": "a", "image": "1"}, {"name": "b", "image": "9"})),
            },
        ),
    ),
    row(
        "strategic merge deletes and replaces",
        Call("POST", MAPS, config_map(data={"a": "1"}, finalizers=["trainop.dev/x", "trainop.dev/y"]), 201),
        patch(
            f"{MAPS}/a",
            {
                "metadata": {"$deleteFromPrimitiveList/finalizers": ["trainop.dev/x"]},
                "data": {"$patch": "replace", "z": "1"},
            },
            STRATEGIC,
            of={"metadata.finalizers": ["trainop.dev/y"], "data": {"a": ABSENT, "z": "1"}},
        ),
    ),
    row(
        "strategic merge of owners by UID",
        Call("POST", MAPS, config_map("one"), 201, keeps={"u1": "metadata.uid"}),
        Call("POST", MAPS, config_map("two"), 201, keeps={"u2": "metadata.uid"}),
        Call("POST", MAPS, config_map(ownerReferences=[owner("one", "$u1")]), 201),
        patch(
            f"{MAPS}/a",
            {"metadata": {"ownerReferences": [owner("two", "$u2")]}},
            STRATEGIC,
            of={"metadata.ownerReferences.#": 2},
        ),
        patch(
            f"{MAPS}/a",
            {"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "$u1"}]}},
            STRATEGIC,
            of={"metadata.ownerReferences.#": 1, "metadata.ownerReferences.0.uid": "$u2"},
        ),
    ),
    row(
        "strategic merge is not for custom kinds",
        Call("POST", WIDGETS, widget(), 201),
        patch(f"{WIDGETS}/w", {"spec": {"size": 2}}, STRATEGIC, 415, of={"reason": "UnsupportedMediaType"}),
    ),
]


def applied(data: dict[str, str]) -> dict[str, Any]:
    return config_map(data=data)


def apply_as(manager: str, body: Any, status: int = 200, *, force: bool = False, **expects: Any) -> Call:
    query = f"fieldManager={manager}" + ("&force=true" if force else "")
    return patch(f"{MAPS}/a?{query}", body, APPLY, status, **expects)


def widget_apply(manager: str, spec: dict[str, Any], status: int = 200, **expects: Any) -> Call:
    return patch(f"{WIDGETS}/w?fieldManager={manager}", widget(spec=spec), APPLY, status, **expects)


SERVER_SIDE_APPLY = [
    row(
        "apply creates",
        apply_as(
            "me",
            applied({"a": "1"}),
            201,
            of={
                "metadata.managedFields.0": {
                    "manager": "me",
                    "operation": "Apply",
                    "apiVersion": "v1",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:data": {"f:a": {}}},
                }
            },
        ),
    ),
    row(
        "apply again writes nothing",
        apply_as("me", applied({"a": "1"}), 201, keeps={"rv": "metadata.resourceVersion"}),
        apply_as("me", applied({"a": "1"}), of={"metadata.resourceVersion": "$rv"}),
    ),
    row(
        "what a manager no longer applies goes",
        apply_as("me", applied({"a": "1", "b": "2"}), 201),
        patch(f"{MAPS}/a?fieldManager=you", {"data": {"c": "3"}}, MERGE),
        apply_as("me", applied({"b": "2"}), of={"data": {"a": ABSENT, "b": "2", "c": "3"}}),
    ),
    row(
        "conflict",
        apply_as("me", applied({"a": "1"}), 201),
        apply_as(
            "you",
            applied({"a": "2"}),
            409,
            of={
                "reason": "Conflict",
                "message": 'Apply failed with 1 conflict: conflict with "me": .data.a',
                "details.causes": [
                    {"reason": "FieldManagerConflict", "message": 'conflict with "me"', "field": ".data.a"}
                ],
            },
        ),
    ),
    row(
        "conflict with an update",
        MADE,
        patch(f"{MAPS}/a?fieldManager=editor", {"data": {"a": "5"}}, MERGE),
        apply_as("me", applied({"a": "2"}), 409, of={"message": Text('conflict with "editor" using v1.*: .data.a')}),
    ),
    row(
        "force takes ownership",
        apply_as("me", applied({"a": "1", "b": "1"}), 201),
        apply_as("you", applied({"a": "2"}), force=True, of={"data": {"a": "2", "b": "1"}}),
        apply_as("me", applied({"b": "1"}), of={"data": {"a": "2", "b": "1"}}),
    ),
    row(
        "shared ownership",
        apply_as("me", applied({"a": "1"}), 201),
        apply_as("you", applied({"a": "1"})),
        apply_as("me", applied({}), of={"data.a": "1"}),
        apply_as("you", applied({}), of={"data": ABSENT}),
    ),
    row(
        "apply needs a manager",
        patch(f"{MAPS}/a", applied({}), APPLY, 422, of={"message": Text("fieldManager: Required")}),
    ),
    row(
        "force is only for apply",
        MADE,
        patch(f"{MAPS}/a?force=true", {}, MERGE, 422, of={"reason": "Invalid", "message": Text("force")}),
    ),
    row(
        "apply in YAML",
        patch(
            f"{MAPS}/a?fieldManager=me",
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata: {k: v}\n",
            APPLY,
            201,
            of={"data": {"k": "v"}},
        ),
    ),
    row(
        "apply with managedFields",
        apply_as(
            "me",
            config_map(managedFields=[{"manager": "me"}]),
            400,
            of={"message": Text("metadata.managedFields must be nil")},
        ),
    ),
    row(
        "lists merge by key",
        widget_apply("me", {"ports": [{"port": 80, "note": "mine"}]}, 201),
        widget_apply("you", {"ports": [{"port": 443}]}, of={"spec.ports.#": 2}),
        widget_apply(
            "me",
            {"ports": [{"port": 8080}]},
            of={"spec.ports": Holding(({"port": 443}, {"port": 8080})), "spec.ports.#": 2},
        ),
    ),
    row(
        "sets merge by value",
        widget_apply("me", {"tags": ["x", "y"]}, 201),
        widget_apply("you", {"tags": ["z"]}, of={"spec.tags.#": 3}),
        widget_apply("me", {"tags": ["y"]}, of={"spec.tags.#": 2, "spec.tags": Holding(("y", "z"))}),
    ),
    row(
        "other lists are atomic",
        widget_apply("me", {"words": ["x", "y"]}, 201),
        widget_apply("you", {"words": ["z"]}, 409, of={"details.causes.0.field": ".spec.words"}),
    ),
    row(
        "containers merge by name",
        patch(f"{PODS}/p?fieldManager=me", pod(), APPLY, 201),
        patch(
            f"{PODS}/p?fieldManager=you",
            pod(containers=[{"name": "main", "image": "other"}]),
            APPLY,
            409,
            of={"details.causes.0.field": '.spec.containers[name="main"].image'},
        ),
    ),
    row(
        "apply to a status",
        Call("POST", WIDGETS, widget(), 201),
        patch(
            f"{WIDGETS}/w/status?fieldManager=me",
            {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "w"}, "status": {"phase": "Good"}},
            APPLY,
            of={
                "status.phase": "Good",
                "metadata.managedFields": Holding(({"manager": "me", "subresource": "status"},)),
            },
        ),
    ),
    row(
        "updates are tracked too",
        Call("POST", f"{MAPS}?fieldManager=creator", config_map(data={"a": "1"}), 201),
        patch(
            f"{MAPS}/a?fieldManager=editor",
            {"data": {"b": "2"}},
            MERGE,
            of={
                "metadata.managedFields": Holding(
                    (
                        {"manager": "creator", "operation": "Update", "fieldsV1": {"f:data": {"f:a": {}}}},
                        {"manager": "editor", "operation": "Update", "fieldsV1": {"f:data": {"f:b": {}}}},
                    )
                )
            },
        ),
    ),
]

SUBRESOURCES = [
    row(
        "spec and status are apart",
        Call(
            "POST",
            WIDGETS,
            {**widget(spec={"size": 2}), "status": {"phase": "Good"}},
            201,
            {"status": ABSENT},
            {"rv": "metadata.resourceVersion"},
        ),
        Call(
            "PUT",
            f"{WIDGETS}/w/status",
            {**widget(spec={"size": 9}, resourceVersion="$rv"), "status": {"phase": "Good"}},
            200,
            {"spec.size": 2, "status.phase": "Good", "metadata.generation": 1},
        ),
        patch(
            f"{WIDGETS}/w",
            {"status": {"phase": "Bad"}, "spec": {"size": 3}},
            MERGE,
            of={"status.phase": "Good", "spec.size": 3, "metadata.generation": 2},
        ),
    ),
    row(
        "a status without a spec, and metadata that say who manages it",
        Call(
            "POST",
            f"{WIDGETS}?fieldManager=creator",
            widget(spec={"size": 2}, labels={"a": "b"}),
            201,
            keeps={"rv": "metadata.resourceVersion", "uid": "metadata.uid"},
        ),
        Call(
            "PUT",
            f"{WIDGETS}/w/status?fieldManager=me&fieldValidation=Ignore",
            {
                **STATUS_ONLY,
                "metadata": {
                    "name": "w",
                    "namespace": "$ns",
                    "uid": "$uid",
                    "resourceVersion": "$rv",
                    "labels": {"a": "b"},
                },
            },
            200,
            {
                "spec.size": 2,
                "status": {"phase": "Good"},
                "metadata.labels.a": "b",
                "metadata.generation": 1,
                "metadata.managedFields.#": 2,
                "metadata.managedFields.0.manager": "creator",
                "metadata.managedFields.0.fieldsV1.f:metadata.f:labels": {"f:a": {}},
                "metadata.managedFields.0.fieldsV1.f:spec": {"f:size": {}},
                "metadata.managedFields.1.manager": "me",
                "metadata.managedFields.1.subresource": "status",
            },
            {"rv": "metadata.resourceVersion"},
        ),
        Call(
            "PUT",
            f"{WIDGETS}/w/status",
            {**STATUS_ONLY, "metadata": {"name": "w", "namespace": "$ns", "uid": "other", "resourceVersion": "$rv"}},
            409,
            {"reason": "Conflict"},
        ),
        Call("DELETE", f"{WIDGETS}/w"),
        Call(
            "PUT",
            f"{WIDGETS}/w/status",
            {**STATUS_ONLY, "metadata": {"name": "w", "namespace": "$ns", "uid": "$uid", "resourceVersion": "$rv"}},
            404,
            {"reason": "NotFound"},
        ),
    ),
    row(
        "labels do not change through the status of a custom object",
        Call("POST", WIDGETS, widget(labels={"a": "b"}), 201),
        patch(
            f"{WIDGETS}/w/status",
            {"metadata": {"labels": {"a": "x"}}, "status": {"phase": "Bad"}},
            MERGE,
            of={"metadata.labels.a": "b", "status.phase": "Bad"},
        ),
    ),
    row(
        "a stale status",
        Call("POST", WIDGETS, widget(), 201, keeps={"rv": "metadata.resourceVersion"}),
        patch(f"{WIDGETS}/w", {"spec": {"size": 3}}, MERGE),
        Call(
            "PUT",
            f"{WIDGETS}/w/status",
            {**widget(resourceVersion="$rv"), "status": {"phase": "Bad"}},
            409,
            {"reason": "Conflict"},
        ),
    ),
    row(
        "scale",
        Call("POST", WIDGETS, widget(spec={"replicas": 2}), 201),
        patch(f"{WIDGETS}/w/status", {"status": {"replicas": 1, "selector": "a=b"}}, MERGE),
        Call(
            "GET",
            f"{WIDGETS}/w/scale",
            expects={
                "kind": "Scale",
                "apiVersion": "autoscaling/v1",
                "metadata.name": "w",
                "metadata.uid": PRESENT,
                "spec": {"replicas": 2},
                "status": {"replicas": 1, "selector": "a=b"},
            },
            keeps={"rv": "metadata.resourceVersion"},
        ),
        Call(
            "PUT",
            f"{WIDGETS}/w/scale",
            {
                "apiVersion": "autoscaling/v1",
                "kind": "Scale",
                "metadata": {"name": "w", "namespace": "$ns", "resourceVersion": "$rv"},
                "spec": {"replicas": 5},
            },
            200,
            {"spec.replicas": 5},
        ),
        patch(f"{WIDGETS}/w/scale", {"spec": {"replicas": 6}}, MERGE, of={"kind": "Scale", "spec.replicas": 6}),
        Call("GET", f"{WIDGETS}/w", expects={"spec.replicas": 6, "metadata.generation": 3}),
    ),
    row(
        "scale below zero",
        Call("POST", WIDGETS, widget(spec={"replicas": 2}), 201),
        patch(f"{WIDGETS}/w/scale", {"spec": {"replicas": -1}}, MERGE, 422, of={"reason": "Invalid"}),
    ),
    row("a subresource that is not there", Call("GET", f"{MAPS}/a/scale", status=404)),
]


def refused(spec: dict[str, Any], message: str, reason: str = "FieldValueInvalid", **more: Any) -> Row:
    expects = {"reason": "Invalid", "message": Text(message), "details.causes.0.reason": reason, **more}
    return row(f"refused: {spec}", Call("POST", WIDGETS, widget(spec=spec), 422, expects))


SCHEMAS = [
    row(
        "unknown fields are pruned",
        Call(
            "POST",
            WIDGETS,
            widget(spec={"what": 1, "nested": {"x": 1}}),
            201,
            {"spec.what": ABSENT, "spec.nested": {"x": ABSENT, "depth": 7}},
        ),
    ),
    row(
        "some are preserved",
        Call("POST", WIDGETS, widget(spec={"free": {"a": {"b": [1]}}}), 201, {"spec.free.a.b": [1]}),
    ),
    row(
        "defaults",
        Call(
            "POST",
            WIDGETS,
            widget(spec={"ports": [{"port": 80}]}),
            201,
            {"spec.size": 1, "spec.nested.depth": 7, "spec.ports.0.protocol": "TCP"},
        ),
    ),
    row(
        "null is defaulted or pruned",
        Call(
            "POST",
            WIDGETS,
            widget(spec={"size": None, "nested": {"maybe": None}}),
            201,
            {"spec.size": 1, "spec.nested.maybe": None},
        ),
    ),
    row(
        "int or string",
        Call("POST", WIDGETS, widget("w1", {"amount": "50%"}), 201, {"spec.amount": "50%"}),
        Call("POST", WIDGETS, widget("w2", {"amount": 5}), 201, {"spec.amount": 5}),
    ),
    row(
        "strict field validation",
        Call(
            "POST",
            f"{WIDGETS}?fieldValidation=Strict",
            widget(spec={"what": 1}),
            400,
            {"reason": "BadRequest", "message": Text('unknown field "spec.what"')},
        ),
        Call(
            "POST",
            f"{MAPS}?fieldValidation=Strict",
            {**config_map(), "what": 1},
            400,
            {"message": Text('strict decoding error: unknown field "what"')},
        ),
    ),
    row(
        "warnings about unknown fields",
        Call(
            "POST",
            f"{WIDGETS}?fieldValidation=Warn",
            widget(spec={"what": 1}),
            201,
            warning=r'299 - "unknown field \\"spec.what\\""',
        ),
    ),
    refused(
        {"size": -1},
        r'^Widget.conformance.trainop.dev "w" is invalid: spec.size: Invalid value: -1: '
        "spec.size in body should be greater than or equal to 0$",
    ),
    refused(
        {"size": "big"},
        'spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"',
        "FieldValueTypeInvalid",
    ),
    refused({"flag": "yes"}, 'must be of type boolean: "string"', "FieldValueTypeInvalid"),
    refused(
        {"color": "blue"},
        'spec.color: Unsupported value: "blue": supported values: "red", "green"',
        "FieldValueNotSupported",
    ),
    refused({"code": "A1"}, r"spec.code: Invalid value: \"A1\": spec.code in body should match '\^\[a-z\]\+\$'"),
    refused({"code": "toolong"}, "spec.code: Too long: may not be more than 5 bytes", "FieldValueTooLong"),
    refused({"ports": [{"note": "x"}]}, r"spec.ports\[0\].port: Required value", "FieldValueRequired"),
    refused(
        {"ports": [{"port": n} for n in (1, 2, 3, 4)]},
        "spec.ports: Too many: 4: must have at most 3 items",
        "FieldValueTooMany",
    ),
    refused({"ports": [{"port": 1}, {"port": 1}]}, r"spec.ports\[1\]: Duplicate value", "FieldValueDuplicate"),
    refused({"tags": ["a", "a"]}, r"spec.tags\[1\]: Duplicate value", "FieldValueDuplicate"),
    refused(
        {"options": {"a": 1}},
        'spec.options.a: Invalid value: "integer": spec.options.a in body must be of type string',
        "FieldValueTypeInvalid",
    ),
    row(
        "several complaints at once",
        Call(
            "POST",
            WIDGETS,
            widget(spec={"size": -1, "color": "blue"}),
            422,
            {"message": Text(r"is invalid: \[spec\..*, spec\..*\]$"), "details.causes.#": 2},
        ),
    ),
    row(
        "status is validated as well",
        Call("POST", WIDGETS, widget(), 201),
        patch(
            f"{WIDGETS}/w/status",
            {"status": {"phase": "Ugly"}},
            MERGE,
            422,
            of={"message": Text("status.phase: Unsupported value")},
        ),
    ),
    row(
        "the queue of a job is immutable",
        Call("POST", JOBS, pytorch_job(schedulingPolicy={"queue": "a"}), 201),
        patch(
            f"{JOBS}/j",
            {"spec": {"runPolicy": {"schedulingPolicy": {"queue": "b"}}}},
            MERGE,
            422,
            of={"reason": "Invalid", "message": Text("spec.runPolicy.schedulingPolicy.queue is immutable")},
        ),
        patch(f"{JOBS}/j", {"spec": {"runPolicy": {"suspend": True}}}, MERGE),
    ),
    row(
        "a job of a negative number of replicas",
        Call(
            "POST",
            JOBS,
            {**pytorch_job(), "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": -1}}}},
            422,
            {"reason": "Invalid"},
        ),
    ),
    row(
        "unknown fields of a pod template stay",
        Call(
            "POST",
            JOBS,
            {
                **pytorch_job(),
                "spec": {
                    "pytorchReplicaSpecs": {
                        "Worker": {
                            "template": {
                                "spec": {"containers": [{"name": "pytorch", "image": "i", "someday": {"x": 1}}]}
                            }
                        }
                    }
                },
            },
            201,
            {"spec.pytorchReplicaSpecs.Worker.template.spec.containers.0.someday": {"x": 1}},
        ),
    ),
    row(
        "a CRD becomes established",
        Call(
            "GET",
            f"{CRDS}/widgets.{GROUP}",
            expects={
                "status.conditions": Holding(
                    ({"type": "Established", "status": "True"}, {"type": "NamesAccepted", "status": "True"})
                ),
                "status.acceptedNames.kind": "Widget",
                "status.storedVersions": ["v1"],
                "spec.conversion.strategy": "None",
            },
        ),
    ),
    row(
        "a CRD whose name does not fit",
        Call(
            "POST",
            CRDS,
            {**CRD, "metadata": {"name": "other.conformance.trainop.dev"}},
            422,
            {"reason": "Invalid", "message": Text("metadata.name: Invalid value")},
        ),
    ),
]

DRY_RUN = [
    row(
        "create",
        Call("POST", f"{MAPS}?dryRun=All", config_map(), 201, {"metadata.uid": PRESENT}),
        Call("GET", f"{MAPS}/a", status=404),
    ),
    row(
        "patch",
        MADE,
        patch(f"{MAPS}/a?dryRun=All", {"data": {"a": "9"}}, MERGE, of={"data.a": "9"}),
        Call("GET", f"{MAPS}/a", expects={"data.a": "1", "metadata.resourceVersion": "$rv"}),
    ),
    row(
        "replace",
        MADE,
        Call("PUT", f"{MAPS}/a?dryRun=All", config_map(data={"a": "9"}), 200, {"data.a": "9"}),
        Call("GET", f"{MAPS}/a", expects={"data.a": "1"}),
    ),
    row(
        "apply",
        patch(f"{MAPS}/a?fieldManager=me&dryRun=All", applied({"a": "1"}), APPLY, 201),
        Call("GET", f"{MAPS}/a", status=404),
    ),
    row("delete", MADE, Call("DELETE", f"{MAPS}/a?dryRun=All", None, 200), Call("GET", f"{MAPS}/a")),
    row(
        "validation happens all the same",
        Call("POST", f"{WIDGETS}?dryRun=All", widget(spec={"size": -1}), 422, {"reason": "Invalid"}),
    ),
    row("an unknown kind of dry run", Call("POST", f"{MAPS}?dryRun=Some", config_map(), 422, {"reason": "Invalid"})),
]

TOO_MUCH = [
    row(
        "a body over three MiB",
        Call("POST", MAPS, config_map(data={"a": "x" * (3 * 1024 * 1024)}), 413, {"reason": "RequestEntityTooLarge"}),
    ),
    row(
        "a patch of too many operations",
        MADE,
        patch(
            f"{MAPS}/a",
            [{"op": "test", "path": "/data/a", "value": "1"}] * 10_001,
            JSON_PATCH,
            413,
            of={"message": Text("The allowed maximum operations in a JSON patch is 10000, got 10001")},
        ),
    ),
    row(
        "levels beyond any limit",
        Call(
            "POST",
            WIDGETS,
            '{"apiVersion":"conformance.trainop.dev/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"free":'
            + '{"a":' * 20_000
            + "1"
            + "}" * 20_002,
            400,
        ),
    ),
    row("a version that no number holds", Call("GET", f"{MAPS}?resourceVersion={'9' * 30}", None, 400)),
    row("options of a deletion that are mistyped", MADE, Call("DELETE", f"{MAPS}/a?gracePeriodSeconds=x", None, 400)),
]

ROWS: list[Row] = [*PATCHES, *SERVER_SIDE_APPLY, *SUBRESOURCES, *SCHEMAS, *DRY_RUN, *TOO_MUCH]
