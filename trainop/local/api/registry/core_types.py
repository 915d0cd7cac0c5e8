"""The types of the built-in kinds: decoding with the strictness and messages of Go's decoder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from trainop.local.api.registry.messages import omitted_when_empty
from trainop.runtime import Json
from trainop.runtime.lowlevel import (
    SCHEMA_PREFIX,
    canonical_quantity,
    core_schemas,
    micro_timestamp,
    parse_quantity,
    parse_timestamp,
    timestamp,
)

_UNTYPED_SUFFIXES = ("JSONSchemaProps", "FieldsV1", "RawExtension", ".JSON", "OrArray", "OrBool")
_MICROSECONDS = re.compile(r"\.\d{6}(?!\d)")
_SCALARS = {"integer": int, "number": float, "boolean": bool, "string": str}
_GO_TYPES = {"number": "float64", "boolean": "bool", "string": "string"}
_JSON_TYPE_WORDS: Mapping[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
}


class MistypedError(ValueError):
    """A value does not have the type of its field; the message is that of Go's decoder."""


@dataclass(slots=True)
class Type:
    """The type of a field or element; `go` is its Go name in error messages, `form` selects the decoding."""

    go: str
    form: str
    fields: dict[str, Type] = field(default_factory=dict)
    omitted: frozenset[str] = frozenset()
    """The fields of a struct that are left out when they have the zero value."""
    element: Type | None = None
    python_type: type | None = None
    """Values of this Python type need no conversion."""


@cache
def definition_of(group: str, version: str, kind: str) -> str:
    """The name of the OpenAPI definition of a kind; empty if there is none."""
    for name, schema in core_schemas().items():
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            if (gvk["group"], gvk["version"], gvk["kind"]) == (group, version, kind):
                return name
    return ""


def decode(definition: str, value: Json, *, keep_empty: bool = False) -> tuple[Json, list[str]]:
    """The object with only the fields of its type, and the paths of unknown fields.

    Drops nulls, and unless `keep_empty` what encoding with `omitempty` drops: empty lists and maps, and the zero values
    of fields that are no pointers. Quantities become canonical. The result shares no containers with the argument
    except in untyped fields. Raises `MistypedError`.
    """
    unknown: list[str] = []
    decoded: Json = _Decoder(unknown, keep_empty=keep_empty).struct(_type(definition), value, "", "")
    return decoded, unknown


@cache
def _type(definition: str) -> Type:
    """The type of a definition. Its fields are added after it is created, because types may be recursive."""
    schema = core_schemas()[definition]
    made = Type(".".join(definition.split(".")[-2:]), _form(definition, schema))
    if made.form == "struct":
        made.fields = {name: _of_schema(part) for name, part in schema["properties"].items()}
        made.omitted = omitted_when_empty(message_of(definition))
    return made


def message_of(definition: str) -> str:
    """The name of a definition's type in `messages`."""
    *_, group, version, name = definition.split(".")
    return f"{group}{version if (group, version) == ('autoscaling', 'v1') else ''}.{name}"


def _form(definition: str, schema: Json) -> str:
    if definition.endswith("Quantity"):
        return "quantity"
    if definition.endswith(".IntOrString"):
        return "int-or-string"
    if definition.endswith((".Time", ".MicroTime")):
        return "time"
    return "struct" if "properties" in schema and not definition.endswith(_UNTYPED_SUFFIXES) else "any"


def _of_schema(schema: Json) -> Type:
    if "$ref" in schema:
        return _type(schema["$ref"].removeprefix(SCHEMA_PREFIX))
    match schema.get("type"):
        case "array":
            element = _of_schema(schema["items"])
            return Type(f"[]{element.go}", "list", element=element)
        case "object" if "additionalProperties" in schema:
            element = _of_schema(schema["additionalProperties"])
            return Type(f"map[string]{element.go}", "map", element=element)
        case "integer":
            return Type(schema.get("format", "int64"), "integer", python_type=int)
        case "number" | "boolean" | "string" as form:
            return Type(_GO_TYPES[form], form, python_type=_SCALARS[form])
    return Type("interface {}", "any")


class _Decoder:
    """Decodes a value by its type. `path` is the field path of Go's messages, `place` has list indices too."""

    def __init__(self, unknown: list[str], *, keep_empty: bool) -> None:
        self._unknown = unknown
        self._keep_empty = keep_empty

    def struct(self, kind: Type, value: Json, path: str, place: str) -> Json:
        decoded: Json = {}
        owner = kind.go.rpartition(".")[2]
        for name, part in value.items():
            held = kind.fields.get(name)
            if held is None:
                self._unknown.append(place + name)
            elif not part and name in kind.omitted and not self._keep_empty and part is not None:
                self._any(held, part, owner, path + name, place + name)  # for its type
            elif type(part) is held.python_type:
                decoded[name] = part
            elif part is not None and (part or self._keep_empty or held.form not in {"list", "map"}):
                decoded[name] = self._any(held, part, owner, path + name, place + name)
        return decoded

    def _any(self, kind: Type, value: Any, owner: str, path: str, place: str) -> Any:
        match kind.form:
            case "any":
                return value
            case "struct":
                self._expect(isinstance(value, dict), kind, value, owner, path)
                return self.struct(kind, value, f"{path}.", f"{place}.")
            case "list" | "map":
                return self._members(kind, value, owner, path, place)
        return self._scalar(kind, value, owner, path)

    def _members(self, kind: Type, value: Any, owner: str, path: str, place: str) -> Any:
        if kind.form == "list":
            self._expect(isinstance(value, list), kind, value, owner, path)
            if _need_no_conversion(kind, value):
                return value.copy()
            return [self._element(kind, item, owner, path, f"{place}[{index}]") for index, item in enumerate(value)]
        self._expect(isinstance(value, dict), kind, value, owner, path)
        if _need_no_conversion(kind, value.values()):
            return value.copy()
        return {name: self._element(kind, item, owner, path, f"{place}.{name}") for name, item in value.items()}

    def _element(self, kind: Type, value: Any, owner: str, path: str, place: str) -> Any:
        assert kind.element is not None  # noqa: S101 - lists and maps have one
        if value is None:
            return {"struct": {}, "string": "", "list": [], "map": {}}.get(kind.element.form)
        return self._any(kind.element, value, owner, path, place)

    def _scalar(self, kind: Type, value: Any, owner: str, path: str) -> Any:
        match kind.form:
            case "quantity":
                return self._quantity(kind, value, owner, path)
            case "time":
                return self._time(kind, value, owner, path)
            case "int-or-string":
                self._expect(isinstance(value, str) or _is_integer(value), kind, value, owner, path)
                return value
            case "integer":
                self._expect(_is_integer(value), kind, value, owner, path)
                return int(value)
            case "number":
                self._expect(isinstance(value, int | float) and not isinstance(value, bool), kind, value, owner, path)
                return value
        self._expect(isinstance(value, _SCALARS[kind.form]), kind, value, owner, path)
        return value

    def _quantity(self, kind: Type, value: Any, owner: str, path: str) -> str:
        self._expect(isinstance(value, str | int | float), kind, value, owner, path)
        try:
            parse_quantity(str(value))
        except ValueError as error:
            raise MistypedError(str(error)) from error
        return canonical_quantity(str(value))

    def _time(self, kind: Type, value: Any, owner: str, path: str) -> str:
        """In UTC with seconds; a `MicroTime` has microseconds, and its input must have six fractional digits."""
        self._expect(isinstance(value, str), kind, value, owner, path)
        micro = kind.go.endswith(".MicroTime")
        layout = f"2006-01-02T15:04:05{'.000000' if micro else ''}Z07:00"
        try:
            at = parse_timestamp(value)
        except ValueError as error:
            raise MistypedError(_time_parse_error(value, layout, value, layout[:4])) from error
        fraction = value[19:]
        if micro and not _MICROSECONDS.match(fraction):
            raise MistypedError(_time_parse_error(value, layout, fraction, ".000000"))
        return micro_timestamp(at) if micro else timestamp(at)

    def _expect(self, fits: bool, kind: Type, value: Any, owner: str, path: str) -> None:
        if not fits:
            word = _JSON_TYPE_WORDS.get(type(value), "null")
            raise MistypedError(f"json: cannot unmarshal {word} into Go struct field {owner}.{path} of type {kind.go}")


def _need_no_conversion(kind: Type, values: Iterable[Any]) -> bool:
    python_type = kind.element.python_type if kind.element else None
    return python_type is not None and all(type(value) is python_type for value in values)


def _time_parse_error(value: str, layout: str, part: str, like: str) -> str:
    """The error of Go's `time.Parse`."""
    return f'parsing time "{value}" as "{layout}": cannot parse "{part}" as "{like}"'


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
