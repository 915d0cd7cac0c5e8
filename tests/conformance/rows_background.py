"""Rows about background controllers: garbage collection and namespace deletion."""

from __future__ import annotations

from tests.conformance.client import ABSENT, MERGE, PRESENT, Call, Row, Text, Until, row
from tests.conformance.objects import MAPS, PODS, config_map, pod

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "$uid"}
CHILD = config_map("child", ownerReferences=[{**OWNER, "controller": True, "blockOwnerDeletion": True}])
HOLD = "trainop.dev/hold"
UID_B = {"b": "metadata.uid"}
FAMILY = (
    Call("POST", MAPS, config_map(), 201, keeps={"uid": "metadata.uid"}),
    Call("POST", MAPS, CHILD, 201),
)
GONE = Until(Call("GET", f"{MAPS}/child", status=404))

ROWS: list[Row] = [
    row(
        "background deletion takes the children afterwards",
        *FAMILY,
        Call("DELETE", f"{MAPS}/a", {"propagationPolicy": "Background"}, 200),
        Call("GET", f"{MAPS}/a", status=404),
        GONE,
    ),
    row(
        "foreground deletion takes the children first",
        *FAMILY,
        Call("PATCH", f"{MAPS}/child", {"metadata": {"finalizers": ["trainop.dev/hold"]}}, content_type=MERGE),
        Call(
            "DELETE",
            f"{MAPS}/a",
            {"propagationPolicy": "Foreground"},
            200,
            {"metadata.finalizers": ["foregroundDeletion"], "metadata.deletionTimestamp": PRESENT},
        ),
        Until(Call("GET", f"{MAPS}/child", expects={"metadata.deletionTimestamp": PRESENT})),
        Call("GET", f"{MAPS}/a", expects={"metadata.deletionTimestamp": PRESENT}),
        Call("PATCH", f"{MAPS}/child", {"metadata": {"finalizers": None}}, content_type=MERGE),
        Until(Call("GET", f"{MAPS}/a", status=404)),
        GONE,
    ),
    row(
        "orphans stay, without their owner",
        *FAMILY,
        Call("DELETE", f"{MAPS}/a", {"propagationPolicy": "Orphan"}, 200),
        Until(Call("GET", f"{MAPS}/a", status=404)),
        Call("GET", f"{MAPS}/child", expects={"metadata.ownerReferences": ABSENT}),
    ),
    row(
        "a child of a namesake is garbage",
        Call("POST", MAPS, config_map(), 201),
        Call(
            "POST",
            MAPS,
            config_map("child", ownerReferences=[{**OWNER, "uid": "00000000-0000-0000-0000-000000000000"}]),
            201,
        ),
        GONE,
    ),
    row(
        "a namespace is emptied, then gone",
        Call(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "$ns-x"}},
            201,
        ),
        Call("POST", "/api/v1/namespaces/$ns-x/configmaps", config_map(), 201),
        Call("DELETE", "/api/v1/namespaces/$ns-x", None, 200, {"metadata.deletionTimestamp": Text("Z$")}),
        Until(Call("GET", "/api/v1/namespaces/$ns-x", status=404)),
        Call("GET", "/api/v1/namespaces/$ns-x/configmaps", expects={"items": []}),
    ),
    row(
        "pods of a deleted owner go with their grace period",
        Call("POST", MAPS, config_map(), 201, keeps={"uid": "metadata.uid"}),
        Call(
            "POST",
            PODS,
            {**pod(nodeName="n1"), "metadata": {"name": "p", "ownerReferences": [OWNER]}},
            201,
        ),
        Call("DELETE", f"{MAPS}/a", None, 200),
        Until(Call("GET", f"{PODS}/p", expects={"metadata.deletionTimestamp": PRESENT})),
    ),
    row(
        "a namespace that a finalizer of its own holds is emptied and waits",
        Call(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "$ns-y", "finalizers": [HOLD]}},
            201,
        ),
        Call("POST", "/api/v1/namespaces/$ns-y/configmaps", config_map(), 201),
        Call("DELETE", "/api/v1/namespaces/$ns-y", None, 200),
        Until(Call("GET", "/api/v1/namespaces/$ns-y", expects={"spec.finalizers": ABSENT})),
        Call("GET", "/api/v1/namespaces/$ns-y/configmaps", expects={"items": []}),
        Call(
            "PATCH",
            "/api/v1/namespaces/$ns-y",
            {"metadata": {"finalizers": None}},
            200,
            {"metadata.deletionTimestamp": PRESENT},
            content_type=MERGE,
        ),
        Until(Call("GET", "/api/v1/namespaces/$ns-y", status=404)),
    ),
    row(
        "a circle of owners is deleted in the foreground",
        Call("POST", MAPS, config_map("a"), 201, keeps={"uid": "metadata.uid"}),
        Call("POST", MAPS, config_map("b", ownerReferences=[{**OWNER, "blockOwnerDeletion": True}]), 201, keeps=UID_B),
        Call(
            "PATCH",
            f"{MAPS}/a",
            {"metadata": {"ownerReferences": [{**OWNER, "name": "b", "uid": "$b", "blockOwnerDeletion": True}]}},
            content_type=MERGE,
        ),
        Call("DELETE", f"{MAPS}/a", {"propagationPolicy": "Foreground"}, 200),
        Until(Call("GET", f"{MAPS}/a", status=404)),
        Until(Call("GET", f"{MAPS}/b", status=404)),
    ),
    row(
        "a foreground deletion goes on when the last dependent is given away",
        *FAMILY,
        Call("PATCH", f"{MAPS}/child", {"metadata": {"finalizers": [HOLD]}}, content_type=MERGE),
        Call("DELETE", f"{MAPS}/a", {"propagationPolicy": "Foreground"}, 200),
        Until(Call("GET", f"{MAPS}/child", expects={"metadata.deletionTimestamp": PRESENT})),
        Call("PATCH", f"{MAPS}/child", {"metadata": {"ownerReferences": None}}, content_type=MERGE),
        Until(Call("GET", f"{MAPS}/a", status=404)),
        Call("GET", f"{MAPS}/child", expects={"metadata.finalizers": [HOLD]}),
    ),
]
