"""The init container of an MPIJob's launcher (transport exec), as the operator makes it, on the embedded node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas
from tests.local.node.world import World
from trainop.runtime.objects.metadata import CONFIG_MAPS, Json

pytestmark = pytest.mark.asyncio(loop_scope="session")

KUBECTL = """\
#!/bin/sh
output="--no-headers --output custom-columns=NAME:.metadata.name,PHASE:.status.phase"
[ "$*" = "get pods $WORKERS --namespace bar $output" ] || { echo "unexpected: $*"; exit; }
echo >> /marks/calls
case $(wc -l < /marks/calls) in
1) ;;
2) echo "Error from server (Forbidden): pods is forbidden" >&2; exit 1 ;;
3) echo "foo-worker-0   Running"; echo "foo-worker-1   Pending" ;;
*) for worker in $WORKERS; do echo "$worker   Running"; done ;;
esac
"""
"""Answers with no pod, an error, one running pod, and then with all."""


def launcher_of(workers: int, **fields: Any) -> tuple[Json, MpiWorld]:
    """The pod spec of the launcher, and its job."""
    world = MpiWorld(mpi_job(workers, transport="exec", **fields), ssh=False)
    world.settle()
    spec: Json = world.pods["foo-launcher"]["spec"]
    return spec, world


@pytest.mark.parametrize("gpu", [False, True], ids=["launcher", "launcher that is a host"])
async def test_the_launcher_waits_until_all_workers_run(isolated: World, gpu: bool) -> None:
    limits = {"limits": {"nvidia.com/gpu": 1}} if gpu else {}
    spec, job = launcher_of(2, launcher=replicas(1, resources=limits))
    (waiting,) = (each for each in spec["initContainers"] if each["name"] == "wait-for-workers")
    name = f"launcher-{'gpu' if gpu else 'cpu'}"
    await isolated.make(CONFIG_MAPS, name, data={**job.config, "kubectl": KUBECTL})
    mounts = [{"name": "config", "mountPath": "/etc/mpi"}, {"name": "marks", "mountPath": "/marks"}]
    pod = await isolated.start(
        *waiting["command"],
        name=name,
        main={
            "env": [
                *waiting["env"],
                {"name": "WORKERS", "value": "foo-worker-0 foo-worker-1"},
            ],
            "workingDir": "/",
            "volumeMounts": [*mounts, {"name": "kubectl", "mountPath": "/opt/kube"}],
        },
        volumes=[
            {"name": "config", "configMap": {"name": name}},
            {"name": "kubectl", "configMap": {"name": name, "defaultMode": 0o555}},
            {"name": "marks", "emptyDir": {}},
        ],
    )
    ended = await isolated.finish(pod)
    assert ended["status"]["phase"] == "Succeeded"
    waited = [f"{count} of 2 workers are running, 2 are left" for count in (0, 0, 1)]
    assert sorted((await isolated.log(pod)).splitlines()) == [
        *waited,
        "Error from server (Forbidden): pods is forbidden",
    ]


async def test_a_job_without_workers_does_not_wait() -> None:
    spec, _ = launcher_of(0)
    assert [each["name"] for each in spec["initContainers"]] == ["kubectl-delivery"]
