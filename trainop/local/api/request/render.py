"""Content negotiation and response bodies: full objects, PartialObjectMetadata or Tables, in JSON or YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import lru_cache

import msgspec
import yaml

from trainop.local.api.printing.table import table
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.status_errors import StatusError
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime import Json


class Form(Enum):
    """How an object is represented (`;as=` in Accept)."""

    OBJECT = "whole"
    METADATA = "PartialObjectMetadata"
    TABLE = "Table"


@dataclass(frozen=True, slots=True)
class Representation:
    """The negotiated representation of a response."""

    form: Form = Form.OBJECT
    yaml: bool = False


_PLAIN = {"application/json", "*/*", "application/*", ""}
_AVAILABLE = (
    "application/json, application/yaml, application/vnd.kubernetes.protobuf, "
    "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
)


@lru_cache(256)
def negotiate(accept: str) -> Representation:
    """The first supported clause of an Accept header; raises 406. Protobuf is not supported in responses."""
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        if media not in _PLAIN and media != "application/yaml":
            continue
        asked = given.get("as", "")
        if not asked:
            return Representation(yaml=media == "application/yaml")
        if given.get("g") != "meta.k8s.io" or given.get("v") != "v1":
            continue
        if asked == "Table":
            return Representation(Form.TABLE)
        if asked in {"PartialObjectMetadata", "PartialObjectMetadataList"}:
            return Representation(Form.METADATA)
    message = f"406: Not Acceptable\n\nAvailable representations: {_AVAILABLE}"
    raise StatusError(406, "NotAcceptable", message, {})


def encode(value: Json, representation: Representation = Representation()) -> bytes:
    """The body of a response."""
    return yaml.safe_dump(value, sort_keys=False).encode() if representation.yaml else msgspec.json.encode(value)


def content_type(representation: Representation) -> str:
    """The Content-Type of a response."""
    return "application/yaml" if representation.yaml else "application/json"


_PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


class Renderer:
    """Renders objects, lists and watch events of one kind for one request; reuses stored encodings if possible."""

    def __init__(self, kind: Kind, representation: Representation, now: datetime, query: Mapping[str, str]) -> None:
        self._kind = kind
        self._representation = representation
        self._now = now
        self._include = query.get("includeObject") or "Metadata"
        self._header_sent = False

    def one(self, stored: Stored) -> bytes:
        """The body with a single object."""
        if self._representation == Representation():
            return self._kind.encode(stored)
        return self.value(self._kind.read(stored))

    def value(self, value: Json) -> bytes:
        """An object that is not stored, such as the result of a dry run; it must be in the version of the kind."""
        return encode(self._represent(value), self._representation)

    def many(self, found: Sequence[Stored], metadata: Json) -> bytes:
        """The body with a list; `metadata` is its ListMeta."""
        resource = self._kind.resource
        if self._representation.form is Form.TABLE:
            objects = (self._kind.read(stored) for stored in found)
            return encode(
                table(
                    self._kind.columns,
                    objects,
                    now=self._now,
                    include_object=self._include,
                    list_metadata=metadata,
                )
            )
        if self._representation.form is Form.METADATA:
            items = [self._represent(self._kind.read(stored)) for stored in found]
            return encode(
                {
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata,
                    "items": items,
                }
            )
        head = {"kind": self._kind.list_kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self._representation.yaml:
            return encode(head | {"items": [self._kind.read(stored) for stored in found]}, self._representation)
        bodies = b",".join(self._list_item(stored) for stored in found)
        return msgspec.json.encode(head)[:-1] + b',"items":[' + bodies + b"]}"

    def event(self, kind: str, stored: Stored) -> bytes:
        """One watch event as a line; `kind` is ADDED, MODIFIED or DELETED."""
        if self._representation.form is Form.OBJECT:
            return b'{"type":"' + kind.encode() + b'","object":' + self._kind.encode(stored) + b"}\n"
        value = self._represent(self._kind.read(stored))
        if self._representation.form is Form.TABLE:
            value = self._with_header_once(value)
        return msgspec.json.encode({"type": kind, "object": value}) + b"\n"

    def bookmark(self, version: int, *, initial_events_end: bool = False) -> bytes:
        """A BOOKMARK event as a line; `initial_events_end` marks the end of the initial events of a watch-list."""
        resource = self._kind.resource
        metadata: Json = {"resourceVersion": str(version)}
        if initial_events_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        value: Json = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self._representation.form is Form.METADATA:
            value |= _PARTIAL
        if self._representation.form is Form.TABLE:
            row = {"cells": None, "object": _PARTIAL | {"metadata": metadata}}
            value = {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": str(version)},
                "columnDefinitions": None,
                "rows": [row] if initial_events_end else [],
            }
        return msgspec.json.encode({"type": "BOOKMARK", "object": value}) + b"\n"

    def _list_item(self, stored: Stored) -> bytes:
        """The encoding of a list item; as in kube-apiserver, built-in kinds omit kind and apiVersion."""
        body = self._kind.encode(stored)
        if self._kind.custom:
            return body
        resource = self._kind.resource
        head = f'{{"kind":"{resource.kind}","apiVersion":"{resource.api_version}",'.encode()
        return b"{" + body[len(head) :] if body.startswith(head) else body

    def _represent(self, value: Json) -> Json:
        match self._representation.form:
            case Form.OBJECT:
                return value
            case Form.METADATA:
                return _PARTIAL | {"metadata": value.get("metadata", {})}
            case Form.TABLE:
                version = value.get("metadata", {}).get("resourceVersion", "")
                return table(
                    self._kind.columns,
                    [value],
                    now=self._now,
                    include_object=self._include,
                    list_metadata={"resourceVersion": version},
                )

    def _with_header_once(self, value: Json) -> Json:
        """Only the first Table of a watch has column definitions."""
        if self._header_sent:
            return value | {"columnDefinitions": None}
        self._header_sent = True
        return value
