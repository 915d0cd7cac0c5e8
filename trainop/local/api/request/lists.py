"""LIST: options, resourceVersion semantics, selection, and pagination with continue tokens."""

from __future__ import annotations

import base64
import binascii
import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.request.selectors import SelectorError, field_selector, label_selector
from trainop.local.api.schema.field_errors import forbidden, not_supported
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.local.api.storage.versioned_store import Key, Store, Stored
from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldError

Filter = Callable[[Stored], bool]

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The query parameters of a list or watch (`metav1.ListOptions`); `match` is resourceVersionMatch."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_: str = ""
    resource_version: str = ""
    match: str = ""
    watch: bool = False
    bookmarks: bool = False
    send_initial_events: bool | None = None
    timeout_seconds: int | None = None

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> ListOptions:
        """The options in a query; raises 400 or 422 if they are invalid."""
        initial = query.get("sendInitialEvents")
        timeout = query.get("timeoutSeconds")
        options = cls(
            label_selector=query.get("labelSelector", ""),
            field_selector=query.get("fieldSelector", ""),
            limit=parse_int(query.get("limit") or "0"),
            continue_=query.get("continue", ""),
            resource_version=query.get("resourceVersion", ""),
            match=query.get("resourceVersionMatch", ""),
            watch=parse_bool(query.get("watch")),
            bookmarks=parse_bool(query.get("allowWatchBookmarks")),
            send_initial_events=parse_bool(initial) if initial else None,
            timeout_seconds=parse_int(timeout) if timeout else None,
        )
        if errors := options.validate():
            raise status_errors.invalid("meta.k8s.io", "ListOptions", "", errors)
        return options

    def validate(self) -> list[FieldError]:
        """Field errors of the combination (apimachinery `pkg/apis/meta/internalversion/validation`)."""
        errors = []
        if self.watch and self.send_initial_events is not None and self.match != "NotOlderThan":
            reason = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            return [forbidden("resourceVersionMatch", reason)]
        if self.watch and self.match and self.send_initial_events is None:
            return [
                forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                )
            ]
        if self.watch:
            return []
        if self.match:
            if not self.resource_version:
                errors.append(
                    forbidden(
                        "resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"
                    )
                )
            if self.continue_:
                errors.append(
                    forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided")
                )
            if self.match not in {"Exact", "NotOlderThan"}:
                errors.append(not_supported("resourceVersionMatch", self.match, ["Exact", "NotOlderThan", ""]))
            if self.match == "Exact" and self.resource_version == "0":
                errors.append(
                    forbidden(
                        "resourceVersionMatch", 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
                    )
                )
        if self.send_initial_events is not None:
            errors.append(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
        return errors


def parse_bool(text: str | None) -> bool:
    """A boolean query parameter, decoded as in Go: present, and not `0` or `false`."""
    return text is not None and text.lower() not in {"0", "false"}


def parse_int(text: str) -> int:
    """An integer query parameter; raises 400 with Go's message."""
    try:
        return int(text)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def parse_version(text: str) -> int:
    """A resourceVersion; 0 if empty; raises 400 for anything but a uint64."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit():
        message = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: {message}")
    if len(text) > 20:  # digits of the largest uint64
        message = f'resourceVersion: Invalid value: "{text[:40]}": strconv.ParseUint: value out of range'
        raise bad_request(f"invalid resource version: {message}")
    return int(text)


def select(kind: Kind, namespace: str | None, name: str | None, options: ListOptions) -> Filter:
    """The filter of a list or watch by namespace, name and selectors; raises 400 for an invalid selector."""
    resource = kind.resource
    try:
        labels = label_selector(options.label_selector) if options.label_selector else None
        fields = (
            field_selector(options.field_selector, group=resource.group, kind=resource.kind)
            if options.field_selector
            else None
        )
    except SelectorError as error:
        raise bad_request(str(error)) from error

    def selected(stored: Stored) -> bool:
        if namespace is not None and stored.key[0] != namespace:
            return False
        if name is not None and stored.key[1] != name:
            return False
        if labels is None and fields is None:
            return True
        value = kind.read(stored)
        return (labels is None or labels(value)) and (fields is None or fields(value))

    return selected


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, with its ListMeta."""

    items: list[Stored]
    metadata: Json


@dataclass(frozen=True, slots=True)
class _ContinueToken:
    """A continue token: list at `version` from key `start` on; version -1 means the current state."""

    version: int
    start: Key


def list_page(store: Store, kind: Kind, namespace: str | None, options: ListOptions, selected: Filter) -> Page:
    """One page of the selected objects. All pages show the state at the version of the first one (or raise 410)."""
    table = store.table(kind.table)
    version, start = _version_and_start(store, options)
    objects = table.objects if version == store.version else table.state_at(version)
    if objects is None:
        raise _expired(options, start, store.version)
    keys = table.keys(namespace) if objects is table.objects else _sorted_keys(objects, namespace)
    first = bisect.bisect_left(keys, start)
    items: list[Stored] = []
    for index in range(first, len(keys)):
        stored = objects[keys[index]]
        if not selected(stored):
            continue
        if options.limit and len(items) == options.limit:
            return Page(items, _continue_metadata(options, version, keys, index))
        items.append(stored)
    metadata: Json = {"continue": ""} if kind.custom else {}
    return Page(items, metadata | {"resourceVersion": str(version)})


def _version_and_start(store: Store, options: ListOptions) -> tuple[int, Key]:
    if options.continue_:
        if options.resource_version not in {"", "0"}:
            raise bad_request("specifying resource version is not allowed when using continue")
        token = _decode_token(options.continue_)
        return (store.version if token.version < 0 else token.version), token.start
    wanted = parse_version(options.resource_version)
    if wanted > store.version:
        raise status_errors.too_large(wanted, store.version)
    exact = options.match == "Exact" or (not options.match and options.limit and wanted)
    return (wanted if exact else store.version), ("", "")


def _sorted_keys(objects: Mapping[Key, Stored], namespace: str | None) -> list[Key]:
    return sorted(key for key in objects if namespace is None or key[0] == namespace)


def _continue_metadata(options: ListOptions, version: int, keys: list[Key], index: int) -> Json:
    metadata: Json = {"resourceVersion": str(version), "continue": _encode_token(_ContinueToken(version, keys[index]))}
    if not options.label_selector and not options.field_selector:
        metadata["remainingItemCount"] = len(keys) - index
    return metadata


def _expired(options: ListOptions, start: Key, now: int) -> StatusError:
    if not options.continue_:
        return status_errors.expired("The resourceVersion for the provided list is too old.")
    metadata = {"resourceVersion": str(now), "continue": _encode_token(_ContinueToken(-1, start))}
    return status_errors.expired(_TOO_OLD, metadata=metadata)


def _encode_token(token: _ContinueToken) -> str:
    value = {"v": "meta.k8s.io/v1", "rv": token.version, "start": "/".join(token.start)}
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


def _decode_token(text: str) -> _ContinueToken:
    try:
        value = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=dict)
        namespace, _, name = value["start"].partition("/")
        return _ContinueToken(int(value["rv"]), (namespace, name))
    except (binascii.Error, msgspec.MsgspecError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from error
