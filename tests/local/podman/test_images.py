"""Where images come from: names, policies, pulls from a registry on this machine, and what a pod says meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.local.node.conftest import serve
from tests.local.node.world import container_status, waiting
from tests.local.podman.conftest import IMAGE, Engine, Pods
from tests.local.podman.test_containers import command_lines, until
from trainop.local.node.agent import PodmanOptions
from trainop.runtime.objects.metadata import Json

pytestmark = pytest.mark.asyncio(loop_scope="session")


def message(pod: Json) -> str:
    return str(((container_status(pod).get("state") or {}).get("waiting") or {}).get("message") or "")


async def waits(node: Pods, name: str, reason: str) -> Json:
    return await node.until(name, lambda pod: waiting(pod) == reason)


async def end(node: Pods, name: str) -> None:
    await node.delete(name, 0)
    await node.gone(name)


async def test_never_means_never(node: Pods, engine: Engine) -> None:
    image = f"{engine.registry.address}/image:1"
    before = len(engine.registry.asked)
    name = await node.launch("true", image=image)
    pod = await waits(node, name, "ErrImageNeverPull")
    assert message(pod) == f'Container image "{image}" is not present with pull policy of Never'
    assert (await node.events(name, "ErrImageNeverPull"))[0]["message"] == message(pod)
    assert len(engine.registry.asked) == before
    engine.call("tag", IMAGE, image)  # as someone who builds the image while the pod waits
    await node.finish(name)
    engine.call("untag", IMAGE, image)


@pytest.mark.parametrize("image", ["-v", "--help", "UPPER", "a b", "image:", "a//b", "image@sha256:12", "a\nb"])
async def test_what_is_no_name_is_refused_before_podman_sees_it(node: Pods, image: str) -> None:
    name = await node.launch("true", image=image, imagePullPolicy="IfNotPresent")
    pod = await waits(node, name, "InvalidImageName")
    assert message(pod).startswith(f'Failed to apply default image tag "{image}": ')
    assert (await node.events(name, "InspectFailed"))[0]["message"] == message(pod)
    await end(node, name)


async def test_an_image_is_pulled_once_if_it_is_not_present(node: Pods, engine: Engine) -> None:
    image = f"{engine.registry.address}/image:1"
    first = await node.launch("echo", "one", image=image, imagePullPolicy="IfNotPresent")
    pod = await node.finish(first)
    assert container_status(pod)["imageID"].startswith(f"{engine.registry.address}/image@sha256:")
    assert (await node.events(first, "Pulling"))[0]["message"] == f'Pulling image "{image}"'
    assert (await node.events(first, "Pulled"))[0]["message"].startswith(f'Successfully pulled image "{image}" in ')
    asked = len(engine.registry.asked)
    second = await node.launch("echo", "two", image=image, imagePullPolicy="IfNotPresent")
    await node.finish(second)
    assert (await node.events(second, "Pulled"))[0][
        "message"
    ] == f'Container image "{image}" already present on machine'
    assert len(engine.registry.asked) == asked
    third = await node.launch("echo", "three", image=image, imagePullPolicy="Always")
    await node.finish(third)
    assert len(engine.registry.asked) > asked
    engine.call("rmi", image)


async def test_an_image_that_cannot_be_pulled_waits_longer_and_longer(node: Pods, engine: Engine) -> None:
    image = f"{engine.registry.address}/absent:1"
    name = await node.launch("true", image=image, imagePullPolicy="IfNotPresent")
    other = await node.launch("true")
    pod = await waits(node, name, "ErrImagePull")
    assert f"{engine.registry.address}/absent" in message(pod)
    pod = await waits(node, name, "ImagePullBackOff")
    assert message(pod).startswith(f'Back-off pulling image "{image}": ErrImagePull: ')
    failed = [each["message"] for each in await node.events(name, "Failed")]
    assert failed[0].startswith(f'Failed to pull image "{image}": ')
    assert (await node.events(name, "BackOff"))[0]["message"] == f'Back-off pulling image "{image}"'
    assert (await node.finish(other))["status"]["phase"] == "Succeeded", "others do not wait"
    asked = len(engine.registry.asked)
    await until(lambda: len(engine.registry.asked) > asked)
    await end(node, name)


async def test_a_registry_that_nobody_serves_is_named(node: Pods) -> None:
    name = await node.launch("true", image="127.0.0.1:1/image:1", imagePullPolicy="Always")
    pod = await waits(node, name, "ErrImagePull")
    assert "127.0.0.1:1" in message(pod)
    await end(node, name)


@pytest_asyncio.fixture(loop_scope="session")
async def short_lived(engine: Engine, tmp_path: Any) -> AsyncIterator[Pods]:
    """A node that ends with the test."""
    async for world in serve(Pods(tmp_path / "node", "addresses", podman=PodmanOptions())):
        yield world  # type: ignore[misc]  # the one that is served


async def test_a_pull_that_hangs_ends_with_the_last_pod_that_waits_for_it(node: Pods, engine: Engine) -> None:
    image = f"{engine.registry.address}/hanging:1"
    names = [await node.launch("true", image=image, imagePullPolicy="Always") for _ in range(2)]
    await asyncio.to_thread(engine.registry.asked_to_hang.wait, 60)
    one = 1 if os.geteuid() == 0 else 2  # processes: an ordinary user's podman has a child
    assert len(pulls(image)) == one
    assert (await node.finish(await node.launch("true")))["status"]["phase"] == "Succeeded", "others do not wait"
    await end(node, names[0])
    assert len(pulls(image)) == one
    await end(node, names[1])
    await until(lambda: not pulls(image))


def pulls(image: str) -> list[str]:
    return [each for each in command_lines() if "\0pull\0" in each and image in each]


async def test_a_pull_that_hangs_ends_with_the_node(engine: Engine, short_lived: Pods) -> None:
    image = f"{engine.registry.address}/hanging:2"
    await short_lived.launch("true", image=image, imagePullPolicy="Always")
    await until(lambda: bool(pulls(image)))
    short_lived.node.kill_pods()
    await until(lambda: not pulls(image))
