"""What releases of Kubernetes answer differently: a row for each way, with the releases that answer so.

All other rows of the table hold for every release. The embedded API server answers as the newest one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.client import APPLY, JSON_PATCH, MERGE, TABLE, Call, Row, Step, Text, row
from tests.conformance.objects import CORE, GROUP, MAPS, PODS, WIDGETS, config_map, pod, widget

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}
KEY = "a/b/c"
"""No key of a label: it has two prefixes."""


def owned(refused: str, **changed: str) -> Call:
    """The second owner has these fields; empty ones are missing."""
    second = {name: value for name, value in {**OWNER, **changed}.items() if value}
    expects = {"reason": "Invalid", "message": Text(f": {refused}$"), "details.causes.#": 1}
    return Call("POST", MAPS, config_map(ownerReferences=[OWNER, second]), 422, expects)


def owners(path: str, missing: str, version: str, malformed: str) -> tuple[Step, ...]:
    return (
        *(owned(rf"{path}\.{name}: {missing}", **{name: ""}) for name in ("kind", "name", "uid")),
        owned(rf"{path}\.apiVersion: {version}", apiVersion=""),
        *(owned(rf'{path}\.apiVersion: Invalid value: "{v}": {malformed}', apiVersion=v) for v in ("a/b/c", "apps/")),
    )


def labelled(rule: str) -> tuple[Step, ...]:
    """A key of a label and of an annotation, and in a selector."""
    refused = {"reason": "Invalid", "message": Text(f'"{KEY}": {rule} must consist of alphanumeric')}
    return (
        Call("POST", MAPS, config_map(labels={KEY: "d"}), 422, refused),
        Call("POST", MAPS, config_map(annotations={KEY: "d"}), 422, refused),
        Call("GET", f"{MAPS}?labelSelector={KEY}=d", None, 400, {"message": Text(f"{rule} must consist of")}),
    )


def patched(content_type: str, bodies: Mapping[str, str]) -> tuple[Step, ...]:
    """Bodies that are no patch, each with the beginning of the message."""
    return tuple(
        Call(
            "PATCH", f"{path}/a?fieldManager=me", body, 400, {"message": Text(f"^{refused}")}, content_type=content_type
        )
        for path in (MAPS, WIDGETS)
        for body, refused in bodies.items()
    )


def refused(spec: dict[str, Any], *causes: str) -> Call:
    """A widget whose spec has a value that is not of the type or format of the schema."""
    expects = {f"details.causes.{place}.message": Text(f"{cause}$") for place, cause in enumerate(causes)}
    return Call("POST", WIDGETS, widget(spec=spec), 422, {"details.causes.#": len(causes), **expects})


def table(path: str, columns: Sequence[str], cells: Mapping[str, Any] | None = None) -> Call:
    """The names of the columns, and cells by place."""
    names = {f"columnDefinitions.{place}.name": name for place, name in enumerate(columns)}
    count = {"columnDefinitions.#": len(columns)} if columns else {}
    return Call("GET", path, accept=TABLE, expects={**count, **names, **(cells or {})})


def partly_failed(shown: str) -> tuple[Step, ...]:
    """The first container of a pod completed, the second failed."""
    ended = [
        {
            "name": name,
            "image": "none",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "reason": reason}},
        }
        for name, code, reason in (("main", 0, "Completed"), ("second", 1, "Error"))
    ]
    containers = [{"name": name, "image": "none"} for name in ("main", "second")]
    return (
        Call("POST", PODS, pod(containers=containers), 201),
        Call("PATCH", f"{PODS}/p/status", {"status": {"containerStatuses": ended}}, content_type=MERGE),
        table(PODS, (), {"rows.0.cells.2": shown}),
    )


NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "$ns"}}
INFO = {"kernelVersion": "6.1", "architecture": "amd64"}


def kernel(shown: str) -> tuple[Step, ...]:
    return (
        Call("POST", "/api/v1/nodes", NODE, 201),
        Call("PATCH", "/api/v1/nodes/$ns/status", {"status": {"nodeInfo": INFO}}, content_type=MERGE),
        table("/api/v1/nodes/$ns", (), {"rows.0.cells.8": shown}),
        Call("DELETE", "/api/v1/nodes/$ns"),
    )


CRD_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{GROUP}"
CRD_COLUMNS = ("Name", "Scope", "Versions", "Created At", "Group", "Kind", "ShortNames", "Established")
CRD_CELLS = {1: "Namespaced", 2: "v1(storage)", 4: GROUP, 5: "Widget", 6: "wd", 7: True}
ACCOUNTS = f"{CORE}/serviceaccounts"
TOO_LARGE = "Checked value must be of type integer"


NOT_JSON = ("{", "[1", "a: 1")


ROWS: list[Row] = [
    row(
        "owners whose fields are missing or malformed",
        *owners(
            r"metadata\.ownerReferences\[1\]",
            "Required value: must not be empty",
            "Required value: must not be empty",
            "must be <group>/<version> or <version>",
        ),
        since="1.37",
    ),
    row(
        "owners whose fields are missing or malformed, before 1.37",
        *owners(
            r"metadata\.ownerReferences",
            'Invalid value: "": must not be empty',
            'Invalid value: "": version must not be empty',
            "version must not be empty",
        ),
        before="1.37",
    ),
    row("keys with two prefixes", *labelled("a valid label key"), since="1.35"),
    row("keys with two prefixes, before 1.35", *labelled("a qualified name"), before="1.35"),
    row(
        "what cannot be applied",
        *patched(
            APPLY,
            {
                "a: [": "error encoding patch: ",
                "{": "error decoding patch: error converting YAML to JSON: ",
                "- 1": "error decoding patch: error unmarshaling JSON: ",
            },
        ),
        since="1.37",
    ),
    row(
        "what cannot be applied, before 1.37",
        *patched(
            APPLY,
            {
                "a: [": "error decoding YAML: error converting YAML to JSON: ",
                "{": "error decoding YAML: error converting YAML to JSON: ",
                "- 1": "error decoding YAML: error unmarshaling JSON: ",
            },
        ),
        before="1.37",
    ),
    row(
        "numbers that an integer of 32 bits cannot hold",
        refused({"size": 2**31}, f"{TOO_LARGE} with format int32 in spec.size"),
        refused({"size": -(2**31) - 1}, f"{TOO_LARGE} with format int32 in spec.size", "greater than or equal to 0"),
        refused({"size": 1.5}, 'of type int32: "float64"', f"{TOO_LARGE} with format int32 in spec.size"),
        refused(
            {"nested": {"depth": 1.5}},
            'of type integer: "number"',
            rf"{TOO_LARGE} \(default format\) in spec.nested.depth",
        ),
        refused({"size": True}, 'of type int32: ""'),
        refused({"size": {}}, 'of type int32: ""'),
        refused({"size": "x"}, 'of type integer: "string"'),
        refused({"size": []}, 'of type integer: "array"'),
        Call("POST", WIDGETS, widget(spec={"size": 2**31 - 1, "nested": {"depth": 2**31}}), 201),
        since="1.36",
    ),
    row(
        "numbers that an integer of 32 bits cannot hold, before 1.36",
        refused({"size": 1.5}, 'of type integer: "number"'),
        refused({"size": True}, 'of type integer: "boolean"'),
        Call("POST", WIDGETS, widget(spec={"size": 2**31}), 201, {"spec.size": 2**31}),
        before="1.36",
    ),
    row("the table of service accounts", table(ACCOUNTS, ("Name", "Age")), since="1.35"),
    row("the table of service accounts, before 1.35", table(ACCOUNTS, ("Name", "Secrets", "Age")), before="1.35"),
    row(
        "the table of definitions",
        table(CRD_PATH, CRD_COLUMNS, {f"rows.0.cells.{place}": cell for place, cell in CRD_CELLS.items()}),
        since="1.37",
    ),
    row("the table of definitions, before 1.37", table(CRD_PATH, ("Name", "Created At")), before="1.37"),
    row("a pod of which a container failed", *partly_failed("Error"), since="1.35"),
    row("a pod of which a container failed, before 1.35", *partly_failed("Completed"), before="1.35"),
    row("the kernel of a node", *kernel("6.1 (amd64)"), since="1.36"),
    row("the kernel of a node, before 1.36", *kernel("6.1"), before="1.36"),
    row(
        "patches that are not JSON",
        *(
            step
            for type_ in (MERGE, JSON_PATCH)
            for step in patched(type_, dict.fromkeys(NOT_JSON, "invalid JSON patch$"))
        ),
        since="1.37",
    ),
    row(
        "patches that are not JSON, before 1.37",
        Call("POST", MAPS, config_map(), 201),
        Call("POST", WIDGETS, widget("a"), 201),
        *patched(MERGE, dict.fromkeys(NOT_JSON, "error decoding patch: (unexpected|invalid) ")),
        *patched(JSON_PATCH, dict.fromkeys(NOT_JSON, "error decoding patch: (unexpected|invalid) ")),
        before="1.37",
    ),
]
