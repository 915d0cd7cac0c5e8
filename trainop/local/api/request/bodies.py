"""Request bodies and options of writes: decoding, checks against the URL, and field validation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import yaml

from trainop.local.api import status_errors
from trainop.local.api.registry import core_types
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.request import limits, protobuf
from trainop.local.api.schema.field_errors import forbidden, invalid, not_supported
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldError, Request

APPLY = "application/apply-patch"
_OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The query parameters of a write; `warnings` collects the texts of the `Warning` headers."""

    dry_run: bool
    manager: str
    validation: str
    force: bool
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, request: Request, options_kind: str) -> WriteOptions:
        """Raises the 422 of invalid options; `options_kind` is CreateOptions, UpdateOptions or PatchOptions."""
        query = request.query
        found: list[FieldError] = []
        if (dry_run := query.get("dryRun", "")) not in {"", "All"}:
            found.append(not_supported("dryRun", [dry_run], ["All"]))
        media = request.content_type.partition(";")[0].strip()
        if query.get("force") and options_kind == "PatchOptions" and not media.startswith(APPLY):
            found.append(forbidden("force", "may not be specified for non-apply patch"))
        if (validation := query.get("fieldValidation", "")) not in {"", "Ignore", "Strict", "Warn"}:
            found.append(not_supported("fieldValidation", validation, ["", "Ignore", "Strict", "Warn"]))
        if found:
            raise status_errors.invalid("meta.k8s.io", options_kind, "", found)
        manager = query.get("fieldManager") or user_agent(request.headers).partition("/")[0]
        return cls(
            dry_run=dry_run == "All",
            manager=manager or "unknown",
            validation=validation or "Warn",
            force=query.get("force") in {"1", "true"},
        )


def user_agent(headers: Mapping[str, str]) -> str:
    """The User-Agent header; empty if it is missing."""
    return next((value for name, value in headers.items() if name.lower() == "user-agent"), "")


def decode(request: Request, expected: str) -> Json:
    """The object in a JSON, YAML or protobuf body; raises 400 or 415. `what` is the expected kind, for messages."""
    media = request.content_type.partition(";")[0].strip()
    if media == "application/yaml":
        try:
            value = load_yaml(request.body)
        except yaml.YAMLError as error:
            raise _unrecognized(expected, f"error converting YAML to JSON: {error}", request.body) from error
    elif media == protobuf.MEDIA_TYPE:
        value = _load_protobuf(request.body, expected)
    elif media in {"application/json", ""}:
        value = load_json(request.body, expected)
    else:
        accepted = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
        message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
        raise StatusError(415, "UnsupportedMediaType", message)
    if not isinstance(value, dict):
        word = {list: "array", str: "string", bool: "bool"}.get(type(value), "number")
        target = r'struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }'
        raise _unrecognized(expected, f"json: cannot unmarshal {word} into Go value of type {target}", request.body)
    if limits.may_exceed_depth(request.body):
        limits.check_value(value)
    return value


def decode_review(request: Request, kind: str, type_: type[T]) -> T:
    """The body of a request for a token or a review as `type_`; unknown fields are ignored. Raises 400 or 415."""
    value = decode(request, kind)
    given = value.get("kind") or kind
    if given != kind:
        raise bad_request(
            f'{given} in version "v1" cannot be handled as a {kind}: converting (v1.{given}) to '
            f"(authentication.{kind}): unknown conversion"
        )
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {error}') from error


def _load_protobuf(body: bytes, expected: str) -> Json:
    try:
        return protobuf.decode_protobuf(body)
    except protobuf.MalformedProtobufError as error:
        raise bad_request(f"the object provided is unrecognized (must be of type {expected}): {error}") from error
    except protobuf.UnknownKindError as error:
        message = f"{error} is not read in protobuf by this server: send it as application/json"
        raise StatusError(415, "UnsupportedMediaType", message) from error


def load_json(body: bytes, expected: str) -> Any:
    """The value of a JSON body; raises 400 with the message of Go's decoder."""
    if not body:
        raise _unrecognized(expected, "unexpected end of JSON input", body)
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise _unrecognized(expected, go_decode_error(body, str(error)), body) from error


def go_decode_error(body: bytes, fallback: str) -> str:
    """The error of Go's JSON decoder for an invalid body; `fallback` is that of msgspec."""
    first = body.lstrip()[:1]
    if first and first not in b'{["-0123456789tfn':
        return f"invalid character '{first.decode(errors='replace')}' looking for beginning of value"
    return "unexpected end of JSON input" if "truncated" in fallback else fallback


class _JsonYaml(yaml.SafeLoader):
    """YAML with the scalar types of JSON: dates stay strings."""


_JsonYaml.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(body: bytes) -> Any:
    """The value; raises `yaml.YAMLError`. Tries JSON first, because most clients send JSON, and it is far faster."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError):
        value = yaml.load(body, Loader=_JsonYaml)  # noqa: S506 - a subclass of SafeLoader
    limits.check_value(value)
    return value


def _unrecognized(expected: str, why: str, body: bytes) -> StatusError:
    shown = body.decode(errors="replace") if body.startswith(b"{") else body.hex() or "<empty>"
    return bad_request(
        f"the object provided is unrecognized (must be of type {expected}): couldn't get version/kind; "
        f"json parse error: {why} ({shown[:128]})"
    )


def duplicate_fields(body: bytes) -> list[str]:
    """Duplicate members of a JSON body, in the messages of strict decoding."""
    found: list[str] = []

    def walk(value: Any, place: str) -> None:
        if isinstance(value, _ObjectPairs):
            seen: set[str] = set()
            for name, part in value:
                here = f"{place}.{name}" if place else name
                if name in seen:
                    found.append(f'duplicate field "{here}"')
                seen.add(name)
                walk(part, here)
        elif isinstance(value, list):
            for index, part in enumerate(value):
                walk(part, f"{place}[{index}]")

    walk(json.loads(body, object_pairs_hook=_ObjectPairs), "")
    return found


class _ObjectPairs(tuple[tuple[str, Any], ...]):
    """A JSON object as pairs, so that duplicate members are preserved."""

    __slots__ = ()


def match_kind(value: Json, kind: Kind) -> None:
    """Raise 400 unless apiVersion and kind match the URL; built-in kinds may omit them."""
    resource = kind.resource
    if kind.custom:
        _match_custom(value, kind)
        return
    given_kind, given_version = value.get("kind") or resource.kind, value.get("apiVersion") or resource.api_version
    if (given_kind, given_version) == (resource.kind, resource.api_version):
        return
    group, _, version = given_version.rpartition("/")
    why = f'no kind "{given_kind}" is registered for version "{given_version}" in scheme "pkg/runtime/scheme.go:110"'
    if core_types.definition_of(group, version, given_kind):
        inside = (resource.group or "core").partition(".")[0]
        why = f"converting ({version}.{given_kind}) to ({inside}.{resource.kind}): unknown conversion"
    raise bad_request(f'{given_kind} in version "{version}" cannot be handled as a {resource.kind}: {why}')


def _match_custom(value: Json, kind: Kind) -> None:
    """Custom resources must specify apiVersion and kind."""
    resource = kind.resource
    given_kind, given_version = value.get("kind") or "", value.get("apiVersion") or ""
    if not given_kind:
        shown = msgspec.json.encode(value).decode()
        raise bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): "
            f"Object 'Kind' is missing in '{shown}' ({shown[:32]} ...)"
        )
    if given_version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({given_version}) does not match the expected API version "
            f"({resource.api_version})"
        )
    if given_kind != resource.kind:
        name = (value.get("metadata") or {}).get("name", "")
        raise status_errors.invalid(
            resource.group, given_kind, name, [invalid("kind", given_kind, f"must be {resource.kind}")]
        )


def match_name(metadata: Json, *, namespace: str, name: str, kind: Kind) -> None:
    """Raise 400 unless name and namespace match the URL; sets them in `metadata` if they are missing."""
    if name and metadata.setdefault("name", name) != name:
        raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
    if not kind.resource.namespaced:
        return
    if (metadata.get("namespace") or namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    metadata["namespace"] = namespace


def check_fields(value: Json, kind: Kind, options: WriteOptions, raw: bytes = b"", *, keep_empty: bool = False) -> Json:
    """The object without unknown fields, which raise 400, add a warning or are ignored (`fieldValidation`)."""
    problems = duplicate_fields(raw) if raw[:1] == b"{" and options.validation == "Strict" else []
    value, unknown = known_fields(value, kind, keep_empty=keep_empty)
    problems += [f'unknown field "{path}"' for path in unknown]
    if not problems or options.validation == "Ignore":
        return value
    if options.validation == "Warn":
        options.warnings.extend(problems)
        return value
    raise bad_request(_cannot_be_handled(kind, f"strict decoding error: {', '.join(problems)}"))


def known_fields(value: Json, kind: Kind, *, keep_empty: bool = False) -> tuple[Json, list[str]]:
    """The object without unknown fields, and the paths of these; raises 400 for a field of the wrong type."""
    if not kind.custom and not kind.type_name:
        return value, []
    try:
        if kind.schema is not None:
            pruned, unknown = kind.schema.prune(value)
            metadata, unknown_metadata = core_types.decode(_OBJECT_META, pruned.get("metadata") or {})
            return {**pruned, "metadata": metadata}, [*(f"metadata.{name}" for name in unknown_metadata), *unknown]
        return core_types.decode(kind.type_name, value, keep_empty=keep_empty)
    except core_types.MistypedError as error:
        raise bad_request(_cannot_be_handled(kind, str(error))) from error


def _cannot_be_handled(kind: Kind, why: str) -> str:
    resource = kind.resource
    return f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}'
