"""`x-kubernetes-validations`: a compiler for the subset of CEL that CRDs of training jobs use.

Supported are literals, `self`, `oldSelf`, field selection, `has(...)`, `size(...)`, `.size()`, `.startsWith(...)`,
`.endsWith(...)`, `.contains(...)`, `.matches(...)`, indices, lists, arithmetic, comparisons, `in`, `!`, `&&`, `||` and
`? :`. A rule outside of the subset is not evaluated; `Rule.problem` gives the reason, and the client gets a warning. A
complete implementation (cel-python) needs five more packages for the only rule of our own CRDs, `self == oldSelf`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

Scope = Mapping[str, Any]
Expression = Callable[[Scope], Any]


class RuleError(Exception):
    """A rule that cannot be compiled, or cannot be evaluated on these values; the message is that of CEL."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One compiled rule. Either `expression` is set, or `problem` gives the reason why the rule is not evaluated."""

    text: str
    message: str
    reason: str
    field_path: str
    transition: bool
    """A transition rule: it uses `oldSelf`, so it is evaluated on updates only."""
    expression: Expression | None = None
    problem: str = ""


def compile_rules(validations: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """The rules of one `x-kubernetes-validations` list, in order; never raises for an unsupported rule."""
    return tuple(_compile_rule(validation) for validation in validations)


def _compile_rule(validation: Mapping[str, Any]) -> Rule:
    text = str(validation["rule"]).strip()
    expression, problem = None, ""
    try:
        expression = compile_expression(text)
    except RuleError as error:
        problem = f"the rule {text!r} is not checked here: {error}"
    return Rule(
        text=text,
        message=str(validation.get("message") or "").strip() or f"failed rule: {text}",
        reason=str(validation.get("reason") or "FieldValueInvalid"),
        field_path=str(validation.get("fieldPath") or ""),
        transition=bool(re.search(r"\boldSelf\b", text)) and not validation.get("optionalOldSelf"),
        expression=expression,
        problem=problem,
    )


_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)
    |(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<name>[A-Za-z_]\w*)
    |(?P<symbol>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]]))\s*""",
    re.VERBOSE,
)


def _equal(left: Any, right: Any) -> bool:
    """Equality of JSON values; unlike in Python, true does not equal 1."""
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _divide(left: Any, right: Any) -> Any:
    """CEL division: integer division truncates towards zero."""
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


_CONSTANTS = {"true": True, "false": False, "null": None}
_PRECEDENCE: tuple[dict[str, Callable[[Any, Any], Any]], ...] = (
    {
        "==": _equal,
        "!=": lambda a, b: not _equal(a, b),
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "in": lambda a, b: a in b,
    },
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _divide, "%": lambda a, b: a - b * _divide(a, b)},
)
"""Binary operators by precedence, lowest first."""
_METHODS: dict[str, Callable[..., Any]] = {
    "size": len,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": lambda text, part: part in text,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
}


def compile_expression(text: str) -> Expression:
    """The function that evaluates the expression on a scope with `self` and `oldSelf`; raises `RuleError`."""
    parser = _Parser(_tokens(text))
    expression = parser.ternary()
    if parser.next:
        raise RuleError(f"unexpected {parser.next!r}")
    return expression


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found:
            raise RuleError(f"unexpected {text[position]!r}")
        tokens.append(found.group().strip())
        position = found.end()
    return tokens


class _Parser:
    """A recursive-descent parser over the tokens of one expression; each method parses one grammar rule."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0

    @property
    def next(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.next
        if wanted and token not in wanted:
            raise RuleError(f"expected {' or '.join(wanted)}, found {token or 'the end'!r}")
        self._position += 1
        return token

    def ternary(self) -> Expression:
        condition = self.logical_or()
        if self.next != "?":
            return condition
        self.take()
        then = self.logical_or()
        self.take(":")
        otherwise = self.ternary()
        return lambda scope: then(scope) if condition(scope) else otherwise(scope)

    def logical_or(self) -> Expression:
        parts = [self.logical_and()]
        while self.next == "||":
            self.take()
            parts.append(self.logical_and())
        return parts[0] if len(parts) == 1 else lambda scope: any(part(scope) for part in parts)

    def logical_and(self) -> Expression:
        parts = [self.binary(0)]
        while self.next == "&&":
            self.take()
            parts.append(self.binary(0))
        return parts[0] if len(parts) == 1 else lambda scope: all(part(scope) for part in parts)

    def binary(self, level: int) -> Expression:
        if level == len(_PRECEDENCE):
            return self.unary()
        left = self.binary(level + 1)
        while self.next in _PRECEDENCE[level]:
            left = _combine(_PRECEDENCE[level][self.take()], left, self.binary(level + 1))
        return left

    def unary(self) -> Expression:
        if self.next not in {"!", "-"}:
            return self.member()
        sign, operand = self.take(), self.unary()
        return (lambda scope: not operand(scope)) if sign == "!" else (lambda scope: -operand(scope))

    def member(self) -> Expression:
        value = self.primary()
        while self.next in {".", "["}:
            value = self.selection(value) if self.take() == "." else self.index(value)
        return value

    def index(self, value: Expression) -> Expression:
        index = self.ternary()
        self.take("]")
        return lambda scope: _select(value(scope), index(scope))

    def selection(self, value: Expression) -> Expression:
        name = self.take()
        if self.next == "(":
            return self.call(name, value)
        return lambda scope: _select(value(scope), name)

    def call(self, name: str, *first: Expression) -> Expression:
        method = _METHODS.get(name)
        if method is None:
            raise RuleError(f"function {name!r} is not known")
        arguments = [*first, *self.list_until(")")]
        return lambda scope: _call(method, *(argument(scope) for argument in arguments))

    def list_until(self, end: str) -> list[Expression]:
        """The comma-separated expressions between the opening token, which is next, and `end`."""
        self.take()
        items: list[Expression] = []
        while self.next != end:
            items.append(self.ternary())
            if self.next != end:
                self.take(",")
        self.take(end)
        return items

    def primary(self) -> Expression:
        word = self.next
        if word == "[":
            items = self.list_until("]")
            return lambda scope: [item(scope) for item in items]
        self.take()
        if word == "(":
            inner = self.ternary()
            self.take(")")
            return inner
        if word == "has":
            return self.has()
        return self.call(word) if self.next == "(" else _literal_or_variable(word)

    def has(self) -> Expression:
        """The `has(a.b.c)` macro: whether the last selected field is present."""
        self.take("(")
        value = self.primary()
        self.take(".")
        name = self.take()
        while self.next == ".":
            self.take()
            value, name = _selection(value, name), self.take()
        self.take(")")
        return lambda scope: isinstance(holder := value(scope), Mapping) and name in holder


def _literal_or_variable(token: str) -> Expression:
    if token in _CONSTANTS:
        constant = _CONSTANTS[token]
        return lambda _: constant
    if token in {"self", "oldSelf"}:
        return lambda scope: scope[token]
    if token[:1] in {'"', "'"}:
        text = re.sub(r"\\(.)", r"\1", token[1:-1])
        return lambda _: text
    if token[:1].isdigit():
        number = msgspec.json.decode(token)
        return lambda _: number
    raise RuleError(f"{token or 'the end'!r} is not known")


def _selection(value: Expression, name: str) -> Expression:
    return lambda scope: _select(value(scope), name)


def _combine(combine: Callable[[Any, Any], Any], left: Expression, right: Expression) -> Expression:
    return lambda scope: _call(combine, left(scope), right(scope))


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (TypeError, ValueError, ZeroDivisionError, re.error) as error:
        raise RuleError(f"no such overload: {error}") from None


def _select(value: Any, key: Any) -> Any:
    try:
        return value[key]
    except (KeyError, TypeError):
        raise RuleError(f"no such key: {key}") from None
    except IndexError:
        raise RuleError(f"index out of bounds: {key}") from None
