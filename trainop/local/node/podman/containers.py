"""Containers of pods that podman runs, each from its own image.

As root, a container joins the network namespace of its pod. An ordinary user's podman cannot join it: then pods share
the network of this machine, each with its own loopback address (mode `addresses`).

No container outlives its node for long. `_Keeper` is a process that removes them when the node has ended, however it
has ended; what even that misses, the next node of this user removes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self

import msgspec

from trainop.local.node.devices import Devices
from trainop.local.node.podman.arguments import Place, own_environment, run_arguments
from trainop.local.node.podman.container import PodmanContainer
from trainop.local.node.podman.images import Images
from trainop.local.node.podman.program import Podman, is_alive, is_rootless, this_process
from trainop.local.node.pods.containers import Image, Report
from trainop.local.node.pods.environment import expand
from trainop.local.node.sandbox.running import RunningContainer, SandboxError
from trainop.local.node.sandbox.sandbox import Command, ContainerRuntime, NetworkMode
from trainop.local.node.sandbox.usage import Usage, measure
from trainop.runtime import Json

OWNER = "trainop-owner"
"""The label of each container: the process that has started it."""
_CONCURRENT = 8  # containers that start at the same time
_RESOLVER = "/etc/resolv.conf"

_KEEPER = """\
remove() { "$0" rm --force --time 0 --volumes --filter "label=$1" >/dev/null 2>&1; }
read -r _ && exit
remove "$1"; sleep 5; remove "$1"
"""
"""Removes all containers with the label `$1` if stdin ends before a line; twice, as some may have been about to
start."""


def check_network(wanted: NetworkMode | None) -> NetworkMode | None:
    """The mode of the network that pods of podman can have. Raises `SandboxError` if it is not the one wanted."""
    if not is_rootless():
        return wanted
    if wanted == "namespaces":
        raise SandboxError(
            "--runtime podman: an ordinary user's podman cannot join the network of a pod; use --network addresses, or "
            "run trainop as root"
        )
    return "addresses"


@dataclass(slots=True)
class PodmanContainers:
    """The containers of one node."""

    runtime: ContainerRuntime
    podman: Podman
    devices: Devices
    _keeper: asyncio.subprocess.Process
    _label: str
    _images: Images = field(init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENT))
    _closed: bool = False
    scheme: str = "podman"
    has_mounts: bool = True
    has_users: bool = True

    def __post_init__(self) -> None:
        self._images = Images(self.podman)

    @classmethod
    async def open(cls, runtime: ContainerRuntime, podman: Podman, devices: Devices) -> Self:
        """Also removes what earlier nodes have left. Raises `SandboxError`."""
        await remove_old(podman)
        owner = f"{this_process()}.{secrets.token_hex(4)}"
        try:
            keeper = await asyncio.create_subprocess_exec(
                *("sh", "-c", _KEEPER, podman.path, f"{OWNER}={owner}"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"sh could not be started: {error}") from error
        return cls(runtime, podman, devices, keeper, owner)

    @property
    def version(self) -> str:
        return f"podman://{self.podman.version}"

    @property
    def description(self) -> str:
        return "containers are run by podman, from their images"

    async def find_image(self, container: Json, report: Report, /) -> Image:
        return await self._images.find(container, report)

    def words(self, container: Json, environment: Mapping[str, str]) -> tuple[Sequence[str], int]:
        entry, more = (
            [expand(word, environment) for word in container.get(name) or ()] for name in ("command", "args")
        )
        return [*entry, *more], len(entry)

    def ignored(self, _container: Json, /) -> Iterable[tuple[Literal["Normal", "Warning"], str, str]]:
        return ()

    async def start(self, pod: Json, container: Json, command: Command, stdout: int, stderr: int) -> RunningContainer:
        meta, name = pod["metadata"], container["name"]
        own_name = f"trainop-{meta['name']}-{name}-{secrets.token_hex(4)}"
        await self._slots.acquire()
        namespace = -1
        try:
            network, namespace = await self._network(meta["uid"])
            devices = self.devices.assigned(meta["uid"], name)
            place = Place(own_name, network, {OWNER: self._label}, devices, self._images.user(command.image))
            arguments = run_arguments(pod, container, self._fit(command), place)
            environment = own_environment(command.environment)
            starting = await self.podman.spawn(*arguments, environment=environment, stdout=stdout, stderr=stderr)
        except BaseException:
            self._on_start(namespace)
            raise
        found = PodmanContainer(self.podman, own_name, self._spawn)
        self._spawn(found.follow(starting, partial(self._on_start, namespace)))
        return found

    def _on_start(self, namespace: int) -> None:
        """The call that starts a container has ended."""
        self._slots.release()
        if namespace >= 0:
            os.close(namespace)

    def _fit(self, command: Command) -> Command:
        """In mode `addresses`, the DNS server is that of this machine."""
        if self.runtime.network == "namespaces":
            return command
        return replace(command, mounts=[each for each in command.mounts if each.target != _RESOLVER])

    async def _network(self, uid: str) -> tuple[str, int]:
        """The option `--network` for a pod, and a descriptor that has to stay open until its container runs."""
        if self.runtime.network == "addresses":
            return "host", -1
        namespace = await self.runtime.network_of(uid)
        return f"ns:/proc/{os.getpid()}/fd/{namespace}", namespace

    async def usage(self, running: Iterable[RunningContainer]) -> tuple[dict[RunningContainer, Usage], Usage]:
        by_pid = {each.pid: each for each in running if each.pid}
        used, machine = await measure(0, by_pid, nested=False)
        return {by_pid[pid]: found for pid, found in used.items()}, machine

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with suppress(SandboxError):  # then the next node removes them
            label = f"label={OWNER}={self._label}"
            await self.podman.call("rm", "--force", "--time=0", "--volumes", "--filter", label)
        if self._keeper.stdin is not None:
            self._keeper.stdin.write(b"\n")
            self._keeper.stdin.close()
        await self._keeper.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def remove_old(podman: Podman) -> int:
    """Removes the containers of nodes that have ended without doing so; returns how many. Raises `SandboxError`."""
    done = await podman.call("ps", "--all", "--filter", f"label={OWNER}", "--format", "json")
    if done.code:
        raise SandboxError(f"podman ps: {done.problem}")
    try:
        found = msgspec.json.decode(done.output or "[]", type=list[Json])
        owners = {each["Id"]: each["Labels"][OWNER] for each in found}
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise SandboxError(f"podman ps says nothing that is understood: {error!r}") from error
    if old := [id_ for id_, owner in owners.items() if not is_alive(owner.rpartition(".")[0])]:
        await podman.call("rm", "--force", "--time=0", "--volumes", "--ignore", "--", *old)
    return len(old)


async def clean_up() -> int:
    """Removes the containers that ended nodes have left, if there is podman here; returns how many."""
    path = shutil.which("podman")
    with suppress(SandboxError):  # whoever does not use podman is not to hear of it
        return await remove_old(Podman(path)) if path is not None else 0
    return 0
