"""Reads `spec.trainer` of a TrainJob."""

from __future__ import annotations

import math
from typing import NamedTuple

from trainop.engine.fields import Fields
from trainop.runtime import Json
from trainop.runtime.lowlevel import exact_amount

_RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


class Trainer(NamedTuple):
    """What is read of `spec.trainer`."""

    nodes: int | None
    processes: str
    resources: Json
    container: Json
    """Fields that replace those of the container."""
    env: list[Json]


def read_trainer(fields: Fields, raw: Json) -> Trainer:
    at = "spec.trainer"
    env = [
        fields.mapping(f"{at}.env[{i}]", each) for i, each in enumerate(fields.sequence(f"{at}.env", raw.get("env")))
    ]
    for place, each in enumerate(env):
        if each.get("name") in _RESERVED:
            fields.forbidden(f"{at}.env[{place}].name", f"the operator sets {each['name']}")
    resources = fields.mapping(f"{at}.resourcesPerNode", raw.get("resourcesPerNode"))
    for name in ("limits", "requests"):
        fields.mapping(f"{at}.resourcesPerNode.{name}", resources.get(name))
    words = {name: fields.sequence(f"{at}.{name}", raw.get(name)) for name in ("command", "args")}
    image = fields.text(f"{at}.image", raw.get("image"))
    return Trainer(
        nodes=fields.integer(f"{at}.numNodes", raw.get("numNodes"), minimum=1, maximum=100_000),
        processes=_read_processes(fields, f"{at}.numProcPerNode", raw.get("numProcPerNode")),
        resources=resources,
        container={name: value for name, value in {"image": image, **words}.items() if value},
        env=env,
    )


def _read_processes(fields: Fields, at: str, value: object) -> str:
    """A number, or a word of torchrun; empty if not given."""
    if value is None:
        return ""
    if value in ("auto", "cpu", "gpu") or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return str(value)
    fields.invalid(at, value, "must be auto, cpu, gpu or a number from 1")
    return ""


def count_processes(given: str, resources: Json) -> str:
    """torchrun's processes per node (trainer `pkg/runtime/framework/plugins/torch`): if the node's resources are
    stated, `cpu`, and `auto` without any GPU, are its number of CPUs."""
    amounts = resources.get("limits") or resources.get("requests") or {}
    has_gpu = any("gpu" in each.lower() for each in amounts)
    if "cpu" not in amounts or not (given == "cpu" or (given == "auto" and not has_gpu)):
        return given
    try:
        return str(max(1, math.ceil(exact_amount(amounts["cpu"]))))
    except ValueError:
        return given  # the API server refuses the pod, and says why
