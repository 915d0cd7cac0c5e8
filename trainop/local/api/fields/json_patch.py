"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386); see `strategic_merge_patch` for the third patch type.

Pure functions: they return a new value and leave their arguments unchanged. The result may share unchanged parts with
the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from trainop.local.api.fields.strategic_merge_patch import MalformedPatchError, PatchError, strategic_merge_patch

__all__ = ["MalformedPatchError", "PatchError", "json_patch", "merge_patch", "strategic_merge_patch"]

_ABSENT = object()


def merge_patch(value: Any, patch: Any) -> Any:
    """`value` after the RFC 7386 merge patch: null removes, maps merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), change)
    return merged


def json_patch(value: Any, operations: Any) -> Any:
    """`value` after the RFC 6902 operations.

    Raises `MalformedPatchError` if `operations` is not a patch, and `PatchError` if it cannot be applied, such
    as for a missing path or a failed test.
    """
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise MalformedPatchError("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    for operation in operations:
        value = _apply_operation(value, operation)
    return value


def _apply_operation(value: Any, operation: dict[str, Any]) -> Any:
    name, path = operation.get("op"), operation.get("path")
    if not isinstance(name, str) or name not in _OPERATIONS:
        raise PatchError(f"Unexpected kind: {name or 'unknown'}")
    if not isinstance(path, str):
        raise PatchError("patch operation missing path field")
    return _OPERATIONS[name](value, path, operation)


def _value_of(operation: dict[str, Any], path: str) -> Any:
    if "value" not in operation:
        raise PatchError(f'{operation["op"]} operation for path "{path}" is missing its value')
    return operation["value"]


def _add(value: Any, path: str, operation: dict[str, Any]) -> Any:
    return _insert(value, path, _value_of(operation, path))


def _insert(value: Any, path: str, new: Any) -> Any:
    def change(container: Any, step: str) -> None:
        if isinstance(container, list):
            index = len(container) if step == "-" else _index(container, step, path, "add", upto=len(container))
            container.insert(index, new)
        else:
            container[step] = new

    return new if path == "" else _change(value, _steps(path), path, "add", change)


def _remove(value: Any, path: str, operation: dict[str, Any]) -> Any:
    def change(container: Any, step: str) -> None:
        if isinstance(container, list):
            del container[_index(container, step, path, "remove")]
        elif step in container:
            del container[step]
        else:
            raise PatchError(f"remove operation does not apply: doc is missing key: {path}: missing value")

    if path == "":
        raise PatchError("remove operation does not apply: the whole document cannot be removed")
    return _change(value, _steps(path), path, "remove", change)


def _replace(value: Any, path: str, operation: dict[str, Any]) -> Any:
    new = _value_of(operation, path)

    def change(container: Any, step: str) -> None:
        if isinstance(container, list):
            container[_index(container, step, path, "replace")] = new
        elif step in container:
            container[step] = new
        else:
            raise PatchError(f"replace operation does not apply: doc is missing key: {path}: missing value")

    return new if path == "" else _change(value, _steps(path), path, "replace", change)


def _test(value: Any, path: str, operation: dict[str, Any]) -> Any:
    found = _look_up(value, path)
    wanted = operation.get("value")
    if (None if found is _ABSENT else found) != wanted or isinstance(found, bool) != isinstance(wanted, bool):
        raise PatchError(f"testing value {path} failed: test failed")
    return value


def _source(value: Any, operation: dict[str, Any]) -> tuple[str, Any]:
    source = operation.get("from")
    found = _look_up(value, source) if isinstance(source, str) else _ABSENT
    if found is _ABSENT:
        raise PatchError(
            f"{operation['op']} operation does not apply: doc is missing from path: {source}: missing value"
        )
    return str(source), found


def _move(value: Any, path: str, operation: dict[str, Any]) -> Any:
    source, found = _source(value, operation)
    if path.startswith(f"{source}/"):
        raise PatchError(f"move operation does not apply: {path} lies inside of {source}")
    return _insert(_remove(value, source, operation), path, found) if path != source else value


def _copy(value: Any, path: str, operation: dict[str, Any]) -> Any:
    return _insert(value, path, _source(value, operation)[1])


_OPERATIONS: dict[Any, Callable[[Any, str, dict[str, Any]], Any]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "test": _test,
    "move": _move,
    "copy": _copy,
}


def _steps(path: str) -> list[str]:
    if not path.startswith("/"):
        raise PatchError(f'path "{path}" is no JSON pointer: it must be empty or begin with "/"')
    return [step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/")]


def _index(container: list[Any], step: str, path: str, operation: str, upto: int | None = None) -> int:
    """The list index of a path step, at most `upto`; negative numbers and leading zeros are invalid."""
    limit = len(container) - 1 if upto is None else upto
    if not step.isascii() or not step.isdigit() or (len(step) > 1 and step[0] == "0") or int(step) > limit:
        raise PatchError(f"{operation} operation does not apply: {path}: invalid index referenced: {step}")
    return int(step)


def _change(value: Any, steps: list[str], path: str, operation: str, change: Callable[[Any, str], None]) -> Any:
    """`value` with `change` applied to a copy of the last container; only the containers on the path are copied."""
    if not isinstance(value, dict | list):
        raise PatchError(f"{operation} operation does not apply: doc is missing path: {path}: missing value")
    container = copy(value)
    step = steps[0]
    if len(steps) == 1:
        change(container, step)
    elif isinstance(container, list):
        index = _index(container, step, path, operation)
        container[index] = _change(container[index], steps[1:], path, operation, change)
    elif step in container:
        container[step] = _change(container[step], steps[1:], path, operation, change)
    else:
        raise PatchError(f"{operation} operation does not apply: doc is missing path: {path}: missing value")
    return container


def _look_up(value: Any, path: str) -> Any:
    """The value at the JSON pointer, or `_ABSENT`."""
    for step in _steps(path) if path else ():
        if isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return _ABSENT
    return value
