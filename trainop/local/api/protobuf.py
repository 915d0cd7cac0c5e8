"""Request bodies in protobuf: kubectl sends a few kinds in no other way (`create namespace`, `configmap`, `secret`,
`serviceaccount`, `service`, `auth can-i`). It reads every answer in JSON.

The numbers of the fields are those of Kubernetes' `generated.proto` files. Only kinds are read whose meaning does not
depend on an empty value being told from an absent one but where the table says so: the encoding writes both alike.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from trainop.runtime.objects import Json

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"


class MalformedProtobufError(ValueError):
    """The bytes are no object in protobuf."""


class UnknownKindError(ValueError):
    """An object of a kind that is not read in protobuf here."""


# A field is its name, its type, and how it repeats: `list`, `map` (with text as key) or `kept`, which is a single value
# that counts even if it is empty. Types are `text`, `bytes`, `int`, `bool`, or another message.
_Field = tuple[str, str, str]
_MESSAGES: dict[str, dict[int, _Field]] = {
    "ObjectMeta": {
        1: ("name", "text", ""),
        2: ("generateName", "text", ""),
        3: ("namespace", "text", ""),
        5: ("uid", "text", ""),
        6: ("resourceVersion", "text", ""),
        11: ("labels", "text", "map"),
        12: ("annotations", "text", "map"),
        13: ("ownerReferences", "OwnerReference", "list"),
        14: ("finalizers", "text", "list"),
    },
    "OwnerReference": {
        1: ("kind", "text", ""),
        3: ("name", "text", ""),
        4: ("uid", "text", ""),
        5: ("apiVersion", "text", ""),
        6: ("controller", "bool", "kept"),
        7: ("blockOwnerDeletion", "bool", "kept"),
    },
    "ObjectReference": {
        1: ("kind", "text", ""),
        2: ("namespace", "text", ""),
        3: ("name", "text", ""),
        4: ("uid", "text", ""),
        5: ("apiVersion", "text", ""),
        6: ("resourceVersion", "text", ""),
        7: ("fieldPath", "text", ""),
    },
    "LocalObjectReference": {1: ("name", "text", "")},
    "Namespace": {1: ("metadata", "ObjectMeta", ""), 2: ("spec", "NamespaceSpec", "")},
    "NamespaceSpec": {1: ("finalizers", "text", "list")},
    "ConfigMap": {
        1: ("metadata", "ObjectMeta", ""),
        2: ("data", "text", "map"),
        3: ("binaryData", "bytes", "map"),
        4: ("immutable", "bool", "kept"),
    },
    "Secret": {
        1: ("metadata", "ObjectMeta", ""),
        2: ("data", "bytes", "map"),
        3: ("type", "text", ""),
        4: ("stringData", "text", "map"),
        5: ("immutable", "bool", "kept"),
    },
    "ServiceAccount": {
        1: ("metadata", "ObjectMeta", ""),
        2: ("secrets", "ObjectReference", "list"),
        3: ("imagePullSecrets", "LocalObjectReference", "list"),
        4: ("automountServiceAccountToken", "bool", "kept"),
    },
    "Service": {1: ("metadata", "ObjectMeta", ""), 2: ("spec", "ServiceSpec", "")},
    "ServiceSpec": {
        1: ("ports", "ServicePort", "list"),
        2: ("selector", "text", "map"),
        3: ("clusterIP", "text", ""),
        4: ("type", "text", ""),
        5: ("externalIPs", "text", "list"),
        7: ("sessionAffinity", "text", ""),
        10: ("externalName", "text", ""),
        11: ("externalTrafficPolicy", "text", ""),
        13: ("publishNotReadyAddresses", "bool", ""),
        17: ("ipFamilyPolicy", "text", ""),
        18: ("clusterIPs", "text", "list"),
        19: ("ipFamilies", "text", "list"),
        22: ("internalTrafficPolicy", "text", ""),
    },
    "ServicePort": {
        1: ("name", "text", ""),
        2: ("protocol", "text", ""),
        3: ("port", "int", ""),
        4: ("targetPort", "IntOrString", ""),
        5: ("nodePort", "int", ""),
        6: ("appProtocol", "text", ""),
    },
    "IntOrString": {1: ("type", "int", ""), 2: ("intVal", "int", ""), 3: ("strVal", "text", "")},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "int", "kept"),
        2: ("preconditions", "Preconditions", ""),
        3: ("orphanDependents", "bool", "kept"),
        4: ("propagationPolicy", "text", ""),
        5: ("dryRun", "text", "list"),
    },
    "Preconditions": {1: ("uid", "text", ""), 2: ("resourceVersion", "text", "")},
    "Eviction": {1: ("metadata", "ObjectMeta", ""), 2: ("deleteOptions", "DeleteOptions", "")},
    "SelfSubjectReview": {1: ("metadata", "ObjectMeta", "")},
    "SelfSubjectRulesReview": {1: ("metadata", "ObjectMeta", ""), 2: ("spec", "SelfSubjectRulesReviewSpec", "")},
    "SelfSubjectRulesReviewSpec": {1: ("namespace", "text", "")},
    "SelfSubjectAccessReview": {1: ("metadata", "ObjectMeta", ""), 2: ("spec", "SelfSubjectAccessReviewSpec", "")},
    "SelfSubjectAccessReviewSpec": {
        1: ("resourceAttributes", "ResourceAttributes", ""),
        2: ("nonResourceAttributes", "NonResourceAttributes", ""),
    },
    "ResourceAttributes": {
        1: ("namespace", "text", ""),
        2: ("verb", "text", ""),
        3: ("group", "text", ""),
        4: ("version", "text", ""),
        5: ("resource", "text", ""),
        6: ("subresource", "text", ""),
        7: ("name", "text", ""),
    },
    "NonResourceAttributes": {1: ("path", "text", ""), 2: ("verb", "text", "")},
}
_EMPTY: tuple[Any, ...] = ("", 0, False, {}, [])


def decode_protobuf(body: bytes) -> Json:
    """The object in an envelope of the API (`k8s\\0` and a `runtime.Unknown`); raises either error above."""
    if not body.startswith(_MAGIC):
        raise MalformedProtobufError("the body does not begin with the mark of Kubernetes' protobuf encoding")
    envelope = dict(_wire(body[len(_MAGIC) :]))
    head = {number: _text(value) for number, value in _wire(_bytes(envelope.get(1, b"")))}
    api_version, kind = head.get(1, ""), head.get(2, "")
    if "metadata" not in {name for name, *_ in _MESSAGES.get(kind, {}).values()} and kind != "DeleteOptions":
        raise UnknownKindError(kind)
    return {"apiVersion": api_version, "kind": kind, **_message(kind, _bytes(envelope.get(2, b"")))}


def _message(kind: str, body: bytes) -> Json:
    fields = _MESSAGES[kind]
    value: Json = {}
    for number, raw in _wire(body):
        if number not in fields:
            continue
        name, type_, form = fields[number]
        if form == "map":
            entry = dict(_wire(_bytes(raw)))
            empty: bytes = b""
            value.setdefault(name, {})[_text(entry.get(1, empty))] = _value(type_, entry.get(2, empty))
        elif form == "list":
            value.setdefault(name, []).append(_value(type_, raw))
        elif (single := _value(type_, raw)) not in _EMPTY or form == "kept":
            value[name] = single
    return value


def _value(type_: str, raw: int | bytes) -> Any:
    match type_:
        case "text":
            return _text(raw)
        case "bytes":
            return base64.b64encode(_bytes(raw)).decode()
        case "bool":
            return bool(raw)
        case "int":
            number = int(raw) if isinstance(raw, int) else 0
            return number - 2**64 if number >= 2**63 else number
    value = _message(type_, _bytes(raw))
    if type_ == "IntOrString":
        return value.get("strVal", "") if value.get("type") else value.get("intVal", 0)
    return value


def _text(raw: int | bytes) -> str:
    try:
        return _bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise MalformedProtobufError(str(error)) from None


def _bytes(raw: int | bytes) -> bytes:
    if isinstance(raw, int):
        raise MalformedProtobufError("a number stands where text or a message belongs")
    return raw


def _wire(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of the fields of one message."""
    place = 0
    while place < len(body):
        tag, place = _varint(body, place)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, place = _varint(body, place)
            yield number, value
            continue
        if wire == 2:
            size, place = _varint(body, place)
        elif wire in {1, 5}:
            size = 8 if wire == 1 else 4
        else:
            raise MalformedProtobufError(f"wire type {wire} is not known")
        if place + size > len(body):
            raise MalformedProtobufError("the body ends within a field")
        yield number, body[place : place + size]
        place += size


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """A number in base 128, lowest digits first, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(body):
            raise MalformedProtobufError("the body ends within a number")
        byte = body[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
    raise MalformedProtobufError("a number is too long")
