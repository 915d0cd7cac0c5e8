"""Reads objects from YAML or JSON files, with their file and line for error messages."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.parser import ParserError
from yaml.reader import ReaderError
from yaml.resolver import Resolver
from yaml.scanner import ScannerError

from trainop.local.api.registry.object_meta import generated_name
from trainop.run.positions import ExpansionError, Place, Positions, check_size
from trainop.runtime import Json, Key

STANDARD_INPUT = Path("-")
_SCHEMES = (("http:",), ("https:",))
"""The first parts of paths that are URLs."""


class BadInputError(Exception):
    """Invalid input of the user. The message gives the location, the fault and what was expected."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object, and `where` it was read from (`file.yaml:12`)."""

    raw: Json
    file: str
    """In messages: a path, or `standard input`."""
    positions: Positions = field(repr=False, compare=False)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.positions.find('')[0]}"

    def complain(self, message: str, severity: str = "error") -> str:
        """The line about one field, `message` being `path: words`, with the position of that field in the file."""
        return _complaint(self.file, self.positions.find(message), message, severity)

    @property
    def api_version(self) -> str:
        return str(self.raw["apiVersion"])

    @property
    def kind(self) -> str:
        return str(self.raw["kind"])

    @property
    def key(self) -> Key:
        metadata = self.raw["metadata"]
        return Key(metadata.get("namespace") or "default", metadata["name"])


def read(paths: Iterable[Path]) -> list[Document]:
    """Reads all objects of all files in order; of folders, *.yaml, *.yml and *.json; of `-` standard input. Objects
    with `generateName` get a name. Raises `BadInputError`."""
    found: list[Document] = []
    for path in paths:
        if path.parts[:1] in _SCHEMES:
            url = str(path).replace(":/", "://", 1)
            raise BadInputError(f"{url}: URLs are not read; expected a file, or curl -fsSL {url} | trainop run -")
        files = sorted(p for p in path.iterdir() if p.suffix in {".yaml", ".yml", ".json"}) if path.is_dir() else [path]
        if not files:
            raise BadInputError(f"{path}: no .yaml, .yml or .json file in this folder")
        for file in files:
            objects = list(_read_file(file))
            if not objects:
                raise BadInputError(f"{_place(file)}: empty; expected objects with apiVersion, kind, metadata and spec")
            found += objects
    return found


def from_objects(objects: Iterable[Json], file: str) -> list[Document]:
    """Objects that are in no file, as if `file` had them. Raises `BadInputError`."""
    return [found for node, value in _load(to_yaml(objects)) for found in _objects(value, node, file)]


def to_yaml(objects: Iterable[Json]) -> str:
    """The objects as one YAML stream."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


class _Dumper(yaml.SafeDumper):
    """For people: repeats what stands in several places, as anchors would join parts that they edit, and shows texts
    line by line."""

    def ignore_aliases(self, data: object) -> bool:  # of the base class
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _read_file(path: Path) -> Iterator[Document]:
    place = _place(path)
    try:
        content = _read_standard_input() if path == STANDARD_INPUT else path.read_bytes()
        for node, value in _load(_without_tabs(content.decode("utf-8"))):
            yield from _objects(value, node, place)
    except OSError as error:
        raise BadInputError(f"{place}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"{place}: not UTF-8 text (byte {error.start})") from error
    except ExpansionError as error:
        raise BadInputError(_complaint(place, error.place, str(error))) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        text = f"not valid YAML: {error.problem or error.context}"
        raise BadInputError(
            _complaint(place, (mark.line + 1, mark.column + 1), text) if mark else f"{place}: {text}"
        ) from error
    except RecursionError as error:
        raise BadInputError(f"{place}: nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise BadInputError(f"{place}: not valid YAML: {error}") from error


def _without_tabs(text: str) -> str:
    """The text, with the same positions. JSON may be indented with tabs, which PyYAML refuses; within JSON's strings
    there are none."""
    if "\t" in text and text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        with suppress(ValueError):
            json.loads(text.removeprefix("\ufeff"))
            return text.replace("\t", " ")
    return text


def _complaint(file: str, place: Place, message: str, severity: str = "error") -> str:
    """One line in the form that editors read."""
    line, column = place
    return f"{file}:{line}:{column}: {severity}: {message}"


def _place(path: Path) -> str:
    """The file in messages."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def _read_standard_input() -> bytes:
    if sys.stdin.isatty():
        print("reading objects from the terminal, until Ctrl-D", file=sys.stderr)  # noqa: T201  # it would wait in silence
    return sys.stdin.buffer.read()


def _load(text: str) -> list[tuple[yaml.Node, Any]]:
    """The documents, each as composed and as a value. Errors are those of PyYAML, whose words are clearer than those
    of libyaml. A byte order mark that is not at the beginning would shift columns in libyaml."""
    if "\ufeff" not in text[1:]:
        with suppress(ScannerError, ParserError, ReaderError):
            return list(_documents(_fast_loader(text)))
    return list(_documents(_Loader(text)))


def _documents(loader: Any) -> Iterator[tuple[yaml.Node, Any]]:
    while loader.check_node():
        node = loader.get_node()
        if node is not None:
            check_size(node)
            yield node, loader.construct_document(node)


class _KubernetesConstructor(SafeConstructor):
    """Rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is a list or a mapping", key.start_mark)
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _KubernetesResolver(Resolver):
    """Keeps timestamps as text, as Kubernetes does."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the class attribute with which PyYAML is configured
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in Resolver.yaml_implicit_resolvers.items()
    }


class _Loader(_KubernetesConstructor, _KubernetesResolver, yaml.SafeLoader):
    """Reads any YAML, with the errors of PyYAML."""


def _choose_loader() -> Callable[[str], Any]:
    """One that takes the events of libyaml, in a quarter of the time, where PyYAML has it. The nodes are composed in
    Python: libyaml's own composer has no limit of nesting, so that a file could end the process."""
    try:
        from yaml._yaml import CParser  # noqa: PLC0415  # absent where PyYAML was built without libyaml
    except ImportError:
        return _Loader

    class FastLoader(_KubernetesConstructor, _KubernetesResolver, Composer, CParser):
        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            Composer.__init__(self)
            _KubernetesConstructor.__init__(self)
            _KubernetesResolver.__init__(self)

    return FastLoader


_fast_loader = _choose_loader()


def _objects(value: Any, node: yaml.Node, file: str) -> Iterator[Document]:
    """The object, or the items of a List; nothing for a document that contains only comments."""
    if value is None:
        return

    def refuse(path: str, message: str) -> BadInputError:
        return BadInputError(_complaint(file, positions.find(path), message))

    positions = Positions(node)
    if not isinstance(value, dict):
        raise refuse("", f"expected an object with apiVersion and kind, found a {type(value).__name__}")
    if value.get("kind") == "List" and isinstance(value.get("items"), list):
        for item, inner in zip(value["items"], _item_nodes(node), strict=True):
            yield from _objects(item, inner, file)
        return
    for name in ("apiVersion", "kind"):
        if not isinstance(value.get(name), str) or not value[name]:
            raise refuse(name, f"{name} is missing; expected for example {_EXAMPLE[name]}")
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(_name(metadata), str):
        expected = f"expected a name such as {value['kind'].lower()}"
        raise refuse("metadata.name", f"metadata.name is missing or not a string; {expected}")
    yield Document({**value, "metadata": {**metadata, "name": _name(metadata)}}, file, positions)


def _item_nodes(node: yaml.Node) -> Iterator[yaml.Node]:
    """Of the last `items`, as in the value: a merge key puts its own before it."""
    *_, items = (inner for key, inner in node.value if key.value == "items")
    yield from items.value


def _name(metadata: Json) -> Any:
    """The name, or a new one with the prefix `generateName`, as `kubectl create` gets from the API server."""
    prefix = metadata.get("generateName")
    if metadata.get("name") or not isinstance(prefix, str) or not prefix:
        return metadata.get("name")
    return generated_name(prefix, random.Random())  # noqa: S311  # not a secret


_EXAMPLE = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
