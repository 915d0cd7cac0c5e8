"""Puts the pods of `recorded.json` before a real kube-scheduler, and records its words.

python -m tests.local.scheduler.record            rewrites the file; review the difference before committing it

The situations are those in the file; to add one, write it there without its `message`. The message is empty if the pod
gets the node. Each cluster has one node, `local`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from e2e.cluster.api import Api
from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from e2e.cluster.places import default_data
from e2e.cluster.releases import NEWEST

Json: TypeAlias = dict[str, Any]

OPTIONS = ClusterOptions(("scheduler",), release=NEWEST.name)
FILE = Path(__file__).with_name("recorded.json")
PODS = "/api/v1/namespaces/default/pods"
NODE = "/api/v1/nodes/local"
_LONGEST = 60.0
_SETTLED = 1.0
"""Seconds after which a recorder takes a message for the last one."""


def situations() -> list[Json]:
    found: list[Json] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def whole_node(situation: Json) -> Json:
    """The node of a situation; by itself one that has something of everything."""
    given = situation.get("node", {})
    size = {"cpu": "4", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "2"} | given.get("allocatable", {})
    metadata = {"name": "local", "labels": {"kubernetes.io/hostname": "local", **given.get("labels", {})}}
    spec = {"taints": given.get("taints", []), "unschedulable": given.get("unschedulable", False)}
    status = {"capacity": size, "allocatable": size}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def whole_pod(spec: Json, name: str) -> Json:
    """A pod; a spec without containers gets one that asks for `requests`."""
    spec = dict(spec)
    if "containers" not in spec:
        resources = {"limits": limits} if (limits := spec.pop("limits", None)) else {}
        spec["containers"] = [{"name": "main", "image": "example.com/image:1", "resources": resources}]
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def set_up(api: Api, situation: Json) -> None:
    """Makes the node and the pods of a situation; of earlier ones nothing is left."""
    for pod in api("GET", PODS).body["items"]:
        api("DELETE", f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
    api("DELETE", NODE)
    node = whole_node(situation)
    assert api("POST", "/api/v1/nodes", node).status == 201
    # Admission gives a new node the taint not-ready, which its controller would take away.
    patch = {"spec": {"taints": node["spec"]["taints"] or None}}
    assert api("PATCH", NODE, patch, "application/merge-patch+json").status == 200
    for index, spec in enumerate(situation.get("running", ())):
        answer = api("POST", PODS, whole_pod({**spec, "nodeName": "local"}, f"running-{index}"))
        assert answer.status == 201, answer
    answer = api("POST", PODS, whole_pod(situation["pod"], "asking"))
    assert answer.status == 201, answer


def message(api: Api) -> str | None:
    """What the scheduler says of the pod; empty if it has a node, None if nothing yet."""
    pod = api("GET", f"{PODS}/asking").body
    if pod["spec"].get("nodeName"):
        return ""
    conditions = pod["status"].get("conditions", [])
    found = [
        one["message"] for one in conditions if (one["type"], one.get("reason")) == ("PodScheduled", "Unschedulable")
    ]
    return found[0] if found else None


def says(api: Api, situation: Json) -> str | None:
    """The scheduler's words about a situation, which are awaited to be the recorded ones."""
    set_up(api, situation)
    wait_until(lambda: message(api) == situation["message"], _LONGEST, every=0.1)
    return message(api)


@contextmanager
def real_scheduler() -> Iterator[Api]:
    plane = ControlPlane(default_data(f"pytest-{os.getpid()}-scheduler"), die_with_parent=True)
    plane.up(OPTIONS)
    try:
        yield plane.api
    finally:
        plane.down()


def main() -> int:
    found = situations()
    with real_scheduler() as api:
        for situation in found:
            set_up(api, situation)
            wait_until(lambda: message(api) is not None, _LONGEST, every=0.1)
            time.sleep(_SETTLED)
            situation["message"] = message(api)
    lines = ",\n".join(json.dumps(each) for each in found)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
