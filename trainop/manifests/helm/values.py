"""The values of a chart: one table gives `values.yaml`, its comments and `values.schema.json`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainop.manifests.text import to_yaml
from trainop.runtime import Json

_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its path, such as `image.tag`, its default, a JSON schema, and the comment above it."""

    path: str
    default: Any
    schema: Json
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A group of values below `path`, whose comment stands above them. `optional` are values without a default."""

    path: str
    comment: str
    optional: Sequence[Value] = ()


@dataclass(slots=True)
class _Group:
    comment: str = ""
    entries: dict[str, Value | _Group] = field(default_factory=dict)
    optional: dict[str, Value] = field(default_factory=dict)


def values_yaml(rows: Iterable[Value | Section]) -> str:
    """The file `values.yaml`."""
    return "".join(f"{line}\n" for line in _listed(_grouped(rows), 0)).lstrip("\n")


def values_schema(rows: Iterable[Value | Section], title: str) -> str:
    """The file `values.schema.json`: helm refuses values that it does not describe. `global` is what a chart that
    depends on this one passes to all its charts."""
    schema = _described(_grouped(rows), title)
    schema["properties"]["global"] = {"type": "object"}
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, indent=2) + "\n"


def leaves(rows: Iterable[Value | Section]) -> dict[str, Value]:
    """All values by path, including those without a default."""
    found: dict[str, Value] = {}
    for row in rows:
        if isinstance(row, Value):
            found[row.path] = row
        else:
            found |= {f"{row.path}.{each.path}": each for each in row.optional}
    return found


def _grouped(rows: Iterable[Value | Section]) -> _Group:
    root = _Group()
    for row in rows:
        *above, name = row.path.split(".")
        group = root
        for step in above:
            group = _group(group, step)
        if isinstance(row, Value):
            group.entries[name] = row
        else:
            section = _group(group, name)
            section.comment, section.optional = row.comment, {each.path: each for each in row.optional}
    return root


def _group(group: _Group, name: str) -> _Group:
    found = group.entries.setdefault(name, _Group())
    if isinstance(found, Value):
        raise TypeError(f"{name} is a value and a group of values")
    return found


def _listed(group: _Group, column: int) -> list[str]:
    lines: list[str] = []
    for name, entry in group.entries.items():
        lines += [""] if column == 0 else []
        lines += _comment(entry.comment, column)
        if isinstance(entry, _Group):
            lines += [f"{' ' * column}{name}:", *_listed(entry, column + 2)]
        else:
            lines += textwrap.indent(to_yaml({name: entry.default}), " " * column).splitlines()
    return lines


def _comment(text: str, column: int) -> list[str]:
    margin = " " * column + "# "
    return textwrap.wrap(text, _WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)


def _described(group: _Group, description: str) -> Json:
    properties: Json = {}
    for name, entry in group.entries.items():
        properties[name] = _described(entry, entry.comment) if isinstance(entry, _Group) else _schema(entry)
    properties |= {name: _schema(value) for name, value in group.optional.items()}
    about = {"description": description} if description else {}
    return {**about, "type": "object", "additionalProperties": False, "properties": properties}


def _schema(value: Value) -> Json:
    return {**({"description": value.comment} if value.comment else {}), **value.schema}
