"""The Kubernetes API client: get, list, create, replace, patch and delete objects as JSON.

Only requests that are safe to send twice are retried. Others fail at once, and the next reconcile reads what happened.
An optional gate refuses writes, for example after the loss of leadership. `Sender` below sends the single requests.
"""

from __future__ import annotations

import asyncio
import enum
import platform
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypeAlias, TypedDict, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from trainop.runtime.client.decoding import ObjectDecoder, check_depth, read
from trainop.runtime.client.paging import MAX_LIST, MAX_PAGE, PAGE_SIZE, Pages, fetch_fitting_page
from trainop.runtime.client.sender import (
    OWN_FIELDS,
    Limiter,
    NoRequestMetrics,
    Recovery,
    RequestMetrics,
    Sender,
    delete_options,
    names_version,
)
from trainop.runtime.client.transport import Request, Response, Stream, Transport
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.errors import ApiError, DecodeError, GoneError
from trainop.runtime.objects.metadata import Json, Resource, decode_complete

__all__ = ["Client", "Limiter", "Listing", "Page", "PatchKind", "RequestMetrics"]

D = TypeVar("D")

_Jsons: TypeAlias = list[Json]
_Errors: TypeAlias = list[DecodeError]
USER_AGENT = f"controller ({platform.system().lower()}/{platform.machine()})"

JSON = "application/json"
METADATA_OBJECT = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
"""The Accept header for metadata-only answers, with the whole object as the fallback."""

LIST_TIMEOUT = 60.0

SLICE = 1024 * 1024
"""Bytes of a list to decode before yielding to the event loop."""


class PatchKind(enum.Enum):
    """Patch types; the value is the content type. Strategic merge is only for built-in kinds; APPLY is server-side
    apply."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Listing:
    """A complete list. `apiVersion` and `kind` are added to every item, because API servers omit them in lists.
    `unreadable` holds an error for each item that could not be decoded."""

    items: list[Json] = field(repr=False)
    resource_version: str
    unreadable: Sequence[DecodeError] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, with its items not yet decoded. `token` is the continue token, empty on the last page; `size`
    is the length of the page in bytes; `limit` is the number of objects that were requested."""

    items: list[msgspec.Raw] = field(repr=False)
    resource_version: str
    token: str
    size: int
    limit: int = PAGE_SIZE


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    kind: str = ""
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _Identity(TypedDict):
    name: NotRequired[str]
    namespace: NotRequired[str]
    uid: str
    resourceVersion: str


class _Identified(TypedDict):
    metadata: _Identity


_decode_object = msgspec.json.Decoder(Json).decode
_decode_identity: Callable[[bytes], Any] = msgspec.json.Decoder(_Identified).decode
_decode_list = msgspec.json.Decoder(_List).decode
_encode = msgspec.json.Encoder().encode

log = structlog.get_logger(__name__)


class Client:
    """Client of one API server. All methods raise `ApiError` (see `errors.py`), `ConnectionError` or `TimeoutError`."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: RequestMetrics | None = None,
        host: str = "",
        user_agent: str = USER_AGENT,
        field_manager: str = "controller",
        limiter: Limiter | None = None,
        gate: Callable[[], None] | None = None,
        urgent: bool = False,
        denied: Callable[[ApiError], None] | None = None,
    ) -> None:
        """`gate` is called right before each write is sent and raises to refuse it. `host` is a metric label.
        `user_agent` and `field_manager` identify the program in audit logs and `managedFields`. An `urgent` client, for
        leases, has connections of its own and never waits. `denied` receives all 403 (`MissingPermissions.report`)."""
        self.field_manager = field_manager
        self._clock = clock or SystemClock()
        self._metrics = metrics or NoRequestMetrics()
        self._sender = Sender(
            transport,
            clock=self._clock,
            rng=rng or random.Random(),  # noqa: S311  # jitter, not a secret
            metrics=self._metrics,
            host=host,
            user_agent=user_agent,
            limiter=limiter,
            gate=gate,
            urgent=urgent,
            denied=denied,
        )

    @property
    def recovery(self) -> Recovery:
        """Availability of the API server, to end back-offs early after an outage."""
        return self._sender.recovery

    def write_seconds(self) -> float:
        """Seconds that a write takes at the moment: a moving average of the last sixteen or so; 0 before the first."""
        return self._sender.write_seconds

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """Reads one object. Raises `NotFoundError` if it does not exist."""
        return await self._json(resource, await self.request(Request("GET", resource.path(namespace, name))))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = PAGE_SIZE,
    ) -> Listing:
        """Lists all objects, or those of `namespace`, in pages of `limit` objects. Restarts once if the continue token
        expires (410). Also raises `EndlessListError`."""
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        query = {name: value for name, value in selectors.items() if value}
        try:
            return await self._pages(resource, namespace, query, limit)
        except GoneError:
            return await self._pages(resource, namespace, query, limit)

    async def _pages(self, resource: Resource, namespace: str | None, query: Mapping[str, str], limit: int) -> Listing:
        items: list[Json] = []
        unreadable: list[DecodeError] = []
        seen: set[int] = set()
        pages, token = Pages(), ""
        while True:
            page = await self.page(resource, namespace, query, token, limit=limit, retry=True)
            limit = page.limit
            await self._decode_items(resource, page, items, unreadable)
            if not page.token:
                return Listing(items, page.resource_version, unreadable)
            known = len(seen)
            seen.update(hash(bytes(raw)) for raw in page.items)
            pages.advance(page.token, grew=len(seen) > known)
            token = page.token

    async def page(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        token: str = "",
        *,
        limit: int = PAGE_SIZE,
        accept: str = JSON,
        retry: bool = False,
    ) -> Page:
        """One page of a list with at most `limit` objects, or fewer if the page would exceed 16 MiB. Failures are only
        retried with `retry`: a reflector has a back-off of its own."""
        send = self.request if retry else self._sender.attempt

        async def fetch(most: int) -> Page:
            request = list_request(resource, namespace, {**query, "limit": str(most)}, token, accept)
            return await self._page(resource, await send(request), most)

        return await fetch_fitting_page(fetch, limit)

    async def create(
        self,
        resource: Resource,
        body: Json | msgspec.Raw,
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
        own_fields: bool = False,
        warned: Callable[[str], None] | None = None,
    ) -> Json:
        """Creates an object from `body`, decoded or encoded; `namespace` defaults to the one in a decoded `body`. Only
        retried if the request certainly had no effect. With `metadata_only` the result has just name, namespace, UID
        and resourceVersion, which saves most of the decoding. `own_fields`: none is a user's, so that the API server
        need not look for misspelt ones; `warned` receives what it says about those."""
        if namespace is None and not isinstance(body, msgspec.Raw):
            namespace = (body.get("metadata") or {}).get("namespace")
        query = OWN_FIELDS if own_fields else None
        request = self._write("POST", resource.path(namespace), body, query, metadata_only=metadata_only)
        answer = await self.request(replace(request, warned=warned))
        return await self._answer(resource, answer, metadata_only=metadata_only)

    async def replace(
        self,
        resource: Resource,
        body: Json,
        *,
        subresource: str | None = None,
        metadata_only: bool = False,
        own_fields: bool = False,
    ) -> Json:
        """Replaces the object (PUT); `metadata_only` and `own_fields` as in `create`. With `metadata.resourceVersion`
        or `uid` in `body`, any other stored object is a `ConflictError`."""
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"], subresource)
        request = self._write("PUT", path, body, OWN_FIELDS if own_fields else None, metadata_only=metadata_only)
        answer = await self.request(request, repeatable=bool(metadata.get("resourceVersion")))
        return await self._answer(resource, answer, metadata_only=metadata_only)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Json | Sequence[Json],
        *,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str | None = None,
        force: bool = False,
        field_manager: str = "",
        metadata_only: bool = False,
    ) -> Json:
        """Patches the object. `force`, for APPLY only, takes over fields of other managers; `field_manager` replaces
        that of the client; `metadata_only` as in `create`. Retried if it is APPLY or demands a resourceVersion."""
        path = resource.path(namespace, name, subresource)
        query = ({"force": "true"} if force else {}) | ({"fieldManager": field_manager} if field_manager else {})
        request = self._write("PATCH", path, patch, query, kind.value, metadata_only=metadata_only)
        answer = await self.request(request, repeatable=kind is PatchKind.APPLY or names_version(patch))
        return await self._answer(resource, answer, metadata_only=metadata_only)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Deletes the object. `uid` and `resource_version` are preconditions, and a mismatch is a `ConflictError`;
        `propagation` is Background, Foreground or Orphan."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "preconditions": {name: value for name, value in preconditions.items() if value} or None,
            "propagationPolicy": propagation,
            "gracePeriodSeconds": grace_seconds,
        }
        body = delete_options(options)
        await self.request(Request("DELETE", resource.path(namespace, name), body=body), repeatable=bool(uid))

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        propagation: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Deletes all objects (of `namespace`) that match the selectors, one by one: an error may leave some."""
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        query = {name: value for name, value in selectors.items() if value}
        body = delete_options({"propagationPolicy": propagation, "gracePeriodSeconds": grace_seconds})
        path = resource.path(namespace)
        await self.request(Request("DELETE", path, query, body, timeout=LIST_TIMEOUT, max_answer=MAX_LIST))

    def request(self, request: Request, *, repeatable: bool | None = None) -> Coroutine[Any, Any, Response]:
        """Sends a request, with retries. `repeatable`: it is safe to send twice (default: only GET)."""
        return self._sender.send(request, repeatable=request.method == "GET" if repeatable is None else repeatable)

    async def open(self, request: Request) -> Stream:
        """Opens a streaming response, such as a watch, without retries."""
        return await self._sender.open(request)

    async def _page(self, resource: Resource, response: Response, limit: int) -> Page:
        """Decodes a page. Anything but a list of this kind is an error: it would pass for an empty list."""
        decoded = await self._decode(_decode_list, response)
        version = decoded.metadata.resource_version
        if decoded.kind not in {resource.list_kind or f"{resource.kind}List", "PartialObjectMetadataList"}:
            raise DecodeError("kind", f"{decoded.kind[:64]!r} is no list of them", resource=str(resource))
        if not version:
            raise DecodeError("metadata.resourceVersion", "a list must have one", resource=str(resource))
        return Page(decoded.items or [], version, decoded.metadata.token, len(response.body), limit)

    async def _json(self, resource: Resource, response: Response) -> Json:
        return check_depth(resource, response.body, await self._decode(_decode_object, response))

    def _answer(self, resource: Resource, response: Response, *, metadata_only: bool) -> Coroutine[Any, Any, Json]:
        return self._decode(_decode_identity, response) if metadata_only else self._json(resource, response)

    async def _decode(self, decode: Callable[[bytes], D], response: Response) -> D:
        began = self._clock.monotonic()
        try:
            return await read(decode, response.body)
        except DecodeError as error:
            # A 2xx answer without JSON comes from something other than an API server, such as a login page.
            raise DecodeError("", f"{error.detail}: {response.body[:200]!r}") from error
        finally:
            self._metrics.decoded(self._clock.monotonic() - began)

    async def _decode_items(self, resource: Resource, page: Page, items: _Jsons, unreadable: _Errors) -> None:
        known = {"apiVersion": resource.api_version, "kind": resource.kind}
        decode, decoded = ObjectDecoder(resource, decode_complete, anonymous=True), 0
        known_bad = len(unreadable)
        for raw in page.items:
            try:
                items.append(known | decode(raw).raw)
            except DecodeError as error:
                unreadable.append(error)
            decoded += page.size // len(page.items)
            if decoded >= SLICE:
                decoded = 0
                await asyncio.sleep(0)
        if bad := unreadable[known_bad:]:
            log.warning("list items cannot be decoded", items=len(bad), error=str(bad[0]))

    def _write(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        *,
        metadata_only: bool = False,
    ) -> Request:
        query = {"fieldManager": self.field_manager, **(query or {})}
        return Request(method, path, query, _encode(body), content_type, METADATA_OBJECT if metadata_only else JSON)


def list_request(
    resource: Resource,
    namespace: str | None,
    query: Mapping[str, str],
    token: str = "",
    accept: str = JSON,
) -> Request:
    """The request for one page of a list. The continue token contains the resourceVersion."""
    asked = {**query, "continue": token} if token else query
    most = MAX_LIST if query.get("limit", "1") == "1" else MAX_PAGE
    return Request("GET", resource.path(namespace), asked, accept=accept, timeout=LIST_TIMEOUT, max_answer=most)
