"""Reads objects from YAML or JSON files, with their file and line for error messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainop.runtime.objects.metadata import Json, Key


class BadInputError(Exception):
    """Invalid input of the user. The message gives the location, the fault and what was expected."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object, and `where` it was read from (`file.yaml:12`)."""

    raw: Json
    where: str

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
    """Reads all objects of all files in order; of folders, *.yaml, *.yml and *.json. Raises `BadInputError`."""
    found: list[Document] = []
    for path in paths:
        files = sorted(p for p in path.iterdir() if p.suffix in {".yaml", ".yml", ".json"}) if path.is_dir() else [path]
        if not files:
            raise BadInputError(f"{path}: no .yaml, .yml or .json file in this folder")
        for file in files:
            objects = list(_read_file(file))
            if not objects:
                raise BadInputError(f"{file}: empty; expected objects with apiVersion, kind, metadata and spec")
            found += objects
    return found


def _read_file(path: Path) -> Iterator[Document]:
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                yield from _objects(loader.construct_document(node), f"{path}:{node.start_mark.line + 1}")
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise BadInputError(f"{at}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInputError(f"{path}: not valid YAML: {error}") from error


class _Loader(yaml.SafeLoader):
    """Keeps timestamps as text, as Kubernetes does, and rejects duplicate keys."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the class attribute with which PyYAML is configured
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _objects(value: Any, where: str) -> Iterator[Document]:
    """The object, or the items of a List; nothing for a document that contains only comments."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise BadInputError(f"{where}: expected an object with apiVersion and kind, found a {type(value).__name__}")
    if value.get("kind") == "List" and isinstance(value.get("items"), list):
        for item in value["items"]:
            yield from _objects(item, where)
        return
    for field in ("apiVersion", "kind"):
        if not isinstance(value.get(field), str) or not value[field]:
            raise BadInputError(f"{where}: {field} is missing; expected for example {_EXAMPLE[field]}")
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise BadInputError(
            f"{where}: metadata.name is missing or not a string; expected a name such as {value['kind'].lower()}"
        )
    yield Document(value, where)


_EXAMPLE = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
