"""Where the fields of an object stand in its file: field path -> line and column.

The nodes that PyYAML composes know their positions. A path is followed through them with one dictionary lookup per
candidate name, so that the positions of all errors of an object cost no more than reading it did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

MAX_VALUES = 1_000_000
"""Values of one document, aliases expanded. A file of 1 MiB without aliases has at most half of that."""

_STOP = re.compile(r"[.\[\]]|: |$")
"""What may follow a name in the text of a path."""
_INDEX = re.compile(r"\[(\d+)\]")
_CUT = "... ("
"""What follows the beginning of a name that an error truncates."""

Place = tuple[int, int]
"""Line and column, from 1."""


class ExpansionError(ValueError):
    """An alias that contains itself, or aliases that multiply without limit. The message has no position."""

    def __init__(self, message: str, node: yaml.Node) -> None:
        super().__init__(message)
        self.place = place_of(node)


def place_of(node: yaml.Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1


def check_size(root: yaml.Node) -> None:
    """Raises `ExpansionError` if the value of `root` would be endless, or larger than `MAX_VALUES`.

    Each node is counted once, however many aliases refer to it.
    """
    sizes: dict[int, int] = {}

    def count(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known == 0:
            raise ExpansionError("an anchor contains an alias of itself", node)
        if known is None:
            sizes[id(node)] = 0
            known = sizes[id(node)] = 1 + sum(map(count, _inner(node)))
            if known > MAX_VALUES:
                raise ExpansionError(f"aliases expand to more than {MAX_VALUES:,} values", node)
        return known

    count(root)


def _inner(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


@dataclass(slots=True)
class Positions:
    """Of one object. `root` is the node of the object, after its value was constructed: merge keys are resolved."""

    root: yaml.Node
    _names: dict[int, dict[str, tuple[yaml.Node, yaml.Node]]] = field(default_factory=dict)

    def find(self, text: str) -> Place:
        """The position of the field whose path `text` begins with: `spec.a.b[0].c: message`, `spec.a[Worker].b`.

        That of the key, or of the item of a list. Of a field that is missing, that of the innermost parent.
        """
        node = at = self.root
        while text:
            if isinstance(node, yaml.SequenceNode):
                found = _INDEX.match(text)
                if found is None or len(found[1]) > 9 or int(found[1]) >= len(node.value):
                    break
                node = at = node.value[int(found[1])]
                text = text[found.end() :]
            elif isinstance(node, yaml.MappingNode):
                text = text[1:] if text[0] in ".[" else text
                step = self._member(node, text)
                if step is None:
                    break
                at, node, text = step
            else:
                break
        return place_of(at)

    def _member(self, node: yaml.MappingNode, text: str) -> tuple[yaml.Node, yaml.Node, str] | None:
        """Key, value and the rest of the path. A name may have dots and brackets: the longest that exists is meant."""
        names = self._names.get(id(node))
        if names is None:
            names = self._names[id(node)] = {str(key.value): (key, value) for key, value in node.value}
        ends = [found.start() for found in _STOP.finditer(text, 0, 400)]
        for end in reversed(ends):
            if found := names.get(text[:end].strip("\"'") if end < len(text) else text):
                return *found, text[end:].removeprefix("]")
        start, cut, _ = text.partition(_CUT)
        if cut and start:
            for name, pair in names.items():
                if name.startswith(start):
                    return *pair, ""
        return None
