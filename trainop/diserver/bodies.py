"""The bodies of requests: their types, from which the OpenAPI document is generated, and their decoding.

As Go's decoder upstream: keys are matched regardless of case, the last of several equal keys counts, unknown keys and
everything after the first JSON value are ignored, and null is the same as an absent member.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from trainop.diserver.replies import BAD_QUANTITY, Refusal
from trainop.kinds.dijob.gpus import gpu_count
from trainop.kinds.dijob.pods import Resources
from trainop.runtime.lowlevel import parse_quantity

Count = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1, description="Negative acts as 0.")]
Quantity = Annotated[
    str | int | float | None,
    msgspec.Meta(description="A Kubernetes quantity; 0 or absent: that of the template.", examples=["500m", 2]),
]
PodNames = Annotated[
    list[str] | None, msgspec.Meta(description="Pods as `name`, `name.namespace` or `name.namespace:port`.")
]
T = TypeVar("T")


class ResourceQuantity(msgspec.Struct, frozen=True):
    """Replicas of one role, and the resources of each."""

    replicas: Count | None = None
    cpus: Quantity = None
    gpus: Quantity = None
    memory: Quantity = None


class ReplicasRequest(msgspec.Struct, frozen=True):
    """Replicas to create, or to delete: then only `replicas` matters. `coordinator` names any pod of the job."""

    namespace: str | None = None
    coordinator: str | None = None
    collectors: ResourceQuantity | None = None
    learners: ResourceQuantity | None = None


class FailedRequest(msgspec.Struct, frozen=True):
    """Pods to replace. `learners` may also name aggregators and ddp learners; `coordinator` is only echoed."""

    namespace: str | None = None
    coordinator: str | None = None
    collectors: PodNames = None
    learners: PodNames = None


class Wanted(NamedTuple):
    """Replicas of one role, with canonical quantities."""

    replicas: int = 0
    resources: Resources = Resources()
    gpus: int = 0
    """Of each, rounded up."""


class Demand(NamedTuple):
    """What a request asks for."""

    namespace: str
    coordinator: str
    collectors: Wanted
    learners: Wanted


class Failed(NamedTuple):
    """The failed pods of a request, by name."""

    namespace: str
    coordinator: str
    collectors: Sequence[str]
    learners: Sequence[str]


def read_demand(raw: bytes) -> Demand:
    """Raises `Refusal`."""
    body = _convert(_first_value(raw), ReplicasRequest)
    read = (_read_wanted(body.collectors), _read_wanted(body.learners))
    return Demand(_text(body.namespace), _text(body.coordinator), *read)


def read_failed(raw: bytes) -> Failed:
    """Raises `Refusal`. A name that is given twice counts once."""
    body = _convert(_first_value(raw), FailedRequest)
    namespace = _text(body.namespace)
    collectors, learners = (
        tuple(dict.fromkeys(pod_name(_text(text), namespace) for text in names or ()))
        for names in (body.collectors, body.learners)
    )
    return Failed(namespace, _text(body.coordinator), collectors, learners)


def _text(value: str | None) -> str:
    """The text, with a replacement for lone surrogates: they cannot be part of an answer."""
    return (value or "").encode("utf-8", "replace").decode()


def pod_name(text: str, namespace: str) -> str:
    """The name of a pod that is given as `name`, `name.namespace` or `name.namespace:port`."""
    return text.partition(":")[0].removesuffix(f".{namespace}")


def _read_wanted(given: ResourceQuantity | None) -> Wanted:
    if given is None:
        return Wanted()
    cpus, memory, gpus = (_read_quantity(value) for value in (given.cpus, given.memory, given.gpus))
    return Wanted(max(given.replicas or 0, 0), Resources(cpus, memory, gpus), gpu_count(gpus or "0"))


def _read_quantity(value: str | float | None) -> str:
    """The canonical quantity; empty for 0."""
    try:
        text = str(parse_quantity("0" if value is None else str(value).strip()))
    except ValueError:
        raise _undecodable(BAD_QUANTITY) from None
    return "" if text == "0" else text


def _undecodable(detail: str) -> Refusal:
    return Refusal(400, f"failed to decode request body: {detail}")


def _first_value(raw: bytes) -> Any:
    text = raw.decode(errors="replace").lstrip(" \t\r\n")
    if not text:
        raise _undecodable("EOF")
    try:
        return _DECODER.raw_decode(text)[0]
    except RecursionError:
        raise _undecodable("exceeded max depth") from None
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()):
            raise _undecodable("unexpected EOF") from None
        raise _undecodable(f"{error.msg} at offset {error.pos}") from None
    except ValueError as error:  # an integer of thousands of digits, or NaN
        raise _undecodable(str(error)) from None


def _fold(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key.casefold(): value for key, value in pairs if value is not None}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"invalid value {name}")


_DECODER = json.JSONDecoder(object_pairs_hook=_fold, parse_constant=_refuse_constant)


def _convert(value: Any, to: type[T]) -> T:
    try:
        return msgspec.convert({} if value is None else value, to)
    except msgspec.ValidationError as error:
        raise _undecodable(str(error)) from None
