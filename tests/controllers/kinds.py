"""Builders of jobs of every kind, and of their first plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.engine.builders import NOW, UID, manifest_of, pod_created, service_created
from tests.engine.world import World
from trainop.engine.framework import Framework
from trainop.engine.plan import plan
from trainop.engine.seen import Options, Snapshot
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json, Unstructured

SHAPES: dict[str, dict[str, int]] = {
    "TFJob": {"Chief": 1, "PS": 1, "Worker": 2},
    "PyTorchJob": {"Master": 1, "Worker": 2},
    "MXJob": {"Scheduler": 1, "Server": 1, "Worker": 2},
    "XGBoostJob": {"Master": 1, "Worker": 2},
    "PaddleJob": {"Master": 1, "Worker": 2},
    "JAXJob": {"Worker": 3},
}
"""An ordinary job of each kind, the leading role first."""

KINDS = list(FRAMEWORKS)


def make(
    kind: str,
    roles: Mapping[str, int | None] | None = None,
    *,
    name: str = "j",
    policy: str | None = None,
    run: Json | None = None,
    annotations: dict[str, str] | None = None,
    template: Json | None = None,
    **spec: Any,
) -> Json:
    """A raw job; a count of None is left out. `template` goes into the spec of every template."""
    framework = FRAMEWORKS[kind]
    pod = {"containers": [{"name": framework.container, "image": "img"}], **(template or {})}
    specs: Json = {}
    for role, count in (SHAPES[kind] if roles is None else roles).items():
        specs[role] = {"template": {"spec": pod}}
        specs[role] |= {"replicas": count} if count is not None else {}
        specs[role] |= {"restartPolicy": policy} if policy else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": UID,
            "generation": 1,
            "resourceVersion": "1",
            "annotations": annotations or {},
        },
        "spec": {framework.replica_specs: specs, **({"runPolicy": run} if run else {}), **spec},
    }


def world_of(kind: str, *args: Any, options: Options | None = None, **fields: Any) -> World:
    """A toy cluster with an ordinary job of the kind, settled with its pods pending."""
    world = World(make(kind, *args, **fields), framework=FRAMEWORKS[kind], options=options)
    world.settle()
    return world


def running(kind: str, *args: Any, **fields: Any) -> World:
    """The same with all pods running."""
    world = world_of(kind, *args, **fields)
    world.run()
    world.settle()
    return world


def leaders(kind: str) -> list[str]:
    """The pods whose success makes the ordinary job succeed."""
    role, count = next(iter(SHAPES[kind].items()))
    return [f"j-{role.lower()}-{index}" for index in range(count)]


def last(kind: str) -> str:
    """The last pod of the ordinary job, which does not lead if there are several roles."""
    role, count = list(SHAPES[kind].items())[-1]
    return f"j-{role.lower()}-{count - 1}"


def last_role(kind: str) -> str:
    return list(SHAPES[kind])[-1]


def pods_of(job: Json, **options: Any) -> dict[str, Json]:
    """The pods of the first plan, by name."""
    framework: Framework = FRAMEWORKS[job["kind"]]
    made = plan(framework, Snapshot(Unstructured(job), (), (), NOW, Options(**options)))
    return {a.name: manifest_of(a) for a in made.actions if pod_created(a)}


def services_of(job: Json, **options: Any) -> dict[str, Json]:
    framework: Framework = FRAMEWORKS[job["kind"]]
    made = plan(framework, Snapshot(Unstructured(job), (), (), NOW, Options(**options)))
    return {a.name: manifest_of(a) for a in made.actions if service_created(a)}


def env(pod: Json, container: int = 0) -> dict[str, Any]:
    """Environment of a container: name -> value, or the `valueFrom` object."""
    entries = pod["spec"]["containers"][container].get("env", [])
    return {entry["name"]: entry["value"] if "value" in entry else entry["valueFrom"] for entry in entries}


def line(pod: Json, container: int = 0) -> str:
    """`A=1 B=2`, in order."""
    return " ".join(f"{name}={value}" for name, value in env(pod, container).items())
