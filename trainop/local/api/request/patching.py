"""PATCH: from the body and its content type to the next version of the object."""

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
from trainop.local.api.request import bodies, bounds
from trainop.local.api.request.bodies import WriteOptions
from trainop.local.api.request.route import Route
from trainop.local.api.request.writes import Writer, Written, copy, headed
from trainop.local.api.schema.field_errors import FieldError, invalid
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.runtime.client.transport import Request
from trainop.runtime.objects.metadata import Json

_OPERATIONS = 10_000
"""Of a JSON patch, as in the API server."""
_JSON = "application/json-patch+json"
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"


class Patcher:
    """Patches objects, and creates them where server-side apply names what is not there yet."""

    def __init__(self, backend: Backend, writer: Writer) -> None:
        self._backend = backend
        self._writer = writer

    def patch(self, route: Route, request: Request) -> Written:
        """The object after the patch; 404 if it is absent, unless applied."""
        options = WriteOptions.parse(request, "PatchOptions")
        media = request.content_type.partition(";")[0].strip()
        if media.startswith(bodies.APPLY):
            return self._apply(route, request, options)
        if media not in {_JSON, _MERGE, _STRATEGIC}:
            raise status_errors.unsupported_media_type()
        if media == _STRATEGIC and not route.kind.strategic_merge:
            accepted = f"{_JSON}, {_MERGE}, application/apply-patch+yaml"
            message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
            raise StatusError(415, "UnsupportedMediaType", message)
        stored = self._backend.store.get(route.kind.table, route.key)
        if stored is None:
            raise route.not_found()
        value = patched(route.kind, route.kind.read(stored), media, request.body)
        bodies.match_kind(value, route.kind)
        return self._writer.change(route, stored, self._strictly(route, value, options), options)

    def _strictly(self, route: Route, value: Json, options: WriteOptions) -> Json:
        """As `_checked`; of a patch the API server says that the patch is wrong, not the object."""
        try:
            return self._checked(route, value, options)
        except StatusError as error:
            _, found, said = error.message.partition("strict decoding error: ")
            if not found:
                raise
            problem = invalid("patch", msgspec.json.encode(value).decode(), found + said)
            message = f' "" is invalid: {problem}'
            raise StatusError(422, "Invalid", message, {"causes": [problem.cause]}) from error

    def _checked(self, route: Route, value: Json, options: WriteOptions, *, keep_empty: bool = False) -> Json:
        value = headed(bodies.check_fields(value, route.kind, options, keep_empty=keep_empty), route.kind)
        bodies.match_name(value["metadata"], namespace=route.namespace or "", name=route.name, kind=route.kind)
        return value

    def _apply(self, route: Route, request: Request, options: WriteOptions) -> Written:
        kind = route.kind
        if not request.query.get("fieldManager"):
            wrong = FieldError("fieldManager", "FieldValueRequired", "Required value: is required for apply patch")
            raise status_errors.invalid("meta.k8s.io", "PatchOptions", "", [wrong])
        applied = _decode_applied(request.body)
        group_version, given = applied.get("apiVersion") or "/", applied.get("kind") or ""
        if (group_version, given) != (kind.resource.api_version, kind.resource.kind):
            raise bad_request(f"invalid object type: {group_version}, Kind={given}")
        _check_declared(applied, kind)
        applied = self._checked(route, applied, options, keep_empty=True)
        stored = self._backend.store.get(kind.table, route.key)
        if stored is None and route.subresource:
            raise route.not_found()
        sent = applied["metadata"].pop("resourceVersion", "")
        value = self._merged(route, kind.read(stored) if stored else None, applied, options)
        if stored is None:
            return self._writer.create_value(route, value, options, applied=True)
        if sent:
            value["metadata"]["resourceVersion"] = sent
        return self._writer.change(route, stored, value, options, applied=True)

    def _merged(self, route: Route, current: Json | None, applied: Json, options: WriteOptions) -> Json:
        try:
            value = server_side_apply.apply(
                current,
                applied,
                manager=options.manager,
                force=options.force,
                shape=route.kind.shape,
                time=self._backend.now(),
                subresource=route.subresource,
                ignored=_unwritten(route, applied),
            )
        except server_side_apply.ApplyConflictError as conflict:
            raise StatusError(409, "Conflict", conflict.message, {"causes": conflict.causes}) from conflict
        except server_side_apply.InvalidApplyError as error:
            raise bad_request(str(error)) from error
        value = copy(bodies.known_fields(value, route.kind)[0])
        value["metadata"].pop("resourceVersion", None)
        return value


def _unwritten(route: Route, applied: Json) -> list[str]:
    """The fields that this endpoint does not write, so that who applies them there does not own them."""
    if route.subresource == "status":
        return [name for name in applied if name not in {"apiVersion", "kind", "metadata", "status"}]
    return ["status"] if route.kind.strategy.status else []


def _decode_applied(body: bytes) -> Json:
    try:
        applied = bodies.load_yaml(body)
    except yaml.YAMLError as error:
        raise bad_request(f"error decoding YAML: error converting YAML to JSON: {error}") from error
    if not isinstance(applied, dict):
        said = f"while decoding JSON: {_word(applied)} into Go value of type map[string]interface {{}}"
        raise bad_request(f"error decoding YAML: error unmarshaling JSON: {said}")
    return applied


def _check_declared(applied: Json, kind: Kind) -> None:
    """Fields that the schema does not know cannot be owned."""
    _, unknown = bodies.known_fields(applied, kind)
    if unknown:
        meta, resource = applied.get("metadata") or {}, kind.resource
        group_version = resource.api_version if resource.group else f"/{resource.version}"
        of = f"{meta.get('namespace', '')}/{meta.get('name', '')}; {group_version}, Kind={resource.kind}"
        said = f"failed to create typed patch object ({of}): .{unknown[0]}: field not declared in schema"
        raise StatusError(500, "", said)


def patched(kind: Kind, current: Json, media: str, body: bytes) -> Json:
    """A fresh object: `current` after the patch; raises what the API server answers to a bad one."""
    try:
        patch: Any = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise _undecodable(bodies.go_error(body, str(error))) from error
    if bounds.may_be_deep(body):
        bounds.check_value(patch)
    try:
        if media == _JSON:
            if not isinstance(patch, list):
                raise _undecodable(f"{_word(patch)} into Go value of type []handlers.jsonPatchOp")
            value = _operated(current, patch)
        elif not isinstance(patch, dict):
            raise _undecodable(f"{_word(patch)} into Go value of type map[string]interface {{}}")
        elif media == _MERGE:
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
    return copy(value)


def _operated(current: Json, operations: list[Any]) -> Any:
    if len(operations) > _OPERATIONS:
        said = f"The allowed maximum operations in a JSON patch is {_OPERATIONS}, got {len(operations)}"
        raise StatusError(413, "RequestEntityTooLarge", said, {})
    value = json_patch(current, operations)
    bounds.check_value(value)
    return value


def _undecodable(why: str) -> StatusError:
    return bad_request(f"error decoding patch: {why}")


def _word(value: Any) -> str:
    word = {list: "array", dict: "object", str: "string", bool: "bool"}.get(type(value), "number")
    return f"json: cannot unmarshal {word}"
