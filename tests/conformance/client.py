"""A raw HTTP client and the steps of table rows, which send the same bytes to the embedded and the real API server."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import string
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from tests.patience import PATIENCE

PRESENT = object()
"""Matches any value that is present."""
ABSENT = object()
"""Matches a missing value."""

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

Variables: TypeAlias = dict[str, str]
"""Values of `$name` in paths, bodies and expectations."""


@dataclass(frozen=True)
class Text:
    """Matches text that contains this pattern."""

    pattern: str


@dataclass(frozen=True)
class Holding:
    """Matches a list that contains a matching element for each of these, besides any others."""

    elements: tuple[Any, ...]


class Backend(Protocol):
    """An API server under test."""

    url: str
    headers: Mapping[str, str]
    context: ssl.SSLContext | None

    def compact(self) -> None:
        """Compact the whole history."""
        ...

    def sign(self, claims: Mapping[str, Any]) -> str:
        """A token with these claims, signed with the server's key for service accounts."""
        ...

    def kubeconfig(self, folder: Path) -> Path:
        """The path of an administrator's kubeconfig; written into `folder` if none exists yet."""
        ...


class Step(Protocol):
    def take(self, backend: Backend, variables: Variables) -> None:
        """Send the requests and check the responses."""
        ...


@dataclass(frozen=True)
class Row:
    """A row of the table: requests in order, and the expected responses. Releases of Kubernetes that answer in another
    way have another row: this one is for those from `since` on, and older than `before`."""

    name: str
    steps: tuple[Step, ...]
    since: str = ""
    before: str = ""

    def concerns(self, version: str) -> bool:
        """Whether it is for a version such as v1.37.2."""
        given = _minor(version)
        return _minor(self.since or "1.0") <= given and not (self.before and _minor(self.before) <= given)


def _minor(version: str) -> int:
    return int(version.split(".")[1])


def row(name: str, *steps: Step, since: str = "", before: str = "") -> Row:
    return Row(name, steps, since, before)


def connect(backend: Backend, timeout: float = PATIENCE) -> http.client.HTTPConnection:
    parts = urlsplit(backend.url)
    assert parts.hostname
    if backend.context:
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=backend.context)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def fill(value: Any, variables: Variables) -> Any:
    """Replace `$name` in every string of a JSON value; matchers stay as they are."""
    if isinstance(value, str):
        return string.Template(value).safe_substitute(variables)
    if isinstance(value, Mapping):
        return {fill(key, variables): fill(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, variables) for item in value]
    if isinstance(value, Text):
        return Text(fill(value.pattern, variables))
    return value


def find(value: Any, path: str) -> Any:
    """The value at a dotted path such as `items.0.metadata.name`; `items.#` is a length; ABSENT if there is none.

    Keys that hold dots are written with slashes: `metadata.annotations.k8s/io~initial`, where `~` is a slash.
    """
    for part in path.split(".") if path else ():
        key = part.replace("/", ".").replace("~", "/")
        if key == "#":
            value = len(value)
        elif isinstance(value, list) and key.lstrip("-").isdigit():
            value = value[int(key)] if -len(value) <= int(key) < len(value) else ABSENT
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        else:
            return ABSENT
    return value


def agrees(seen: Any, wanted: Any) -> bool:
    """Whether a value matches the expectation; of objects, only the named fields are compared."""
    if wanted is PRESENT or wanted is ABSENT:
        return (seen is ABSENT) == (wanted is ABSENT)
    if isinstance(wanted, Text):
        return isinstance(seen, str) and re.search(wanted.pattern, seen) is not None
    if isinstance(wanted, Holding):
        return isinstance(seen, list) and all(any(agrees(one, want) for one in seen) for want in wanted.elements)
    if isinstance(wanted, Mapping):
        return isinstance(seen, Mapping) and all(agrees(find(seen, key), want) for key, want in wanted.items())
    return type(seen) is type(wanted) and seen == wanted


def differences(seen: Any, wanted: Mapping[str, Any]) -> list[str]:
    return [
        f"{path}: wanted {want!r}, got {'nothing' if find(seen, path) is ABSENT else find(seen, path)!r}"
        for path, want in wanted.items()
        if not agrees(find(seen, path), want)
    ]


@dataclass(frozen=True)
class Call:
    """One request. `expects` has the fields of the response to compare, `keeps` those that later steps refer to."""

    method: str
    path: str
    body: Any = None
    status: int = 200
    expects: Mapping[str, Any] = field(default_factory=dict)
    keeps: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    accept: str = "application/json"
    warning: str = ""
    """Pattern that a Warning header must match."""

    def take(self, backend: Backend, variables: Variables) -> None:
        path = fill(self.path, variables).replace(" ", "%20")
        body = fill(self.body, variables)
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        headers = {**backend.headers, "Accept": self.accept}
        if data is not None:
            headers["Content-Type"] = self.content_type
        connection = connect(backend)
        try:
            connection.request(self.method, path, data, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        reported = f"{self.method} {path} -> {response.status} {text[:2000]}"
        assert response.status == self.status, reported
        answer = decode(text)
        assert differences(answer, fill(self.expects, variables)) == [], reported
        assert re.search(self.warning, response.headers.get("Warning", "")), (reported, response.headers.items())
        variables.update({name: str(find(answer, at)) for name, at in self.keeps.items()})


def decode(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"text": text}


@dataclass(frozen=True)
class Watch:
    """Opens a watch, makes the calls, and expects exactly these events in order (unexpected bookmarks are ignored).

    A call among the events is made once the events before it have arrived.
    """

    path: str
    calls: Sequence[Call] = ()
    events: Sequence[Mapping[str, Any] | Call] = ()
    status: int = 200
    ends: bool = False
    """Whether the server must end the stream after these events."""
    accept: str = "application/json"

    def take(self, backend: Backend, variables: Variables) -> None:
        path = fill(self.path, variables).replace(" ", "%20")
        connection = connect(backend)
        try:
            connection.request("GET", path, headers={**backend.headers, "Accept": self.accept})
            response = connection.getresponse()
            assert response.status == self.status, (path, response.read())
            for call in self.calls:
                call.take(backend, variables)
            for step in self.events:
                if isinstance(step, Call):
                    step.take(backend, variables)
                    continue
                wanted = fill(step, variables)
                event = self._next(response, wants_bookmark=wanted.get("type") == "BOOKMARK")
                assert differences(event, wanted) == [], (path, event)
            assert not self.ends or response.readline() == b"", path
        finally:
            response.close()
            connection.close()

    @staticmethod
    def _next(response: http.client.HTTPResponse, *, wants_bookmark: bool) -> Any:
        while line := response.readline():
            event = json.loads(line)
            if wants_bookmark or event["type"] != "BOOKMARK":
                return event
        raise AssertionError("the stream ended before all events had come")


@dataclass(frozen=True)
class Until:
    """A call that is repeated until the response is as expected, for effects of background controllers."""

    call: Call
    seconds: float = PATIENCE

    def take(self, backend: Backend, variables: Variables) -> None:
        end = time.monotonic() + self.seconds
        while True:
            try:
                self.call.take(backend, variables)
            except AssertionError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
            else:
                return


@dataclass(frozen=True)
class Compact:
    """Compacts the server's history."""

    def take(self, backend: Backend, variables: Variables) -> None:
        backend.compact()
