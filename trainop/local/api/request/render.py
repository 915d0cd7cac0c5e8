"""Objects, lists and watch events as the client wants to see them: whole, metadata only, or as a table."""

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
from trainop.runtime.objects.metadata import Json


class Form(Enum):
    """How an object is represented (`;as=` in Accept)."""

    WHOLE = "whole"
    METADATA = "PartialObjectMetadata"
    TABLE = "Table"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the Accept header asks for."""

    form: Form = Form.WHOLE
    yaml: bool = False


_PLAIN = {"application/json", "*/*", "application/*", ""}
_AVAILABLE = (
    "application/json, application/yaml, application/vnd.kubernetes.protobuf, "
    "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
)


@lru_cache(256)
def negotiate(accept: str) -> Wanted:
    """The first of the offered representations that this server speaks; protobuf is not among them."""
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        if media not in _PLAIN and media != "application/yaml":
            continue
        asked = given.get("as", "")
        if not asked:
            return Wanted(yaml=media == "application/yaml")
        if given.get("g") != "meta.k8s.io" or given.get("v") != "v1":
            continue
        if asked == "Table":
            return Wanted(Form.TABLE)
        if asked in {"PartialObjectMetadata", "PartialObjectMetadataList"}:
            return Wanted(Form.METADATA)
    message = f"406: Not Acceptable\n\nAvailable representations: {_AVAILABLE}"
    raise StatusError(406, "NotAcceptable", message, {})


def encode(value: Json, wanted: Wanted = Wanted()) -> bytes:
    """The body of an answer."""
    return yaml.safe_dump(value, sort_keys=False).encode() if wanted.yaml else msgspec.json.encode(value)


def content_type(wanted: Wanted) -> str:
    return "application/yaml" if wanted.yaml else "application/json"


_PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


class Renderer:
    """Renders objects of one kind for one request; stored bytes are passed on wherever they will do."""

    def __init__(self, kind: Kind, wanted: Wanted, now: datetime, query: Mapping[str, str]) -> None:
        self._kind = kind
        self._wanted = wanted
        self._now = now
        self._include = query.get("includeObject") or "Metadata"
        self._header_sent = False

    def one(self, stored: Stored) -> bytes:
        if self._wanted == Wanted():
            return self._kind.encode(stored)
        return self.value(self._kind.read(stored))

    def value(self, value: Json) -> bytes:
        """An object in this version that is not stored, such as the answer to a dry run."""
        return encode(self._formed(value), self._wanted)

    def many(self, found: Sequence[Stored], metadata: Json) -> bytes:
        resource = self._kind.resource
        if self._wanted.form is Form.TABLE:
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
        if self._wanted.form is Form.METADATA:
            items = [self._formed(self._kind.read(stored)) for stored in found]
            return encode(
                {
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata,
                    "items": items,
                }
            )
        head = {"kind": self._kind.list_kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self._wanted.yaml:
            return encode(head | {"items": [self._kind.read(stored) for stored in found]}, self._wanted)
        bodies = b",".join(self._item(stored) for stored in found)
        return msgspec.json.encode(head)[:-1] + b',"items":[' + bodies + b"]}"

    def event(self, kind: str, stored: Stored) -> bytes:
        """One line of a watch."""
        if self._wanted.form is Form.WHOLE:
            return b'{"type":"' + kind.encode() + b'","object":' + self._kind.encode(stored) + b"}\n"
        value = self._formed(self._kind.read(stored))
        if self._wanted.form is Form.TABLE:
            value = self._headed_once(value)
        return msgspec.json.encode({"type": kind, "object": value}) + b"\n"

    def bookmark(self, version: int, *, initial_events_end: bool = False) -> bytes:
        resource = self._kind.resource
        metadata: Json = {"resourceVersion": str(version)}
        if initial_events_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        value: Json = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self._wanted.form is Form.METADATA:
            value |= _PARTIAL
        if self._wanted.form is Form.TABLE:
            row = {"cells": None, "object": _PARTIAL | {"metadata": metadata}}
            value = {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": str(version)},
                "columnDefinitions": None,
                "rows": [row] if initial_events_end else [],
            }
        return msgspec.json.encode({"type": "BOOKMARK", "object": value}) + b"\n"

    def _item(self, stored: Stored) -> bytes:
        """As the real server's typed lists have it: built-in items without kind and apiVersion."""
        body = self._kind.encode(stored)
        if self._kind.custom:
            return body
        resource = self._kind.resource
        head = f'{{"kind":"{resource.kind}","apiVersion":"{resource.api_version}",'.encode()
        return b"{" + body[len(head) :] if body.startswith(head) else body

    def _formed(self, value: Json) -> Json:
        match self._wanted.form:
            case Form.WHOLE:
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

    def _headed_once(self, value: Json) -> Json:
        """Column definitions come with the first event of a watch only."""
        if self._header_sent:
            return value | {"columnDefinitions": None}
        self._header_sent = True
        return value
