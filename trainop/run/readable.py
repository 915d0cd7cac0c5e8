"""Words an API server's refusals for people: one line per field, with what was expected and what was found.

The API server says the same in the terms of JSON schemas and Go: `spec.x in body must be of type array: "string"`, or
`json: cannot unmarshal number into Go struct field ConfigMap.data of type string`. Sources: kube-openapi
`pkg/validation/errors`, Go's `encoding/json`, structured-merge-diff.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainop.runtime import ApiError

_WORDS = {
    "array": "a list",
    "object": "an object",
    "map": "an object",
    "struct": "an object",
    "string": "a string",
    "integer": "a whole number",
    "int32": "a whole number",
    "int64": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "bool": "true or false",
    "null": "null",
}
_QUOTED = {"a whole number", "a number", "true or false"}
"""What YAML reads from a text without quotes."""

_WRONG_TYPE = re.compile(r'Invalid value: ".*?": \S+ in body must be of type ([\w,]+): "(\w+)"')
_NO_QUANTITY = re.compile(r"Invalid value: (.*): \S+ in body should match '.*KMGTPE.*'", re.DOTALL)
_IN_BODY = re.compile(r"Invalid value: (.*?): \S+ in body (.*)", re.DOTALL)
_GO_TYPE = re.compile(r".*json: cannot unmarshal (\w+) into Go struct field \w+\.(\S+) of type (\S+)", re.DOTALL)
_TYPED_PATCH = re.compile(r"failed to create typed patch object \(.*?\): \.?(.*)", re.DOTALL)
_CONSEQUENCE = "some validation rules were not checked"
"""Part of an error that says nothing new."""


def describe_refusal(error: ApiError) -> Iterator[str]:
    """One line for each field that the API server refuses, or its message if it names none."""
    named = (describe_field(str(cause.get("field")), str(cause.get("message"))) for cause in error.causes)
    lines = [line for line in dict.fromkeys(named) if line]
    yield from lines or [describe_message(error.message)]


def describe_field(path: str, message: str) -> str:
    """The line about one field; empty for an error that only follows from others."""
    if _CONSEQUENCE in message:
        return ""
    if found := _WRONG_TYPE.fullmatch(message):
        return f"{path}: {_expected(found[1], found[2])}"
    if found := _NO_QUANTITY.fullmatch(message):
        return f"{path}: must be a quantity such as 2, 500m or 4Gi, found {found[1]}"
    if found := _IN_BODY.fullmatch(message):
        return f"{path}: {found[2]}, found {found[1]}"
    return f"{path}: {message}"


def describe_message(message: str) -> str:
    """The line for a message that is not a list of fields."""
    if found := _GO_TYPE.fullmatch(message):
        return f"{found[2]}: {_expected(_of_go(found[3]), found[1])}"
    if found := _TYPED_PATCH.fullmatch(message):
        return found[1]
    return message


def _of_go(type_: str) -> str:
    """The type of Kubernetes' API for a Go type."""
    if type_.startswith("[]"):
        return "array"
    return type_ if type_ in _WORDS else "object"


def _expected(wanted: str, found: str) -> str:
    """`wanted` is one type or several, with commas."""
    want, have = " or ".join(_WORDS.get(each, each) for each in wanted.split(",")), _WORDS.get(found, found)
    quotes = "; put it in quotes" if want == "a string" and have in _QUOTED else ""
    return f"must be {want}, found {have}{quotes}"
