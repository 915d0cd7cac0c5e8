"""Objects as models of kubernetes_asyncio, such as `V1ConfigMap`, and back to JSON.

The library is not imported, which costs 37 MiB: a model class itself has the attributes of its objects with their types
(`openapi_types`) and JSON names (`attribute_map`). Classes that OpenAPI Generator has made for a CRD work as well.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from trainop.runtime.clock import micro_timestamp, read_time, timestamp
from trainop.runtime.objects.metadata import Json, Unstructured

MICRO_TIMES = frozenset({"acquireTime", "eventTime", "lastObservedTime", "pingTime", "renewTime"})
"""Fields of type `metav1.MicroTime`, which needs six fractional digits. In models, all times are `datetime`."""

_UNCHECKED = SimpleNamespace(client_side_validation=False)
"""Replaces the `Configuration` of a decoded model. The checks of some models refuse objects that API servers send."""


class Model(Protocol):
    """A model, as type checkers see it: the library's stubs do not show `openapi_types`."""

    def to_dict(self) -> dict[str, Any]: ...


M = TypeVar("M", bound=Model)


def is_model(value: object) -> bool:
    """Whether it is a model, or a class of models."""
    return hasattr(value, "openapi_types") and hasattr(value, "attribute_map")


def to_json(model: Model) -> Json:
    """The model as JSON, without attributes that are None. An aware time is converted to UTC, a naive one taken as
    UTC. Raises `TypeError` if it is no model."""
    if not is_model(model):
        raise TypeError(f"expected a model, such as V1ConfigMap, not {type(model).__name__}")
    names: dict[str, str] = type(model).attribute_map  # type: ignore[attr-defined]  # not in the stubs
    values = ((name, getattr(model, attribute)) for attribute, name in names.items())
    return {name: _plain(value, name) for name, value in values if value is not None}


def to_model(model: type[M], obj: Unstructured | Json) -> M:
    """The object as a new model, which may be changed. Fields that the class does not have are left out: so do not
    write back a whole model, but only what you want to change, such as with `create_or_patch`. Raises `TypeError` if
    `model` is no class of models, or `obj` was decoded without its JSON."""
    if not is_model(model):
        raise TypeError(f"expected a class of models, such as V1ConfigMap, not {model!r}")
    raw = obj.raw if isinstance(obj, Unstructured) else obj
    if not isinstance(raw, dict):
        raise TypeError(
            f"{type(obj).__name__} has no JSON, from which to make {model.__name__}: use decode_unstructured"
        )
    made: M = _build(model, raw)
    return made


def _plain(value: Any, name: str) -> Any:
    """The JSON value of the field `name`, or of an item in it."""
    match value:
        case dict():
            return {key: _plain(item, key) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, name) for item in value]
        case datetime():
            at = value if value.tzinfo else value.replace(tzinfo=UTC)
            return micro_timestamp(at) if name in MICRO_TIMES else timestamp(at)
        case date():
            return value.isoformat()
    return to_json(value) if is_model(value) else value


def _build(model: Any, raw: Any) -> Any:
    if not isinstance(raw, dict):
        return copy.deepcopy(raw)
    arguments = {
        attribute: _converter(model, model.openapi_types[attribute])(raw[name])
        for attribute, name in model.attribute_map.items()
        if raw.get(name) is not None
    }
    return model(**arguments, local_vars_configuration=_UNCHECKED)


@lru_cache(maxsize=8192)
def _converter(owner: Any, type_name: str) -> Callable[[Any], Any]:
    """From a JSON value to an attribute of that type, in the notation of OpenAPI Generator (`list[V1Container]`,
    `dict(str, str)`); `owner` is the class of the model. A value of another type is copied as it is."""
    if type_name.startswith("list["):
        return partial(_each, _converter(owner, type_name[5:-1]))
    if type_name.startswith("dict("):
        return partial(_values, _converter(owner, type_name[5:-1].partition(", ")[2]))
    if type_name == "datetime":
        return lambda value: read_time(value) or value
    model = _model_named(owner, type_name)
    return copy.deepcopy if model is None else partial(_build, model)


def _each(convert: Callable[[Any], Any], value: Any) -> Any:
    return [convert(item) for item in value] if isinstance(value, list) else copy.deepcopy(value)


def _values(convert: Callable[[Any], Any], value: Any) -> Any:
    return {key: convert(item) for key, item in value.items()} if isinstance(value, dict) else copy.deepcopy(value)


def _model_named(owner: type[Any], name: str) -> type[Any] | None:
    """The class in the package of `owner`, or of a class from which that is derived; None for a type of Python."""
    for base in owner.__mro__:
        package = sys.modules.get(base.__module__.rpartition(".")[0])
        found = getattr(package, name, None)
        if isinstance(found, type) and is_model(found):
            return found
    return None
