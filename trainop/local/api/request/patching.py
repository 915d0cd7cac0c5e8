"""PATCH: selects the patch type by content type, applies the patch, and writes the result.

Source: apiserver `pkg/endpoints/handlers/patch.go`. The patch types themselves are in the package `fields`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from trainop.local.api import status_errors
from trainop.local.api.fields import server_side_apply
from trainop.local.api.fields.json_patch import (
    MalformedPatchError,
    PatchError,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.request import bodies, limits
from trainop.local.api.request.bodies import WriteOptions
from trainop.local.api.request.request_info import RequestInfo
from trainop.local.api.request.writes import Writer, WriteResult, deep_copy, with_type_meta
from trainop.local.api.schema.field_errors import from_message, invalid
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.runtime import Json
from trainop.runtime.lowlevel import Request

_MAX_OPERATIONS = 10_000
"""The maximum number of operations of a JSON patch."""
_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


class Patcher:
    """Patches objects; server-side apply also creates them."""

    def __init__(self, backend: Backend, writer: Writer) -> None:
        self._backend = backend
        self._writer = writer

    def patch(self, info: RequestInfo, request: Request) -> WriteResult:
        """Apply the patch and store the object; raises 404 if it is absent, except for server-side apply."""
        options = WriteOptions.parse(request, "PatchOptions")
        media = request.content_type.partition(";")[0].strip()
        if media.startswith(bodies.APPLY):
            return self._apply(info, request, options)
        if media not in {_JSON_PATCH, _MERGE_PATCH, _STRATEGIC_MERGE_PATCH}:
            raise status_errors.unsupported_media_type()
        if media == _STRATEGIC_MERGE_PATCH and not info.kind.strategic_merge:
            accepted = f"{_JSON_PATCH}, {_MERGE_PATCH}, application/apply-patch+yaml"
            message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
            raise StatusError(415, "UnsupportedMediaType", message)
        stored = self._backend.store.get(info.kind.table, info.key)
        if stored is None:
            _decode_json(request.body)  # what is not JSON is refused before the object is looked up
            raise info.not_found()
        value = apply_patch(info.kind, info.kind.read(stored), media, request.body)
        bodies.match_kind(value, info.kind)
        return self._writer.update(info, stored, self._check_patched(info, value, options), options)

    def _check_patched(self, info: RequestInfo, value: Json, options: WriteOptions) -> Json:
        """As `_check`, but strict decoding errors become the 422 of an invalid patch, as in kube-apiserver."""
        try:
            return self._check(info, value, options)
        except StatusError as error:
            _, found, detail = error.message.partition("strict decoding error: ")
            if not found:
                raise
            problem = invalid("patch", msgspec.json.encode(value).decode(), found + detail)
            message = f' "" is invalid: {problem}'
            raise StatusError(422, "Invalid", message, {"causes": [problem.cause]}) from error

    def _check(self, info: RequestInfo, value: Json, options: WriteOptions, *, keep_empty: bool = False) -> Json:
        value = with_type_meta(bodies.check_fields(value, info.kind, options, keep_empty=keep_empty), info.kind)
        bodies.match_name(value["metadata"], namespace=info.namespace or "", name=info.name, kind=info.kind)
        return value

    def _apply(self, info: RequestInfo, request: Request, options: WriteOptions) -> WriteResult:
        kind = info.kind
        if not request.query.get("fieldManager"):
            error = from_message("fieldManager", "FieldValueRequired", "Required value: is required for apply patch")
            raise status_errors.invalid("meta.k8s.io", "PatchOptions", "", [error])
        applied = _decode_applied(request.body)
        group_version, given = applied.get("apiVersion") or "/", applied.get("kind") or ""
        if (group_version, given) != (kind.resource.api_version, kind.resource.kind):
            raise bad_request(f"invalid object type: {group_version}, Kind={given}")
        _check_declared(applied, kind)
        applied = self._check(info, applied, options, keep_empty=True)
        stored = self._backend.store.get(kind.table, info.key)
        if stored is None and info.subresource:
            raise info.not_found()
        sent = applied["metadata"].pop("resourceVersion", "")
        value = self._server_side_apply(info, kind.read(stored) if stored else None, applied, options)
        if stored is None:
            return self._writer.create_value(info, value, options, applied=True)
        if sent:
            value["metadata"]["resourceVersion"] = sent
        return self._writer.update(info, stored, value, options, applied=True)

    def _server_side_apply(self, info: RequestInfo, current: Json | None, applied: Json, options: WriteOptions) -> Json:
        try:
            value = server_side_apply.apply(
                current,
                applied,
                manager=options.manager,
                force=options.force,
                shape=info.kind.shape,
                time=self._backend.now(),
                subresource=info.subresource,
                ignored=_ignored_fields(info, applied),
            )
        except server_side_apply.ApplyConflictError as conflict:
            raise StatusError(409, "Conflict", conflict.message, {"causes": conflict.causes}) from conflict
        except server_side_apply.InvalidApplyError as error:
            raise bad_request(str(error)) from error
        value = deep_copy(bodies.known_fields(value, info.kind)[0])
        value["metadata"].pop("resourceVersion", None)
        return value


def _ignored_fields(info: RequestInfo, applied: Json) -> list[str]:
    """Top-level fields that the endpoint does not write, so that the applier does not become their manager."""
    if info.subresource == "status":
        return [name for name in applied if name not in {"apiVersion", "kind", "metadata", "status"}]
    return ["status"] if info.kind.strategy.has_status else []


def _decode_applied(body: bytes) -> Json:
    try:
        applied = bodies.load_yaml(body)
    except yaml.YAMLError as error:
        # what begins as JSON gets to the decoder, which tries YAML too
        step = "decoding patch: error converting YAML to JSON" if body.lstrip().startswith(b"{") else "encoding patch"
        raise bad_request(f"error {step}: {error}") from error
    if not isinstance(applied, dict):
        detail = f"while decoding JSON: {_unmarshal_error(applied)} into Go value of type map[string]interface {{}}"
        raise bad_request(f"error decoding patch: error unmarshaling JSON: {detail}")
    return applied


def _check_declared(applied: Json, kind: Kind) -> None:
    """Raise 500, as kube-apiserver does, for a field that the schema does not declare."""
    _, unknown = bodies.known_fields(applied, kind)
    if unknown:
        meta, resource = applied.get("metadata") or {}, kind.resource
        group_version = resource.api_version if resource.group else f"/{resource.version}"
        of = f"{meta.get('namespace', '')}/{meta.get('name', '')}; {group_version}, Kind={resource.kind}"
        detail = f"failed to create typed patch object ({of}): .{unknown[0]}: field not declared in schema"
        raise StatusError(500, "", detail)


def apply_patch(kind: Kind, current: Json, media: str, body: bytes) -> Json:
    """A deep copy of `current` after the patch of type `media`; raises `StatusError` for an invalid patch."""
    patch = _decode_json(body)
    if limits.may_exceed_depth(body):
        limits.check_value(patch)
    try:
        if media == _JSON_PATCH:
            if not isinstance(patch, list):
                raise _decode_error(f"{_unmarshal_error(patch)} into Go value of type []handlers.jsonPatchOp")
            value = _apply_json_patch(current, patch)
        elif not isinstance(patch, dict):
            raise _decode_error(f"{_unmarshal_error(patch)} into Go value of type map[string]interface {{}}")
        elif media == _MERGE_PATCH:
            value = merge_patch(current, patch)
        else:
            value = strategic_merge_patch(current, patch, kind.shape)
    except MalformedPatchError as error:
        raise bad_request(str(error)) from error
    except PatchError as error:
        raise StatusError(
            422, "Invalid", "the server rejected our request due to an error in our request", {}
        ) from error
    if not isinstance(value, dict):
        raise bad_request("the patched value is not an object")
    return deep_copy(value)


def _apply_json_patch(current: Json, operations: list[Any]) -> Any:
    if len(operations) > _MAX_OPERATIONS:
        detail = f"The allowed maximum operations in a JSON patch is {_MAX_OPERATIONS}, got {len(operations)}"
        raise StatusError(413, "RequestEntityTooLarge", detail, {})
    value = json_patch(current, operations)
    limits.check_value(value)
    return value


def _decode_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise bad_request("invalid JSON patch") from error


def _decode_error(why: str) -> StatusError:
    return bad_request(f"error decoding patch: {why}")


def _unmarshal_error(value: Any) -> str:
    word = {list: "array", dict: "object", str: "string", bool: "bool"}.get(type(value), "number")
    return f"json: cannot unmarshal {word}"
