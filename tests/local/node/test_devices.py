"""Each container gets GPUs of its own: what kubelet's device manager does, and pods on a node with an inventory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.local.node.conftest import serve
from tests.local.node.world import World, container_status
from trainop.local.node.devices import GPU, VISIBLE, DeviceError, Devices
from trainop.local.scheduler.filters import Leniency
from trainop.runtime import NODES, Json

KNOWN = ("gpu-a", "gpu-b", "gpu-c")


def container(name: str, gpus: int = 0, **fields: Any) -> Json:
    return {"name": name, "resources": {"limits": {GPU: str(gpus)}} if gpus else {}, **fields}


def seen(devices: Devices, uid: str, name: str, **given: str) -> str | None:
    return devices.variables(uid, name, given).get(VISIBLE)


def test_each_container_has_its_own():
    devices = Devices(KNOWN)
    devices.allocate("p", {"containers": [container("one", 2), container("two", 1), container("none")]})
    assert [seen(devices, "p", name) for name in ("one", "two", "none")] == ["gpu-a,gpu-b", "gpu-c", ""]


def test_a_pod_keeps_its_devices_until_it_is_released():
    devices = Devices(KNOWN)
    spec = {"containers": [container("main", 2)]}
    devices.allocate("p", spec)
    devices.allocate("p", spec)  # set up again
    with pytest.raises(DeviceError) as error:
        devices.allocate("q", spec)
    assert str(error.value) == (
        "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
        "Requested: 2, Available: 1, which is unexpected"
    )
    devices.release("p")
    devices.release("p")
    devices.allocate("q", spec)
    assert seen(devices, "q", "main") == "gpu-a,gpu-b"


def test_devices_of_init_containers_are_used_again():
    devices = Devices(KNOWN)
    inits = [container("first", 1), container("beside", 1, restartPolicy="Always"), container("second", 2)]
    devices.allocate("p", {"initContainers": inits, "containers": [container("main", 2)]})
    assert [seen(devices, "p", name) for name in ("first", "beside", "second", "main")] == [
        "gpu-a",
        "gpu-a",  # a sidecar takes it over
        "gpu-b,gpu-c",
        "gpu-b,gpu-c",
    ]


@pytest.mark.parametrize(
    ("given", "shown"),
    [("0", "gpu-b"), ("1,0", "gpu-c,gpu-b"), ("0,5", "gpu-b"), ("GPU-x", None), ("", None)],
)
def test_indices_are_those_of_the_container(given: str, shown: str | None):
    """None: the value of the manifest stays as it is."""
    devices = Devices(KNOWN)
    devices.allocate("p", {"containers": [container("one", 1), container("two", 2), container("none")]})
    assert seen(devices, "p", "two", CUDA_VISIBLE_DEVICES=given) == shown
    assert seen(devices, "p", "none", CUDA_VISIBLE_DEVICES=given) is None


def test_a_machine_without_gpus_changes_no_variable():
    devices = Devices()
    devices.allocate("p", {"containers": [container("main")]})
    assert seen(devices, "p", "main") is None


def test_allow_cpu():
    devices = Devices(("gpu-a",), allow_cpu=True)
    devices.allocate("p", {"containers": [container("one", 1), container("two", 1)]})  # two together
    assert [seen(devices, "p", name) for name in ("one", "two")] == ["", ""]
    devices.allocate("q", {"containers": [container("main", 1)]})
    assert seen(devices, "q", "main") == "gpu-a"


# Pods -----------------------------------------------------------------------------------------------------------------

PRINT = ("sh", "-c", "echo =$CUDA_VISIBLE_DEVICES=")
WAIT = ("sh", "-c", "echo =$CUDA_VISIBLE_DEVICES=; while [ ! -e stop ]; do sleep 0.05; done")
ONE: Json = {"resources": {"limits": {GPU: "1"}}}
TWO: Json = {"resources": {"limits": {GPU: "2"}}}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gpus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A node with two GPUs."""
    directory = tmp_path_factory.mktemp("gpus")
    async for world in serve(World(directory, "addresses", gpus=("gpu-a", "gpu-b"))):
        yield world


def refusal(pod: Json) -> str:
    conditions = {one["type"]: one for one in pod.get("status", {}).get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") != "False":
        return ""
    assert scheduled["reason"] == "Unschedulable"
    return str(scheduled["message"])


@pytest.mark.asyncio(loop_scope="session")
async def test_the_node_has_them(gpus: World):
    status = (await gpus.client.get(NODES, "local"))["status"]
    assert (status["capacity"][GPU], status["allocatable"][GPU]) == ("2", "2")


@pytest.mark.asyncio(loop_scope="session")
async def test_pods_wait_for_a_gpu_and_get_that_of_one_that_has_ended(gpus: World):
    first = await gpus.start("sleep", "60", main=ONE, terminationGracePeriodSeconds=0)
    second = await gpus.start(*PRINT, main=ONE)
    third = await gpus.start("sleep", "60", main=ONE, terminationGracePeriodSeconds=0)
    await gpus.running(first)
    await gpus.finish(second)
    await gpus.running(third)
    waits = await gpus.start(*PRINT, main=ONE)
    pod = await gpus.until(waits, lambda each: bool(refusal(each)))
    assert pod["status"]["phase"] == "Pending"
    assert refusal(pod) == (
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. "
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )
    (event,) = await gpus.events(waits, "FailedScheduling")
    assert (event["type"], event["message"]) == ("Warning", refusal(pod))
    assert event["source"]["component"] == "default-scheduler"

    await gpus.delete(first)
    done = await gpus.finish(waits)
    assert done["status"]["phase"] == "Succeeded"
    assert refusal(done) == ""
    assert await gpus.log(waits) == "=gpu-a=\n"
    assert await gpus.log(second) == "=gpu-b=\n"
    await gpus.delete(third)
    await gpus.gone(third)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_restarted_container_keeps_its_gpus(gpus: World):
    script = "echo =$CUDA_VISIBLE_DEVICES=; test -e {0} || {{ touch {0}; exit 3; }}"
    marker = gpus.directory / "restarted"
    name = await gpus.start("sh", "-c", script.format(marker), main=TWO, restartPolicy="OnFailure")
    pod = await gpus.finish(name)
    assert container_status(pod)["restartCount"] == 1
    assert await gpus.log(name) == await gpus.log(name, previous=True) == "=gpu-a,gpu-b=\n"


@pytest.mark.asyncio(loop_scope="session")
async def test_a_container_that_asks_for_none_sees_none(gpus: World):
    name = await gpus.start(*PRINT)
    await gpus.finish(name)
    assert await gpus.log(name) == "==\n"


@pytest.mark.asyncio(loop_scope="session")
async def test_more_than_there_are(gpus: World):
    name = await gpus.start(*PRINT, main={"resources": {"limits": {GPU: "3"}}})
    pod = await gpus.until(name, lambda each: bool(refusal(each)))
    assert refusal(pod).endswith("1 Preemption is not helpful for scheduling.")
    await gpus.delete(name)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_pod_that_names_the_node_waits_for_its_gpus(gpus: World):
    holder = await gpus.start("sleep", "60", main=TWO, terminationGracePeriodSeconds=0)
    await gpus.running(holder)
    name = await gpus.start(*PRINT, main=TWO, nodeName="local")
    (event, *_) = await gpus.events(name, "UnexpectedAdmissionError")
    assert "Requested: 2, Available: 0" in event["message"]
    await gpus.delete(holder)
    await gpus.finish(name)
    assert await gpus.log(name) == "=gpu-a,gpu-b=\n"


@pytest.mark.asyncio(loop_scope="session")
async def test_leniency(tmp_path_factory: pytest.TempPathFactory):
    leniency = Leniency(overcommit=True, allow_cpu=True)
    async for world in serve(World(tmp_path_factory.mktemp("lenient"), "addresses", leniency=leniency)):
        greedy = {"cpu": "1000", "memory": "1Pi", GPU: "8", "amd.com/gpu": "1"}
        name = await world.start(*PRINT, main={"resources": {"limits": greedy}})
        assert (await world.finish(name))["status"]["phase"] == "Succeeded"
