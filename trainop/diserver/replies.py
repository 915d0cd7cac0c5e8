"""The answers of di-server: one envelope with always the same keys, and errors with DI-orchestrator's codes and texts.

Source: DI-orchestrator v0.2.2 `common/types/`, `server/http/server.go`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from trainop.runtime import ApiError
from trainop.runtime.lowlevel import cut

GOT = "successfully get replicas"
CREATED = "successfully create replicas"
DELETED = "successfully delete replicas"
RECREATED = "successfully recreate replicas"

BAD_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
"""The one text with quotes: the `ding` CLI expects it as it is."""

MAX_TEXT = 2048
"""Bytes of a message."""

_QUOTES = str.maketrans({"'": "`", '"': "`"})
_REWRITTEN = re.compile("None|: True|: False")

Urls = Annotated[list[str] | None, msgspec.Meta(description="Addresses `<pod>.<namespace>:<port>`.")]


class Replicas(msgspec.Struct, frozen=True):
    """The replicas that a request concerns."""

    namespace: str = ""
    coordinator: str = ""
    collectors: Urls = None
    learners: Urls = None


class PodFacts(msgspec.Struct, frozen=True, rename="camel"):
    """One pod, found by its name."""

    namespace: str
    coordinator: str
    replica_type: str
    name: str


class Envelope(msgspec.Struct, frozen=True):
    """Every answer. `code` is 0 on success and 1 on failure."""

    success: bool
    code: int
    message: str
    data: Any = None


class Refusal(Exception):  # noqa: N818  # an answer, not an error of the server
    """A request that is answered with an error. `data` is what the request has achieved, if it got that far."""

    def __init__(self, status: int, message: str, data: Replicas | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.data = data

    def about(self, data: Replicas) -> Refusal:
        """The same with `data`, unless it has some."""
        return self if self.data is not None else Refusal(self.status, self.message, data)


class Answer(msgspec.Struct, frozen=True):
    """Status and body of an answer, ready to be sent."""

    status: int
    body: bytes


_encode = msgspec.json.Encoder().encode


def succeed(message: str, data: Any) -> Answer:
    return Answer(200, _encode(Envelope(success=True, code=0, message=message, data=data)))


def fail(refusal: Refusal) -> Answer:
    text = plain(refusal.message)
    return Answer(refusal.status, _encode(Envelope(success=False, code=1, message=text, data=refusal.data)))


def plain(text: str) -> str:
    """The text without what the `ding` CLI rewrites before it parses an answer: quotes, and words of Python."""
    kept = BAD_QUANTITY if BAD_QUANTITY in text else ""
    before, _, after = text.partition(kept) if kept else (text, "", "")
    return cut(_filter(before) + kept + _filter(after), MAX_TEXT)


def _filter(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # lone surrogates cannot be sent
    return _REWRITTEN.sub(lambda found: found[0].lower(), text.translate(_QUOTES))


def missing(kind: str, namespace: str, name: str) -> Refusal:
    """`kind` is `pod`, `DIJob` or `AGConfig`."""
    return Refusal(404, f"{kind}: {namespace}/{name} not exists in cache")


def of_api(error: ApiError | ConnectionError | TimeoutError) -> Refusal:
    """The answer for a failed request to the API server."""
    text = str(error) or type(error).__name__
    return Refusal(500, text)
