"""The broken jobs that need a cluster, on a real kube-apiserver.

A simulated scheduler and kubelet act on their pods as the real ones do: there are two nodes without GPUs and without
labels, and a registry and a storage without anything.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.broken import Broken, broken
from tests.server.world import CORE, Json, World
from trainop.programs.schemes import all_kinds

CLUSTER = broken("cluster")
PATHS = {"ResourceQuota": "resourcequotas", "LimitRange": "limitranges", "Pod": "pods"}


def schedule(pod: Json) -> str:
    """Why the scheduler finds no node; empty if it finds one."""
    spec = pod["spec"]
    wanted = [name for each in spec["containers"] for name in each.get("resources", {}).get("limits", {})]
    if "nvidia.com/gpu" in wanted:
        return "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    if spec.get("nodeSelector"):
        return "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    claims = [
        each["persistentVolumeClaim"]["claimName"]
        for each in spec.get("volumes", ())
        if "persistentVolumeClaim" in each
    ]
    return f'0/2 nodes are available: persistentvolumeclaim "{claims[0]}" not found.' if claims else ""


def run(pod: Json) -> Json:
    """The status that the kubelet reports."""
    container = pod["spec"]["containers"][0]
    state: Json = {"running": {"startedAt": "2024-01-01T00:00:00Z"}}
    if container["image"].startswith("registry.example/"):
        text = f'Back-off pulling image "{container["image"]}": not found'
        state = {"waiting": {"reason": "ImagePullBackOff", "message": text}}
    status = {"name": container["name"], "image": container["image"], "imageID": "", "ready": False, "restartCount": 0}
    phase = "Running" if "running" in state else "Pending"
    scheduled = {"type": "PodScheduled", "status": "True"}
    return {"phase": phase, "conditions": [scheduled], "containerStatuses": [{**status, "state": state}]}


class Node:
    """Acts on each pod once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: set[str] = set()

    def act(self) -> None:
        for name, pod in self._world.pods().items():
            if name not in self._seen and pod["metadata"].get("ownerReferences"):
                self._seen.add(name)
                if reason := schedule(pod):
                    state = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason}
                    self._world.set_pod(name, {"phase": "Pending", "conditions": [state]})
                else:
                    self._world.set_pod(name, run(pod))


@pytest.fixture(params=CLUSTER, ids=lambda each: each.name)
def example(request: pytest.FixtureRequest, world: World) -> Broken:
    made: Broken = request.param
    for each in made.others:
        world.ask("POST", f"{CORE}/{PATHS[each['kind']]}", each)
        if each["kind"] == "ResourceQuota":  # there is no controller that computes it
            hard = each["spec"]["hard"]
            status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
            world.ask(
                "PATCH",
                f"{CORE}/resourcequotas/{each['metadata']['name']}/status",
                status,
                "application/merge-patch+json",
            )
    (resource,) = (
        kind.resource
        for kind in all_kinds()
        if (kind.resource.kind, kind.resource.api_version) == (made.job["kind"], made.job["apiVersion"])
    )
    world.ask("POST", resource.path("{namespace}"), made.job)
    return made


def test_the_cause_is_named(example: Broken, world: World, control_plane: ControlPlane):
    node = Node(world)
    command = [sys.executable, "-m", "trainop", "why", example.target, "-n", world.namespace]
    command.append(f"--kubeconfig={control_plane.kubeconfig}")

    def ask() -> tuple[str, int]:
        node.act()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout, done.returncode

    example.explain(ask)
