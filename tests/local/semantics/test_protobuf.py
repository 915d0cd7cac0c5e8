"""Bodies in protobuf, as kubectl sends them."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainop.local.api.request.protobuf import MalformedProtobufError, UnknownKindError, decode_protobuf


def varint(number: int) -> bytes:
    number %= 2**64
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def encode(*fields: tuple[int, int | bytes | str]) -> bytes:
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(raw)) + raw
    return out


def body(api_version: str, kind: str, *fields: tuple[int, int | bytes | str]) -> bytes:
    return b"k8s\0" + encode((1, encode((1, api_version), (2, kind))), (2, encode(*fields)), (3, ""), (4, ""))


def test_a_namespace_as_kubectl_1_34_sends_it():
    sent = bytes.fromhex(
        "6b387300 0a0f 0a027631 12094e616d657370616365 121a 0a12 0a026b64 1200 1a00 2200 2a00 3200 3800 4200"
        "1200 1a020a00 1a00 2200"
    )
    assert decode_protobuf(sent) == {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kd"}}


def test_maps_lists_and_what_counts_although_it_is_empty():
    metadata = encode(
        (1, "c"),
        (7, 0),
        (8, b""),
        (11, encode((1, "app"), (2, "web"))),
        (11, encode((1, "empty"))),
        (13, encode((5, "v1"), (1, "Pod"), (3, "p"), (4, "u"), (6, 1), (7, 0))),
        (14, "a.b/c"),
        (99, "from the future"),
    )
    secret = body("v1", "Secret", (1, metadata), (2, encode((1, "k"), (2, b"\x00\xff"))), (3, "Opaque"), (5, 0))
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "p",
        "uid": "u",
        "controller": True,
        "blockOwnerDeletion": False,
    }
    assert decode_protobuf(secret) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "c",
            "labels": {"app": "web", "empty": ""},
            "ownerReferences": [owner],
            "finalizers": ["a.b/c"],
        },
        "data": {"k": base64.b64encode(b"\x00\xff").decode()},
        "type": "Opaque",
        "immutable": False,
    }


def test_target_ports_are_numbers_or_names():
    def port(*target: tuple[int, int | bytes | str]) -> tuple[int, bytes]:
        return 1, encode((1, "p"), (3, 80), (4, encode(*target)))

    service = body("v1", "Service", (2, encode(port((1, 0), (2, 8080)), port((1, 1), (3, "http")), port((1, 0)))))
    ports = decode_protobuf(service)["spec"]["ports"]
    assert [port.get("targetPort") for port in ports] == [8080, "http", None]


def test_options_of_a_deletion():
    options = body("v1", "DeleteOptions", (1, 0), (2, encode((1, "u"))), (4, "Background"), (5, "All"))
    assert decode_protobuf(options) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Background",
        "dryRun": ["All"],
    }
    assert decode_protobuf(body("v1", "DeleteOptions", (1, -1)))["gracePeriodSeconds"] == -1


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=200), max_size=4))
def test_any_data_arrives(data: dict[str, str]):
    entries = [(2, encode((1, name), (2, text))) for name, text in data.items()]
    config = decode_protobuf(body("v1", "ConfigMap", (1, encode((1, "c"))), *entries))
    assert config.get("data", {}) == data


def test_messages_that_stand_inline_pointers_times_and_quantities():
    volume = encode((1, "v"), (2, encode((2, b""))))  # emptyDir: {}
    volume_of_map = encode((1, "m"), (2, encode((19, encode((1, encode((1, "c"))))))))
    quantity = encode((1, encode((1, "cpu"), (2, encode((1, "1500m"))))))
    container = encode(
        (1, "c"), (8, quantity), (10, encode((1, encode((2, encode((1, "/h"), (2, encode((1, 1), (3, "web")))))))))
    )
    spec = encode((1, volume), (1, volume_of_map), (2, container), (4, 0))
    status = encode((7, encode((1, 1_700_000_000))))
    pod = decode_protobuf(body("v1", "Pod", (1, encode((1, "p"), (8, b""))), (2, spec), (3, status)))
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "m", "configMap": {"name": "c"}}],
            "containers": [
                {
                    "name": "c",
                    "resources": {"limits": {"cpu": "1500m"}},
                    "livenessProbe": {"httpGet": {"path": "/h", "port": "web"}},
                }
            ],
            "terminationGracePeriodSeconds": 0,
        },
        "status": {"startTime": "2023-11-14T22:13:20Z"},
    }


@pytest.mark.parametrize("kind", ["Deployment", "ObjectMeta", "ServiceSpec", "IntOrString", ""])
def test_kinds_that_are_not_read(kind: str):
    with pytest.raises(UnknownKindError):
        decode_protobuf(body("v1", kind))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"{}",
        b"k8s\0\x0a\x7f",
        b"k8s\0\x0a",
        b"k8s\0\x80" + b"\xff" * 12,
        body("v1", "Namespace", (1, b"\x0b")),
        body("v1", "Namespace", (1, encode((1, 5)))),
        body("v1", "Namespace", (1, encode((1, b"\xff")))),
        body("v1", "Namespace", (1, 5)),
    ],
)
def test_bytes_that_are_no_object(sent: bytes):
    with pytest.raises(MalformedProtobufError):
        decode_protobuf(sent)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_refused(tail: bytes):
    head = encode((1, encode((1, "v1"), (2, "Secret"))))
    try:
        decoded: Any = decode_protobuf(b"k8s\0" + head + varint(2 << 3 | 2) + varint(len(tail)) + tail)
    except MalformedProtobufError:
        return
    assert decoded["kind"] == "Secret"
