"""What releases of Kubernetes answer differently: a row for each way, with the releases that answer so.

All other rows of the table hold for every release. The embedded API server answers as the newest one.
"""

from __future__ import annotations

from tests.conformance.client import APPLY, Call, Row, Step, Text, row
from tests.conformance.objects import MAPS, WIDGETS, config_map

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


def applied(what: str) -> tuple[Step, ...]:
    """What is applied is no object."""
    return tuple(
        Call(
            "PATCH",
            f"{path}/a?fieldManager=me",
            body,
            400,
            {"reason": "BadRequest", "message": Text(f"^error decoding {what}: error ")},
            content_type=APPLY,
        )
        for path in (MAPS, WIDGETS)
        for body in ("a: [", "- 1")
    )


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
    row("what cannot be applied", *applied("patch"), since="1.37"),
    row("what cannot be applied, before 1.37", *applied("YAML"), before="1.37"),
]
