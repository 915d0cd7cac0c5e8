"""Helm templates of objects: a tree of YAML in which these nodes stand where the release decides.

| node | in a mapping | in a list |
|---|---|---|
| `Expression` | the value of a field | an item |
| `Lines` | the value of a field, or a key without value: further entries | further items |
| `Action` | a key whose value has the entries within the action | an item `{Action: [items]}`: the items within it |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainop.manifests.text import to_yaml

Node = Any
"""JSON with the nodes of this module in it."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A scalar that the release computes."""

    text: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of YAML that the release computes, such as `toYaml .`; indented as their place demands."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """What begins a block that `end` closes: `if ...`, `with ...` or `range ...`."""

    text: str


def template(documents: Iterable[Node]) -> str:
    """The documents as one template. `{Action: [documents]}` are documents within an action."""
    return "".join(f"{line}\n" for document in documents for line in _document(document))


def _document(document: Node) -> list[str]:
    if _is_block(document):
        ((action, content),) = document.items()
        return _within(action, [line for each in content for line in _document(each)], "")
    return ["---", *_lines(document, 0)]


def put(tree: Node, path: Sequence[str | int], value: Node) -> Node:
    """The tree with `value` at a path of field names and indexes; the given tree is not changed."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return [*tree[:step], put(tree[step], rest, value), *tree[step + 1 :]]
    return {**tree, step: put(tree.get(step, {}), rest, value)}


def replace(tree: Node, path: Sequence[str | int], value: Node) -> Node:
    """As `put`, but something must be there. Raises `LookupError`."""
    if find(tree, path) is None:
        raise LookupError(f"nothing at {path}")
    return put(tree, path, value)


def find(tree: Node, path: Sequence[str | int]) -> Node:
    """What is at the path; None if there is nothing."""
    for step in path:
        if isinstance(step, str) and step not in tree:
            return None
        tree = tree[step]
    return tree


def _lines(node: Node, column: int) -> list[str]:
    if not _is_computed(node):
        return _plain(node, column)
    if isinstance(node, Mapping):
        return [line for key, value in node.items() for line in _entry(key, value, column)]
    return [line for item in node for line in _item(item, column)]


def _entry(key: Node, value: Node, column: int) -> list[str]:
    margin = " " * column
    if isinstance(key, Action):
        return _within(key, _lines(value, column), margin)
    if isinstance(key, Lines):
        return [_indented(key, column)]
    if isinstance(value, Expression):
        return [f"{margin}{key}: {{{{ {value.text} }}}}"]
    if isinstance(value, Lines):
        return [f"{margin}{key}:", _indented(value, column + 2)]
    if not _is_computed(value):
        return _plain({key: value}, column)
    return [f"{margin}{key}:", *_lines(value, column + 2)]


def _item(item: Node, column: int) -> list[str]:
    margin = " " * column
    if _is_block(item):
        ((action, content),) = item.items()
        return _within(action, _lines(content, column), margin)
    if isinstance(item, Lines):
        return [_indented(item, column)]
    if isinstance(item, Expression):
        return [f"{margin}- {{{{ {item.text} }}}}"]
    if not _is_computed(item):
        return _plain([item], column)
    first, *others = _lines(item, column + 2)
    return [f"{margin}- {first.strip()}", *others]


def _within(action: Action, lines: Sequence[str], margin: str) -> list[str]:
    return [f"{margin}{{{{- {action.text} }}}}", *lines, f"{margin}{{{{- end }}}}"]


def _indented(lines: Lines, column: int) -> str:
    return f"{' ' * column}{{{{- {lines.text} | nindent {column} }}}}"


def _plain(node: Node, column: int) -> list[str]:
    """Double braces in what is not computed, as in alerts, are not Helm's."""
    margin = " " * column
    return [f"{margin}{line}" for line in to_yaml(node).replace("{{", '{{ "{{" }}').splitlines()]


def _is_block(node: Node) -> bool:
    return isinstance(node, Mapping) and len(node) == 1 and isinstance(next(iter(node)), Action)


def _is_computed(node: Node) -> bool:
    if isinstance(node, Mapping):
        return any(_is_computed(part) for pair in node.items() for part in pair)
    if isinstance(node, list | tuple):
        return any(map(_is_computed, node))
    return isinstance(node, Expression | Lines | Action)
