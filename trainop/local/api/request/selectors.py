"""Label and field selectors in the syntax of the query parameters `labelSelector` and `fieldSelector`.

Sources: apimachinery `pkg/labels/selector.go` and `pkg/fields/selector.go`; messages are theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainop.runtime import Json

Predicate = Callable[[Json], bool]
"""Whether an object matches."""


class SelectorError(ValueError):
    """400: the selector cannot be parsed, or the kind does not support the field; the message is kube-apiserver's."""


# Labels ---------------------------------------------------------------------------------------------------------------

_IDENTIFIER = re.compile(r"[^=!(),><\s]+")
_SYMBOL = re.compile(r"==|!=|[=!(),><]")
_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_KEY = re.compile(rf"(?P<prefix>[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?(?P<name>{_NAME})")
_VALUE = re.compile(rf"({_NAME})?")
_KEY_RULE = (
    "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' "
    "(e.g. 'example.com/MyName')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_BINARY = {"in", "notin", "=", "==", "!=", ">", "<"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label; `operator` is `in`, `notin`, `exists`, `!`, `>` or `<`."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet the requirement."""
        value = labels.get(self.key)
        match self.operator:
            case "exists":
                return value is not None
            case "!":
                return value is None
            case "in":
                return value in self.values
            case "notin":
                return value not in self.values
        try:
            number, bound = int(value or ""), int(next(iter(self.values)))
        except ValueError:
            return False
        return number > bound if self.operator == ">" else number < bound


def label_selector(text: str) -> Predicate:
    """The predicate of a selector such as `a=b,c!=d,e in (f,g),h notin (i),j,!k`; an empty one matches everything."""
    requirements = parse_labels(text)

    def selects(item: Json) -> bool:
        labels = (item.get("metadata") or {}).get("labels") or {}
        return all(requirement.holds(labels) for requirement in requirements)

    return selects


def parse_labels(text: str) -> list[Requirement]:
    """The requirements of a label selector; raises `SelectorError`."""
    tokens = _Tokens(list(_tokenize(text)))
    requirements: list[Requirement] = []
    while tokens.next:
        if not _is_identifier(tokens.next) and tokens.next != "!":
            raise SelectorError(f"found '{tokens.next}', expected: !, identifier, or 'end of string'")
        requirements.append(_requirement(tokens))
        if not tokens.next:
            break
        separator = tokens.take()
        if separator != ",":
            raise SelectorError(f"found '{separator}', expected: ',' or 'end of string'")
        if not _is_identifier(tokens.next) and tokens.next != "!":
            raise SelectorError(f"found '{tokens.next}', expected: identifier after ','")
    return requirements


def _tokenize(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        found = _IDENTIFIER.match(text, position) or _SYMBOL.match(text, position)
        if found:
            yield found.group()
        position = found.end() if found else position + 1


def _is_identifier(text: str) -> bool:
    return bool(text) and not _SYMBOL.match(text)


class _Tokens:
    """A cursor over the tokens of a selector; after the last one, all tokens are empty strings."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0

    @property
    def next(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def take(self) -> str:
        lexeme = self.next
        self._position += 1
        return lexeme


def _requirement(tokens: _Tokens) -> Requirement:
    try:
        return _parse_requirement(tokens)
    except SelectorError as error:
        raise SelectorError(f"unable to parse requirement: {error}") from None


def _parse_requirement(tokens: _Tokens) -> Requirement:
    absent = tokens.next == "!"
    if absent:
        tokens.take()
    key = tokens.take()
    if not _is_identifier(key):
        raise SelectorError(f"found '{key}', expected: identifier")
    _check_key(key)
    if absent or tokens.next in {"", ","}:
        return Requirement(key, "!" if absent else "exists")
    operator = tokens.take()
    if operator not in _BINARY:
        raise SelectorError(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
    values = _values(tokens) if operator in {"in", "notin"} else frozenset({_exact_value(tokens)})
    for position, value in enumerate(sorted(values)):
        _check_value(key, operator, position, value)
    return Requirement(key, {"=": "in", "==": "in", "!=": "notin"}.get(operator, operator), values)


def _exact_value(tokens: _Tokens) -> str:
    if tokens.next in {"", ","}:
        return ""
    value = tokens.take()
    if not _is_identifier(value):
        raise SelectorError(f"found '{value}', expected: identifier")
    return value


def _values(tokens: _Tokens) -> frozenset[str]:
    """The values in parentheses; an omitted value is the empty string."""
    if tokens.next != "(":
        raise SelectorError(f"found '{tokens.next}' expected: '('")
    tokens.take()
    values, value = set(), ""
    while tokens.next != ")":
        lexeme = tokens.take()
        if lexeme == ",":
            values.add(value)
            value = ""
        elif _is_identifier(lexeme) and not value:
            value = lexeme
            if tokens.next not in {",", ")"}:
                raise SelectorError(f"found '{tokens.next}', expected: ',' or ')'")
        else:
            raise SelectorError(f"found '{lexeme}', expected: ',', ')' or identifier")
    tokens.take()
    return frozenset(values | {value})


def _check_key(key: str) -> None:
    found = _KEY.fullmatch(key)
    if not found:
        raise SelectorError(f'<nil>: Invalid value: "{key}": {_KEY_RULE}')
    if len(found["name"]) > 63:
        raise SelectorError(f'<nil>: Invalid value: "{key}": name part must be no more than 63 bytes')


def _check_value(key: str, operator: str, position: int, value: str) -> None:
    if operator in {">", "<"} and not re.fullmatch(r"[+-]?[0-9]+", value):
        raise SelectorError(
            f"values[{position}]: Invalid value: \"{value}\": for 'Gt', 'Lt' operators, the value must be an integer"
        )
    if len(value) > 63:
        raise SelectorError(f'values[{position}][{key}]: Invalid value: "{value}": must be no more than 63 bytes')
    if not _VALUE.fullmatch(value):
        raise SelectorError(f'values[{position}][{key}]: Invalid value: "{value}": {_VALUE_RULE}')


# Fields ---------------------------------------------------------------------------------------------------------------

_NAMES = ("metadata.name", "metadata.namespace")
_FIELDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): (
        *_NAMES,
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    ("", "Node"): ("metadata.name", "spec.unschedulable"),
    ("", "Namespace"): ("metadata.name", "status.phase"),
    ("", "Secret"): (*_NAMES, "type"),
    ("", "Service"): (*_NAMES, "spec.clusterIP", "spec.type"),
    ("", "Event"): (
        *_NAMES,
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
}
_TERM = re.compile(r"(?P<field>.*?)(?P<operator>!=|==|=)(?P<value>.*)", re.DOTALL)


def field_selector(text: str, *, group: str = "", kind: str = "") -> Predicate:
    """The predicate of a selector such as `metadata.name=a,status.phase!=Running`; raises `SelectorError`."""
    terms = []
    for term in _split_terms(text):
        found = _TERM.fullmatch(term)
        if not found:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        value = _unescape(found["value"])
        name = "spec.nodeName" if (kind, found["field"]) == ("Pod", "spec.host") else found["field"]
        if name not in _FIELDS.get((group, kind), _NAMES):
            raise SelectorError(f"field label not supported: {name}")
        terms.append((name, found["operator"] != "!=", value))

    def selects(item: Json) -> bool:
        return all((field_value(item, name) == value) == wanted for name, wanted, value in terms)

    return selects


def field_value(item: Json, name: str) -> str:
    """The value of a field as string, for comparison; empty if the field is absent."""
    value: Any = item
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if name == "source":
        value = (value or {}).get("component") or item.get("reportingComponent")
    if name == "reportingComponent":
        value = value or item.get("reportingController")
    if isinstance(value, bool) or name in {"spec.hostNetwork", "spec.unschedulable"}:
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(str(entry.get("ip", "")) for entry in value)
    return "" if value is None else str(value)


def _split_terms(text: str) -> list[str]:
    """The comma-separated terms; an escaped comma is part of a value."""
    return [term for term in re.findall(r"(?:\\.|\\$|[^,\\])*", text, re.DOTALL) if term]


def _unescape(value: str) -> str:
    plain, characters = "", iter(value)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            if escaped not in {"\\", ",", "="}:
                raise SelectorError(f"invalid field selector: invalid escape sequence: \\{escaped}")
            plain += escaped
        elif character in {",", "="}:
            raise SelectorError(f"invalid field selector: unescaped character in value: {ord(character)}")
        else:
            plain += character
    return plain
