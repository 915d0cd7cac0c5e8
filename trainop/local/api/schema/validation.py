"""Validation against a structural schema, with the messages of kube-openapi and apiextensions-apiserver.

Three passes: schema keywords (with ratcheting), uniqueness of items in lists of type set or map, and CEL rules. Rules
are skipped if an earlier error makes the types of the values unreliable.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from trainop.local.api.schema.cel import Rule, RuleError
from trainop.local.api.schema.field_errors import from_message
from trainop.local.api.schema.structural import ABSENT, Structural
from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldError, read_time

_SKIPS_RULES = frozenset(
    {"FieldValueRequired", "FieldValueTypeInvalid", "FieldValueTooLong", "FieldValueTooMany", "FieldValueNotSupported"}
)
"""Errors after which CEL rules are not evaluated, because the values may not have the types of the schema."""
_RULES_NOT_CHECKED = from_message(
    "<nil>",
    "FieldValueInvalid",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)


def validate(root: Structural, value: Json, old: Json | None) -> list[FieldError]:
    """The field errors of the object; parts that equal those of `old` are not validated again (ratcheting)."""
    before = ABSENT if old is None else old
    errors = [*_validate(root, value, before, ""), *_duplicates(root, value, "")]
    if not root.has_rules:
        return errors
    if any(error.reason in _SKIPS_RULES for error in errors):
        return [*errors, _RULES_NOT_CHECKED]
    return [*errors, *_evaluate_rules(root, value, before, "")]


# Schema keywords ------------------------------------------------------------------------------------------------------


def _validate(node: Structural, value: Any, old: Any, path: str) -> Iterator[FieldError]:
    """Errors of the value and its descendants; an unchanged value has none (ratcheting)."""
    if old is not ABSENT and value == old:
        return
    if value is None and (node.nullable or not node.types):
        return
    if node.constrains_values or not _type_matches(node, value):
        yield from _check_type(node, value, path)
        yield from _check_range(node, value, path)
    if isinstance(value, dict):
        yield from _check_map(node, value, old, path)
    elif isinstance(value, list):
        yield from _check_list(node, value, old, path)
    if node.constrains_values:
        yield from _check_value(node.keywords, value, path)


def _check_value(keywords: Json, value: Any, path: str) -> Iterator[FieldError]:
    """Errors of the keywords that constrain the value itself."""
    yield from _check_enum(keywords, value, path)
    if isinstance(value, str):
        yield from _check_text(keywords, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_number(keywords, value, path)
    yield from _check_logical_junctors(keywords, value, path)


def _invalid(path: str, value: Any, detail: str) -> FieldError:
    shown = msgspec.json.encode(value).decode()
    return from_message(path or "<nil>", "FieldValueInvalid", f"Invalid value: {shown}: {path} in body {detail}")


def type_of(value: Any) -> str:
    """The JSON type; an integer outside of int64 is a number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "integer" if -(2**63) <= value < 2**63 and value == int(value) else "number"
    return _TYPE_NAMES[type(value)]


_TYPE_NAMES = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}


def _type_matches(node: Structural, value: Any) -> bool:
    found, wanted = type_of(value), node.types
    return not wanted or found in wanted or (found == "integer" and "number" in wanted)


def _check_type(node: Structural, value: Any, path: str) -> Iterator[FieldError]:
    found, wanted, matches = type_of(value), node.types, _type_matches(node, value)
    if matches and isinstance(value, str):
        checks = _FORMATS.get(node.keywords.get("format", ""))
        if checks is None or checks(value):
            return
        wanted, found = (node.keywords["format"],), value
    elif matches:
        return
    elif _number_format(node) and not isinstance(value, str | list) and value is not None:
        wanted, found = (_number_format(node),), "float64" if found == "number" else ""
    shown = msgspec.json.encode(found).decode()
    message = f"Invalid value: {shown}: {path} in body must be of type {','.join(wanted)}: {shown}"
    yield from_message(path or "<nil>", "FieldValueTypeInvalid", message)


def _check_range(node: Structural, value: Any, path: str) -> Iterator[FieldError]:
    """Numbers beyond the type and format of the schema, as Kubernetes 1.36 and later refuse them."""
    if not isinstance(value, int | float) or isinstance(value, bool) or len(node.types) != 1:
        return
    declared = _number_format(node)
    if node.types[0] == "integer":
        bits = 31 if declared == "int32" else 63
        fits = value == value // 1 and -(2**bits) <= value < 2**bits
    else:
        fits = node.types[0] != "number" or declared != "float" or abs(value) <= MAX_FLOAT32
    if not fits:
        shown = f"with format {declared}" if declared else "(default format)"
        message = f'Invalid value: "": Checked value must be of type {node.types[0]} {shown} in {path}'
        yield from_message("<nil>", "FieldValueInvalid", message)


def _number_format(node: Structural) -> str:
    """The format of a node whose only type is a numeric one; empty if it has none that is known."""
    declared = str(node.keywords.get("format", ""))
    known = _NUMBER_FORMATS.get(node.types[0], ()) if len(node.types) == 1 else ()
    return declared if declared in known else ""


_NUMBER_FORMATS = {"integer": ("int32", "int64"), "number": ("float", "double")}
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
"""The largest value of a float of 32 bits."""


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        return False
    return True


_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": lambda text: read_time(text, strict=True) is not None,
    "date": lambda text: re.fullmatch(r"\d{4}-\d\d-\d\d", text) is not None,
    "byte": _is_base64,
}


def _check_enum(keywords: Json, value: Any, path: str) -> Iterator[FieldError]:
    choices = keywords.get("enum")
    if not choices or value in choices:
        return
    shown = msgspec.json.encode(value).decode()
    supported = ", ".join(
        msgspec.json.encode(choice if isinstance(choice, str) else str(choice)).decode() for choice in choices
    )
    message = f"Unsupported value: {shown}: supported values: {supported}"
    yield from_message(path or "<nil>", "FieldValueNotSupported", message)


def _check_map(node: Structural, value: Json, old: Any, path: str) -> Iterator[FieldError]:
    if node.constrains_values:
        yield from _check_property_count(node.keywords, value, path)
    required = node.keywords.get("required") or ()
    for name in dict.fromkeys([*required, *(("apiVersion", "kind") if node.embedded_resource else ())]):
        if name not in value:
            yield from_message(_join(path, name), "FieldValueRequired", "Required value")
    for name, member in value.items():
        inner = node.member(name)
        if inner:
            yield from _validate(inner, member, _old_member(old, name), _join(path, name))


def _check_property_count(keywords: Json, value: Json, path: str) -> Iterator[FieldError]:
    least, most = keywords.get("minProperties"), keywords.get("maxProperties")
    if least is not None and len(value) < least:
        yield _invalid(path, len(value), f"should have at least {least} properties")
    if most is not None and len(value) > most:
        yield _too_many(path, len(value), most)


def _check_list(node: Structural, value: list[Any], old: Any, path: str) -> Iterator[FieldError]:
    if node.items:
        for index, item in enumerate(value):
            yield from _validate(node.items, item, _old_item(node, old, item), f"{path}[{index}]")
    least, most = node.keywords.get("minItems"), node.keywords.get("maxItems")
    if least is not None and len(value) < least:
        yield _invalid(path, len(value), f"should have at least {least} items")
    if most is not None and len(value) > most:
        yield _too_many(path, len(value), most)


def _too_many(path: str, count: int, most: int) -> FieldError:
    return from_message(path, "FieldValueTooMany", f"Too many: {count}: must have at most {most} items")


def _check_text(keywords: Json, value: str, path: str) -> Iterator[FieldError]:
    least, most, pattern = keywords.get("minLength"), keywords.get("maxLength"), keywords.get("pattern")
    if most is not None and len(value) > most:
        yield from_message(path, "FieldValueTooLong", f"Too long: may not be more than {most} bytes")
    if least is not None and len(value) < least:
        yield _invalid(path, value, f"should be at least {least} chars long")
    if pattern and not re.search(pattern, value):
        yield _invalid(path, value, f"should match '{pattern}'")


def _check_number(keywords: Json, value: float, path: str) -> Iterator[FieldError]:
    least, most, factor = keywords.get("minimum"), keywords.get("maximum"), keywords.get("multipleOf")
    if most is not None and keywords.get("exclusiveMaximum") and value >= most:
        yield _invalid(path, value, f"should be less than {most}")
    elif most is not None and value > most:
        yield _invalid(path, value, f"should be less than or equal to {most}")
    if least is not None and keywords.get("exclusiveMinimum") and value <= least:
        yield _invalid(path, value, f"should be greater than {least}")
    elif least is not None and value < least:
        yield _invalid(path, value, f"should be greater than or equal to {least}")
    if factor and not float(value / factor).is_integer():
        yield _invalid(path, value, f"should be a multiple of {factor}")


def _check_logical_junctors(keywords: Json, value: Any, path: str) -> Iterator[FieldError]:
    """`allOf`, `anyOf`, `oneOf` and `not`; a failure includes the errors of the alternative with the fewest errors."""

    def errors_of(name: str) -> list[list[FieldError]]:
        return [list(_validate(_value_schema(part), value, ABSENT, path)) for part in keywords.get(name) or ()]

    every, some, one = errors_of("allOf"), errors_of("anyOf"), errors_of("oneOf")
    if any(every):
        yield from (error for errors in every for error in errors)
        none = "" if any(not errors for errors in every) else ". None validated"
        yield _combination_error(path, f"must validate all the schemas (allOf){none}")
    if some and all(some):
        yield _combination_error(path, "must validate at least one schema (anyOf)")
        yield from min(some, key=len)
    matched = sum(not errors for errors in one)
    if one and matched != 1:
        count = f"Found {matched} valid alternatives" if matched else "Found none valid"
        yield _combination_error(path, f"must validate one and only one schema (oneOf). {count}")
        yield from min(one, key=len) if not matched else ()
    if "not" in keywords and not any(_validate(_value_schema(keywords["not"]), value, ABSENT, path)):
        yield _combination_error(path, "must not validate the schema (not)")


def _combination_error(path: str, detail: str) -> FieldError:
    return from_message("<nil>", "FieldValueInvalid", f'Invalid value: "": "{path}" {detail}')


def _value_schema(schema: Json) -> Structural:
    """The node of a schema below `allOf` and the like, which may constrain values but not add structure."""
    return Structural(
        keywords=schema,
        properties={name: _value_schema(member) for name, member in (schema.get("properties") or {}).items()},
        items=_value_schema(schema["items"]) if isinstance(schema.get("items"), dict) else None,
        types=(schema["type"],) if schema.get("type") else (),
    )


# Lists that are sets or maps ------------------------------------------------------------------------------------------


def _duplicates(node: Structural, value: Any, path: str) -> Iterator[FieldError]:
    if not node.has_associative_lists:
        return
    if isinstance(value, dict):
        for name, member in value.items():
            inner = node.member(name)
            if inner:
                yield from _duplicates(inner, member, _join(path, name))
    elif isinstance(value, list):
        yield from _list_duplicates(node, value, path)
        for index, item in enumerate(value):
            if node.items:
                yield from _duplicates(node.items, item, f"{path}[{index}]")


def _list_duplicates(node: Structural, value: list[Any], path: str) -> Iterator[FieldError]:
    """One error for each value of a set, or key of a map, that occurs more than once."""
    kind = node.keywords.get("x-kubernetes-list-type")
    if kind not in {"set", "map"}:
        return
    seen: dict[bytes, int] = {}
    for index, item in enumerate(value):
        key = item
        if kind == "map":
            if not isinstance(item, dict):
                shown = msgspec.json.encode(item).decode()
                detail = f"Invalid value: {shown}: must be an object for an array of list-type map"
                yield from_message(f"{path}[{index}]", "FieldValueInvalid", detail)
                return
            key = {name: item[name] for name in node.map_keys if name in item}
        text = msgspec.json.encode(key, order="sorted")
        seen[text] = seen.get(text, 0) + 1
        if seen[text] == 2:
            yield from_message(f"{path}[{index}]", "FieldValueDuplicate", f"Duplicate value: {text.decode()}")


# Rules ----------------------------------------------------------------------------------------------------------------


def _evaluate_rules(node: Structural, value: Any, old: Any, path: str) -> Iterator[FieldError]:
    """Errors of the CEL rules of this node and its descendants."""
    if not node.has_rules or value is None:
        return
    for rule in node.rules:
        yield from _evaluate_rule(rule, value, old, path)
    if isinstance(value, dict):
        for name, member in value.items():
            inner = node.member(name)
            if inner:
                yield from _evaluate_rules(inner, member, _old_member(old, name), _join(path, name))
    elif isinstance(value, list) and node.items:
        for index, item in enumerate(value):
            yield from _evaluate_rules(node.items, item, _old_item(node, old, item), f"{path}[{index}]")


def _evaluate_rule(rule: Rule, value: Any, old: Any, path: str) -> Iterator[FieldError]:
    unchanged = old is not ABSENT and value == old
    if rule.expression is None or (old is ABSENT if rule.transition else unchanged):
        return
    kind = type_of(value)
    try:
        if rule.expression({"self": value, "oldSelf": None if old is ABSENT else old}) is True:
            return
    except RuleError as error:
        message = f'Invalid value: "{kind}": {error} evaluating rule: {rule.message}'
        yield from_message(path, "FieldValueInvalid", message)
        return
    messages = {
        "FieldValueForbidden": f"Forbidden: {rule.message}",
        "FieldValueRequired": f"Required value: {rule.message}",
        "FieldValueDuplicate": f'Duplicate value: "{kind}"',
    }
    message = messages.get(rule.reason, f'Invalid value: "{kind}": {rule.message}')
    yield from_message(f"{path}{rule.field_path}", rule.reason, message)


# Old values for ratcheting and transition rules -----------------------------------------------------------------------


def _old_member(old: Any, name: str) -> Any:
    return old.get(name, ABSENT) if isinstance(old, dict) else ABSENT


def _old_item(node: Structural, old: Any, item: Any) -> Any:
    """The old item with the same key; ABSENT unless the list is of type map."""
    if not node.map_keys or not isinstance(old, list) or not isinstance(item, dict):
        return ABSENT
    key = [item.get(name) for name in node.map_keys]
    matching = (o for o in old if isinstance(o, dict) and [o.get(name) for name in node.map_keys] == key)
    return next(matching, ABSENT)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
